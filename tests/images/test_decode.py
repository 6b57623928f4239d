"""Image files of every format are decoded upright, at the size that is asked for."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from image_files import save
from PIL import Image

from anocaps.base.errors import InputError
from anocaps.images.decode import Fit, ImageError, read_header, read_image


@pytest.fixture(scope="module")
def grey(digits) -> np.ndarray:
    """A real digit, cut to H 8, W 6, so that every rotation shows."""
    return np.ascontiguousarray(digits.train.images[0][:, 1:7])


@pytest.fixture(scope="module")
def colour(digits) -> np.ndarray:
    """Three real digits as the channels of one image, 8×6×3."""
    return np.ascontiguousarray(np.stack(digits.train.images[:3], axis=-1)[:, 1:7])


def read(path: Path) -> np.ndarray:
    """At the file's own size: H×W if grey, else H×W×3."""
    seen = read_header(path)
    fit = Fit(seen.height, seen.width, 3 if seen.colour else 1, "resize")
    return read_image(path, fit).squeeze(axis=() if seen.colour else 2)


@pytest.mark.parametrize("extension", ["png", "tif", "tiff", "bmp", "PNG"])
@pytest.mark.parametrize("kind", ["grey", "colour"])
def test_lossless_formats_are_read_exactly(tmp_path, request, kind, extension):
    array = request.getfixturevalue(kind)
    path = save(tmp_path / f"a.{extension}", array)
    np.testing.assert_array_equal(read(path), array, strict=True)
    seen = read_header(path)
    assert (seen.width, seen.height, seen.colour) == (6, 8, kind == "colour")
    assert seen.format == {"p": "PNG", "t": "TIFF", "b": "BMP"}[extension[0].lower()]


def test_webp_and_jpeg(tmp_path, colour):
    webp = save(tmp_path / "a.webp", colour, lossless=True)
    np.testing.assert_array_equal(read(webp), colour)
    flat = np.full((8, 8), 77, np.uint8)
    jpeg = save(tmp_path / "a.jpg", flat, quality=95)
    assert np.abs(read(jpeg).astype(int) - 77).max() <= 1
    assert (read_header(webp).format, read_header(jpeg).format) == ("WEBP", "JPEG")
    assert (read_header(webp).mode, read_header(jpeg).mode) == ("RGB", "L")


def test_the_content_decides_the_format_not_the_extension(tmp_path, colour):
    path = save(tmp_path / "really-a-png.jpg", colour, format="PNG")
    np.testing.assert_array_equal(read(path), colour)
    assert read_header(path).format == "PNG"


def test_channels_follow_the_fit(tmp_path, grey, colour):
    grey_file, colour_file = save(tmp_path / "g.png", grey), save(tmp_path / "c.png", colour)
    both = read_image(grey_file, Fit(8, 6, 3, "resize"))
    np.testing.assert_array_equal(both, np.stack([grey] * 3, axis=-1), strict=True)
    one = read_image(colour_file, Fit(8, 6, 1, "resize"))
    expected = np.array(Image.fromarray(colour).convert("L"))[..., None]
    np.testing.assert_array_equal(one, expected, strict=True)
    assert one.flags.writeable


def test_transparency_is_laid_on_white(tmp_path, grey, colour):
    alpha = np.full((8, 6, 1), 255, np.uint8)
    alpha[0] = 0
    rgba = read(save(tmp_path / "a.png", np.concatenate([colour, alpha], axis=2)))
    assert (rgba[0] == 255).all()
    np.testing.assert_array_equal(rgba[1:], colour[1:])
    with_alpha = read(save(tmp_path / "b.png", np.stack([grey, alpha[..., 0]], axis=2)))
    assert (with_alpha[0] == 255).all()
    np.testing.assert_array_equal(with_alpha[1:], grey[1:], strict=True)
    webp = read(save(tmp_path / "c.webp", np.concatenate([colour, alpha], 2), lossless=True))
    np.testing.assert_array_equal(webp, rgba)


def test_a_half_transparent_pixel_is_half_white(tmp_path):
    path = save(tmp_path / "a.png", np.array([[[0, 100, 200, 128]]], np.uint8))
    np.testing.assert_allclose(read(path)[0, 0], [127, 177, 227], atol=1)


@pytest.mark.parametrize(("depth", "clear"), [(np.uint8, 7), (np.uint16, 7 * 257)])
def test_a_transparent_grey_value_becomes_white(tmp_path, depth, clear):
    deep = np.array([[clear, 0]], depth)
    path = save(tmp_path / "a.png", deep, transparency=clear)
    assert read(path).tolist() == [[255, 0]]


