"""The self-check holds out training classes in turn."""

import numpy as np
import pytest
import torch

from anocaps import CapsNetDetector
from anocaps.detectors import DBNDetector, VAEDetector, fitting
from anocaps.inspect.selfcheck import (
    _alike,
    _groups,
    _Mock,
    self_check,
)
from anocaps.judging.calibration import split


def quick(**options):
    settings = {"device": "cpu", "calibration": 0.2, "epochs": 5, "score_function": "knn"}
    return CapsNetDetector("quick", **(settings | options))


@pytest.fixture(scope="module")
def some_digits(digits):
    """Seven digits; 0 is the rarest, 4 to 6 are the most frequent."""
    images, labels = digits.train.images, digits.train.labels
    most = [12, 20, 40, 40, 50, 50, 50]
    chosen = np.concatenate([np.flatnonzero(labels == c)[:n] for c, n in enumerate(most)])
    return images[chosen], np.array([f"digit {c}" for c in labels[chosen]])


@pytest.fixture(scope="module")
def fitted(some_digits):
    return quick(epochs=10).fit(*some_digits)


@pytest.fixture
def trained(monkeypatch):
    """The detectors that the self-check trains, and their data."""
    seen = []
    fit_together = fitting.fit_together

    def spy(detectors, data, *rest, **options):
        seen.extend(zip(detectors, data))
        fit_together(detectors, data, *rest, **options)

    monkeypatch.setattr(fitting, "fit_together", spy)
    return seen


@pytest.fixture
def tested(monkeypatch):
    """The detectors that score left-out classes, and images: normal, anomalous, normal, …"""
    seen = []
    measured = _Mock.measured

    def spy(mock, detector):
        seen.extend((detector, mock.array[rows]) for rows in (mock.normal, mock.anomalous))
        return measured(mock, detector)

    monkeypatch.setattr(_Mock, "measured", spy)
    return seen


