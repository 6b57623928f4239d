"""The self-check: mock anomalies from training images, and the score they choose."""

import numpy as np
import pytest

from anocaps import CapsNetDetector
from anocaps.calibration import split
from anocaps.detectors import VAEDetector, base
from anocaps.selfcheck import CHOICES, best_score, reason, self_check


def quick(**options):
    settings = {"device": "cpu", "calibration": 0.2, "epochs": 5, "score": "knn"}
    return CapsNetDetector("quick", **(settings | options))


@pytest.fixture(scope="module")
def some_digits(digits):
    """Seven digits, 0 the rarest and 1 the next."""
    images, labels = digits.train.images, digits.train.labels
    most = [20, 30, 100, 100, 100, 100, 100]
    chosen = np.concatenate([np.flatnonzero(labels == c)[:n] for c, n in enumerate(most)])
    return images[chosen], np.array([f"digit {c}" for c in labels[chosen]])


@pytest.fixture(scope="module")
def fitted(some_digits):
    return quick(epochs=15).fit(*some_digits)


@pytest.fixture
def trained(monkeypatch):
    """What the self-check trains: detectors, and their data."""
    seen = []
    fit_together = base.fit_together

    def spy(detectors, data, **options):
        seen.extend(zip(detectors, data))
        fit_together(detectors, data, **options)

    monkeypatch.setattr(base, "fit_together", spy)
    return seen


def test_the_five_largest_classes_are_left_out(fitted, some_digits, trained):
    images, labels = some_digits
    check = self_check(fitted, images, labels)
    assert list(check["left_out"]) == [f"digit {c}" for c in range(2, 7)]
    assert check["classes"] == 7
    for name in ("knn", "pp", "re", "pp+re"):
        each = [found[name] for found in check["left_out"].values()]
        assert check["auroc"][name] == pytest.approx(np.mean(each), abs=1e-3)
    assert check["auroc"]["knn"] > 0.8
    assert len(trained) == 5

    left = [set(range(7)) - set(own.tolist()) for _, (_, own) in trained]
    assert left == [{c} for c in range(2, 7)]  # one class each, and no other, is missing
    calibration = {images[k].tobytes() for k in split(fitted_index(labels), 0.2, 0)[1]}
    for detector, (own, _) in trained:
        assert detector.calibration == 0 and detector.seed == fitted.seed
        assert not calibration & {image.tobytes() for image in own}
        steps = len(detector.record_["losses"]) * -(-len(own) // 32)
        whole = len(fitted.record_["losses"]) * -(-fitted.record_["training_images"] // 32)
        assert steps <= whole / 5 + -(-len(own) // 32) / 2
    assert fitted.calibration == 0.2 and fitted.epochs == 15  # as it was


def fitted_index(labels):
    return np.unique(labels, return_inverse=True)[1]


def test_tested_images_were_not_learned_from(fitted, some_digits, trained, monkeypatch):
    images, labels = some_digits
    tested = []
    all_scores = CapsNetDetector.all_scores
    monkeypatch.setattr(
        CapsNetDetector,
        "all_scores",
        lambda d, x, *rest: tested.append((d, x)) or all_scores(d, x, *rest),
    )
    self_check(fitted, images, labels)
    learned = {id(detector): {image.tobytes() for image in own} for detector, (own, _) in trained}
    assert len(tested) == 10
    for detector, own in tested:
        assert not learned[id(detector)] & {image.tobytes() for image in own}


def test_images_and_classes_are_bounded(fitted, some_digits, trained, monkeypatch):
    images, labels = some_digits
    monkeypatch.setattr("anocaps.selfcheck._MOST_BYTES", 64 * 100)
    self_check(fitted, images, labels)
    assert all(90 <= len(own) <= 100 for _, (own, _) in trained)


def test_two_classes_leave_one(two_classes, recwarn):
    images, labels = two_classes
    check = self_check(quick().fit(images, labels), images, labels)
    assert set(check["left_out"]) == {"0", "1"}
    assert "knn" in check["auroc"] and "pp" not in check["auroc"]
    assert not recwarn.list
    assert best_score(check) in ("knn", "re")


def test_where_there_is_nothing_to_leave_out_it_says_so(two_classes):
    images, _ = two_classes
    with pytest.warns(UserWarning, match="only one"):
        detector = quick().fit(images, np.zeros(48))
    check = self_check(detector, images, np.zeros(48))
    assert "one class" in check["skipped"]
    assert best_score(check) == "knn" and reason(check) == "the usual one"
    small = np.concatenate([images[:40], images[:2]])
    rare = np.array([0] * 40 + [1] * 2)
    assert "two classes" in self_check(quick().fit(small, rare), small, rare)["skipped"]


def test_other_methods_are_checked_too(two_classes):
    images, labels = two_classes
    detector = VAEDetector(epochs=5, device="cpu").fit(images, labels)
    assert set(self_check(detector, images, labels)["auroc"]) == {"re", "nse", "elbo"}


def test_the_best_score_is_chosen_among_those_to_choose_from():
    check = {"auroc": {"pp": 0.8, "re": 0.7, "pp+re": 0.85, "mse": 0.99, "knn": 0.84}}
    assert best_score(check) == "pp+re"
    assert reason(check) == "the best in the self-check: knn 0.84, pp+re 0.85, pp 0.80, re 0.70"
    assert best_score({"auroc": dict.fromkeys(("re", "pp", "knn"), 0.9)}) == CHOICES[0] == "knn"
    assert best_score({"skipped": "why"}) == "knn"


def test_progress_is_told(fitted, some_digits, monkeypatch):
    monkeypatch.setattr("anocaps.progress.REPORT_EVERY_SECONDS", 0.0)
    told = []
    self_check(fitted, *some_digits, progress=lambda *words: told.append(words[:2]))
    assert told[-1][0] == told[-1][1] == len(told)


def test_the_smallest_classes_that_take_part():
    """Five images of two classes: one plays the new normal image, whatever the seed."""
    images = np.random.default_rng(0).integers(0, 256, (10, 8, 8), dtype=np.uint8)
    labels = np.repeat([0, 1], 5)
    for seed in range(8):
        detector = quick(calibration=0.0, epochs=1, seed=seed).fit(images, labels)
        assert set(self_check(detector, images, labels)["left_out"]) == {"0", "1"}
