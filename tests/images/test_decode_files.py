"""Bad files are named with what is wrong; folders are searched to their end and no further."""

import io
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anocaps.base.text import shown
from anocaps.images import decode
from anocaps.images.decode import Fit, ImageError, look, look_at, read_image, read_images
from anocaps.images.walk import PassedOver, list_images, walk


@pytest.fixture(scope="module")
def grey(digits) -> np.ndarray:
    return digits.train.images[0]


def save(path: Path, array: np.ndarray, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)
    return path


def read(path: Path) -> np.ndarray:
    return read_image(path, Fit(8, 8, 1, "resize"))


# ── bad files ────────────────────────────────────────────────────────────────────────────────


def png_claiming(width: int, height: int) -> bytes:
    """A PNG file that claims a size and holds next to nothing."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        sum_ = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + sum_

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0"))


def encoded(digits, kind: str, **options) -> bytes:
    pixels = Image.fromarray(digits.train.images[0]).resize((200, 200), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    pixels.save(file, kind, **options)
    return file.getvalue()


BAD = {
    "empty.png": (b"", "is empty"),
    "text.png": (b"hello, I am not an image", "is not an image"),
    "svg.png": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is not an image"),
    "magic.png": (b"\x89PNG\r\n\x1a\n", "magic.png"),
    "magic.jpg": (b"\xff\xd8\xff", "magic.jpg"),
    "huge.png": (png_claiming(50_000, 50_000), "more than 64 million pixels"),
    "warned.png": (png_claiming(12_000, 12_000), "more than 64 million pixels"),
    "large.png": (png_claiming(9_000, 9_000), "more than 64 million pixels"),
    "none.png": (png_claiming(0, 5), "none.png"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named(tmp_path, name):
    content, reason = BAD[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ImageError, match=reason) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_large_image_gets_our_message_alone(tmp_path):
    """Pillow warns of this one by itself, on the terminal."""
    (tmp_path / "a.png").write_bytes(BAD["warned.png"][0])
    code = "import sys; from anocaps.images.decode import look_at; print(*look_at([sys.argv[1]]))"
    command = [sys.executable, "-c", code, str(tmp_path / "a.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "more than 64 million pixels" in done.stdout and done.stderr == ""
    strict = [command[0], "-W", "error", *command[1:]]  # whoever asks for an error gets that
    done = subprocess.run(strict, capture_output=True, text=True, check=True)
    assert "more than 64 million pixels" in done.stdout


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("BMP", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
    ],
)
def test_a_truncated_file_is_never_half_read(tmp_path, digits, kind, options):
    content = encoded(digits, kind, **options)
    path = tmp_path / f"cut.{kind.lower()}"
    for share in (0.02, 0.1, 0.3, 0.5, 0.8, 0.95):
        path.write_bytes(content[: int(share * len(content))])
        for side in (16, 200):  # 16: a JPEG is decoded at an eighth
            with pytest.raises(ImageError, match="cut") as caught:
                read_image(path, Fit(side, side, 1, "resize"))
            assert "damaged" in str(caught.value)
    path.write_bytes(content)
    assert read_image(path, Fit(200, 200, 1, "resize")).std() > 10


def test_formats_outside_the_list_are_refused(tmp_path, digits):
    for kind in ("GIF", "PPM", "ICO", "EPS"):
        path = tmp_path / f"{kind}.png"
        path.write_bytes(encoded(digits, kind))
        with pytest.raises(ImageError, match="is not an image in one of the formats PNG"):
            read_image(path, Fit(8, 8, 1, "resize"))


def test_what_is_no_file_is_named(tmp_path, grey):
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "dangling.png").symlink_to(tmp_path / "gone.png")
    (tmp_path / "itself.png").symlink_to(tmp_path / "itself.png")
    for name, reason in {
        "missing.png": r"cannot be opened \(No such file",
        "folder.png": "is a folder",
        "pipe.png": "is not an ordinary file",
        "dangling.png": r"cannot be opened \(No such file",
        "itself.png": "cannot be opened",
    }.items():
        for function in (look, read):
            with pytest.raises(ImageError, match=reason) as caught:
                function(tmp_path / name)
            assert str(tmp_path / name) in str(caught.value)


def test_permission_is_missing(tmp_path, monkeypatch, grey):
    path = save(tmp_path / "a.png", grey)

    def refused(file, *_):
        raise PermissionError(13, "Permission denied", file)

    monkeypatch.setattr("builtins.open", refused)
    with pytest.raises(ImageError, match=r"a\.png cannot be opened \(Permission denied\).*may"):
        look(path)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path, monkeypatch, grey):
    path = save(tmp_path / "a.bmp", np.tile(grey, (40, 40)))
    whole = decode.bytes_to_decode

    def shrinking(image, *rest):
        os.truncate(path, 100)
        return whole(image, *rest)

    monkeypatch.setattr(decode, "bytes_to_decode", shrinking)
    with pytest.raises(ImageError, match=r"a\.bmp is damaged or cut short"):
        read(path)


def test_names_are_fit_for_a_terminal():
    assert shown(Path("größe/螺丝.png")) == "größe/螺丝.png"
    assert shown(os.fsdecode(b"a\xff.png")) == r"a\xff.png"
    assert shown("two\nlines\x1b[31m.png") == r"two\nlines\x1b[31m.png"


# ── many files ───────────────────────────────────────────────────────────────────────────────


def below(root: Path, found) -> list[str]:
    return [path.relative_to(root).as_posix() for path in found]


def test_folders_are_searched_in_sorted_order(tmp_path):
    names = ["b.png", "a.JPG", "sub/c.webp", "sub/deeper/d.tif", "z.jpeg", "sub.png"]
    for name in [*names, ".x.png", ".dir/d.png", "notes.txt", "sub/Thumbs.db", "README"]:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
    found = below(tmp_path, list_images([tmp_path]))
    assert found == ["a.JPG", "b.png", "sub/c.webp", "sub/deeper/d.tif", "sub.png", "z.jpeg"]
    assert found == [
        path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path / name for name in names)
    ]
    passed = PassedOver()
    assert below(tmp_path, walk(tmp_path, set(), passed)) == found
    assert passed.others == {".txt": 1, ".db": 1, "": 1} and not passed.links


def test_named_files_are_listed_whatever_they_are_called(tmp_path):
    (tmp_path / "notes.txt").touch()
    assert list(list_images([tmp_path / "notes.txt"])) == [tmp_path / "notes.txt"]


def test_a_missing_path_is_an_error_at_once(tmp_path):
    with pytest.raises(ImageError, match="nowhere does not exist"):
        list_images([tmp_path, tmp_path / "nowhere"])


def test_names_of_every_kind_survive(tmp_path, grey):
    names = ["größe.png", "螺丝 1.png", "new\nline.png", os.fsdecode(b"latin-\xe9.png")]
    for name in names:
        try:
            save(tmp_path / "new", grey, format="PNG").rename(tmp_path / name)
        except OSError:
            pytest.skip("this file system refuses names that are no text")
    found = list(list_images([tmp_path]))
    assert sorted(path.name for path in found) == sorted(names)
    for _, pixels in read_images(found, Fit(8, 8, 1, "resize")):
        np.testing.assert_array_equal(pixels[..., 0], grey)
    (tmp_path / names[3]).write_bytes(b"junk")
    with pytest.raises(ImageError, match=r"latin-\\xe9\.png is not an image"):
        look(tmp_path / names[3])


def test_a_folder_that_cannot_be_opened_is_an_error_of_its_own(tmp_path, monkeypatch, grey):
    for name in ("a/1.png", "locked/2.png", "z/3.png"):
        save(tmp_path / name, grey)
    scandir = os.scandir

    def guarded(path):
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    found = list(list_images([tmp_path]))
    assert below(tmp_path, found) == ["a/1.png", "locked", "z/3.png"]
    with pytest.raises(ImageError, match=r"locked cannot be opened \(Permission denied\)"):
        look(found[1])


def test_many_files_are_read_in_order_and_bad_ones_go_along(tmp_path, digits):
    files = [
        save(tmp_path / f"{i:03}.png", image) for i, image in enumerate(digits.train.images[:150])
    ]
    files[70].write_bytes(b"junk")
    files[71].unlink()
    found = list(read_images(iter(files), Fit(8, 8, 1, "resize")))
    assert [file for file, _ in found] == files
    for number, (_, pixels) in enumerate(found):
        if number in (70, 71):
            assert isinstance(pixels, ImageError) and str(files[number]) in str(pixels)
        else:
            np.testing.assert_array_equal(pixels[..., 0], digits.train.images[number])
    looked = [found for _, found in look_at(files)]
    assert isinstance(looked[70], ImageError) and looked[69].width == 8
