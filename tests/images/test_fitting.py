"""The fit follows from the files: their sizes, their shapes, and whether they show colour."""

import random
from pathlib import Path

import numpy as np
import pytest
from image_files import save
from PIL import Image

from anocaps.images import fitting
from anocaps.images.decode import Fit, Header, read_header
from anocaps.images.fitting import choose_fit


def seen(sizes, colour=False) -> list[Header]:
    """Headers of files (width, height) that need not exist: grey ones are never opened."""
    return [Header(Path("nowhere"), "PNG", "L", w, h, colour, False) for w, h in sizes]


def boxed(height: int, width: int, channels: int) -> Fit:
    return Fit(height, width, channels, "letterbox", bars="border")


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(28, 28)] * 50, Fit(28, 28, 1, "resize")),
        ([(100, 60)] * 50, Fit(60, 100, 1, "resize")),
        ([(128, 128)] * 50, Fit(128, 128, 1, "resize")),
        ([(28, 28)] * 99 + [(300, 50)], Fit(28, 28, 1, "resize")),  # one file decides nothing
        ([(8, 8)] * 50, Fit(8, 8, 1, "resize")),
        ([(3, 27)] * 50, Fit(27, 8, 1, "resize")),  # the smallest side of the networks
        ([(9, 12)] * 40 + [(8, 20)] * 10, boxed(12, 12, 1)),
        ([(4000, 3000)] * 50, Fit(96, 128, 1, "resize")),
        ([(2000, 100)] * 50, Fit(28, 128, 1, "resize")),
        ([(40, 40), (44, 44)] * 25, Fit(48, 48, 1, "resize")),
        ([(50, 50), (60, 60), (70, 70)] * 20, Fit(64, 64, 1, "resize")),
        ([(4000, 3000), (3000, 4000)] * 25, boxed(128, 128, 1)),
        ([(30, 30)] * 45 + [(30, 60)] * 5, boxed(32, 32, 1)),
    ],
)
def test_size_and_how(sizes, expected):
    random.Random(0).shuffle(sizes)
    assert choose_fit(seen(sizes)) == expected


def test_given_settings_are_kept():
    mixed = seen([(4000, 3000), (300, 400)] * 10)
    assert choose_fit(mixed, size=64) == boxed(64, 64, 1)
    assert choose_fit(mixed, how="crop") == Fit(128, 128, 1, "crop")
    assert choose_fit(mixed, channels=3) == boxed(128, 128, 3)
    assert choose_fit(seen([(28, 28)] * 9), size=48) == Fit(48, 48, 1, "resize")


def folder_of(tmp_path, images) -> list[Header]:
    return [read_header(save(tmp_path / f"{k:03}.png", image)) for k, image in enumerate(images)]


def test_colour_must_be_visible(tmp_path, digits):
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


RED = np.full((8, 8, 3), (200, 0, 0), np.uint8)


def test_two_coloured_files_among_100_grey_ones_do_not_decide(tmp_path, digits):
    grey = list(digits.train.images[:100])
    assert choose_fit(folder_of(tmp_path, [*grey, RED, RED])).channels == 1
    assert choose_fit(folder_of(tmp_path, [*grey, *[RED] * 6])).channels == 3
    assert choose_fit(folder_of(tmp_path, [grey[0], RED])).channels == 3


def test_files_can_come_from_an_iterator_and_can_vanish(tmp_path):
    files = folder_of(tmp_path, [RED] * 60)
    for file in files[::2]:
        file.path.unlink()
    assert choose_fit(iter(files)).channels == 3


def deep(tmp_path, digits, largest: list[int]) -> list[Header]:
    """16-bit files of real digits, each with this largest value."""
    grey = zip(digits.train.images.astype(np.uint32), largest)
    return folder_of(tmp_path, [(i * most // i.max()).astype(np.uint16) for i, most in grey])


@pytest.mark.parametrize(
    ("largest", "white"),
    [
        ([4095, 900], 4095),
        ([900, 2048], 4095),
        ([3, 60], 255),  # fewer than 8 bits stay dark
        ([255], 255),
        ([256], 511),
        ([40_000], 65535),
    ],
)
def test_white_is_the_largest_value_of_the_bits_in_use(tmp_path, digits, largest, white):
    assert choose_fit(deep(tmp_path, digits, largest)).white == white


def test_deep_files_can_vanish_or_be_bad(tmp_path, digits):
    files = deep(tmp_path, digits, [65535, 65535, 1000])
    files[0].path.unlink()
    files[1].path.write_bytes(b"junk")
    assert choose_fit(files).white == 1023
    files[2].path.unlink()
    assert choose_fit(files).white == 65535


def test_of_many_deep_files_200_are_sampled_evenly(tmp_path, digits, monkeypatch):
    one = deep(tmp_path, digits, [1000])[0]
    opened = []
    monkeypatch.setattr(fitting, "largest_value", lambda file: opened.append(file) or 1000)
    many = [Header(Path(f"{k}"), *(one.format, one.mode, 8, 8, False, False)) for k in range(5000)]
    assert choose_fit(many).white == 1023
    assert len(opened) == len(set(opened)) == 200
    assert 2000 < np.mean([int(file.name) for file in opened]) < 3000
