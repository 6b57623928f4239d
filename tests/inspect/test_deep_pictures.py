"""Grey of 16 bits and of floats becomes bytes; what counts as white is part of the fit."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anocaps.images.decode import Fit, ImageError, largest_value, look, read_image


@pytest.fixture(scope="module")
def grey(digits) -> np.ndarray:
    return digits.train.images[0]


def save(path: Path, array: np.ndarray | Image.Image) -> Path:
    (array if isinstance(array, Image.Image) else Image.fromarray(array)).save(path)
    return path


def read(path: Path, **options) -> np.ndarray:
    """H×W, at the file's own size."""
    seen = look(path)
    return read_image(path, Fit(seen.height, seen.width, 1, "resize", **options))[..., 0]


DEEP = np.array([[0, 128, 129], [257, 32896, 65535]], np.uint16)
EIGHT = np.array([[0, 0, 1], [1, 128, 255]], np.uint8)


@pytest.mark.parametrize("extension", ["png", "tif"])
def test_sixteen_bits_are_scaled_to_eight(tmp_path, extension):
    path = save(tmp_path / f"a.{extension}", DEEP)
    assert look(path).mode == "I;16" and not look(path).colour
    np.testing.assert_array_equal(read(path), EIGHT, strict=True)


def test_sixteen_bits_of_any_byte_order_and_width(tmp_path):
    big = Image.frombytes("I;16B", (3, 2), DEEP.astype(">u2").tobytes())
    np.testing.assert_array_equal(read(save(tmp_path / "big.tif", big)), EIGHT, strict=True)
    wide = save(tmp_path / "wide.tif", DEEP.astype(np.int32))
    assert look(wide).mode == "I"
    np.testing.assert_array_equal(read(wide), EIGHT, strict=True)


def test_a_real_digit_is_the_same_in_eight_and_sixteen_bits(tmp_path, grey):
    path = save(tmp_path / "a.png", grey.astype(np.uint16) * 257)
    np.testing.assert_array_equal(read(path), grey, strict=True)


def test_twelve_bits_in_sixteen_are_not_dark(tmp_path):
    twelve = np.array([[0, 8, 9], [2048, 4095, 5000]], np.uint16)
    expected = np.array([[0, 0, 1], [128, 255, 255]], np.uint8)  # what is above white is white
    big = Image.frombytes("I;16B", (3, 2), twelve.astype(">u2").tobytes())
    for name, image in {"a.png": twelve, "a.tif": twelve, "b.tif": big}.items():
        path = save(tmp_path / name, image)
        np.testing.assert_array_equal(read(path, white=4095), expected, strict=True)
        assert read(path).max() == 19
        assert largest_value(path) == 5000
    wide = save(tmp_path / "wide.tif", twelve.astype(np.int32))
    np.testing.assert_array_equal(read(wide, white=4095), expected, strict=True)
    with pytest.raises(ImageError, match="32-bit pixels outside 0 to 65535"):
        largest_value(save(tmp_path / "c.tif", np.array([[0, 65536]], np.int32)))


@pytest.mark.parametrize("bits", range(8, 17))
def test_every_white_point_is_reached_in_even_steps(tmp_path, bits):
    white = 2**bits - 1
    values = np.arange(white + 1, dtype=np.uint16).reshape(16, -1)
    found = read(save(tmp_path / "a.png", values), white=white)
    np.testing.assert_array_equal(found, np.rint(values * (255 / white)))


def test_the_white_point_is_of_sixteen_bits_alone(tmp_path, grey):
    for name, array in {"a.png": grey, "a.tif": grey.astype(np.float32) / 255}.items():
        path = save(tmp_path / name, array)
        np.testing.assert_array_equal(read(path, white=255), read(path))


def test_float_pixels_must_be_zero_to_one(tmp_path, grey):
    good = save(tmp_path / "good.tif", grey.astype(np.float32) / 255)
    np.testing.assert_array_equal(read(good), grey, strict=True)
    for number, bad in enumerate((-0.1, 1.1, 200.0, np.nan)):
        array = np.array([[0, bad]], np.float32)
        with pytest.raises(ImageError, match=r"\d\.tif has float pixels outside 0 to 1.*16 bits"):
            read(save(tmp_path / f"{number}.tif", array))
    with pytest.raises(ImageError, match="32-bit pixels outside 0 to 65535"):
        read(save(tmp_path / "wide.tif", np.array([[0, 65536]], np.int32)))
