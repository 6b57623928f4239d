"""Bad files are named, with the reason; folders are searched in order."""

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from data_writers import png
from image_files import save
from PIL import Image

from anocaps.base.text import shown
from anocaps.images import decode
from anocaps.images.decode import (
    Fit,
    ImageError,
    read_header,
    read_image,
)
from anocaps.images.reading import read_images
from anocaps.images.walk import PassedOver, list_images, walk


@pytest.fixture(scope="module")
def grey(digits) -> np.ndarray:
    return digits.train.images[0]


def read(path: Path) -> np.ndarray:
    return read_image(path, Fit(8, 8, 1, "resize"))


# ── bad files ────────────────────────────────────────────────────────────────────────────────


def encoded(digits, kind: str, **options) -> bytes:
    pixels = Image.fromarray(digits.train.images[0]).resize((200, 200), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    pixels.save(file, kind, **options)
    return file.getvalue()


BAD = {
    "empty.png": (b"", "is empty"),
    "text.png": (b"hello, I am not an image", "is not an image"),
    "magic.png": (b"\x89PNG\r\n\x1a\n", "magic.png"),
    "magic.jpg": (b"\xff\xd8\xff", "magic.jpg"),
    "huge.png": (png(50_000, 50_000), "more than 64 million pixels"),
    "large.png": (png(9_000, 9_000), "more than 64 million pixels"),
    "none.png": (png(0, 5), "none.png"),
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
    """Pillow itself would warn on the terminal."""
    (tmp_path / "a.png").write_bytes(png(12_000, 12_000))
    command = [sys.executable, "-m", "anocaps", "check", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "a.png has more than 64 million pixels" in done.stdout + done.stderr
    assert done.returncode == 2 and "exceeds limit" not in done.stderr


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
    for share in (0.02, 0.3, 0.95):
        path.write_bytes(content[: int(share * len(content))])
        for side in (16, 200):  # 16: a JPEG is decoded at an eighth
            with pytest.raises(ImageError, match=r"cut\..* damaged"):
                read_image(path, Fit(side, side, 1, "resize"))
    path.write_bytes(content)
    assert read_image(path, Fit(200, 200, 1, "resize")).std() > 10


def test_formats_outside_the_list_are_refused(tmp_path, digits):
    for kind in ("GIF", "PPM", "ICO", "EPS"):
        path = tmp_path / f"{kind}.png"
        path.write_bytes(encoded(digits, kind))
        with pytest.raises(ImageError, match=f"{kind}.png is not an image"):
            read_image(path, Fit(8, 8, 1, "resize"))


def test_a_path_that_is_not_a_file_is_named(tmp_path, grey):
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "dangling.png").symlink_to(tmp_path / "gone.png")
    (tmp_path / "itself.png").symlink_to(tmp_path / "itself.png")
    for name in ("missing.png", "folder.png", "pipe.png", "dangling.png", "itself.png"):
        for function in (read_header, read):
            with pytest.raises(ImageError, match=str(tmp_path / name)):
                function(tmp_path / name)


def test_a_file_without_permission_is_named(tmp_path, monkeypatch, grey):
    path = save(tmp_path / "a.png", grey)

    def refused(file, *_):
        raise PermissionError(13, "Permission denied", file)

    monkeypatch.setattr("builtins.open", refused)
    with pytest.raises(ImageError, match=r"a\.png cannot be opened"):
        read_header(path)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path, monkeypatch, grey):
    path = save(tmp_path / "a.bmp", np.tile(grey, (40, 40)))
    whole = decode.bytes_to_decode

    def shrinking(image, *rest):
        os.truncate(path, 100)
        return whole(image, *rest)

    monkeypatch.setattr(decode, "bytes_to_decode", shrinking)
    with pytest.raises(ImageError, match=r"a\.bmp is damaged or cut short"):
        read(path)


def test_names_are_escaped_for_a_terminal():
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
    passed = PassedOver()
    assert below(tmp_path, walk(tmp_path, set(), passed)) == found
    assert passed.others == {".txt": 1, ".db": 1, "": 1} and not passed.links


def test_a_named_file_is_listed_whatever_its_extension(tmp_path):
    (tmp_path / "notes.txt").touch()
    assert list(list_images([tmp_path / "notes.txt"])) == [tmp_path / "notes.txt"]


def test_a_missing_path_is_an_error_at_once(tmp_path):
    with pytest.raises(ImageError, match="nowhere does not exist"):
        list_images([tmp_path, tmp_path / "nowhere"])


def test_unusual_names_are_kept(tmp_path, grey):
    names = ["größe.png", "螺丝 1.png", "new\nline.png", os.fsdecode(b"latin-\xe9.png")]
    for name in names:
        try:
            save(tmp_path / "new", grey, format="PNG").rename(tmp_path / name)
        except OSError:
            pytest.skip("this file system refuses names that are not text")
    found = list(list_images([tmp_path]))
    assert sorted(path.name for path in found) == sorted(names)
    for _, pixels in read_images(found, Fit(8, 8, 1, "resize")):
        np.testing.assert_array_equal(pixels[..., 0], grey)
    (tmp_path / names[3]).write_bytes(b"junk")
    with pytest.raises(ImageError, match=r"latin-\\xe9\.png is not an image"):
        read_header(tmp_path / names[3])


def test_a_folder_that_cannot_be_opened_is_listed_and_named(tmp_path, monkeypatch, grey):
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
    with pytest.raises(ImageError, match=r"locked cannot be opened"):
        read_header(found[1])
