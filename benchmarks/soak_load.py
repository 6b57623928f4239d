"""The clients of soak.py: threads that send mixed requests to a server and check the answers."""

import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from serving import TOKEN

THREADS = 4
PAUSE = 0.15  # seconds between two requests of a thread, on average
FOLDER = 40  # images of a folder that is scored as a job
NEAR = 1e-4  # by which a score may differ in another batch

Answer = tuple[int, bytes]


class Load:
    """`start` sends requests until `stop`; `told` says what was sent and what was wrong."""

    def __init__(self, port: int, project: Path, images: Sequence[Path], seed: int) -> None:
        self.port, self.project, self.images = port, project, images
        self.sent: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.known: dict[int, float] = {}  # image → its score, as first answered
        self.jobs: list[int] = []
        self.ended = threading.Event()
        self.names = 0
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed + k),))
            for k in range(THREADS)
        ]
        self.folder = project / "new" / "folder"
        self.folder.mkdir(parents=True)
        for image in images[:FOLDER]:
            (self.folder / image.name).write_bytes(image.read_bytes())

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.ended.set()
        for thread in self._threads:
            thread.join()

    def told(self) -> dict[str, Any]:
        return {
            "requests": sum(self.sent.values()),
            "kinds": dict(sorted(self.sent.items())),
            "jobs": len(self.jobs),
            "wrong answers": len(self.wrong),
            "examples": self.wrong[:5],
        }

    def _run(self, chance: random.Random) -> None:
        kinds: dict[str, tuple[int, Callable[[random.Random], None]]] = {
            "one image": (30, lambda c: self._score(c, 1)),
            "eight images": (15, lambda c: self._score(c, 8)),
            "a heatmap": (4, lambda c: self._score(c, 1, heatmap="true")),
            "a broken image": (6, self._broken),
            "half a request": (5, self._half),
            "a wrong token": (5, self._stranger),
            "a bad path": (4, self._bad_path),
            "an upload in parts": (5, self._upload),
            "a folder": (1, self._folder),
            "a mark": (5, self._mark),
            "a photo or heat of a row": (6, self._row),
            "a table or archive": (2, self._download),
            "a stream of events": (2, self._events),
            "a list": (10, self._list),
        }
        names, weights = list(kinds), [weight for weight, _ in kinds.values()]
        while not self.ended.wait(chance.expovariate(1 / PAUSE)):
            name = chance.choices(names, weights)[0]
            with self._lock:
                self.sent[name] += 1
            try:
                kinds[name][1](chance)
            except Exception as error:
                with self._lock:
                    self.wrong.append(f"{name}: {type(error).__name__}: {error}"[:200])

    # ── requests ─────────────────────────────────────────────────────────────────────────────

    def _send(
        self, method: str, path: str, body: bytes | None = None, token: str = TOKEN,
        kind: str = "application/json",
    ) -> Answer:  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        code = None if body is None else json.dumps(body).encode()
        status, content = self._send(method, path, code)
        assert status < 300, (status, content[:100])
        return json.loads(content)

    def _form(self, contents: Sequence[bytes]) -> bytes:
        head = b'--x\r\nContent-Disposition: form-data; name="images"; filename="%d.png"\r\n\r\n'
        parts = [head % k + content + b"\r\n" for k, content in enumerate(contents)]
        return b"".join(parts) + b"--x--\r\n"

    def _score(self, chance: random.Random, count: int, **options: str) -> None:
        chosen = [chance.randrange(len(self.images)) for _ in range(count)]
        form = self._form([self.images[k].read_bytes() for k in chosen])
        kind = "multipart/form-data; boundary=x"
        path = f"/api/score?{urlencode({'model': 'digits', **options})}"
        status, content = self._send("POST", path, form, kind=kind)
        assert status == 200, (status, content[:100])
        for k, image in zip(chosen, json.loads(content)["images"], strict=True):
            self._same(k, image["score"])

    def _same(self, image: int, score: float) -> None:
        first = self.known.setdefault(image, score)
        assert abs(first - score) <= NEAR * max(1, abs(first)), (image, first, score)

    def _broken(self, chance: random.Random) -> None:
        whole = bytearray(chance.choice(self.images).read_bytes())
        for _ in range(8):
            whole[chance.randrange(8, len(whole))] ^= 1 + chance.randrange(255)
        form = self._form([bytes(whole[: chance.randrange(1, len(whole))])])
        status, content = self._send(
            "POST", "/api/score?model=digits", form, kind="multipart/form-data; boundary=x"
        )
        assert status == 200 and json.loads(content)["images"][0]["error"], (status, content[:100])

    def _half(self, chance: random.Random) -> None:
        """A client that goes away in the middle of a request."""
        form = self._form([chance.choice(self.images).read_bytes()])
        head = (
            f"POST /api/score?model=digits HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
            f"Authorization: Bearer {TOKEN}\r\nContent-Length: {len(form)}\r\n"
            "Content-Type: multipart/form-data; boundary=x\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(head.encode() + form[: chance.randrange(len(form))])

    def _stranger(self, chance: random.Random) -> None:
        status, _ = self._send("GET", "/api/jobs", token="1" * 40)
        assert status in (401, 403), status

    def _bad_path(self, chance: random.Random) -> None:
        name = urlencode({"path": chance.choice(["/etc", "..", "/proc/self"])})
        status, _ = self._send("GET", f"/api/folders?{name}")
        assert 400 <= status < 500, status

    def _upload(self, chance: random.Random) -> None:
        """A file in two parts, as the page sends them; some are left unfinished."""
        content = chance.choice(self.images).read_bytes()
        with self._lock:
            self.names += 1
            name = f"{self.names % 500:04}.png"
        half = len(content) // 2
        told = self._call("POST", "/api/uploads", {"target": "new/drop", "files": [[name, 10**6]]})
        assert "received" in told[0], told
        for offset, end in ((0, half), (half, len(content))):
            if offset and chance.random() < 0.2:
                return
            given = {"target": "new/drop", "path": name, "offset": offset, "size": len(content)}
            status, said = self._send(
                "PUT", f"/api/uploads?{urlencode(given)}", content[offset:end]
            )
            assert status == 200 and json.loads(said)["received"] == end, (status, said[:100])
        arrived = self.project / "new" / "drop" / name
        assert arrived.read_bytes() == content

    def _folder(self, chance: random.Random) -> None:
        job = self._call(
            "POST", "/api/models/digits/score-folder", {"folder": str(self.folder)}
        )["job"]  # fmt: skip
        until = time.monotonic() + 120
        while self._call("GET", f"/api/jobs/{job}")["state"] in ("queued", "running"):
            assert time.monotonic() < until, "a job does not end"
            time.sleep(0.3)
        rows = self._call("GET", f"/api/jobs/{job}/rows")
        assert len({row["file"] for row in rows}) == len(rows) == FOLDER, len(rows)
        for row in rows:
            number = next(k for k, f in enumerate(self.images) if f.name == Path(row["file"]).name)
            self._same(number, row["score"])
        with self._lock:
            self.jobs.append(job)

    def _some_row(self, chance: random.Random) -> int | None:
        if not self.jobs:
            return None
        rows = self._call("GET", f"/api/jobs/{chance.choice(self.jobs[-20:])}/rows")
        return int(chance.choice(rows)["id"])

    def _mark(self, chance: random.Random) -> None:
        if (row := self._some_row(chance)) is not None:
            mark = chance.choice(["normal", "anomalous", "none"])
            assert "mark" in self._call("POST", f"/api/rows/{row}/mark", {"mark": mark})

    def _row(self, chance: random.Random) -> None:
        if (row := self._some_row(chance)) is not None:
            kind = chance.choice(["photo", "heat"])
            status, content = self._send("GET", f"/api/rows/{row}/{kind}")
            assert status == 200 and content[:4] in (b"\x89PNG", b"\xff\xd8\xff\xe0"), status

    def _download(self, chance: random.Random) -> None:
        if self.jobs:
            what = chance.choice(["table.csv", "flagged.zip"])
            job = chance.choice(self.jobs[-20:])
            status, content = self._send("GET", f"/api/jobs/{job}/{what}?alpha=0.2")
            assert status == 200 and content, status
            if what == "table.csv":
                assert content.count(b"\n") == FOLDER + 1, content.count(b"\n")

    def _events(self, chance: random.Random) -> None:
        """A page that is open for a moment."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        connection.request("GET", "/api/events", headers={"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.status
        with suppress(TimeoutError):
            answer.read(chance.choice([1, 2000]))
        connection.close()

    def _list(self, chance: random.Random) -> None:
        path = chance.choice(["/api/jobs", "/api/models", "/api/state", "/metrics", "/health", "/"])
        status, content = self._send("GET", path)
        assert status == 200 and content, (path, status)
