"""Each promise of SECURITY.md about the server, tried."""

import http.client
import io
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from brightness import DARK, NORMAL, draw
from browser import wait_until
from data_writers import png
from running_server import TOKEN, multipart, post_images, running

import anocaps.serve
from anocaps.base.errors import InputError
from anocaps.serve.project import Limits
from anocaps.serve.security import Roots, access

STATIC = Path(anocaps.serve.__file__).parent / "static"
HERE = Path(__file__).parent


@pytest.fixture
def origin(server):
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def cookie(server):
    """What the browser has after the address with the token was opened."""
    status, headers, _ = server.send("GET", f"/?token={TOKEN}", token=None)
    assert (status, headers["location"]) == (303, "/")
    return headers["set-cookie"]


# ── who may come in ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path",
    ["/", "/docs", "/openapi.json", "/metrics", "/api/models", "/api/events", "/static/a.js"],
)
def test_nothing_is_shown_without_the_token(server, path):
    assert server.send("GET", path, token=None)[0] == 401
    assert server.send("GET", path, token="x" * 40)[0] == 401


def test_health_needs_no_token(server):
    assert server.send("GET", "/health", token=None)[0] == 200


def test_the_opened_address_gives_a_strict_cookie(server, cookie):
    assert "SameSite=Strict" in cookie and "HttpOnly" in cookie and TOKEN not in cookie
    pair = cookie.partition(";")[0]
    assert server.send("GET", "/api/models", token=None, Cookie=pair)[0] == 200
    assert server.send("GET", "/api/models", token=None, Cookie=pair[:-1])[0] == 401
    assert server.send("GET", "/?token=wrong", token=None)[0] == 401


def test_another_host_is_refused(server, origin):
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1", ""):
        assert server.send("GET", "/api/models", Host=host)[0] == 421
    assert server.send("GET", "/api/models", Host=f"127.0.0.1:{server.port}")[0] == 200


def test_another_site_is_refused(server, origin, cookie):
    pair = cookie.partition(";")[0]
    train = ("POST", "/api/photos", {})
    assert server.send(*train, token=None, Cookie=pair, Origin="http://evil.example")[0] == 403
    assert server.send(*train, token=None, Cookie=pair, Origin="null")[0] == 403
    assert server.send(*train, token=None, Cookie=pair, Sec_Fetch_Site="cross-site")[0] == 403
    assert server.send(*train, token=None, Cookie=pair, Sec_Fetch_Site="same-site")[0] == 403
    assert server.send(*train, token=None, Cookie=pair)[0] == 401  # no word of its origin
    assert server.send(*train, token=None, Cookie=pair, Origin=origin)[0] == 202
    assert server.send("GET", "/", token=None, Cookie=pair, Sec_Fetch_Site="cross-site")[0] == 403


def test_other_machines_need_a_token_file(tmp_path):
    with pytest.raises(InputError, match="--token-file"):
        access("0.0.0.0", 80, False, None, None)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        access("0.0.0.0", 80, False, token, None)
    token.chmod(0o600)
    assert access("0.0.0.0", 80, False, token, None).token == TOKEN
    token.write_text("short")
    with pytest.raises(InputError, match="characters"):
        access("0.0.0.0", 80, False, token, None)


def test_a_reverse_proxy_is_named(tmp_path):
    behind = access("127.0.0.1", 80, False, None, "https://photos.example.org")
    assert "photos.example.org" in behind.hosts and behind.secure
    with pytest.raises(InputError):
        access("127.0.0.1", 80, False, None, "photos.example.org")


def test_a_browser_leaves_out_the_usual_port():
    assert {"127.0.0.1", "localhost"} < access("127.0.0.1", 80, False, None, None).hosts
    assert "localhost" in access("127.0.0.1", 443, True, None, None).hosts
    assert "localhost:443" in access("127.0.0.1", 443, False, None, None).hosts
    behind = access("127.0.0.1", 8765, False, None, "https://Photos.Example.org/")
    assert "photos.example.org" in behind.hosts


def test_tokens_differ():
    assert len({access("127.0.0.1", 80, False, None, None).token for _ in range(9)}) == 9


# ── pages ────────────────────────────────────────────────────────────────────────────────────


def test_every_answer_forbids_inline_script(server):
    for path in ("/", "/docs", "/api/models", "/health", "/no-such-page"):
        policy = server.send("GET", path)[1]["content-security-policy"]
        assert "script-src 'self';" in policy and "default-src 'none'" in policy
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert "content-security-policy" in server.send("GET", "/", token=None)[1]


