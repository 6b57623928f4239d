"""Image folders: every kind of pixel comes out upright in bytes, every bad file is named."""

import io
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from data_writers import png_header
from PIL import Image

from anocaps.data import list_images, load_folder, read_image
from anocaps.errors import DataError

GREY = np.arange(0, 240, 20, dtype=np.uint8).reshape(3, 4)  # H 3, W 4
COLOUR = np.stack([GREY, 255 - GREY, GREY // 2], axis=-1)  # 3×4×3


def save(path: Path, array: np.ndarray, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)
    return path


@pytest.mark.parametrize("extension", ["png", "tif", "tiff", "bmp", "PNG"])
@pytest.mark.parametrize("array", [GREY, COLOUR], ids=["grey", "rgb"])
def test_lossless_formats_are_read_exactly(tmp_path, array, extension):
    found = read_image(save(tmp_path / f"a.{extension}", array))
    np.testing.assert_array_equal(found, array, strict=True)


def test_webp_and_jpeg(tmp_path):
    webp = read_image(save(tmp_path / "a.webp", COLOUR, lossless=True))
    np.testing.assert_array_equal(webp, COLOUR)
    flat = np.full((8, 8), 77, np.uint8)
    jpeg = read_image(save(tmp_path / "a.jpg", flat, quality=95))
    assert jpeg.shape == (8, 8)
    assert np.abs(jpeg.astype(int) - 77).max() <= 1


def test_alpha_is_laid_on_white(tmp_path):
    alpha = np.full((3, 4, 1), 255, np.uint8)
    alpha[0] = 0
    rgba = read_image(save(tmp_path / "a.png", np.concatenate([COLOUR, alpha], axis=2)))
    assert (rgba[0] == 255).all()
    np.testing.assert_array_equal(rgba[1:], COLOUR[1:])
    grey_alpha = read_image(save(tmp_path / "b.png", np.stack([GREY, alpha[..., 0]], axis=2)))
    assert grey_alpha.shape == (3, 4)
    assert (grey_alpha[0] == 255).all()
    np.testing.assert_array_equal(grey_alpha[1:], GREY[1:])


def test_palette_becomes_colour(tmp_path):
    indices = np.array([[0, 1], [2, 1]], np.uint8)
    palette = Image.new("P", (2, 2))
    palette.putdata(indices.ravel().tolist())
    palette.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    palette.save(tmp_path / "a.png")
    found = read_image(tmp_path / "a.png")
    expected = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)[indices]
    np.testing.assert_array_equal(found, expected)
    palette.save(tmp_path / "b.png", transparency=1)
    expected[indices == 1] = 255
    np.testing.assert_array_equal(read_image(tmp_path / "b.png"), expected)


def test_black_and_white_is_grey(tmp_path):
    path = save(tmp_path / "a.png", np.array([[True, False]]))
    np.testing.assert_array_equal(read_image(path), np.array([[255, 0]], np.uint8), strict=True)


@pytest.mark.parametrize("extension", ["png", "tif"])
def test_sixteen_bits_are_scaled_to_eight(tmp_path, extension):
    deep = np.array([[0, 128, 129], [257, 32896, 65535]], np.uint16)
    found = read_image(save(tmp_path / f"a.{extension}", deep))
    np.testing.assert_array_equal(
        found, np.array([[0, 0, 1], [1, 128, 255]], np.uint8), strict=True
    )


def test_exif_rotation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # shown after a quarter turn clockwise
    found = read_image(save(tmp_path / "a.png", COLOUR, exif=exif))
    np.testing.assert_array_equal(found, np.rot90(COLOUR, -1))


def test_classes_are_the_sorted_sub_folders(tmp_path):
    for name, value in (("b/2.png", 2), ("b/1.png", 1), ("a/deep/0.png", 0), ("b/.hidden.png", 9)):
        save(tmp_path / name, np.full((2, 3), value, np.uint8))
    save(tmp_path / ".cache" / "x.png", GREY)
    (tmp_path / "b" / "Thumbs.db").write_text("not an image")
    images, labels, class_names, files = load_folder(tmp_path)
    assert images.shape == (3, 2, 3)
    assert images.dtype == np.uint8
    assert images[:, 0, 0].tolist() == [0, 1, 2]
    assert labels.tolist() == [0, 1, 1]
    assert labels.dtype == np.int64
    assert class_names == ("a", "b")
    assert [file.name for file in files] == ["0.png", "1.png", "2.png"]


def test_one_colour_image_makes_all_colour(tmp_path):
    save(tmp_path / "a" / "1.png", GREY)
    save(tmp_path / "a" / "2.png", COLOUR)
    images = load_folder(tmp_path).images
    np.testing.assert_array_equal(images[0], np.stack([GREY] * 3, axis=-1))
    np.testing.assert_array_equal(images[1], COLOUR)


def test_flat_folder_is_one_class(tmp_path):
    save(tmp_path / "bolts" / "1.png", GREY)
    folder = load_folder(tmp_path / "bolts")
    assert folder.class_names == ("bolts",)
    assert folder.labels.tolist() == [0]


def test_different_sizes_are_refused_or_resized(tmp_path):
    save(tmp_path / "a" / "1.png", np.full((4, 4), 10, np.uint8))
    save(tmp_path / "a" / "2.png", np.full((4, 4), 10, np.uint8))
    save(tmp_path / "b" / "3.png", np.array([[0, 100], [100, 200]], np.uint8).repeat(4, 0))  # 8×2
    with pytest.raises(DataError, match=r"1\.png is 4×4 pixels but .*3\.png is 2×8"):
        load_folder(tmp_path)
    images = load_folder(tmp_path, size=2).images
    assert images.tolist() == [[[10, 10]] * 2, [[10, 10]] * 2, [[0, 100], [100, 200]]]
    assert load_folder(tmp_path, size=1).images.ravel().tolist() == [10, 10, 100]


def test_list_images(tmp_path):
    names = ["b.png", "a.JPG", "sub/c.webp", ".x.png", ".dir/d.png", "notes.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in list_images(tmp_path)]
    assert found == ["a.JPG", "b.png", "sub/c.webp"]
    assert list_images(tmp_path / "notes.txt") == [tmp_path / "notes.txt"]
    with pytest.raises(DataError, match="nowhere does not exist"):
        list_images(tmp_path / "nowhere")


def _truncated(extension: str) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, extension)
    return file.getvalue()[: len(file.getvalue()) // 2]


def _gif() -> bytes:
    file = io.BytesIO()
    Image.fromarray(GREY).save(file, "GIF")
    return file.getvalue()


BAD = {
    "empty.png": (b"", "is empty"),
    "text.png": (b"hello, I am not an image", "is not an image"),
    "gif.png": (_gif(), "is not an image"),  # a format outside the allow-list
    "cut.png": (_truncated("PNG"), "cannot be read"),
    "cut.jpg": (_truncated("JPEG"), "cannot be read"),
    "cut.bmp": (_truncated("BMP"), "cannot be read"),
    "cut.webp": (_truncated("WEBP"), "cut.webp"),
    "cut.tif": (_truncated("TIFF"), "cut.tif"),
    "huge.png": (png_header(50_000, 50_000), "more than 64 million pixels"),
    "warned.png": (png_header(12_000, 12_000), "more than 64 million pixels"),
    "large.png": (png_header(9_000, 9_000), "more than 64 million pixels"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_file_is_named(tmp_path, name):
    content, reason = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=reason) as caught:
        read_image(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_float_pixels_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"a\.tif .*8 or 16 bits"):
        read_image(save(tmp_path / "a.tif", np.ones((2, 2), np.float32)))


@pytest.mark.parametrize("side", [50_000, 9_000])
def test_a_huge_header_allocates_nothing(tmp_path, monkeypatch, side):
    (tmp_path / "huge.png").write_bytes(png_header(side, side))

    def decode(*_):
        raise AssertionError("decoding began")

    monkeypatch.setattr(Image.core, "fill", decode)
    monkeypatch.setattr(Image.core, "new", decode)
    tracemalloc.start()
    with pytest.raises(DataError, match="pixels"):
        read_image(tmp_path / "huge.png")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_all_bad_files_are_listed_at_once(tmp_path):
    save(tmp_path / "a" / "good.png", GREY)
    for i in range(12):
        (tmp_path / "a" / f"bad{i:02}.png").touch()
    with pytest.raises(DataError) as caught:
        load_folder(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"12 of 13 images in {tmp_path} cannot be used")
    assert "bad00.png" in message
    assert "bad09.png" in message
    assert "bad10.png" not in message
    assert "and 2 more" in message
    assert "good.png" not in message


def test_folders_without_sense_are_refused(tmp_path):
    with pytest.raises(DataError, match="no images and no sub-folders"):
        load_folder(tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        load_folder(tmp_path / "nowhere")
    save(tmp_path / "a" / "1.png", GREY)
    (tmp_path / "hollow").mkdir()
    with pytest.raises(DataError, match="hollow holds no"):
        load_folder(tmp_path)
    save(tmp_path / "loose.png", GREY)
    with pytest.raises(DataError, match=r"both images \(loose\.png\) and sub-folders \(a\)"):
        load_folder(tmp_path)
