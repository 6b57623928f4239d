"""Near-copies are found among more images than are compared at a time."""

import numpy as np

from anocaps import CapsNetDetector
from anocaps.detectors.fitting import calibration_split
from anocaps.detectors.photo.copies import _AT_ONCE, near_copies


def test_groups_reach_over_parts() -> None:
    generator = np.random.default_rng(0)
    scenes = generator.normal(size=(2 * _AT_ONCE, 112))
    frames = scenes + 0.01 * generator.normal(size=scenes.shape)
    scene = np.tile(np.arange(len(scenes)), 2)
    order = generator.permutation(len(scene))
    means = np.concatenate([scenes, frames])[order].astype(np.float32)
    found = near_copies(means, np.zeros(len(means), dtype=np.int64))
    _, first = np.unique(scene[order], return_index=True)  # the first image of each scene
    assert (found == first[scene[order]]).all()


def test_only_images_of_one_class_are_near_copies() -> None:
    means = np.repeat(np.random.default_rng(0).normal(size=(20, 112)), 2, axis=0)
    labels = np.tile([0, 1], 20)
    assert len(np.unique(near_copies(means.astype(np.float32), labels))) == 40


def test_other_presets_find_near_copies_by_thumbnails() -> None:
    """Frames in another light and with other noise stay together, on one side of the split."""
    generator = np.random.default_rng(0)
    scenes = np.kron(generator.random((40, 8, 8)), np.ones((5, 5)))  # 40×40 pixels
    bright = 0.6 * scenes + 0.3 + 0.02 * generator.random(scenes.shape)
    frames = np.concatenate([scenes, bright]).astype(np.float32)[..., None]
    index = np.tile(np.repeat([0, 1, -1], [20, 19, 1]), 2)
    detector = CapsNetDetector("deep", calibration=0.3)
    training, kept, groups = calibration_split(detector, frames, index)
    assert (groups[:39] == groups[40:79]).all() and len(np.unique(groups[:39])) == 39
    assert len(kept) and set(training % 40) & set(kept % 40) == set()
    assert sorted([*training, *kept]) == np.flatnonzero(index >= 0).tolist()
    small = frames[:, ::2, ::2]  # too small to tell
    assert len(np.unique(calibration_split(detector, small, index)[2])) == 80