def test_an_answer_to_an_unexpected_error_has_the_policy(server, monkeypatch, tmp_path):
    _, batcher = server.project.models.batcher("bright")
    monkeypatch.setattr(batcher.judge, "judge", lambda images, heat=False: 1 / 0)
    image = draw(tmp_path / "a.png", NORMAL).read_bytes()
    status, headers, content = post_images(server, ("a.png", image))
    assert status == 500 and "content-security-policy" in headers and b"division" not in content


def test_the_pages_load_nothing_from_elsewhere():
    for file in STATIC.iterdir():
        text = file.read_text("utf-8")
        assert not re.search(r"""(src|href|from|import|url)\W{1,3}(https?:)?//""", text), file
        if file.suffix == ".html":
            assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|<style|\sstyle=", text), file
        if file.suffix == ".js":
            assert "innerHTML" not in text and "eval(" not in text, file


# ── paths ────────────────────────────────────────────────────────────────────────────────────


def test_paths_outside_the_roots_are_refused(server, tmp_path):
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    draw(outside / "secret.png", NORMAL)
    link = tmp_path / "link"
    link.symlink_to(outside)
    wanted = "/api/models/bright/score-folder"
    for folder in (outside, link, tmp_path / ".." / outside.name, "/etc", "", "\0"):
        assert server.send("POST", wanted, {"folder": str(folder)})[0] == 400
        assert server.send("POST", "/api/photos", {"folder": str(folder)})[0] == 400
    for folder in (outside, link, "/"):
        assert server.send("GET", f"/api/folders?path={folder}")[0] == 400
    listed = server.call("GET", f"/api/folders?path={tmp_path}")["folders"]
    assert listed == [str(tmp_path / "project")]  # not the link
    shutil.rmtree(outside)


def test_links_inside_a_folder_are_not_followed(server, tmp_path):
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    secret = draw(outside / "secret.png", NORMAL)
    draw(tmp_path / "new" / "own.png", NORMAL)
    (tmp_path / "new" / "link.png").symlink_to(secret)
    (tmp_path / "new" / "folder").symlink_to(outside)
    job = server.call("POST", "/api/models/bright/score-folder", {"folder": f"{tmp_path}/new"})
    server.wait(job["job"])
    rows = server.call("GET", f"/api/jobs/{job['job']}/rows")
    assert [Path(row["file"]).name for row in rows] == ["own.png"]
    # A file that becomes a link after it was scored is not shown.
    (tmp_path / "new" / "own.png").unlink()
    (tmp_path / "new" / "own.png").symlink_to(secret)
    assert server.send("GET", f"/api/rows/{rows[0]['id']}/photo")[0] == 400
    address = f"/api/jobs/{job['job']}/flagged.zip?alpha=0.99"
    with zipfile.ZipFile(io.BytesIO(server.send("GET", address)[2])) as archive:
        assert archive.namelist() == []
    shutil.rmtree(outside)


def test_roots_must_exist(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        Roots([tmp_path / "missing"])


# ── sizes ────────────────────────────────────────────────────────────────────────────────────


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


def test_a_long_body_is_refused_before_it_is_read(server):
    request = head_of_post(server.port, f"Content-Length: {10**12}")
    assert " 413 " in answer_to(server.port, request).splitlines()[0]


@pytest.mark.parametrize("rest", ["X: " + "x" * 20_000, "X: x\r\n" * 3500])
def test_endless_headers_are_refused_without_a_token(server, rest):
    head = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
    answer = answer_to(server.port, (head + rest).encode())
    assert " 400 " in answer.splitlines()[0]


@pytest.mark.parametrize("rest", [b"0\r\nX: ", b"5;"])
def test_endless_trailers_and_descriptions_of_chunks_are_refused(server, rest):
    head = head_of_post(server.port, "Transfer-Encoding: chunked", "Expect: 100-continue")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(head)
        assert b" 100 " in client.recv(10_000)
        client.sendall(rest + b"x" * 20_000)
        assert b" 400 " in client.recv(10_000).splitlines()[0]


def test_a_body_that_does_not_say_its_length(bright, tmp_path):
    with running(tmp_path, limits=Limits(body=10_000)) as server:
        form = b'--x\r\nContent-Disposition: form-data; name="i"; filename="a.png"\r\n\r\n'
        part = form + b"y" * 10_000
        request = head_of_post(server.port, "Transfer-Encoding: chunked")
        request += f"{len(part):x}\r\n".encode() + part + b"\r\n"
        assert " 413 " in answer_to(server.port, request).splitlines()[0]
        assert not list((tmp_path / "incoming").iterdir())


def test_a_long_image_and_many_images(bright, tmp_path):
    with running(tmp_path, limits=Limits(image=1000)) as server:
        assert post_images(server, ("a.png", b"x" * 2000))[0] == 413
        assert post_images(server, *[(f"{k}.png", b"x") for k in range(300)])[0] == 413
        assert not list((tmp_path / "incoming").iterdir())


def test_a_refused_body_frees_its_place(bright, tmp_path):
    limits = Limits(image=1000, receiving=1)
    with (
        running(tmp_path, limits=limits) as server,
        slow_sender(server.port, sent=b"x" * 2000) as client,
    ):
        assert b" 413 " in client.recv(10_000).splitlines()[0]
        assert post_images(server, ("a.png", b"x"))[0] == 200


def test_what_a_killed_server_received_is_removed(bright, tmp_path):
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "1-0").write_bytes(b"x")
    with running(tmp_path):
        assert not list((tmp_path / "incoming").iterdir())


