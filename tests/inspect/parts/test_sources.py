"""Every kind of source gives the same images in the same order."""

import os
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from imitated_s3 import imitated_s3
from PIL import Image
from processes import measured

from anocaps.base.errors import DataError
from anocaps.images.decode import Fit, ImageError, read_image
from anocaps.images.walk import PassedOver
from anocaps.inspect.parts import addresses, sources
from anocaps.inspect.parts.sources import Files, TableRows, is_plain, shards_of

arrow = pytest.importorskip("pyarrow", reason="tables need pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
fsspec = pytest.importorskip("fsspec", reason="addresses need fsspec")

FIT = Fit(8, 8, 1, "resize")
NAMES = [f"{k}.png" for k in range(5)] + ["more/5.png", "more/6.jpg"]
HIDDEN = ["._0.png", ".checkpoints/1.png", "more/._6.jpg", ".notes"]


@pytest.fixture
def photos(tmp_path) -> Path:
    """Seven images of different brightness, in a folder and a sub-folder."""
    for number, name in enumerate(NAMES):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (16, 16), 30 * number).save(path)
    (tmp_path / "photos" / "notes.md").write_text("no image")
    for name in HIDDEN:
        path = tmp_path / "photos" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes((tmp_path / "photos" / NAMES[0]).read_bytes())
    return tmp_path / "photos"


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(sources, "SHARD", 3)


def shards(*given: object, passed: PassedOver | None = None) -> list:
    return list(shards_of(map(str, given), passed or PassedOver(), True))


def read(*given: object) -> list:
    return [found for shard in shards(*given) for found in shard.read(FIT, ahead=4)]


def check(found: list, photos: Path) -> None:
    """The images of the folder, in order."""
    assert len(found) == len(NAMES)
    for (_, image), name in zip(found, NAMES):
        assert np.array_equal(image, read_image(photos / name, FIT))


def test_a_folder(photos):
    cut = shards(photos)
    assert [len(shard) for shard in cut] == [3, 3, 1]
    assert cut[0].names == tuple(str(photos / name) for name in NAMES[:3])
    check(read(photos), photos)


def test_relative_names_begin_where_the_run_began(photos, monkeypatch, tmp_path):
    monkeypatch.chdir(photos)
    cut = shards("0.png", "more")
    monkeypatch.chdir(tmp_path)
    assert [name for shard in cut for name, _ in shard.read(FIT, 4)] == [NAMES[0], *NAMES[5:]]
    assert all(isinstance(found, np.ndarray) for s in cut for _, found in s.read(FIT, 4))


def test_a_list_of_paths_begins_at_its_folder(photos):
    listed = photos / "list.txt"
    listed.write_text("\n".join([*NAMES[:6], "", str(photos / NAMES[6])]))
    check(read(listed), photos)


def test_a_list_may_begin_with_a_byte_order_mark(photos):
    (photos / "list.txt").write_text("\r\n".join(NAMES), encoding="utf-8-sig")
    check(read(photos / "list.txt"), photos)


def test_a_table_of_paths(photos):
    parquet.write_table(arrow.table({"path": NAMES, "other": range(7)}), photos / "t.parquet")
    check(read(photos / "t.parquet"), photos)


@pytest.mark.parametrize("kind", ["bytes", "bytes and path", "image"])
@pytest.mark.parametrize("rows_in_a_group", [1, 2, 7])
def test_a_table_of_bytes(kind, rows_in_a_group, photos):
    contents = [(photos / name).read_bytes() for name in NAMES]
    columns = {"bytes": contents, "path": NAMES}
    if kind == "bytes":
        columns.pop("path")
    if kind == "image":
        columns = {"image": [{"bytes": c, "path": n} for c, n in zip(contents, NAMES)]}
    path = photos / "t.parquet"
    parquet.write_table(arrow.table(columns), path, row_group_size=rows_in_a_group)
    cut = shards(path)
    assert all(isinstance(shard, TableRows) for shard in cut)
    assert [len(s) for s in cut] == {1: [3, 3, 1], 2: [2, 2, 3], 7: [7]}[rows_in_a_group]
    found = read(path)
    check(found, photos)
    names = [f"{path}#{k}" for k in range(7)] if kind == "bytes" else NAMES
    assert [name for name, _ in found] == names


def test_row_groups_of_many_bytes_make_shards_of_few_rows(photos, monkeypatch):
    contents = [(photos / name).read_bytes().ljust(5000) for name in NAMES]
    path = photos / "t.parquet"
    parquet.write_table(
        arrow.table({"bytes": contents}), path, row_group_size=1, compression="none",
        use_dictionary=False,
    )  # fmt: skip
    monkeypatch.setattr(sources, "SHARD_BYTES", 12_500)
    cut = shards(path)
    assert [len(shard) for shard in cut] == [2, 2, 2, 1] and cut == shards(path)
    check(read(path), photos)


