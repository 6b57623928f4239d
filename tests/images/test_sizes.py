"""What becomes of a size, in words."""

from pathlib import Path

import pytest

from anocaps.images.decode import Fit, Header
from anocaps.images.sizes import Sizes, describe_size, describe_sizes, sizes_of


def headers(*sizes):
    return [
        Header(Path(f"{k}.png"), "PNG", "L", *size, False, False) for k, size in enumerate(sizes)
    ]


def test_the_range_and_the_most_common_size():
    sizes = sizes_of(headers((30, 40), (30, 40), (20, 90)))
    assert sizes == Sizes(3, (20, 30), (40, 90), (30, 40), 2)
    said = describe_sizes(sizes)
    assert "20 to 30" in said and "40 to 90" in said and "2 of 3 are 30×40" in said
    assert "30×40" in describe_sizes(sizes_of(headers((30, 40))))


@pytest.mark.parametrize(
    ("fit", "says"),
    [
        (Fit(310, 256, 1, "resize"), "271×328 becomes 256×310."),
        (Fit(128, 128, 1, "resize"), "271×328 becomes 128×128, distorted."),
        (Fit(128, 128, 1, "letterbox"), "271×328 becomes 106×128, inside 128×128."),
        (Fit(128, 128, 1, "crop"), "271×328 becomes 128×155, cut to 128×128."),
        (Fit(328, 271, 1, "resize"), "271×328 stays as it is."),
    ],
)
def test_what_becomes_of_a_size(fit, says):
    assert describe_size(sizes_of(headers((271, 328))), fit) == says


def test_photo_sees_its_working_size():
    sizes = sizes_of(headers((271, 328)))
    fit = Fit(240, 192, 3, "resize")
    assert describe_size(sizes, fit, photo=True) == "271×328 becomes 192×240."
    assert "96×128" in describe_size(sizes, fit, photo=True, shorter=96)
    small = sizes_of(headers((64, 64)))
    assert "112×112" in describe_size(small, Fit(64, 64, 3, "resize"), photo=True)
