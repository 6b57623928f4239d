"""The self-check: mock anomalies from training images, and the score they choose."""

from pathlib import Path

import numpy as np
import pytest
import torch

from anocaps import CapsNetDetector
from anocaps.detectors import DBNDetector, VAEDetector, fitting
from anocaps.inspect.selfcheck import (
    CHOICES,
    _alike,
    _groups,
    _steps,
    best_score,
    reason,
    self_check,
)
from anocaps.judging.calibration import split

ROOT = Path(__file__).parents[2]


def quick(**options):
    settings = {"device": "cpu", "calibration": 0.2, "epochs": 5, "score_function": "knn"}
    return CapsNetDetector("quick", **(settings | options))


@pytest.fixture(scope="module")
def some_digits(digits):
    """Seven digits, 0 the rarest and 4 to 6 the most frequent."""
    images, labels = digits.train.images, digits.train.labels
    most = [20, 30, 70, 70, 80, 80, 80]
    chosen = np.concatenate([np.flatnonzero(labels == c)[:n] for c, n in enumerate(most)])
    return images[chosen], np.array([f"digit {c}" for c in labels[chosen]])


@pytest.fixture(scope="module")
def fitted(some_digits):
    return quick(epochs=15).fit(*some_digits)


@pytest.fixture
def trained(monkeypatch):
    """What the self-check trains: detectors, and their data."""
    seen = []
    fit_together = fitting.fit_together

    def spy(detectors, data, *rest, **options):
        seen.extend(zip(detectors, data))
        fit_together(detectors, data, *rest, **options)

    monkeypatch.setattr(fitting, "fit_together", spy)
    return seen


@pytest.fixture
def tested(monkeypatch):
    """What the self-check scores: detectors, and images, in turn normal and odd."""
    seen = []
    outputs = CapsNetDetector.outputs

    def spy(detector, images, *rest):
        seen.append((detector, images))
        return outputs(detector, images, *rest)

    monkeypatch.setattr(CapsNetDetector, "outputs", spy)
    return seen


