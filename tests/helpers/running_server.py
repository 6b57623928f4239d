"""A server in a thread of the tests, with one model, `bright`, and how to send requests to it."""

import http.client
import json
import threading
import time
from contextlib import contextmanager

import uvicorn

from anocaps.serve.app import create_app
from anocaps.serve.connections import Protocol
from anocaps.serve.project import Limits, Project
from anocaps.serve.security import Access

TOKEN = "t" * 40


class Server:
    """A running server, and how to send requests to it."""

    def __init__(self, project, port):
        self.project, self.port = project, port

    def send(self, method, path, body=None, token=TOKEN, **headers):
        """Status, headers and body of an answer; names of headers have _ for -."""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if isinstance(body, dict):
            body, headers["Content-Type"] = json.dumps(body), "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), content

    def call(self, method, path, body=None):
        """The JSON of an answer that must be good."""
        status, _, content = self.send(method, path, body)
        assert status < 300, content
        return json.loads(content)

    def wait(self, job, state="done", seconds=30):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = self.call("GET", f"/api/jobs/{job}")
            if found["state"] == state:
                return found
            assert found["state"] not in ("failed", "done"), found
            time.sleep(0.02)
        raise AssertionError(f"job {job} is not {state}: {found}")


@contextmanager
def running(folder, roots=(), limits=None, keep_alive=15):
    (folder / "models").mkdir(parents=True, exist_ok=True)
    (folder / "models" / "bright.onnx").touch()
    project = Project(folder, roots, limits=limits or Limits())
    config = uvicorn.Config(
        lambda: create_app(project, access), factory=True, port=0, log_level="error",
        timeout_graceful_shutdown=1, http=Protocol, ws="none",
        timeout_keep_alive=keep_alive,
    )  # fmt: skip
    bound = config.bind_socket()
    port = bound.getsockname()[1]
    access = Access(TOKEN, (f"http://127.0.0.1:{port}",))
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield Server(project, port)
    finally:
        server.should_exit = True
        thread.join(timeout=15)
        bound.close()


def multipart(*files):
    """Body and type of a form with these (name, content)."""
    edge = "edge-of-a-part"
    body = b""
    for name, content in files:
        head = f'Content-Disposition: form-data; name="images"; filename="{name}"'
        body += f"--{edge}\r\n{head}\r\n\r\n".encode() + content + b"\r\n"
    return body + f"--{edge}--\r\n".encode(), f"multipart/form-data; boundary={edge}"


def post_images(server, *files, query=""):
    body, kind = multipart(*files)
    return server.send("POST", f"/api/score{query}", body, Content_Type=kind)
