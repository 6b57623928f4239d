"""Synthetic anomalies: a small part of an image changes, visibly."""

import numpy as np
import pytest

from anocaps.inspect.synthetic import lines_of, synthetic


def photos(count=6, channels=3, seed=0):
    """Dark photos with a bright, striped object in the middle."""
    rng = np.random.default_rng(seed)
    images = rng.integers(20, 40, (count, 100, 140, channels), dtype=np.uint8)
    images[:, 20:80, 30:110] = 120 + 60 * (np.arange(80) // 4 % 2)[:, None].astype(np.uint8)
    return images


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_each_kind_and_size_changes_a_part_of_its_size(channels):
    images, others = photos(channels=channels), photos(seed=1, channels=channels)
    before = images.copy()
    lines = list(synthetic(images, others, 0, 4))
    assert len(lines) == lines_of(100, 140) == len({(line.kind, line.size) for line in lines})
    assert len({line.kind for line in lines}) == 5
    for line in lines:
        assert line.images.shape == (4, 100, 140, channels) and line.images.dtype == np.uint8
        changed = (line.images != images[line.rows]).any(3)
        for part in changed:
            across, down = (np.flatnonzero(part.any(axis)) for axis in (0, 1))
            assert 0 < np.ptp(across) + 1 <= round(100 * line.size)
            assert 0 < np.ptp(down) + 1 <= round(100 * line.size)
        assert line.contrast >= 0.02
    np.testing.assert_array_equal(images, before)


def test_the_seed_decides_everything():
    images, others = photos(), photos(seed=1)
    first, again, other = (list(synthetic(images, others, seed, 3)) for seed in (5, 5, 6))
    for a, b, c in zip(first, again, other):
        np.testing.assert_array_equal(a.images, b.images)
        assert not np.array_equal(a.images, c.images)


def test_floats_stay_floats_in_their_range():
    images = photos().astype(np.float32) / 255
    for line in synthetic(images, images[::-1], 0, 2):
        assert line.images.dtype == np.float32
        assert line.images.min() >= 0 and line.images.max() <= 1 + 1e-6


def test_changes_below_two_pixels_are_left_out():
    small = np.random.default_rng(0).integers(0, 256, (3, 20, 30, 1), dtype=np.uint8)
    sizes = [line.size for line in synthetic(small, small, 0, 3)]
    assert len(sizes) == lines_of(20, 30) > 0 and min(sizes) * 20 >= 1.5
    assert lines_of(4, 4) == 0


def test_a_blank_image_still_gives_an_answer():
    blank = np.zeros((2, 64, 64, 1), np.uint8)
    contrasts = {line.kind: line.contrast for line in synthetic(blank, blank, 0, 2)}
    assert contrasts["pasted pieces"] == 0 and contrasts["scratches"] > 0.5
