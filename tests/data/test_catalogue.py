"""Datasets by name: found, downloaded, verified; official only when the content is."""

import hashlib
import io
import os
import re
import stat
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
from data_writers import gzip_bytes, idx_bytes

from anocaps.base.errors import DataError
from anocaps.data import (
    CATALOGUE,
    Dataset,
    Split,
    available,
    download,
    fetch_dataset,
    load_dataset,
    store,
)
from anocaps.data import data_dir as find_data_dir
from anocaps.data.catalogue import Entry, _read_idx
from anocaps.data.download import RemoteFile

CONTENT = {
    "train-images": idx_bytes(np.arange(48, dtype=np.uint8).reshape(3, 4, 4)),
    "train-labels": idx_bytes(np.array([0, 1, 2], np.uint8)),
    "test-images": idx_bytes(np.arange(32, dtype=np.uint8).reshape(2, 4, 4)),
    "test-labels": idx_bytes(np.array([2, 0], np.uint8)),
}


class Server(HTTPServer):
    """Serves `answers` (path → body) on this machine; `cut` ends each answer too early."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, bytes | str] = {
            f"/{name}.gz": gzip_bytes(body) for name, body in CONTENT.items()
        }
        self.asked: list[str] = []
        self.cut = 0


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        body = self.server.answers.get(self.path)
        if isinstance(body, str):  # an address
            self.send_response(302)
            self.send_header("Location", body)
            body = None
        else:
            self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if body:
            self.wfile.write(body[: len(body) - self.server.cut])

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download, "_SCHEMES", ("http",))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def make_entry(base_url: str) -> Entry:
    files = tuple(
        RemoteFile(
            name,
            base_url,
            len(gzip_bytes(body)),
            hashlib.sha256(gzip_bytes(body)).hexdigest(),
            f"sha256:{hashlib.sha256(body).hexdigest()}"
            if "train" in name
            else f"md5:{hashlib.md5(body).hexdigest()}",
        )
        for name, body in CONTENT.items()
    )
    return Entry("tiny", "Tiny", "none", ("a", "b", "c"), _read_idx, files, aliases=("small",))


@pytest.fixture
def tiny(monkeypatch, server) -> Server:
    entry = make_entry(f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setitem(CATALOGUE, "tiny", entry)
    return server


@pytest.fixture
def closed(monkeypatch, tiny) -> None:
    """The same dataset behind a port where nobody listens."""
    with HTTPServer(("127.0.0.1", 0), _Handler) as gone:
        port = gone.server_port
    monkeypatch.setitem(CATALOGUE, "tiny", make_entry(f"http://127.0.0.1:{port}/"))


def put(folder: Path, pack=bytes, suffix: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in CONTENT.items():
        (folder / f"{name}{suffix}").write_bytes(pack(body))
    return folder


def files_below(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_missing_files_are_downloaded_once(tiny, tmp_path):
    assert not available("tiny", tmp_path)
    data = load_dataset("tiny", tmp_path)
    assert available("tiny", tmp_path)
    assert data.official
    assert data.train.labels.tolist() == [0, 1, 2]
    assert data.test.images[0].tolist() == np.arange(16).reshape(4, 4).tolist()
    assert data.hashes == {k: hashlib.sha256(v).hexdigest() for k, v in CONTENT.items()}
    assert sorted(tiny.asked) == sorted(tiny.answers)
    load_dataset("tiny", tmp_path)
    assert len(tiny.asked) == len(CONTENT)


def test_only_what_is_missing_is_downloaded(tiny, tmp_path):
    folder = put(tmp_path / "tiny")
    (folder / "test-labels").unlink()
    paths = fetch_dataset("tiny", tmp_path)
    assert tiny.asked == ["/test-labels.gz"]
    assert [path.name for path in paths] == [*list(CONTENT)[:3], "test-labels.gz"]


@pytest.mark.parametrize(("cut", "says"), [(0, "checksum"), (5, "could not be downloaded")])
def test_a_wrong_or_interrupted_download_leaves_nothing(tiny, tmp_path, cut, says):
    tiny.cut = cut
    tiny.answers["/train-images.gz"] = gzip_bytes(CONTENT["train-images"][:-1] + b"\xff")
    with pytest.raises(DataError, match=r"train-images\.gz"):
        load_dataset("tiny", tmp_path)
    assert files_below(tmp_path) == []


KILLED = """
import os, sys
import pooch
from anocaps.data.download import RemoteFile, download_files
from pathlib import Path

def fetch(self, url, file, pooch):
    Path(file).write_bytes(b"half")
    os._exit(9)