READ = """
import sys
import pyarrow.parquet
from anocaps.images.decode import Fit
from anocaps.images.walk import PassedOver
from anocaps.inspect.parts.sources import shards_of
before = peak()
for shard in shards_of([sys.argv[1]], PassedOver(), True):
    for _ in shard.read(Fit(8, 8, 1, "resize"), 256):
        pass
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak of memory")
@pytest.mark.parametrize("rows_in_a_group", [4, 200])
def test_memory_does_not_grow_with_a_table(rows_in_a_group, tmp_path):
    """200 MB in 50 row groups, or in one with pages of 4 rows."""
    path = tmp_path / "t.parquet"
    table = arrow.table({"bytes": [bytes([k]) * 1_000_000 for k in range(200)]})
    parquet.write_table(
        table, path, row_group_size=rows_in_a_group, compression="none", use_dictionary=False,
        write_batch_size=4,
    )  # fmt: skip
    assert int(measured(READ, path)) < 150 * 2**20


@pytest.mark.parametrize("size", [1000, 1_000_000, 30_000_000])
def test_large_images_are_not_read_far_ahead(size, monkeypatch):
    read = []

    def contents(_):
        for number in range(1000):
            read.append(number)
            yield str(number), image

    image = bytes(size)
    monkeypatch.setattr(TableRows, "_contents", contents)
    found = TableRows("t.parquet", (0,), 0, 1000).read(FIT, ahead=256)
    assert next(found)[0] == "0"
    assert len(read) * size <= sources._HELD + 4 * max(size, sources._HELD // 32)
    assert len(read) >= min(256, sources._HELD // size // 2)
    assert [name for name, _ in found] == [str(number) for number in range(1, 1000)]


def test_a_relative_table_begins_where_the_run_began(photos, monkeypatch, tmp_path):
    """A worker on a cluster has another working directory, which may have a table of that name."""
    contents = [(photos / name).read_bytes() for name in NAMES]
    parquet.write_table(arrow.table({"bytes": contents}), photos / "t.parquet")
    monkeypatch.chdir(photos)
    (shard,) = shards("t.parquet")
    monkeypatch.chdir(tmp_path)
    found = list(shard.read(FIT, ahead=4))
    check(found, photos)
    assert found[0][0] == "t.parquet#0"


def test_sources_in_a_row_keep_their_order(photos):
    content = [(photos / NAMES[2]).read_bytes()]
    parquet.write_table(arrow.table({"bytes": content}), photos / "t.parquet")
    cut = shards(photos / NAMES[0], photos / NAMES[1], photos / "t.parquet", photos / NAMES[3])
    assert [type(shard) for shard in cut] == [Files, TableRows, Files]
    assert [len(shard) for shard in cut] == [2, 1, 1]


# ── addresses ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def in_memory(photos):
    """memory://, which ends with this process."""
    system = fsspec.filesystem("memory")
    system.put(f"{photos}/", "/photos", recursive=True)
    yield "memory://photos"
    system.store.clear()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def web(photos):
    """A server with the directory listings of Python."""
    pytest.importorskip("aiohttp", reason="http needs aiohttp")
    handler = partial(Quiet, directory=photos.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/photos"
        server.shutdown()


@pytest.fixture
def bucket(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws"))
    with imitated_s3(tmp_path / "aws") as system:
        system.makedirs("bucket")
        system.put(f"{photos}/", "bucket/photos/", recursive=True)
        yield "s3://bucket/photos"
        system.rm("bucket", recursive=True)  # moto would keep it for the whole process


@pytest.fixture(params=["in_memory", "web", "bucket"])
def address(request) -> str:
    return request.getfixturevalue(request.param)


def test_addresses(address, photos):
    found = read(address)
    check(found, photos)
    assert [name.partition("photos/")[2] for name, _ in found] == NAMES
    assert all(name.startswith(address.partition("://")[0]) for name, _ in found)
    ((_, one),) = read(f"{address}/{NAMES[6]}")
    assert np.array_equal(one, found[6][1])


@pytest.mark.parametrize("folder", ["photos", "photos/more", "photos/.checkpoints"])
def test_an_address_has_the_same_images_as_the_folder(address, photos, folder):
    """Without hidden ones, unless the given folder is hidden itself."""
    found = {}
    for top in (str(photos.parent), address.removesuffix("/photos")):
        passed = PassedOver()
        names = [n for shard in shards(f"{top}/{folder}", passed=passed) for n in shard.names]
        found[top] = [name.partition(f"{folder}/")[2] for name in names], passed
    here, there = found.values()
    assert here == there and here[0]
    assert here[1].others == ({".md": 1} if folder == "photos" else {})


def test_only_what_is_below_an_address_counts(in_memory, photos, monkeypatch):
    system = type(fsspec.filesystem("memory"))
    elsewhere = [{"name": name, "type": "file"} for name in ("/a.png", "/photos-2.png", "/photos")]
    listed = system.ls
    monkeypatch.setattr(system, "ls", lambda *given, detail: listed(*given) + elsewhere)
    check(read(in_memory), photos)


@pytest.mark.parametrize("kind", ["in_memory", "bucket"])
def test_all_of_a_file_system(kind, request):
    """Names in it begin with a slash, or not."""
    system, _, folder = request.getfixturevalue(kind).partition("://")
    names = [name for shard in shards(f"{system}://") for name in shard.names]
    assert [n.partition(f"/{folder}/")[2] for n in names if f"/{folder}/" in n] == NAMES


def test_lists_and_tables_at_addresses(address, photos):
    if address.startswith("http"):
        write = photos
    else:
        write = fsspec.filesystem(address.partition("://")[0])
    listed = "\n".join(NAMES).encode()
    table = arrow.BufferOutputStream()
    parquet.write_table(arrow.table({"path": NAMES}), table)
    contents = {"list.txt": listed, "t.parquet": table.getvalue().to_pybytes()}
    for name, content in contents.items():
        if isinstance(write, Path):
            (write / name).write_bytes(content)
        else:
            write.pipe(f"{address}/{name}", content)
        check(read(f"{address}/{name}"), photos)


def test_what_an_address_lacks_is_an_error_of_its_row(address, photos):
    broken = f"{address}/gone.png"
    listed = photos / "list.txt"
    listed.write_text(f"{broken}\n{address}/{NAMES[1]}\n{photos}/notes.md\nnone://x.png\n")
    found = dict(read(listed))
    assert isinstance(found[f"{address}/{NAMES[1]}"], np.ndarray)
    for name in (broken, f"{photos}/notes.md", "none://x.png"):
        assert isinstance(found[name], ImageError) and name in str(found[name])


def test_a_missing_folder_at_an_address(address):
    with pytest.raises(DataError, match="none"):
        read(f"{address}/none/")


def test_files_larger_than_their_first_bytes(address, photos, monkeypatch):
    for first in (10, (photos / NAMES[0]).stat().st_size, (photos / NAMES[0]).stat().st_size - 1):
        monkeypatch.setattr(addresses, "_FIRST", first)
        check(read(address), photos)
    monkeypatch.setattr(addresses, "MOST_BYTES", 20)
    for first in (10, 100_000):
        monkeypatch.setattr(addresses, "_FIRST", first)
        for name, found in read(address):
            assert isinstance(found, ImageError) and name in str(found)


# ── what is wrong with a source ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("t.parquet", b"no table", "not a Parquet table"),
        ("none.parquet", None, "cannot be read"),
        ("none.txt", None, "cannot be read"),
    ],
)
def test_a_source_that_cannot_be_used_is_named(name, content, says, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says):
        read(tmp_path / name)


