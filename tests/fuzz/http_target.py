"""Requests to the server, in this process: method, path, headers and body are damaged."""

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from brightness import Brightness, draw
from mutation import as_text, damaged, damaged_json
from running_server import TOKEN, multipart
from targets import Target

from anocaps.serve import scoring
from anocaps.serve.app import create_app
from anocaps.serve.project import Project
from anocaps.serve.security import Access

_HOST = "127.0.0.1:8765"
_ALLOWED = {503, 507}  # busy, or the disk is full
_SECONDS = 20.0  # until an answer must be complete
_JSON = "application/json"


class Http(Target):
    """An input is a request as it is sent: a line of method and path, headers, a body."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seeds = tuple(_requests(draw(folder / "seed.png", 180).read_bytes()))
        project = folder / "project"
        (project / "models").mkdir(parents=True)
        (project / "models" / "bright.onnx").touch()
        self._patched = patch.object(scoring, "load_judge", lambda path, device: Brightness())
        self._patched.start()
        self.project = Project(project)
        self.app = create_app(self.project, Access(TOKEN, (f"http://{_HOST}",)))
        self.loop = asyncio.new_event_loop()

    def damage(self, random: Random, content: bytes) -> bytes:
        head, gap, body = content.partition(b"\n\n")
        way = random.random()
        if way < 0.15:
            return super().damage(random, content)
        if way < 0.35:
            return damaged(random, head, self.seeds) + gap + body
        try:
            return head + gap + as_text(random, damaged_json(random, json.loads(body))).encode()
        except (ValueError, RecursionError):
            return head + gap + damaged(random, body, self.seeds)

    def accepted(self, content: bytes) -> bool:
        head, _, body = content.partition(b"\n\n")
        line, *headers = head.split(b"\n")
        method, _, target = line.partition(b" ")
        path, _, query = target.partition(b"?")
        status = self.loop.run_until_complete(
            asyncio.wait_for(self._answer(method, path, query, headers, body), _SECONDS)
        )
        assert status < 500 or status in _ALLOWED, f"status {status}"
        return status < 400

    async def _answer(
        self, method: bytes, path: bytes, query: bytes, headers: list[bytes], body: bytes
    ) -> int:
        """The status of the complete answer to a request whose body comes in two parts."""
        pairs = [tuple(part.strip() for part in each.partition(b":")[::2]) for each in headers]
        fixed = {b"host": _HOST, b"authorization": f"Bearer {TOKEN}"}
        fixed[b"content-length"] = str(len(body))
        scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1",
            "method": method.decode("latin-1"), "scheme": "http", "root_path": "",
            "path": path.decode("utf-8", "replace"), "raw_path": path, "query_string": query,
            "headers": [*pairs, *((name, value.encode()) for name, value in fixed.items())],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8765),
        }  # fmt: skip
        half = len(body) // 2
        messages = [
            {"type": "http.request", "body": body[:half], "more_body": True},
            {"type": "http.request", "body": body[half:], "more_body": False},
            {"type": "http.disconnect"},
        ]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return messages.pop(0) if len(messages) > 1 else messages[0]

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, send)  # type: ignore[arg-type]
        return int(sent[0]["status"])

    def close(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.project.close()
        self._patched.stop()


def _requests(image: bytes) -> list[bytes]:
    form, kind = multipart(("a.png", image), ("b.png", image))
    with_body: list[tuple[str, str, bytes | Any]] = [
        ("POST /api/score", kind, form),
        ("POST /api/score?model=bright&alpha=0.1&heatmap=true", kind, form),
        ("POST /api/uploads", _JSON, {"target": "photos", "files": [["cups/1.png", 80]]}),
        ("POST /api/uploads", _JSON, {"target": "new/today", "files": [["1.png", 5]] * 3}),
        (f"PUT /api/uploads?target=new/day&path=a/1.png&offset=0&size={len(image)}", "", image),
        ("POST /api/photos", _JSON, {"folder": "/"}),
        ("PATCH /api/photos/classes", _JSON, {"source": "a", "name": "b", "excluded": True}),
        ("POST /api/models/bright/score-folder", _JSON, {"folder": "/", "watch": False}),
        ("POST /api/train", _JSON, {"mode": "quick", "false_alarms": True, "audit": 1}),
        ("POST /api/rows/1/mark", _JSON, {"mark": "normal"}),
        ("POST /api/jobs/1/audits", _JSON, {"alpha": 0.1, "among": "all", "count": 5}),
        ("POST /api/jobs/1/stop", _JSON, {}),
    ]
    paths = (
        "/", "/health", "/metrics", "/api/models", "/api/models/bright/file", "/api/jobs/1",
        "/api/state", "/api/folders?path=/", "/api/photos", "/api/photos/1/0/0?seen=true",
        "/api/jobs/1/rows?after=0&limit=5", "/api/rows/1/photo?large=true", "/api/rows/1/heat",
        "/api/models/bright/days?alpha=0.1", "/api/jobs/1/table.csv?alpha=0.1", "/static/page.js",
    )  # fmt: skip
    found = [f"GET {path}\n\n".encode() for path in paths]
    for line, each, body in with_body:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        found.append(f"{line}\ncontent-type: {each}\n\n".encode() + content)
    return found
