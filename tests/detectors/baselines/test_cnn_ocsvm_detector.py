"""What CNN+OCSVM does beyond the contract, and that its CNN truly learns."""

import numpy as np
import pytest
import torch
from learning import assert_moved, assert_separates, digit_cell, freshly_drawn, with_network

from anocaps.detectors import CNNOCSVMDetector
from anocaps.detectors.baselines.one_class_svm import OneClassSVM


def small(**options):
    settings = {"epochs": 10, "device": "cpu", "calibration": 0.0, "batch_size": 32}
    return CNNOCSVMDetector(**(settings | options))


def features(detector, images):
    return torch.cat(
        [found for found, _ in detector._each(images[..., None], detector._classified)]
    )


def test_it_learns_digits(digits):
    images, labels, normal, anomalous = digit_cell(digits, 8)
    detector = small().fit(images, labels)
    losses = detector.record_["losses"]
    assert losses[-1] < 0.2 * losses[0]
    assert_moved(detector)
    untrained = with_network(detector, freshly_drawn(detector, 123))
    untrained.svm_ = OneClassSVM.fit(features(untrained, images), 0)
    assert_separates(detector, untrained, normal, anomalous, {"ocsvm": 0.1})
    kept = digits.test.labels != 8
    assert np.mean(detector.classify(normal) == digits.test.labels[kept]) > 0.9


def test_the_machine_sees_every_training_image_but_no_other(digits):
    images, labels, _, _ = digit_cell(digits, 6)
    detector = small(epochs=1).fit(images, labels)
    again = OneClassSVM.fit(features(detector, images), detector.seed)
    assert torch.equal(detector.svm_.support, again.support)
    assert detector.record_["svm"]["support_vectors"] == len(again.support) < len(images)


def test_standardised_crops_of_two_cameras():
    images = np.random.default_rng(0).integers(0, 256, (12, 20, 20, 2), dtype=np.uint8)
    detector = small(epochs=1, crop=12, standardize=True).fit(images, np.arange(12) % 3)
    halved = images // 2
    np.testing.assert_allclose(  # the CNN does not see affine changes
        detector.score_samples(halved * 2), detector.score_samples(halved + 40), atol=1e-3
    )
    outside = images.copy()
    outside[:, :4] = 0  # not in the central crop
    np.testing.assert_array_equal(detector.score_samples(images), detector.score_samples(outside))


def test_one_class_has_a_score_and_a_label(two_classes):
    images, _ = two_classes
    with pytest.warns(UserWarning, match="learns nothing"):
        detector = small(epochs=1).fit(images, ["good"] * len(images))
    assert np.isfinite(detector.score_samples(images)).all()
    assert set(detector.classify(images)) == {"good"}