def test_a_full_disk(server, monkeypatch):
    full = shutil._ntuple_diskusage(10**12, 10**12 - 10**6, 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    assert post_images(server, ("a.png", b"x" * 2_000_000))[0] == 507
    query = "target=photos&path=cup/1.png&offset=0&size=100"
    assert server.send("PUT", f"/api/uploads?{query}", b"x" * 100)[0] == 507


def test_too_many_pixels(server):
    status, _, content = post_images(server, ("huge.png", png(60_000, 60_000)))
    assert status == 200 and b"million pixels" in content


def test_a_broken_form(server):
    for body in (b"", b"--x\r\n", b"nonsense"):
        kind = "multipart/form-data; boundary=x"
        assert server.send("POST", "/api/score", body, Content_Type=kind)[0] == 400
    assert server.send("POST", "/api/score", b"x", Content_Type="text/plain")[0] == 415
    assert post_images(server, ("a" * 3000, b"x"))[0] == 431


# ── many clients ─────────────────────────────────────────────────────────────────────────────


def test_a_full_queue_asks_to_come_back(server, monkeypatch):
    monkeypatch.setattr("anocaps.serve.scoring.MOST_WAITING", 2)
    image = draw(server.project.folder / "a.png", NORMAL).read_bytes()
    status, headers, _ = post_images(server, *[("a.png", image)] * 3)
    assert status == 503 and int(headers["retry-after"]) > 0
    assert post_images(server, *[("a.png", image)] * 2)[0] == 200


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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_with_a_thousand_slow_senders(tmp_path):
    """1,000 clients begin to send a large file: memory grows by less than 250 MB."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("the system allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    process = subprocess.Popen(
        [sys.executable, HERE / "serve_bright.py", tmp_path / "project", token],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        port = int(re.search(r":(\d+)/", process.stdout.readline())[1])
        image = draw(tmp_path / "a.png", DARK).read_bytes()
        send_image(port, image)
        before = resident(process.pid)
        clients = [slow_sender(port, sent=b"\x89PNG" * 16_000) for _ in range(1000)]
        for _ in range(3):
            for client in clients:
                with suppress(OSError):  # refused with 503
                    client.sendall(b"x" * 1000)
            time.sleep(0.2)
        grown = resident(process.pid) - before
        assert grown < 250e6
        for client in clients:
            client.close()
        wait_until(lambda: send_image(port, image) == 200)  # their places are free again
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident(number):
    """Bytes of memory of a process."""
    status = Path(f"/proc/{number}/status").read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])


def send_image(port, image):
    body, kind = multipart(("a.png", image))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Content-Type": kind, "Authorization": f"Bearer {TOKEN}"}
    connection.request("POST", "/api/score", body, headers)
    answer = connection.getresponse()
    assert answer.read()
    connection.close()
    return answer.status


def test_tls(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    key, cert, token = tmp_path / "key.pem", tmp_path / "cert.pem", tmp_path / "token"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    token.write_text(TOKEN)
    token.chmod(0o600)
    process = subprocess.Popen(
        [sys.executable, HERE / "serve_bright.py", tmp_path / "project", token, cert, key],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        port = int(re.search(r"https://.*:(\d+)/", process.stdout.readline())[1])
        context = ssl.create_default_context(cafile=str(cert))
        client = http.client.HTTPSConnection("localhost", port, context=context, timeout=10)
        client.request("GET", f"/?token={TOKEN}")
        answer = client.getresponse()
        assert answer.status == 303 and answer.getheader("set-cookie").endswith("; Secure")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
