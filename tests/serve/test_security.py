"""Each promise of SECURITY.md about the server, tried."""

import http.client
import io
import re
import shutil
import ssl
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from brightness import NORMAL, draw
from data_writers import png
from running_server import TOKEN, post_images, running

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


def test_a_long_image_and_many_images(bright, tmp_path):
    with running(tmp_path, limits=Limits(image=1000)) as server:
        assert post_images(server, ("a.png", b"x" * 2000))[0] == 413
        assert post_images(server, *[(f"{k}.png", b"x") for k in range(300)])[0] == 413
        assert not list((tmp_path / "incoming").iterdir())


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