def test_on_a_cpu_the_three_largest_classes_are_left_out(fitted, some_digits, trained, tested):
    images, labels = some_digits
    check = self_check(fitted, images, labels)
    assert list(check["left_out"]) == [f"digit {c}" for c in range(4, 7)]
    assert check["classes"] == 7
    for name in ("knn", "pp", "re", "pp+re"):
        each = [found[name] for found in check["left_out"].values()]
        assert check["auroc"][name] == pytest.approx(np.mean(each), abs=1e-3)
    assert check["auroc"]["knn"] > 0.8
    assert len(trained) == 3

    left = [set(range(7)) - set(own.tolist()) for _, (_, own) in trained]
    assert left == [{c} for c in range(4, 7)]  # exactly one class is missing in each
    calibration = {images[k].tobytes() for k in split(fitted_index(labels), 0.2, 0)[1]}
    for detector, (own, _) in trained:
        assert detector.calibration == 0 and detector.seed == fitted.seed
        assert not calibration & {image.tobytes() for image in own}
        steps = len(detector.record_["losses"]) * -(-len(own) // 32)
        whole = len(fitted.record_["losses"]) * -(-fitted.record_["training_images"] // 32)
        # under 300 steps: as many as the model, rounded to whole epochs
        assert whole < 300 and abs(steps - whole) <= -(-len(own) // 32) / 2
    assert fitted.calibration == 0.2 and fitted.epochs == 10  # unchanged

    learned = {id(detector): {image.tobytes() for image in own} for detector, (own, _) in trained}
    assert len(tested) == 6
    for detector, own in tested:  # no test image was trained on
        assert not learned[id(detector)] & {image.tobytes() for image in own}
    counts = [len(own) for _, own in tested]
    told = [(each["normal"], each["anomalous"]) for each in check["tested"].values()]
    assert told == list(zip(counts[::2], counts[1::2]))


def fitted_index(labels):
    return np.unique(labels, return_inverse=True)[1]


def test_on_a_gpu_the_five_largest_classes_are_left_out(fitted, some_digits, trained, monkeypatch):
    """A CPU stands in for the GPU."""
    monkeypatch.setattr("anocaps.training.device.pick_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr("anocaps.inspect.selfcheck._MOST_STEPS", 24)
    check = self_check(fitted, *some_digits)
    assert list(check["left_out"]) == [f"digit {c}" for c in range(2, 7)]
    for detector, (own, _) in trained:
        assert len(detector.record_["losses"]) == round(24 / -(-len(own) // 32))


def test_each_stage_takes_the_epochs_of_the_model(two_classes):
    images, labels = two_classes
    detector = DBNDetector(epochs=4, device="cpu", batch_size=12).fit(images, labels)
    assert len(detector.record_["losses"]) == 3 * 4
    count = detector.record_["training_images"]
    assert _alike(detector, count, networks=2, on_cpu=False).epochs == 4


def test_the_training_images_are_bounded(some_digits, trained, monkeypatch):
    images, labels = some_digits
    detector = quick(epochs=1).fit(images, labels)
    trained.clear()
    monkeypatch.setattr("anocaps.inspect.selfcheck._MOST_BYTES", 64 * 100)
    self_check(detector, images, labels)
    assert all(90 <= len(own) <= 100 for _, (own, _) in trained)


def test_two_classes_are_left_out_in_turn(two_classes, recwarn):
    images, labels = two_classes
    check = self_check(quick(calibration=0.1).fit(images, labels), images, labels)
    assert set(check["left_out"]) == {"0", "1"}
    assert "knn" in check["auroc"] and "pp" not in check["auroc"]
    assert not recwarn.list


def test_without_classes_to_leave_out_there_are_synthetic_anomalies(two_classes):
    images, _ = two_classes
    detector = quick(calibration=0.5).fit(images, np.zeros(48))
    check = self_check(detector, images, np.zeros(48))
    assert check["skipped"] and "auroc" not in check and check["synthetic"]
    small = np.concatenate([images[:40], images[:2]])
    rare = np.array([0] * 40 + [1] * 2)
    assert self_check(quick().fit(small, rare), small, rare)["skipped"]


def test_other_methods_can_be_checked(two_classes):
    images, labels = two_classes
    detector = VAEDetector(epochs=5, calibration=0.1, device="cpu").fit(images, labels)
    assert set(self_check(detector, images, labels)["auroc"]) == {"re", "nse", "elbo"}


def noise(counts):
    images = np.random.default_rng(0).integers(0, 256, (sum(counts), 8, 8), dtype=np.uint8)
    return images, np.repeat(np.arange(len(counts)), counts)


@pytest.mark.parametrize(
    ("counts", "left_out", "anomalous"),
    [
        ([20, 20], ["0", "1"], [20, 20]),  # ten images on either side are enough
        ([40, 30, 9, 3], ["0", "1"], [40, 30, 9]),  # a small class has no AUROC
        ([9] * 5, ["0 and 1", "2 and 3"], [18, 18]),  # three together would leave 18
        ([12, 9, 9, 9, 9], ["0"], None),  # one large class is enough
    ],
)
def test_classes_that_are_large_enough_are_left_out(counts, left_out, anomalous):
    images, labels = noise(counts)
    detector = quick(calibration=0.0, epochs=1).fit(images, labels)
    check = self_check(detector, images, labels)
    assert list(check["left_out"]) == left_out and check["classes"] == len(counts)
    tested = check["tested"].values()
    assert anomalous in (None, [each["anomalous"] for each in tested])
    assert all(each["normal"] >= 10 for each in tested)
    each = [found["knn"] for found in check["left_out"].values()]
    assert check["auroc"]["knn"] == pytest.approx(np.mean(each), abs=1e-4)


@pytest.mark.parametrize("counts", [[18, 18], [9] * 4, [12, 5, 5]])  # with groups or without
def test_fewer_images_tell_nothing_and_train_nothing(monkeypatch, counts):
    images, labels = noise(counts)
    detector = quick(calibration=0.0, epochs=1).fit(images, labels)
    monkeypatch.delattr(fitting, "train")
    check = self_check(detector, images, labels)
    assert check["skipped"]


def test_scores_that_a_network_lacks_have_no_mean(monkeypatch):
    """As if one network was trained on a single class."""
    images, labels = noise([20, 20, 20])
    detector = quick(calibration=0.0, epochs=1).fit(images, labels)
    lacking = iter([("re", "knn"), ("pp", "re", "knn"), ("pp", "re", "knn")])

    def measured(*_):
        return dict.fromkeys(next(lacking), 0.5)

    monkeypatch.setattr("anocaps.inspect.selfcheck._Mock.measured", measured)
    assert set(self_check(detector, images, labels)["auroc"]) == {"re", "knn"}


def test_small_classes_are_left_out_together(trained, tested):
    """99 images, 11 a class, of which 8 or 9 are not in the calibration set."""
    images, labels = noise([11] * 9)
    names = np.array([f"kind {c}" for c in range(9)])[labels]
    detector = quick(calibration=None, epochs=1).fit(images, names)
    trained.clear()
    check = self_check(detector, images, names)

    pool, kept = split(labels, detector.calibration_share(99), 0)
    counts = np.bincount(labels[pool])
    assert set(counts) == {8, 9}  # too few in any class
    assert check["classes"] == 9 and set(check["tested"]) == set(check["left_out"])
    groups = list(_groups(counts, 3))[1]
    assert list(check["left_out"]) == [f"kind {a}, kind {b} and kind {c}" for a, b, c in groups]
    for group, each in zip(groups, check["tested"].values()):
        assert each["anomalous"] == counts[group].sum() >= 20 and each["normal"] >= 10

    label_of = {image.tobytes(): label for image, label in zip(images, labels)}
    calibration = {images[k].tobytes() for k in kept}
    assert len(trained) == 3 and len(tested) == 6
    for k, group in enumerate(groups):
        seen = trained[k][1][0], tested[2 * k][1], tested[2 * k + 1][1]
        learned, normal, anomalous = ({image.tobytes() for image in each} for each in seen)
        assert {label_of[each] for each in anomalous} == set(group)
        assert {label_of[each] for each in learned} == set(range(9)) - set(group)
        assert not {label_of[each] for each in normal} & set(group)
        assert not learned & normal and not calibration & (learned | normal | anomalous)
    assert check["auroc"]["re"] == pytest.approx(
        np.mean([found["re"] for found in check["left_out"].values()]), abs=1e-4
    )


# ── synthetic anomalies ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def scored(monkeypatch):
    """The images that the model itself scores."""
    seen = []
    outputs = CapsNetDetector.outputs
    monkeypatch.setattr(
        CapsNetDetector, "outputs", lambda self, X, *rest: seen.append(X) or outputs(self, X, *rest)
    )
    return seen


def test_synthetic_anomalies_are_made_of_calibration_images(fitted, some_digits, scored):
    images, labels = some_digits
    check = self_check(fitted, images, labels)
    assert len(check["synthetic"]) == len(scored) > 2
    kept = images[split(fitted_index(labels), 0.2, 0)[1]].astype(int)
    for line, made in zip(check["synthetic"], scored):
        assert line["images"] == len(made) >= 10
        assert line["auroc"].keys() == set(fitted._usable_scores())
        apart = (made[:, None, ..., 0].astype(int) != kept).sum((2, 3))
        # all but 2×2 pixels of each image are those of a kept one
        assert (apart.min(1) <= 4).all() and (apart.min(1) > 0).any()
    aurocs = {line["kind"]: line["auroc"]["re"] for line in check["synthetic"]}
    assert aurocs["scratches"] > 0.55
    assert self_check(fitted, images, labels)["synthetic"] == check["synthetic"]


def test_the_given_calibration_images_are_changed(two_classes, scored):
    images, labels = two_classes
    kept = np.arange(30, 48)
    detector = quick().fit(images, labels, calibrate_on=kept)
    check = self_check(detector, images, labels, calibrate_on=kept)
    assert check["synthetic"]
    apart = np.abs(scored[0][:, None, ..., 0].astype(int) - images.astype(int)) > 0
    assert set(apart.mean((2, 3)).argmin(1)) <= set(kept)


@pytest.mark.parametrize("calibration", [0.0, 0.1])  # none, and fewer than ten
def test_without_calibration_images_there_are_no_synthetic_anomalies(two_classes, calibration):
    images, labels = two_classes
    check = self_check(quick(calibration=calibration).fit(images, labels), images, labels)
    assert check["synthetic"] == [] and check["synthetic_skipped"]


def test_a_network_sees_changes_in_its_window_only(scored):
    images = np.random.default_rng(0).integers(0, 256, (60, 40, 40), dtype=np.uint8)
    detector = CapsNetDetector("quick", crop=24, epochs=1, calibration=0.5, device="cpu")
    self_check(detector.fit(images), images, np.zeros(60))
    for made in scored:
        known = {image[0].tobytes() + image[:, 0].tobytes() for image in images}
        assert {image[0].tobytes() + image[:, 0].tobytes() for image in made[..., 0]} <= known
