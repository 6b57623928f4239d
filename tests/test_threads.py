"""Work in threads comes back in order, takes little ahead, and decodes few pixels at a time."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anocaps import pictures
from anocaps.pictures import Fit, PictureError, read_picture, read_pictures
from anocaps.threads import Room, in_order

FIT = Fit(8, 8, 1, "resize")


def save(path: Path, array: np.ndarray, **options) -> Path:
    Image.fromarray(array).save(path, **options)
    return path


def test_only_a_few_are_taken_ahead():
    taken = []

    def items():
        for item in range(10_000):
            taken.append(item)
            yield item

    results = in_order(lambda item: item * 2, items())
    assert [next(results) for _ in range(3)] == [0, 2, 4]
    assert len(taken) < 100
    results.close()
    assert len(taken) < 100


class Crowd:
    """Stands in for decoding: tells how many pixels are decoded at the same time."""

    def __init__(self, monkeypatch):
        self.now = self.most = 0
        self.lock = threading.Lock()
        self.whole = pictures._flat
        monkeypatch.setattr(pictures, "_flat", self)
        monkeypatch.setattr(os, "cpu_count", lambda: 8)

    def __call__(self, image, *rest):
        pixels = image.width * image.height
        with self.lock:
            self.now += pixels
            self.most = max(self.most, self.now)
        time.sleep(0.01)  # so that others come along
        with self.lock:
            self.now -= pixels
        return self.whole(image, *rest)


@pytest.mark.parametrize(("room", "at_once"), [(64, 1), (200, 3)])
def test_only_so_many_pixels_are_decoded_at_the_same_time(
    tmp_path, monkeypatch, digits, room, at_once
):
    files = [save(tmp_path / f"{k:02}.png", digits.train.images[k]) for k in range(24)]
    monkeypatch.setattr(pictures, "_room", Room(room))
    crowd = Crowd(monkeypatch)
    found = [pixels[..., 0] for _, pixels in read_pictures(files, FIT)]
    np.testing.assert_array_equal(found, digits.train.images[:24])
    assert 64 <= crowd.most <= at_once * 64
    assert pictures._room.free == room


def test_there_is_room_for_the_largest_picture_and_no_two_of_them():
    assert pictures._room.free == pictures.MOST_PIXELS


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_that_is_decoded_small_takes_little_room(tmp_path, monkeypatch, progressive):
    path = save(tmp_path / "a.jpg", np.zeros((120, 160), np.uint8), progressive=progressive)
    taken = []

    class Watched(Room):
        def taken(self, amount):
            taken.append(amount)
            return super().taken(amount)

    monkeypatch.setattr(pictures, "_room", Watched(10**6))
    read_picture(path, FIT)
    assert taken == [160 * 120 if progressive else 40 * 30]  # a progressive one is held whole


def test_room_is_given_back_after_an_error(tmp_path, monkeypatch, digits):
    monkeypatch.setattr(pictures, "_room", Room(64))
    path = save(tmp_path / "cut.png", digits.train.images[0])
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(PictureError, match="damaged"):
        read_picture(path, FIT)
    assert pictures._room.free == 64
