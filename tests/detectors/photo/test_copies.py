"""Near-copies are found among more images than are compared at a time."""

import numpy as np

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