def test_palette_becomes_colour(tmp_path):
    indices = np.array([[0, 1], [2, 1]], np.uint8)
    palette = Image.fromarray(indices)
    palette.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    expected = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)[indices]
    for extension in ("png", "tif", "bmp"):
        path = save(tmp_path / f"a.{extension}", palette)
        assert read_header(path).mode == "P" and read_header(path).colour
        np.testing.assert_array_equal(read(path), expected)
    expected[indices == 1] = 255
    clear = save(tmp_path / "clear.png", palette, transparency=1)
    np.testing.assert_array_equal(read(clear), expected)


def test_black_and_white_is_grey(tmp_path):
    path = save(tmp_path / "a.png", np.array([[True, False]]))
    assert read_header(path).mode == "1" and not read_header(path).colour
    np.testing.assert_array_equal(read(path), np.array([[255, 0]], np.uint8), strict=True)


@pytest.mark.parametrize("extension", ["tif", "jpg"])
def test_cmyk_becomes_rgb(tmp_path, extension):
    ink = np.zeros((16, 16, 4), np.uint8)
    ink[..., 0] = 255  # all cyan
    path = save(tmp_path / f"a.{extension}", Image.fromarray(ink, "CMYK"))
    assert read_header(path).mode == "CMYK"
    np.testing.assert_allclose(read(path)[8, 8], [0, 255, 255], atol=2)


def test_an_unknown_pixel_mode_is_refused(tmp_path):
    path = save(tmp_path / "lab.tif", Image.new("LAB", (2, 2)))
    with pytest.raises(ImageError, match=r"lab\.tif has LAB"):
        read_image(path, Fit(2, 2, 3, "resize"))


# What a viewer shows for each EXIF orientation.
TURNED = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: np.swapaxes(a, 0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(np.swapaxes(a, 0, 1), 2),
    8: lambda a: np.rot90(a, 1),
}


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


@pytest.mark.parametrize("orientation", TURNED)
@pytest.mark.parametrize("name", ["a.png", "a.tif", "lzw.tif", "a.webp"])
def test_exif_rotation_is_applied(tmp_path, colour, name, orientation):
    options = {"a.webp": {"lossless": True}, "lzw.tif": {"compression": "tiff_lzw"}}.get(name, {})
    path = save(tmp_path / name, colour, exif=exif(orientation), **options)
    expected = TURNED[orientation](colour)
    np.testing.assert_array_equal(read(path), expected)
    assert (read_header(path).height, read_header(path).width) == expected.shape[:2]


def test_exif_rotation_of_jpeg_and_deep_files(tmp_path, grey):
    large = grey.repeat(8, 0).repeat(8, 1)
    jpeg = save(tmp_path / "a.jpg", large, exif=exif(6), quality=100, subsampling=0)
    assert np.abs(read(jpeg).astype(int) - np.rot90(large, -1)).max() <= 3
    assert (read_header(jpeg).width, read_header(jpeg).height) == (64, 48)
    deep = save(tmp_path / "a.png", grey.astype(np.uint16) * 257, exif=exif(6))
    np.testing.assert_array_equal(read(deep), np.rot90(grey, -1))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("extension", ["png", "jpg", "webp"])
@pytest.mark.parametrize(
    "content",
    [
        b"Exif\0\0junk junk junk",
        b"Exif\0\0II*\0\x08\0\0",
        b"Exif\0\0II*\0\xff\xff\xff\x7f",
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x09\0\0\0",  # orientation 9
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x02\0\0\0x\0\0\0",  # orientation "x"
    ],
)
def test_broken_exif_counts_as_none(tmp_path, colour, extension, content):
    path = save(tmp_path / f"a.{extension}", colour, exif=content)
    assert read(path).shape == colour.shape
    assert (read_header(path).width, read_header(path).height) == (6, 8)


def test_the_first_frame_is_read(tmp_path, colour):
    frames = [Image.fromarray(colour), Image.fromarray(255 - colour)]
    for name, options in (("a.tif", {}), ("a.webp", {"lossless": True}), ("a.png", {})):
        path = save(tmp_path / name, frames[0], save_all=True, append_images=frames[1:], **options)
        np.testing.assert_array_equal(read(path), colour)
        assert read_header(path).several
        assert not read_header(save(tmp_path / f"one-{name}", frames[0], **options)).several


def test_a_phone_jpeg_that_holds_a_second_image(tmp_path):
    flat = Image.new("RGB", (16, 16), (10, 200, 30))
    path = tmp_path / "a.jpg"
    flat.save(path, "MPO", save_all=True, append_images=[Image.new("RGB", (16, 16))])
    assert (read_header(path).format, read_header(path).several) == ("JPEG", True)
    np.testing.assert_allclose(read(path)[8, 8], [10, 200, 30], atol=3)