pooch.HTTPDownloader.__call__ = fetch
file = RemoteFile("train-images", "https://127.0.0.1/", 1, "0" * 64, "")
download_files([file], Path(sys.argv[1]))
"""


def test_what_a_killed_download_left_is_removed_by_the_next(tiny, tmp_path):
    folder = tmp_path / "tiny"
    assert subprocess.run([sys.executable, "-c", KILLED, folder]).returncode == 9
    assert b"half" in [path.read_bytes() for path in folder.iterdir()]
    load_dataset("tiny", tmp_path)
    assert files_below(folder) == sorted(f"{name}.gz" for name in CONTENT)


def test_only_https_is_downloaded(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "_SCHEMES", ("https",))
    with pytest.raises(DataError, match="not https"):
        load_dataset("tiny", tmp_path)
    assert tiny.asked == []


def test_a_redirection_to_another_scheme_is_refused(tiny, tmp_path, monkeypatch):
    (first, *_), other = tiny.answers, f"http://localhost:{tiny.server_port}/other"
    tiny.answers |= {"/other": tiny.answers[first], first: other}
    check = download._check_address
    refused = {other: "ftp://localhost"}  # as if its scheme were not allowed
    monkeypatch.setattr(download, "_check_address", lambda url: check(refused.get(url, url)))
    with pytest.raises(DataError, match="not https"):
        load_dataset("tiny", tmp_path)
    assert files_below(tmp_path) == []


def test_files_of_one_archive_are_downloaded_and_unpacked_at_once(tiny, tmp_path, monkeypatch):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, body in {"../readme": b"?", **CONTENT}.items():
            member = tarfile.TarInfo(f"a-folder/{name}")
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    entry, sha256 = CATALOGUE["tiny"], hashlib.sha256(packed.getvalue()).hexdigest()
    files = tuple(replace(file, archive="all.tar.gz", sha256=sha256) for file in entry.files)
    monkeypatch.setitem(CATALOGUE, "tiny", replace(entry, files=files))
    tiny.answers["/all.tar.gz"] = packed.getvalue()
    assert load_dataset("tiny", tmp_path / "data").official
    assert tiny.asked == ["/all.tar.gz"]
    assert files_below(tmp_path) == sorted(f"data/tiny/{name}" for name in CONTENT)


@pytest.mark.usefixtures("closed")
def test_offline_names_files_and_folder(tmp_path):
    with pytest.raises(DataError, match="tiny") as caught:
        load_dataset("tiny", tmp_path)
    for expected in (*CONTENT, str(tmp_path / "tiny"), "ANOCAPS_DATA"):
        assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("folder", ["tiny", "small"])
@pytest.mark.parametrize(
    ("pack", "suffix"),
    [(bytes, ""), (gzip_bytes, ".gz"), (lambda b: gzip_bytes(b, "other name", 1), ".gz")],
    ids=["plain", "gz", "gz with another header"],
)
@pytest.mark.usefixtures("closed")
def test_own_copy_is_official_however_packed(tmp_path, folder, pack, suffix):
    put(tmp_path / folder, pack, suffix)
    assert load_dataset("tiny", tmp_path).official


@pytest.mark.parametrize("culprit", CONTENT)
@pytest.mark.usefixtures("closed")
def test_one_changed_byte_is_unofficial_but_loads(tmp_path, culprit):
    folder = put(tmp_path / "tiny")
    changed = CONTENT[culprit][:-1] + b"\x01"
    (folder / culprit).write_bytes(changed)
    data = load_dataset("tiny", tmp_path)
    assert not data.official
    assert data.hashes[culprit] == hashlib.sha256(changed).hexdigest()


@pytest.mark.usefixtures("closed")
def test_hashes_are_remembered_until_the_file_changes(tmp_path, monkeypatch):
    folder = put(tmp_path / "tiny")
    first = load_dataset("tiny", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(store, "chunks", lambda path: pytest.fail(f"{path} was hashed again"))
        assert load_dataset("tiny", tmp_path).hashes == first.hashes
    changed = folder / "test-images"
    changed.write_bytes(changed.read_bytes()[:-1] + b"\x01")
    os.utime(changed, ns=(0, 0))
    assert not load_dataset("tiny", tmp_path).official


@pytest.mark.usefixtures("tiny")
def test_read_only_folder_is_left_alone(tmp_path, user_cache):
    folder = put(tmp_path / "tiny", gzip_bytes, ".gz")
    (folder / "test-labels.gz").unlink()
    before = files_below(tmp_path)
    for place in (folder, tmp_path):
        place.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert load_dataset("tiny", tmp_path).official
        assert available("tiny", tmp_path)
        assert files_below(tmp_path) == before
    finally:
        for place in (tmp_path, folder):
            place.chmod(stat.S_IRWXU)
    assert files_below(user_cache) == ["cache/hashes.json", "tiny/test-labels.gz"]


def test_data_dir_argument_then_variable_then_cache(monkeypatch, user_cache):
    monkeypatch.setenv("ANOCAPS_DATA", "from-variable")
    for explicit in ("explicit", Path("explicit")):
        assert find_data_dir(explicit) == Path("explicit")
    assert find_data_dir() == Path("from-variable")
    monkeypatch.setenv("ANOCAPS_DATA", "")
    assert find_data_dir() == user_cache


def test_every_address_is_https_and_pinned_by_sha256():
    files = [file for entry in CATALOGUE.values() for file in entry.files]
    assert files
    for file in files:
        assert file.url.startswith("https://")
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)


def test_unknown_dataset_lists_the_known(tmp_path):
    for function in (load_dataset, available, fetch_dataset):
        with pytest.raises(DataError, match=r"'nist'.* digits, mnist, fashion-mnist, small-norb"):
            function("nist", tmp_path)


def test_class_index_takes_name_or_number():
    split = Split(np.zeros((1, 2, 2), np.uint8), np.zeros(1, np.int64))
    data = Dataset("toys", split, split, ("car", "1", "plane"), {}, True)
    assert data.class_index("car") == 0
    assert data.class_index("1") == 1
    assert data.class_index(" 2 ") == 2
    for wrong in ("3", "-1", "boat", "", "1.0"):
        with pytest.raises(DataError, match="0 car, 1 1, 2 plane"):
            data.class_index(wrong)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_real_data(real_root, name):
    if not available(name, real_root):
        pytest.skip(f"{name} is not in ANOCAPS_DATA")
    data = load_dataset(name, real_root, download=False)
    assert data.official
    assert data.train.images.shape == (60_000, 28, 28)
    assert data.test.images.shape == (10_000, 28, 28)
    counts = np.bincount(data.test.labels).tolist()
    if name == "mnist":
        assert counts == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    else:
        assert counts == [1000] * 10
