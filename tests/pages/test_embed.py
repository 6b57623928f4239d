"""Arrays keep every pixel on their way into a page."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from anocaps.pages.embed import data_uri

PIXELS = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)


def decode(uri: str) -> np.ndarray:
    head, _, body = uri.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(body))))


def test_grey_and_colour_come_back() -> None:
    np.testing.assert_array_equal(decode(data_uri(PIXELS)), PIXELS)
    np.testing.assert_array_equal(decode(data_uri(PIXELS[:, :, 1])), PIXELS[:, :, 1])


@pytest.mark.parametrize("channels", [1, 2])
def test_first_of_one_or_two_channels_is_shown(channels: int) -> None:
    np.testing.assert_array_equal(decode(data_uri(PIXELS[:, :, :channels])), PIXELS[:, :, 0])
