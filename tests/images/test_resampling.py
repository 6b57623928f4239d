"""The size at which preset `photo` sees images, and that resizing is Pillow's."""

import numpy as np
import pytest
from PIL import Image

from anocaps.images.resampling import resampling, working_size


@pytest.mark.parametrize(
    ("given", "shorter", "wanted"),
    [
        ((630, 250), None, (480, 192)),  # reduced
        ((32, 32), None, (112, 112)),  # enlarged
        ((150, 150), None, (144, 144)),  # kept, up to whole places
        ((630, 250), 256, (640, 256)),
        ((4000, 250), None, (1024, 64)),  # the longer side has a limit
    ],
)
def test_the_working_size_keeps_the_aspect_ratio(given, shorter, wanted):
    assert working_size(*given, shorter) == wanted


@pytest.mark.parametrize("size", [(20, 45), (112, 84), (13, 30)])
def test_resizing_is_that_of_pillow(size):
    image = np.random.default_rng(0).random((40, 30)).astype(np.float32)
    wanted = np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR))
    found = resampling(40, size[0]) @ image @ resampling(30, size[1]).T
    np.testing.assert_allclose(found, wanted, atol=1e-6)
