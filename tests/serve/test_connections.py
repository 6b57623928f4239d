"""Headers, slow senders and many connections: what SECURITY.md promises, tried."""

import http.client
import re
import socket
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from brightness import DARK, NORMAL, draw
from browser import wait_until
from running_server import TOKEN, multipart, post_images, running

from anocaps.serve.project import Limits

HERE = Path(__file__).parent


def answer_to(port, request):
    """All that the server says until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(request)
        parts = iter(lambda: client.recv(10_000), b"")
        return b"".join(parts).decode()


def head_of_post(port, *headers):
    form = "Content-Type: multipart/form-data; boundary=x"
    lines = ["POST /api/score HTTP/1.1", f"Host: 127.0.0.1:{port}", form, *headers]
    return "\r\n".join([*lines, f"Authorization: Bearer {TOKEN}", "", ""]).encode()


# ── headers and bodies ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", ["", "\r\n\r\n"])
@pytest.mark.parametrize("pause", [0, 0.1])
@pytest.mark.parametrize(
    ("query", "rest"),
    [("", "X: " + "x" * 20_000), ("", "X:\r\n" * 5000 + "X:"), ("x" * 20_000, "X:")],
)
def test_long_headers_are_refused_without_a_token(server, query, rest, pause, end):
    head = f"GET /health?{query} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{rest}".encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(head[:10_000])
        time.sleep(pause)
        client.sendall(head[10_000:] + end.encode())
        assert b" 400 " in client.recv(10_000).splitlines()[0]


@pytest.mark.parametrize("rest", [b"0\r\nX: ", b"5;"])
def test_endless_trailers_and_descriptions_of_chunks_are_refused(server, rest):
    head = head_of_post(server.port, "Transfer-Encoding: chunked", "Expect: 100-continue")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(head)
        assert b" 100 " in client.recv(10_000)
        client.sendall(rest + b"x" * 20_000)
        assert b" 400 " in client.recv(10_000).splitlines()[0]


def with_offer(port, image, offer):
    """A request for scores that offers another protocol, as curl --http2 and Java's client do."""
    body, kind = multipart(("a.png", image))
    lines = ["POST /api/score HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Content-Type: {kind}"]
    lines += [f"Authorization: Bearer {TOKEN}", f"Content-Length: {len(body)}"]
    lines += ["Connection: Upgrade, HTTP2-Settings", f"Upgrade: {offer}", "HTTP2-Settings: AAM", ""]
    return "\r\n".join([*lines, ""]).encode(), body


@pytest.mark.parametrize("offer", ["h2c", "websocket"])
@pytest.mark.parametrize("cut", [0, 40, -3, None])
def test_an_offer_of_another_protocol_is_ignored(server, tmp_path, offer, cut):
    head, body = with_offer(server.port, draw(tmp_path / "a.png", NORMAL).read_bytes(), offer)
    last = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n"
    request = (head + body) * 2 + last.encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        if cut is not None:  # in two pieces
            client.sendall(request[: len(head) + cut])
            time.sleep(0.1)
            request = request[len(head) + cut :]
        client.sendall(request)
        answer = b"".join(iter(lambda: client.recv(10_000), b""))
    assert answer.count(b"HTTP/1.1 200 OK") == 3 and answer.count(b'"verdict":"normal"') == 2


def test_many_offers_in_one_piece(server):
    offer = "GET /health HTTP/1.1\r\nUpgrade: h2c\r\nConnection: {}\r\nHost: 127.0.0.1:{}\r\n\r\n"
    many = offer.format("Upgrade", server.port) * 1200 + offer.format("close", server.port)
    assert answer_to(server.port, many.encode()).count("HTTP/1.1 200 OK") == 1201


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_an_offer_on_a_connection_that_ends(server, version):
    lines = [f"GET /health HTTP/{version}", f"Host: 127.0.0.1:{server.port}", "Upgrade: h2c"]
    request = "\r\n".join([*lines, "Connection: upgrade, close", "", ""])
    assert " 200 " in answer_to(server.port, request.encode()).splitlines()[0]


def test_the_server_is_no_proxy(server):
    answer = answer_to(server.port, b"CONNECT example.org:80 HTTP/1.1\r\nHost: a\r\n\r\nx")
    assert " 400 " in answer.splitlines()[0]


def test_a_long_body_is_refused_before_it_is_read(server):
    request = head_of_post(server.port, f"Content-Length: {10**12}")
    assert " 413 " in answer_to(server.port, request).splitlines()[0]


def test_a_body_that_does_not_say_its_length(bright, tmp_path):
    with running(tmp_path, limits=Limits(body=10_000)) as server:
        form = b'--x\r\nContent-Disposition: form-data; name="i"; filename="a.png"\r\n\r\n'
        part = form + b"y" * 10_000
        request = head_of_post(server.port, "Transfer-Encoding: chunked")
        request += f"{len(part):x}\r\n".encode() + part + b"\r\n"
        assert " 413 " in answer_to(server.port, request).splitlines()[0]
        assert not list((tmp_path / "incoming").iterdir())


def test_a_refused_body_frees_its_place(bright, tmp_path):
    limits = Limits(image=1000, receiving=1)
    with (
        running(tmp_path, limits=limits) as server,
        slow_sender(server.port, sent=b"x" * 2000) as client,
    ):
        assert b" 413 " in client.recv(10_000).splitlines()[0]
        assert post_images(server, ("a.png", b"x"))[0] == 200