def test_on_a_cpu_the_three_largest_classes_are_left_out(fitted, some_digits, trained):
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
    assert left == [{c} for c in range(4, 7)]  # one class each, and no other, is missing
    calibration = {images[k].tobytes() for k in split(fitted_index(labels), 0.2, 0)[1]}
    for detector, (own, _) in trained:
        assert detector.calibration == 0 and detector.seed == fitted.seed
        assert not calibration & {image.tobytes() for image in own}
        steps = len(detector.record_["losses"]) * -(-len(own) // 32)
        whole = len(fitted.record_["losses"]) * -(-fitted.record_["training_images"] // 32)
        # of less than 300 steps as many as the model's, but for the rounding to whole epochs
        assert whole < 300 and abs(steps - whole) <= -(-len(own) // 32) / 2
    assert fitted.calibration == 0.2 and fitted.epochs == 15  # as it was


def fitted_index(labels):
    return np.unique(labels, return_inverse=True)[1]


def test_tested_images_were_not_learned_from(fitted, some_digits, trained, tested):
    images, labels = some_digits
    check = self_check(fitted, images, labels)
    learned = {id(detector): {image.tobytes() for image in own} for detector, (own, _) in trained}
    assert len(tested) == 6
    for detector, own in tested:
        assert not learned[id(detector)] & {image.tobytes() for image in own}
    counts = [len(own) for _, own in tested]  # normal, odd, normal, …
    assert [(each["normal"], each["odd"]) for each in check["tested"].values()] == list(
        zip(counts[::2], counts[1::2])
    )


def test_on_a_gpu_the_five_largest_classes_are_left_out(fitted, some_digits, trained, monkeypatch):
    """Here a CPU plays the GPU."""
    monkeypatch.setattr("anocaps.training.device.pick_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr("anocaps.inspect.selfcheck._MOST_STEPS", 24)
    check = self_check(fitted, *some_digits)
    assert list(check["left_out"]) == [f"digit {c}" for c in range(2, 7)]
    for detector, (own, _) in trained:
        assert len(detector.record_["losses"]) == round(24 / -(-len(own) // 32))


@pytest.mark.parametrize(
    ("taken", "networks", "on_cpu", "steps"),
    [
        (2000, 5, False, 2000),  # a GPU: as many as the model
        (9000, 5, False, 3000),  # up to a point
        (9000, 3, True, 1500),  # a CPU: half of them, shared
        (9000, 2, True, 2250),
        (1000, 3, True, 300),  # less than that tells nothing
        (200, 3, True, 200),  # and no more than the model
    ],
)
def test_steps_of_each_network(taken, networks, on_cpu, steps):
    assert _steps(taken, networks, on_cpu) == steps


def test_epochs_follow_from_the_steps(fitted):
    whole = len(fitted.record_["losses"]) * -(-fitted.record_["training_images"] // 32)
    assert _alike(fitted, 300, networks=5, on_cpu=False).epochs == round(whole / 10)
    assert _alike(fitted, 600, networks=5, on_cpu=False).epochs == round(whole / 19)


def test_stages_take_the_model_s_epochs_each(two_classes):
    images, labels = two_classes
    detector = DBNDetector(epochs=4, device="cpu", batch_size=12).fit(images, labels)
    assert len(detector.record_["losses"]) == 3 * 4
    count = detector.record_["training_images"]
    assert _alike(detector, count, networks=2, on_cpu=False).epochs == 4


def test_images_and_classes_are_bounded(fitted, some_digits, trained, monkeypatch):
    images, labels = some_digits
    monkeypatch.setattr("anocaps.inspect.selfcheck._MOST_BYTES", 64 * 100)
    self_check(fitted, images, labels)
    assert all(90 <= len(own) <= 100 for _, (own, _) in trained)


def test_two_classes_leave_one(two_classes, recwarn):
    images, labels = two_classes
    check = self_check(quick(calibration=0.1).fit(images, labels), images, labels)
    assert set(check["left_out"]) == {"0", "1"}
    assert "knn" in check["auroc"] and "pp" not in check["auroc"]
    assert not recwarn.list
    assert best_score(check) in ("knn", "re")


def test_where_there_is_nothing_to_leave_out_it_says_so(two_classes):
    images, _ = two_classes
    detector = quick().fit(images, np.zeros(48))
    check = self_check(detector, images, np.zeros(48))
    assert "one class" in check["skipped"]
    assert best_score(check) == "knn" and reason(check) == "the usual one"
    small = np.concatenate([images[:40], images[:2]])
    rare = np.array([0] * 40 + [1] * 2)
    assert "two classes" in self_check(quick().fit(small, rare), small, rare)["skipped"]


def test_other_methods_are_checked_too(two_classes):
    images, labels = two_classes
    detector = VAEDetector(epochs=5, calibration=0.1, device="cpu").fit(images, labels)
    assert set(self_check(detector, images, labels)["auroc"]) == {"re", "nse", "elbo"}


def test_the_best_score_is_chosen_among_those_to_choose_from():
    check = {"auroc": {"pp": 0.8, "re": 0.7, "pp+re": 0.85, "mse": 0.99, "knn": 0.84}}
    assert best_score(check) == "pp+re"
    assert reason(check) == "the best in the self-check: knn 0.84, pp+re 0.85, pp 0.80, re 0.70"
    assert best_score({"auroc": dict.fromkeys(("re", "pp", "knn"), 0.9)}) == CHOICES[0] == "knn"
    assert best_score({"skipped": "why"}) == "knn"


def test_progress_is_told(fitted, some_digits, monkeypatch):
    monkeypatch.setattr("anocaps.training.progress.REPORT_EVERY_SECONDS", 0.0)
    told = []
    self_check(fitted, *some_digits, progress=lambda *words: told.append(words[:2]))
    assert told[-1][0] == told[-1][1] == len(told)


def noise(counts):
    images = np.random.default_rng(0).integers(0, 256, (sum(counts), 8, 8), dtype=np.uint8)
    return images, np.repeat(np.arange(len(counts)), counts)


def test_ten_images_on_either_side_are_enough():
    images, labels = noise([20, 20])
    for seed in range(4):
        detector = quick(calibration=0.0, epochs=1, seed=seed).fit(images, labels)
        check = self_check(detector, images, labels)
        assert set(check["left_out"]) == {"0", "1"}
        assert all(each == {"odd": 20, "normal": 10} for each in check["tested"].values())


@pytest.mark.parametrize("counts", [[18, 18], [9] * 4, [12, 5, 5]])  # with groups or without
def test_fewer_tell_nothing_and_train_nothing(monkeypatch, counts):
    images, labels = noise(counts)
    detector = quick(calibration=0.0, epochs=1).fit(images, labels)
    monkeypatch.delattr(fitting, "train")
    check = self_check(detector, images, labels)
    assert "too few images to tell" in check["skipped"]
    assert best_score(check) == "knn"  # not chosen on 9 images


def test_a_class_with_too_few_is_not_in_the_mean():
    images, labels = noise([40, 30, 9, 3])
    detector = quick(calibration=0.0, epochs=1).fit(images, labels)
    check = self_check(detector, images, labels)
    assert set(check["left_out"]) == {"0", "1"} and check["classes"] == 4
    assert set(check["tested"]) == {"0", "1", "2"} and check["tested"]["2"]["odd"] == 9
    each = [found["knn"] for found in check["left_out"].values()]
    assert check["auroc"]["knn"] == pytest.approx(np.mean(each), abs=1e-4)


def test_scores_that_a_network_lacks_are_left_out_of_the_mean(monkeypatch):
    """As where the draw left one network a single class."""
    images, labels = noise([20, 20, 20])
    detector = quick(calibration=0.0, epochs=1).fit(images, labels)
    lacking = iter([("re", "knn"), ("pp", "re", "knn"), ("pp", "re", "knn")])

    def measured(*_):
        return dict.fromkeys(next(lacking), 0.5)

    monkeypatch.setattr("anocaps.inspect.selfcheck._Mock.measured", measured)
    assert set(self_check(detector, images, labels)["auroc"]) == {"re", "knn"}


# ── groups ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("counts", "most", "groups"),  # single classes, groups of 20 images, groups of 10
    [
        (
            [9, 8, 9, 9, 9, 9, 9, 8, 9],  # the smaller ones come last
            3,
            [[[0], [2], [3]], [[0, 2, 3], [1, 7, 8], [4, 5, 6]], [[0, 2], [3, 4], [5, 6]]],
        ),
        (
            [5] * 22,
            5,
            [
                [[k] for k in range(5)],
                [list(range(k, k + 4)) for k in range(0, 20, 4)],  # never the last two
                [[k, k + 1] for k in range(0, 10, 2)],
            ],
        ),
        ([9] * 4, 3, [[[0], [1], [2]], [], [[0, 1], [2, 3]]]),  # three of four leave one
        ([9, 4, 9, 9, 9], 3, [[[0], [2], [3]], [], [[0, 2], [3, 4]]]),  # 4 images do not count
        ([15, 6, 6, 6], 3, [[[0], [1], [2]], [[0, 1]], [[0], [1, 2]]]),
        ([8, 8], 3, [[[0], [1]], [], []]),
    ],
)
def test_groups_take_the_largest_first_and_leave_two_classes(counts, most, groups):
    assert list(_groups(np.array(counts), most)) == groups


def test_small_classes_are_left_out_together(trained, tested):
    """A folder of 99 images, 11 a class, of which 8 or 9 are not kept to calibrate with."""
    images, labels = noise([11] * 9)
    names = np.array([f"kind {c}" for c in range(9)])[labels]
    detector = quick(calibration=None, epochs=1).fit(images, names)
    trained.clear()
    check = self_check(detector, images, names)

    pool, kept = split(labels, detector.calibration_share(99), 0)
    counts = np.bincount(labels[pool])
    assert set(counts) == {8, 9}  # too few of any one
    assert check["classes"] == 9 and set(check["tested"]) == set(check["left_out"])
    groups = list(_groups(counts, 3))[1]
    assert list(check["left_out"]) == [f"kind {a}, kind {b} and kind {c}" for a, b, c in groups]
    for group, each in zip(groups, check["tested"].values()):
        assert each["odd"] == counts[group].sum() >= 20 and each["normal"] >= 10

    label_of = {image.tobytes(): label for image, label in zip(images, labels)}
    calibration = {images[k].tobytes() for k in kept}
    assert len(trained) == 3 and len(tested) == 6
    for k, group in enumerate(groups):
        seen = trained[k][1][0], tested[2 * k][1], tested[2 * k + 1][1]
        learned, normal, odd = ({image.tobytes() for image in each} for each in seen)
        assert {label_of[each] for each in odd} == set(group)
        assert {label_of[each] for each in learned} == set(range(9)) - set(group)
        assert not {label_of[each] for each in normal} & set(group)
        assert not learned & normal and not calibration & (learned | normal | odd)
    assert check["auroc"]["re"] == pytest.approx(
        np.mean([found["re"] for found in check["left_out"].values()]), abs=1e-4
    )


def test_groups_are_smaller_where_large_ones_leave_too_few():
    images, labels = noise([9] * 5)
    detector = quick(calibration=0.0, epochs=1).fit(images, labels)
    check = self_check(detector, images, labels)
    assert list(check["left_out"]) == ["0 and 1", "2 and 3"]  # three together would leave 18
    assert all(each["odd"] == 18 and each["normal"] >= 10 for each in check["tested"].values())


def test_one_class_that_is_large_enough_is_enough():
    images, labels = noise([12, 9, 9, 9, 9])
    detector = quick(calibration=0.0, epochs=1).fit(images, labels)
    assert list(self_check(detector, images, labels)["left_out"]) == ["0"]
