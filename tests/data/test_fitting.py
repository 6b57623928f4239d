"""The fit is chosen from the files: their sizes, their shapes, and whether they show colour."""

import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anocaps.data.fitting import choose_fit
from anocaps.errors import InputError
from anocaps.pictures import Fit, Seen, look


def seen(sizes, colour=False) -> list[Seen]:
    """Headers of files (width, height) that need not exist: grey ones are never opened."""
    return [Seen(Path("nowhere"), "PNG", "L", w, h, colour, False) for w, h in sizes]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(28, 28)] * 50, Fit(28, 28, 1, "resize")),
        ([(100, 60)] * 50, Fit(60, 100, 1, "resize")),
        ([(128, 128)] * 50, Fit(128, 128, 1, "resize")),
        ([(28, 28)] * 99 + [(300, 50)], Fit(28, 28, 1, "resize")),  # one odd file decides nothing
        ([(8, 8)] * 50, Fit(32, 32, 1, "resize")),  # below what the networks are made for
        ([(27, 28)] * 50, Fit(32, 32, 1, "resize")),
        ([(129, 129)] * 50, Fit(128, 128, 1, "resize")),
        ([(4000, 3000)] * 50, Fit(96, 128, 1, "resize")),
        ([(3000, 4000)] * 50, Fit(128, 96, 1, "resize")),
        ([(2000, 100)] * 50, Fit(28, 128, 1, "resize")),
        ([(40, 40), (44, 44)] * 25, Fit(48, 48, 1, "resize")),
        ([(50, 50), (60, 60), (70, 70)] * 20, Fit(64, 64, 1, "resize")),
        ([(80, 81), (90, 91)] * 20, Fit(96, 96, 1, "resize")),
        ([(4000, 3000), (3000, 4000)] * 25, Fit(128, 128, 1, "letterbox")),
        ([(30, 30)] * 45 + [(30, 60)] * 5, Fit(32, 32, 1, "letterbox")),
    ],
)
def test_size_and_way(sizes, expected):
    random.Random(0).shuffle(sizes)
    assert choose_fit(seen(sizes)) == expected


def test_what_is_given_is_kept():
    mixed = seen([(4000, 3000), (300, 400)] * 10)
    assert choose_fit(mixed, size=64) == Fit(64, 64, 1, "letterbox")
    assert choose_fit(mixed, how="crop") == Fit(128, 128, 1, "crop")
    assert choose_fit(mixed, channels=3) == Fit(128, 128, 3, "letterbox")
    assert choose_fit(seen([(28, 28)] * 9), size=48) == Fit(48, 48, 1, "resize")


def test_nothing_to_choose_from():
    with pytest.raises(InputError, match="no readable image"):
        choose_fit([])


def folder_of(tmp_path, images) -> list[Seen]:
    paths = [tmp_path / f"{number:03}.png" for number in range(len(images))]
    for path, image in zip(paths, images):
        Image.fromarray(image).save(path)
    return [look(path) for path in paths]


def test_colour_must_be_seen(tmp_path, digits):
    grey = [np.stack([image] * 3, axis=-1) for image in digits.train.images[:120]]
    tinted = grey[0].copy()
    tinted[..., 2] = np.maximum(tinted[..., 2], 10)  # as a scanner would
    files = folder_of(tmp_path, [*grey, tinted])
    assert all(file.colour for file in files)  # the headers say RGB
    assert choose_fit(files).channels == 1
    for file in files[:30]:
        array = np.array(Image.open(file.path))
        array[2:4, 2:4] = (250, 30, 30)  # a red mark
        Image.fromarray(array).save(file.path)
    assert choose_fit(files).channels == 3


def test_a_few_coloured_files_among_many_grey_ones_do_not_decide(tmp_path, digits):
    red = np.zeros((8, 8, 3), np.uint8)
    red[..., 0] = 200
    grey = list(digits.train.images[:100])
    assert choose_fit(folder_of(tmp_path, [*grey, red, red])).channels == 1
    assert choose_fit(folder_of(tmp_path, [*grey, *[red] * 6])).channels == 3
    assert choose_fit(folder_of(tmp_path, [grey[0], red])).channels == 3


def test_a_stream_will_do_and_files_may_vanish(tmp_path, digits):
    red = np.zeros((8, 8, 3), np.uint8)
    red[..., 0] = 200
    files = folder_of(tmp_path, [red] * 60)
    for file in files[::2]:
        file.path.unlink()
    assert choose_fit(iter(files)).channels == 3