# ── slow senders ─────────────────────────────────────────────────────────────────────────────────


def slow_sender(port, sent=b""):
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    part = b'--x\r\nContent-Disposition: form-data; name="i"; filename="a.png"\r\n\r\n'
    client.sendall(head_of_post(port, "Content-Length: 20000000") + part + sent)
    return client


def test_slow_senders_do_not_hold_the_server(bright, tmp_path):
    with running(tmp_path, limits=Limits(receiving=3)) as server:
        slow = [slow_sender(server.port) for _ in range(3)]
        image = draw(tmp_path / "a.png", NORMAL).read_bytes()
        wait_until(lambda: post_images(server, ("a.png", image))[0] == 503)
        status, headers, _ = post_images(server, ("a.png", image))
        assert status == 503 and int(headers["retry-after"]) > 0
        assert server.send("GET", "/api/models")[0] == 200  # what has no body is answered
        for each in slow:
            each.close()
        wait_until(lambda: post_images(server, ("a.png", image))[0] == 200)


def test_a_slow_body_is_given_up(bright, tmp_path, monkeypatch):
    monkeypatch.setattr("anocaps.serve.security._GRACE", 0.2)
    monkeypatch.setattr("anocaps.serve.security._SLOWEST", 10**9)
    with running(tmp_path) as server, slow_sender(server.port) as client:
        assert b" 408 " in client.recv(10_000).splitlines()[0]


@contextmanager
def own_process(folder, *before):
    """Number and port of a server in a process of its own."""
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    words = [*before, sys.executable, HERE / "serve_bright.py", folder / "project", token]
    with (
        open(folder / "errors", "w") as errors,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            yield process.pid, int(re.search(r":(\d+)/", process.stdout.readline())[1])
        finally:
            process.kill()


ANSWERED = "GET /health HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n"
WITH_BODY = "POST /health HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nContent-Length: 999\r\n\r\n"


@pytest.mark.parametrize("before", ["", ANSWERED])
@pytest.mark.parametrize(
    ("sent", "then"), [("", ""), ("", "\r\n"), ("GET /", "x"), (WITH_BODY, "x")]
)
def test_slow_headers_and_silent_clients_are_given_up(bright, tmp_path, before, sent, then):
    """Also after an answer, and if the body of an answered request comes slowly."""
    with (
        running(tmp_path, keep_alive=0.5) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=0.05) as client,
    ):
        started = time.monotonic()
        client.sendall((before + sent).replace("PORT", str(server.port)).encode())
        with suppress(ConnectionError):
            while time.monotonic() - started < 30:
                with suppress(TimeoutError):
                    if not client.recv(10_000):
                        break
                client.sendall(then.encode())
        assert 0.4 < time.monotonic() - started < 30


def test_a_request_may_take_longer_than_its_headers(bright, tmp_path):
    image = draw(tmp_path / "a.png", NORMAL).read_bytes()
    with running(tmp_path / "project", keep_alive=0.3) as server:
        body, kind = multipart(("a.png", image))
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        for _ in range(2):  # on one connection
            client.putrequest("POST", "/api/score")
            client.putheader("Authorization", f"Bearer {TOKEN}")
            client.putheader("Content-Type", kind)
            client.putheader("Content-Length", str(len(body)))
            client.endheaders(body[:100])
            time.sleep(0.6)
            client.send(body[100:])
            answer = client.getresponse()
            assert answer.status == 200 and b"normal" in answer.read()
        client.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sets the limit of open files")
def test_clients_leave_files_for_the_server(tmp_path):
    """More clients come than the system allows open files: those who are in are served."""
    image = draw(tmp_path / "a.png", NORMAL).read_bytes()
    with own_process(tmp_path, "bash", "-c", 'ulimit -n 200 && exec "$@"', "bash") as (_, port):
        assert send_image(port, image) == 200
        inside = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        inside.request("GET", "/health", headers={"Host": f"127.0.0.1:{port}"})
        assert inside.getresponse().read()
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
        for client in clients:
            with suppress(OSError):  # it was closed
                client.sendall(b"GET /hea")
        assert send_image(port, image, inside) == 200
        for client in clients:
            client.close()
        wait_until(lambda: send_image(port, image) == 200)
    assert (tmp_path / "errors").read_text() == ""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_with_a_thousand_slow_senders(tmp_path):
    """1,000 clients begin to send a large file: memory grows by less than 250 MB."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("the system allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    with own_process(tmp_path) as (pid, port):
        image = draw(tmp_path / "a.png", DARK).read_bytes()
        send_image(port, image)
        before = resident(pid)
        clients = [slow_sender(port, sent=b"\x89PNG" * 16_000) for _ in range(1000)]
        for _ in range(3):
            for client in clients:
                with suppress(OSError):  # refused with 503
                    client.sendall(b"x" * 1000)
            time.sleep(0.2)
        grown = resident(pid) - before
        assert grown < 250e6
        for client in clients:
            client.close()
        wait_until(lambda: send_image(port, image) == 200)  # their places are free again
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident(number):
    """Bytes of memory of a process."""
    status = Path(f"/proc/{number}/status").read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])


def send_image(port, image, connection=None):
    """The status; None if the server closes the connection."""
    body, kind = multipart(("a.png", image))
    connection = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Content-Type": kind, "Authorization": f"Bearer {TOKEN}"}
    with closing(connection), suppress(ConnectionError):
        connection.request("POST", "/api/score", body, headers)
        answer = connection.getresponse()
        assert answer.read()
        return answer.status
