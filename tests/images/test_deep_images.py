"""Grey images of 16 bits and of floats become bytes; the fit says which value is white."""

import numpy as np
import pytest
from image_files import save
from PIL import Image

from anocaps.images.decode import Fit, ImageError, largest_value, read_header, read_image


@pytest.fixture(scope="module")
def grey(digits) -> np.ndarray:
    return digits.train.images[0]


def read(path, **options) -> np.ndarray:
    """H×W, at the file's own size."""
    seen = read_header(path)
    return read_image(path, Fit(seen.height, seen.width, 1, "resize", **options))[..., 0]


SIXTEEN = np.array([[0, 128, 129], [257, 32896, 65535]], np.uint16)
TWELVE = np.array([[0, 8, 9], [2048, 4095, 5000]], np.uint16)


@pytest.mark.parametrize(
    ("values", "white", "expected"),
    [
        (SIXTEEN, 65535, [[0, 0, 1], [1, 128, 255]]),
        (TWELVE, 4095, [[0, 0, 1], [128, 255, 255]]),  # values above white are white
    ],
)
@pytest.mark.parametrize("name", ["a.png", "a.tif", "big-endian.tif", "wide.tif"])
def test_sixteen_bits_are_scaled_to_eight(tmp_path, name, values, white, expected):
    image = {
        "big-endian.tif": Image.frombytes("I;16B", (3, 2), values.astype(">u2").tobytes()),
        "wide.tif": Image.fromarray(values.astype(np.int32)),
    }.get(name, values)
    path = save(tmp_path / name, image)
    assert not read_header(path).colour and largest_value(path) == values.max()
    found = read(path, white=white)
    np.testing.assert_array_equal(found, np.array(expected, np.uint8), strict=True)


@pytest.mark.parametrize("bits", range(8, 17))
def test_every_white_point_is_reached_in_even_steps(tmp_path, bits):
    white = 2**bits - 1
    values = np.arange(white + 1, dtype=np.uint16).reshape(16, -1)
    found = read(save(tmp_path / "a.png", values), white=white)
    np.testing.assert_array_equal(found, np.rint(values * (255 / white)))


def test_the_white_point_changes_sixteen_bits_only(tmp_path, grey):
    for name, array in {"a.png": grey, "a.tif": grey.astype(np.float32) / 255}.items():
        path = save(tmp_path / name, array)
        np.testing.assert_array_equal(read(path, white=255), grey)


@pytest.mark.parametrize("value", [-0.1, 1.1, 200.0, np.nan])
def test_float_pixels_must_be_zero_to_one(tmp_path, value):
    with pytest.raises(ImageError, match=r"a\.tif has float pixels"):
        read(save(tmp_path / "a.tif", np.array([[0, value]], np.float32)))


def test_wide_pixels_must_fit_into_sixteen_bits(tmp_path):
    path = save(tmp_path / "a.tif", np.array([[0, 65536]], np.int32))
    for function in (read, largest_value):
        with pytest.raises(ImageError, match=r"a\.tif has 32-bit pixels"):
            function(path)