# ── fitting ──────────────────────────────────────────────────────────────────────────────────


def test_resize_averages_over_areas_and_is_smooth(tmp_path):
    stripes = np.tile(np.array([[0, 255]], np.uint8), (64, 32))
    small = read_image(save(tmp_path / "a.png", stripes), Fit(8, 8, 1, "resize"))
    middle = small[:, 1:-1].astype(int)
    assert np.abs(middle - 127).max() <= 4  # picking one of two pixels would give 0 or 255
    edge = np.array([[0, 255]], np.uint8)
    large = read_image(save(tmp_path / "b.png", edge), Fit(1, 8, 1, "resize")).ravel()
    assert (np.diff(large.astype(int)) >= 0).all() and len(set(large.tolist())) > 3
    assert (large.min(), large.max()) == (0, 255)


def test_letterbox_keeps_the_shape_in_black_bars(tmp_path):
    wide = save(tmp_path / "a.png", np.full((20, 40), 200, np.uint8))
    found = read_image(wide, Fit(32, 32, 1, "letterbox"))[..., 0]
    assert (found[8:24] == 200).all()
    assert (found[:8] == 0).all() and (found[24:] == 0).all()
    tall = save(tmp_path / "b.png", np.full((1000, 1, 3), 200, np.uint8))
    found = read_image(tall, Fit(32, 32, 3, "letterbox"))
    assert (found == 200).all(axis=(0, 2)).sum() == 1  # a column stays a column


def test_letterbox_bars_can_have_the_colour_of_the_border(tmp_path):
    wide = np.full((20, 40, 3), (250, 240, 200), np.uint8)
    wide[5:15, 5:35] = (20, 60, 90)
    wide[:3, :3] = 0  # a mark at the edge changes nothing
    found = read_image(save(tmp_path / "a.png", wide), Fit(32, 32, 3, "letterbox", bars="border"))
    assert (found[:8] == (250, 240, 200)).all() and (found[24:] == (250, 240, 200)).all()
    assert (found[8:24].min(axis=(0, 1)) < 100).all()
    tall = save(tmp_path / "b.png", np.full((1000, 1), 200, np.uint8))
    assert (read_image(tall, Fit(32, 32, 1, "letterbox", bars="border")) == 200).all()


def test_crop_cuts_the_centre(tmp_path):
    wide = np.zeros((10, 30), np.uint8)
    wide[:, 10:20] = np.arange(100, 110)
    found = read_image(save(tmp_path / "a.png", wide), Fit(10, 10, 1, "crop"))
    np.testing.assert_array_equal(found[..., 0], wide[:, 10:20])
    found = read_image(save(tmp_path / "b.png", wide.T.copy()), Fit(10, 10, 1, "crop"))
    np.testing.assert_array_equal(found[..., 0], wide[:, 10:20].T)


@pytest.mark.parametrize("how", ["resize", "letterbox", "crop"])
def test_every_size_can_be_fitted(tmp_path, how):
    for height, width in ((1, 1), (1, 97), (97, 1), (29, 300), (49, 83)):
        path = save(tmp_path / f"{height}x{width}.png", np.full((height, width), 9, np.uint8))
        for target in ((1, 1), (28, 28), (31, 7), (7, 31)):
            found = read_image(path, Fit(*target, 1, how))
            assert found.shape == (*target, 1)
            assert found.max() == 9
            if how != "letterbox":
                assert found.min() == 9


def test_a_large_jpeg_is_decoded_small_to_the_same_pixels(tmp_path, digits):
    large = np.block([list(row) for row in digits.train.images[:64].reshape(8, 8, 8, 8)])
    large = np.array(Image.fromarray(large).resize((1024, 768), Image.Resampling.BICUBIC))
    jpeg, png = save(tmp_path / "a.jpg", large, quality=95), save(tmp_path / "a.png", large)
    for how in ("resize", "letterbox", "crop"):
        small = [read_image(p, Fit(32, 32, 1, how)).astype(int) for p in (jpeg, png)]
        assert np.abs(small[0] - small[1]).mean() < 2
        assert small[1].std() > 10


def test_a_fit_is_checked_and_survives_json():
    fit = Fit(28, 32, 3, "letterbox", 4095, "border")
    assert Fit(**json.loads(json.dumps(asdict(fit)))) == fit
    good = asdict(fit)
    for name, values in {
        "height": (0, -1, 28.0, "28", True, None, 10**9),
        "width": (0, 4097),
        "channels": (2, 4, True, 3.0),
        "how": ("stretch", None, ""),
        "white": (0, 254, 65536, 4095.0, "4095", None),
        "bars": ("white", None, 0),
    }.items():
        for value in values:
            with pytest.raises(InputError, match=name):
                Fit(**(good | {name: value}))
