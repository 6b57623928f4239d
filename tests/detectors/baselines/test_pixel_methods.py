"""Kernel density and support vector machines on pixels: they learn, and equal scikit-learn's."""

import numpy as np
import pytest
import torch
from learning import assert_separates, digit_cell
from sklearn.decomposition import PCA
from sklearn.neighbors import KernelDensity
from sklearn.svm import OneClassSVM

from anocaps.detectors.baselines.kde import KDEDetector, best_width
from anocaps.detectors.baselines.one_class_svm import NU
from anocaps.detectors.baselines.pixel_svm import PixelSVMDetector

WHOLE = {"leaf_size": 10_000}  # scikit-learn's trees drop parts of a sum that are not small


def rows(images):
    return images.reshape(len(images), -1) / 255


@pytest.fixture(scope="module")
def cell(digits):
    return digit_cell(digits, 4)


@pytest.mark.parametrize(
    ("kind", "margins"),
    [
        (KDEDetector, {"pixels": 0.15, "pca": 0.15}),
        (PixelSVMDetector, {"rbf": 0.15, "hyperplane": 0.05, "hypersphere": 0.05}),
    ],
)
def test_it_learns_digits(kind, margins, cell):
    """Against the same method fitted on noise."""
    images, _, normal, anomalous = cell
    noise = np.random.default_rng(0).integers(0, 256, (200, 8, 8), dtype=np.uint8)
    fitted, other = (kind(device="cpu", calibration=0.0).fit(x) for x in (images, noise))
    assert_separates(fitted, other, normal, anomalous, margins)


def test_densities_are_scikit_learn_s(cell):
    images, _, normal, _ = cell
    detector = KDEDetector(device="cpu", calibration=0.0).fit(images)
    found = detector.outputs(normal[:50])
    pixels, pca = detector.widths_
    reference = KernelDensity(bandwidth=pixels, **WHOLE).fit(rows(images))
    np.testing.assert_allclose(
        found["pixels"], reference.score_samples(rows(normal[:50])), rtol=1e-5
    )
    projection = PCA(0.95, svd_solver="full").fit(rows(images))
    assert detector.axes_.shape[1] == projection.n_components_
    reference = KernelDensity(bandwidth=pca, **WHOLE).fit(projection.transform(rows(images)))
    want = reference.score_samples(projection.transform(rows(normal[:50])))
    np.testing.assert_allclose(found["pca"], want, rtol=1e-5)


def test_the_width_is_the_most_likely_one():
    points = torch.from_numpy(np.random.default_rng(1).normal(0, 1, (400, 3)))
    width = best_width(points)
    held_out = np.arange(400) % 10 == 0

    def likelihood(width):
        density = KernelDensity(bandwidth=width).fit(points.numpy()[~held_out])
        return density.score(points.numpy()[held_out])

    assert likelihood(width) > max(likelihood(width * 1.3), likelihood(width / 1.3))
    assert best_width(torch.ones(50, 3)) == 1 / 255  # identical images
    assert best_width(torch.ones(1, 3)) == 1 / 255


def test_the_machines_are_scikit_learn_s(cell):
    images, _, normal, _ = cell
    detector = PixelSVMDetector(device="cpu", calibration=0.0).fit(images)
    found = detector.outputs(normal[:50])
    settings = {"rbf": {"gamma": detector.svm_.gamma}, "hyperplane": {"kernel": "linear"}}
    for name, kernel in settings.items():
        reference = OneClassSVM(nu=NU, tol=1e-6, **kernel).fit(rows(images))
        want = reference.decision_function(rows(normal[:50]))
        assert np.corrcoef(np.argsort(np.argsort(want)), np.argsort(np.argsort(found[name])))[
            0, 1
        ] > (0.9999 if name == "rbf" else 0.98)


def test_only_the_central_window_counts():
    images = np.random.default_rng(0).integers(0, 256, (30, 12, 12), dtype=np.uint8)
    other = images.copy()
    other[:, :2] = 0
    for kind in (KDEDetector, PixelSVMDetector):
        detector = kind(device="cpu", crop=8).fit(images)
        np.testing.assert_array_equal(detector.score_samples(images), detector.score_samples(other))
