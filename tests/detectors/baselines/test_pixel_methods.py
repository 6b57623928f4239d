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

KINDS = pytest.mark.parametrize("kind", [KDEDetector, PixelSVMDetector])
WHOLE = {"leaf_size": 10_000}  # scikit-learn's trees drop parts of a sum that are not small


def rows(images):
    return images.reshape(len(images), -1) / 255


@pytest.fixture(scope="module")
def cell(digits):
    return digit_cell(digits, 4)


@KINDS
def test_it_learns_a_digit(kind, digits):
    """Against the same method fitted on noise."""
    train, test = digits.train, digits.test
    noise = np.random.default_rng(0).integers(0, 256, (200, 8, 8), dtype=np.uint8)
    fitted, other = (
        kind(device="cpu", calibration=0.0).fit(x) for x in (train.images[train.labels == 6], noise)
    )
    normal, anomalous = test.images[test.labels == 6], test.images[test.labels != 6]
    assert_separates(fitted, other, normal, anomalous, dict.fromkeys(kind.score_names, 0.3))


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
    points = np.random.default_rng(1).normal(0, 1, (400, 3))
    width = best_width(torch.from_numpy(points))
    drawn = np.random.default_rng(0).permutation(400)
    held_out, others = points[drawn[:40]], points[drawn[40:]]

    def likelihood(width):
        return KernelDensity(bandwidth=width).fit(others).score(held_out)

    assert likelihood(width) > max(likelihood(width * 1.3), likelihood(width / 1.3))
    assert best_width(torch.ones(50, 3)) == 1 / 255  # identical images
    assert best_width(torch.ones(1, 3)) == 1 / 255


def test_the_machines_are_scikit_learn_s(cell):
    """A tenth of the images may be outside."""
    images, _, normal, _ = cell
    detector = PixelSVMDetector(device="cpu", calibration=0.0).fit(images)
    found = detector.outputs(normal[:50])
    for name, kernel in (
        ("rbf", {"gamma": detector.svm_.gamma}),
        ("hyperplane", {"kernel": "linear"}),
    ):
        reference = OneClassSVM(nu=0.1, tol=1e-8, **kernel).fit(rows(images))
        want = reference.decision_function(rows(normal[:50]))
        if name == "rbf":  # ours is the logarithm of (want + level) / level
            level = -reference.intercept_[0]
            want = np.log1p(want / level)
        else:  # scikit-learn's weights add up to ν times the number of images
            want /= reference.dual_coef_.sum()
        np.testing.assert_allclose(found[name], want, atol=0.01 * want.std(), err_msg=name)


def test_only_the_central_window_counts():
    images = np.random.default_rng(0).integers(0, 256, (30, 12, 12), dtype=np.uint8)
    other = images.copy()
    other[:, :2] = 0
    for kind in (KDEDetector, PixelSVMDetector):
        detector = kind(device="cpu", crop=8).fit(images)
        np.testing.assert_array_equal(detector.score_samples(images), detector.score_samples(other))


# ── their width ──────────────────────────────────────────────────────────────────────────────


def test_widen_multiplies_both_widths(cell):
    images = cell[0][:100]
    plain, wide = (KDEDetector(device="cpu", widen=w).fit(images) for w in (1.0, 2.0))
    np.testing.assert_array_equal(wide.widths_, 2 * plain.widths_)
    assert wide.record_["widths"] == wide.widths_.tolist()


def test_widen_multiplies_the_width_of_the_machine_with_a_kernel(cell):
    """The width is the square root of 1 / γ. The other machines have none."""
    images, _, normal, _ = cell
    settings = {"device": "cpu", "calibration": 0.0}
    plain, wide = (PixelSVMDetector(**settings, widen=w).fit(images) for w in (1.0, 3.0))
    assert wide.svm_.gamma == pytest.approx(plain.svm_.gamma / 9)
    assert wide.record_["gamma"] == wide.svm_.gamma
    before, after = (detector.outputs(normal[:50]) for detector in (plain, wide))
    for name in ("hyperplane", "hypersphere"):
        np.testing.assert_array_equal(after[name], before[name])
    reference = OneClassSVM(nu=NU, gamma=plain.svm_.gamma / 9, tol=1e-6).fit(rows(images))
    want = reference.decision_function(rows(normal[:50]))
    assert np.corrcoef(want, np.exp(after["rbf"]))[0, 1] > 0.9999
    assert np.corrcoef(want, np.exp(before["rbf"]))[0, 1] < 0.999


def test_classes_in_turn_do_not_change_the_width():
    """Every tenth point, for example, would belong to one class, which is far narrower."""
    generator = np.random.default_rng(2)
    narrow, wide = generator.normal(0, 0.01, (500, 5)), generator.normal(9, 1, (500, 5))
    in_turn = np.stack([narrow, wide], 1).reshape(-1, 5)
    mixed = in_turn[generator.permutation(1000)]
    found, want = (best_width(torch.from_numpy(points)) for points in (in_turn, mixed))
    assert want / 1.5 < found < want * 1.5


@KINDS
def test_a_model_file_keeps_the_width_and_the_scores(kind, cell, tmp_path):
    images, _, normal, _ = cell
    detector = kind(device="cpu", widen=2.5).fit(images[:100])
    detector.save(tmp_path / "model")
    loaded = load(tmp_path / "model", device="cpu")
    assert loaded.get_params()["widen"] == 2.5
    found, want = (d.outputs(normal[:20]) for d in (loaded, detector))
    for name in kind.score_names:
        np.testing.assert_array_equal(found[name], want[name])


@KINDS
@pytest.mark.parametrize("widen", [0, -1.0, float("inf"), float("nan")])
def test_an_illegal_width_is_refused_in_one_line(kind, widen, cell):
    with pytest.raises(InputError, match=r"^widen must be above 0 .*, not .*$") as refused:
        kind(device="cpu", widen=widen).fit(cell[0][:20])
    assert "\n" not in str(refused.value)
