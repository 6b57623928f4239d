"""The time that training will take, from a few steps."""

import itertools

import numpy as np
import pytest

from anocaps import CapsNetDetector
from anocaps.base.extras import pretrained_available
from anocaps.inspect.forecast import about, expected_seconds

NOISE = np.random.default_rng(0).integers(0, 256, (60, 64, 64, 3), dtype=np.uint8)
LABELS = np.arange(60) % 2


@pytest.mark.parametrize("preset", ["quick", "deep", "photo"])
def test_more_images_and_a_self_check_take_longer(preset, monkeypatch):
    if preset == "photo" and not pretrained_available():
        pytest.skip("the pretrained weights are not installed")
    ticks = itertools.count()  # every timed step takes equally long
    monkeypatch.setattr("anocaps.inspect.forecast.time.perf_counter", lambda: float(next(ticks)))
    detector = CapsNetDetector(preset, device="cpu")
    if preset == "photo":
        few, many = 60, 6000
    else:
        detector.set_params(epochs=2)
        few, many = 60, 600
    images, labels = (np.resize(each, (many, *each.shape[1:])) for each in (NOISE, LABELS))
    first = expected_seconds(detector, images[:few], labels[:few], checked=False)
    assert first > 0
    assert expected_seconds(detector, images, labels, checked=False) > 1.5 * first
    assert expected_seconds(detector, images[:few], labels[:few], checked=True) > first
    assert not hasattr(detector, "classes_")  # it was not fitted


def test_times_for_people():
    said = [about(seconds) for seconds in (2, 44, 130, 4000, 9000)]
    assert len(set(said)) == 5 and "40" in said[1] and "2" in said[2] and "2" in said[4]
