"""Shared by the tests of the benchmark methods: does a detector truly learn?"""

import copy

import numpy as np
import torch

from anocaps.judging.metrics import auroc


def digit_cell(digits, held_out):
    """Training images and labels without a digit; test images without it, and of it alone."""
    train, test = digits.train, digits.test
    kept, normal = train.labels != held_out, test.labels != held_out
    return train.images[kept], train.labels[kept], test.images[normal], test.images[~normal]


def speckled(parts, share):
    """Arrays of images in which this share of the pixels is black or white."""
    generator = np.random.default_rng(0)
    for images in parts:
        black_or_white = generator.integers(0, 2, images.shape, dtype=np.uint8) * 255
        yield np.where(generator.random(images.shape) < share, black_or_white, images)


def freshly_drawn(detector, seed):
    """The weights that training with this seed would begin with."""
    torch.manual_seed(seed)
    return detector._network().eval()


def with_network(detector, network):
    other = copy.deepcopy(detector)
    other.network_ = network
    return other


def assert_moved(detector):
    """Every parameter tensor differs from where it began."""
    began = freshly_drawn(detector, detector.seed).named_parameters()
    for (name, before), after in zip(began, detector.network_.parameters(), strict=True):
        assert not torch.equal(before, after), name


def assert_separates(trained, untrained, normal, anomalous, margins):
    """Better than chance and than drawn weights by a margin, for each score."""
    for score, margin in margins.items():
        found, before = (
            auroc(d.score_samples(normal, score), d.score_samples(anomalous, score))
            for d in (trained, untrained)
        )
        assert np.std(trained.score_samples(normal, score)) > 0
        assert found > max(0.5, before) + margin, (score, found, before)