def test_a_table_without_images_is_refused(tmp_path):
    parquet.write_table(arrow.table({"x": [1]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="needs a column"):
        read(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    "columns",
    [
        {"bytes": [b"x"], "path": [7]},
        {"bytes": ["text"]},
        {"bytes": [5], "path": ["a.png"]},
        {"image": [b"x"]},
        {"image": [{"bytes": b"x", "path": 7}]},
        {"path": [7]},
        {"path": [b"a.png"]},
    ],
)
def test_columns_of_another_kind_are_refused(columns, tmp_path):
    parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"t\.parquet: in row 0"):
        read(tmp_path / "t.parquet")


def test_a_table_without_a_path_in_a_row_is_refused(photos):
    parquet.write_table(arrow.table({"path": [*NAMES[:4], None]}), photos / "t.parquet")
    with pytest.raises(DataError, match=r"t\.parquet: in row 4"):
        read(photos / "t.parquet")


def test_names_that_are_no_text(tmp_path):
    name = os.fsdecode(b"caf\xe9.png")
    Image.new("L", (8, 8)).save(tmp_path / name)
    (tmp_path / "list.txt").write_bytes(b"caf\xe9.png\n")
    ((found, image),) = read(tmp_path / "list.txt")
    assert found.endswith(name) and isinstance(image, np.ndarray)


def test_only_images_and_folders_here_are_plain():
    assert is_plain("photos") and is_plain("a.png")
    assert not any(map(is_plain, ("list.txt", "t.parquet", "s3://bucket", "memory://a.png")))
