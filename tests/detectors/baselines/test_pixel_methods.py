"""Kernel density and support vector machines on pixels: they learn, and equal scikit-learn's."""

import numpy as np
import pytest
import torch
from learning import assert_separates, digit_cell
from sklearn.decomposition import PCA
from sklearn.neighbors import KernelDensity
from sklearn.svm import OneClassSVM

from anocaps.base.errors import InputError
from anocaps.detectors import load
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


# ── their settings ───────────────────────────────────────────────────────────────────────────


def test_widen_multiplies_both_widths(cell):
    images = cell[0][:100]
    plain, wide = (KDEDetector(device="cpu", widen=w).fit(images) for w in (1.0, 2.0))
    np.testing.assert_array_equal(wide.widths_, 2 * plain.widths_)
    assert wide.record_["widths"] == wide.widths_.tolist()


def test_nu_is_the_share_of_training_images_outside_the_linear_machines(cell):
    images = cell[0]
    for nu in (0.05, 0.3):
        detector = PixelSVMDetector(device="cpu", calibration=0.0, nu=nu).fit(images)
        found = detector.outputs(images)
        for name in ("hyperplane", "hypersphere"):
            assert np.mean(found[name] < -1e-4) == pytest.approx(nu, abs=0.03)
        reference = OneClassSVM(nu=nu, gamma=detector.svm_.gamma).fit(rows(images))
        want = reference.decision_function(rows(images))
        assert np.corrcoef(want, np.exp(found["rbf"]))[0, 1] > 0.9999


@pytest.mark.parametrize(
    ("kind", "setting"), [(KDEDetector, {"widen": 2.5}), (PixelSVMDetector, {"nu": 0.4})]
)
def test_a_model_file_keeps_the_setting_and_the_scores(kind, setting, cell, tmp_path):
    images, _, normal, _ = cell
    detector = kind(device="cpu", **setting).fit(images[:100])
    detector.save(tmp_path / "model")
    loaded = load(tmp_path / "model", device="cpu")
    assert setting.items() <= loaded.get_params().items()
    found, want = (d.outputs(normal[:20]) for d in (loaded, detector))
    for name in kind.score_names:
        np.testing.assert_array_equal(found[name], want[name])


@pytest.mark.parametrize(
    ("kind", "setting"),
    [(KDEDetector, {"widen": w}) for w in (0, -1.0, float("inf"), float("nan"))]
    + [(PixelSVMDetector, {"nu": nu}) for nu in (0, -0.1, 1.1, float("nan"))],
)
def test_an_illegal_setting_is_refused_in_one_line(kind, setting, cell):
    (name,) = setting
    with pytest.raises(InputError, match=f"^{name} must be above 0 .*, not .*$") as refused:
        kind(device="cpu", **setting).fit(cell[0][:20])
    assert "\n" not in str(refused.value)
