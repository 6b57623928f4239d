"""A client of the API, with the standard library alone; copy it into any program.

client = Client("http://127.0.0.1:8765", token)
for image in client.score(["cup.jpg", "plate.jpg"])["images"]:
    print(image["file"], image["verdict"], image["p_value"])
"""

import json
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen


class Client:
    def __init__(self, address: str, token: str, patience: float = 60.0) -> None:
        self.address, self.token, self.patience = address.rstrip("/"), token, patience

    def score(self, files: Iterable[str | Path], **options: Any) -> Any:
        """Score image files; options are model, alpha and heatmap."""
        edge, body = secrets.token_hex(16), bytearray()
        for file in map(Path, files):
            name = file.name.translate({10: "%0A", 13: "%0D", 34: "%22"})  # as browsers do
            head = f'Content-Disposition: form-data; name="images"; filename="{name}"'
            body += f"--{edge}\r\n{head}\r\n\r\n".encode("utf-8", "replace")
            body += file.read_bytes() + b"\r\n"
        body += f"--{edge}--\r\n".encode()
        kind = f"multipart/form-data; boundary={edge}"
        return self.call(f"/api/score?{urlencode(options)}", bytes(body), kind)

    def score_folder(self, model: str, folder: str) -> Any:
        """Score a folder on the server, wait for the end, and return its rows."""
        body = json.dumps({"folder": folder}).encode()
        job = self.call(f"/api/models/{quote(model)}/score-folder", body)["job"]
        while (state := self.call(f"/api/jobs/{job}"))["state"] in ("queued", "running"):
            time.sleep(0.2)
        if state["state"] != "done":
            raise RuntimeError(state["error"] or state["state"])
        rows: list[Any] = []
        while some := self.call(f"/api/jobs/{job}/rows?after={rows[-1]['id'] if rows else 0}"):
            rows += some
        return rows

    def call(self, path: str, body: bytes | None = None, kind: str = "application/json") -> Any:
        """The answer as JSON. A busy server is asked again for `patience` seconds."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        until = time.monotonic() + self.patience
        while True:
            try:
                with urlopen(Request(self.address + path, body, headers)) as answer:
                    return json.load(answer)
            except HTTPError as error:
                wait = float(error.headers.get("Retry-After", 1))
                if error.code != 503 or time.monotonic() + wait > until:
                    raise RuntimeError(f"{error.code}: {error.read().decode()}") from error
                time.sleep(wait)
