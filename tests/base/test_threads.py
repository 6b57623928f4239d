"""Work in threads: results in order, little taken ahead, few pixels decoded at a time."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from image_files import save

from anocaps.base.threads import Budget, in_order
from anocaps.images import decode
from anocaps.images.decode import Fit, ImageError, read_image
from anocaps.images.reading import read_images

FIT = Fit(8, 8, 1, "resize")


def test_only_a_few_items_are_taken_ahead():
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


def test_an_error_comes_in_order_and_ends_the_work():
    results = in_order(lambda item: 1 // item, [1, 1, 0, 1])
    assert [next(results), next(results)] == [1, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert list(results) == []


# Ctrl-C at the first step of the thread that takes the results, at the second one, and so on.
STOPPED_AT_EVERY_STEP = """
import sys
from anocaps.base.threads import in_order

class Stopped(BaseException):
    pass

def stopped_at(step):
    def trace(*_):
        nonlocal step
        step -= 1
        if step == 0:
            raise Stopped
        return trace

    sys.settrace(trace)
    try:
        return list(in_order(abs, range(9), ahead=3)) != list(range(9))
    except Stopped:
        return True
    finally:
        sys.settrace(None)

step = 1
while stopped_at(step):
    step += 1
print(step)
"""


def test_no_thread_waits_for_ever_wherever_it_is_stopped():
    command = [sys.executable, "-c", STOPPED_AT_EVERY_STEP]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


class Concurrency:
    """Replaces decoding and counts the pixels decoded at the same time."""

    def __init__(self, monkeypatch):
        self.now = self.most = 0
        self.lock = threading.Lock()
        self.whole = decode._flat
        monkeypatch.setattr(decode, "_flat", self)
        monkeypatch.setattr(os, "cpu_count", lambda: 8)

    def __call__(self, image, *rest):
        pixels = image.width * image.height
        with self.lock:
            self.now += pixels
            self.most = max(self.most, self.now)
        time.sleep(0.01)  # so that other threads start
        with self.lock:
            self.now -= pixels
        return self.whole(image, *rest)


@pytest.mark.parametrize(("room", "at_once"), [(64, 1), (200, 3)])
def test_only_so_many_pixels_are_decoded_at_the_same_time(
    tmp_path, monkeypatch, digits, room, at_once
):
    files = [save(tmp_path / f"{k:02}.bmp", digits.train.images[k]) for k in range(24)]
    monkeypatch.setattr(decode, "_memory", Budget(room))
    concurrency = Concurrency(monkeypatch)
    found = [pixels[..., 0] for _, pixels in read_images(files, FIT)]
    np.testing.assert_array_equal(found, digits.train.images[:24])
    assert 64 <= concurrency.most <= at_once * 64
    assert decode._memory.free == room


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_that_is_decoded_small_takes_little_memory(tmp_path, monkeypatch, progressive):
    path = save(tmp_path / "a.jpg", np.zeros((120, 160), np.uint8), progressive=progressive)
    taken = []

    class Watched(Budget):
        def taken(self, amount):
            taken.append(amount)
            return super().taken(amount)

    monkeypatch.setattr(decode, "_memory", Watched(10**6))
    read_image(path, FIT)
    assert taken == [40 * 30 + 2 * 160 * 120 * progressive]  # a progressive JPEG is held whole


def test_room_is_given_back_after_an_error(tmp_path, monkeypatch, digits):
    monkeypatch.setattr(decode, "_memory", Budget(1000))
    path = save(tmp_path / "cut.png", digits.train.images[0])
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ImageError, match="damaged"):
        read_image(path, FIT)
    assert decode._memory.free == 1000


def test_python_ends_while_a_traceback_holds_results():
    code = """
from anocaps.base.threads import in_order

found = in_order(str, range(1000))
next(found)
raise OSError("a bug")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert ended.returncode == 1
