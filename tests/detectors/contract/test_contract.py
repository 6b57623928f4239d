"""What every detector must do, whatever its method: one suite over all of them.

On a method of your own: pytest tests/detectors/contract --method FILE.py
"""

import copy

import numpy as np
import pytest
import torch
from forms import CHEAP, FORMS, METHODS
from host import host_state
from sklearn.exceptions import NotFittedError

from anocaps import load
from anocaps.base.errors import InputError
from anocaps.detectors.plugins import known_methods
from anocaps.detectors.presets import PRESETS


def test_no_method_and_no_preset_skips_this_suite():
    ours = {
        name for name, kind in known_methods().items() if kind.__module__.startswith("anocaps.")
    }
    assert set(METHODS) == ours
    seen = {CHEAP["preset"]} | {settings.get("preset") for _, settings in FORMS.values()}
    assert set(PRESETS) <= seen


def test_fit_and_scores_change_nothing_in_the_host_process(make, digit_split):
    images, labels, new = digit_split
    before = host_state()
    make(epochs=1).fit(images, labels).score_samples(new)
    assert host_state() == before


def test_scores_are_one_float64_per_image(fitted, digit_split):
    images = digit_split[2]
    for name in fitted._usable_scores():
        scores = fitted.score_samples(images, score_function=name)
        assert scores.dtype == np.float64 and scores.shape == (len(images),)
        assert np.isfinite(scores).all()
        assert len(np.unique(scores)) > len(images) // 2
    np.testing.assert_array_equal(
        fitted.score_samples(images),
        fitted.score_samples(images, score_function=fitted.score_function_),
    )


def test_higher_means_more_normal(make, digit_split):
    images, labels, anomalies = digit_split
    fitted = make(epochs=15).fit(images, labels)
    for name in fitted._usable_scores():
        normal, anomalous = (
            fitted.score_samples(x, score_function=name) for x in (images, anomalies)
        )
        assert np.median(normal) > np.median(anomalous), name


def test_a_score_does_not_depend_on_its_batch_mates(fitted, digit_split):
    images = digit_split[0][:9]
    for name in fitted._usable_scores():
        together = fitted.score_samples(images, score_function=name)
        alone = [fitted.score_samples(image[None], score_function=name)[0] for image in images]
        # a processor may multiply one row and nine rows in another order
        most = 1e-5 * max(1, together.std())
        np.testing.assert_allclose(together, alone, atol=most, rtol=1e-5, err_msg=name)


def test_bytes_and_unit_floats_score_alike(fitted, digit_split):
    images = digit_split[0][:9]
    for name in fitted._usable_scores():
        want = fitted.score_samples(images, score_function=name)
        for floats in (images / 255, (images / 255).astype(np.float32)[..., None]):
            scores = fitted.score_samples(floats, score_function=name)
            np.testing.assert_allclose(scores, want, atol=1e-6, rtol=1e-6)


def test_any_order_of_memory_scores_alike(fitted, digit_split):
    images = digit_split[0][:9]
    want = fitted.score_samples(images)
    fixed = images.copy()
    fixed.setflags(write=False)
    for same in (images[::-1][::-1], np.asfortranarray(images), fixed):
        np.testing.assert_allclose(fitted.score_samples(same), want, atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(fitted.score_samples(images[::-1]), want[::-1], atol=1e-5, rtol=1e-6)


def test_a_failed_fit_is_not_a_fit(make, digit_split):
    images, labels, _ = digit_split
    detector = make().fit(images, labels)
    with pytest.raises(InputError):
        detector.set_params(device="abacus").fit(images, labels)
    with pytest.raises(NotFittedError):
        detector.score_samples(images)


def test_predict_follows_the_rule(fitted, digit_split):
    images = digit_split[2]
    calibration = fitted.calibration_scores_[fitted.score_function_]
    scores = fitted.score_samples(images)
    for alpha in (0.05, 0.3):
        below = np.array([(1 + np.sum(calibration <= s)) / (len(calibration) + 1) for s in scores])
        verdicts = fitted.predict(images, alpha=alpha)
        assert set(np.unique(verdicts)) <= {-1, 1}
        np.testing.assert_array_equal(verdicts == -1, below <= alpha)
        np.testing.assert_array_equal(fitted.decision_function(images, alpha) < 0, below <= alpha)
        np.testing.assert_allclose(fitted.p_values(images), below)


def test_one_pass_judges_as_the_single_questions_do(fitted, digit_split):
    images = digit_split[2]
    judged = fitted.judge(images)
    assert list(judged.scores) == list(judged.p_values) == list(fitted._usable_scores())
    for name in fitted._usable_scores():
        np.testing.assert_array_equal(judged.scores[name], fitted.score_samples(images, name))
        np.testing.assert_array_equal(judged.p_values[name], fitted.p_values(images, name))
    np.testing.assert_array_equal(judged.p_value, fitted.p_values(images))
    np.testing.assert_array_equal(judged.p_value_class, fitted.class_p_values(images))
    labels = fitted.classify(images) if hasattr(fitted, "classify") else [""] * len(images)
    assert judged.predicted == [str(label) for label in labels]


def test_p_values_within_a_class_need_enough_of_it(make, digit_split, monkeypatch):
    images, labels, anomalies = digit_split
    fitted = make(epochs=1).fit(images, labels)
    if not hasattr(fitted, "classify"):
        assert np.isnan(fitted.class_p_values(anomalies)).all()
        return
    predicted = fitted.classify(anomalies)
    counts = np.bincount(fitted.calibration_classes_, minlength=3)
    monkeypatch.setattr("anocaps.judging.calibration.FEWEST_OF_CLASS", max(counts))
    found = fitted.class_p_values(anomalies)
    enough = np.isin(predicted, fitted.classes_[counts == max(counts)])
    np.testing.assert_array_equal(np.isfinite(found), enough)
    largest = fitted.classes_[counts.argmax()]
    alike = fitted.calibration_scores()[fitted.calibration_classes_ == counts.argmax()]
    below = [np.sum(alike <= s) for s in fitted.score_samples(anomalies)[predicted == largest]]
    np.testing.assert_allclose(
        found[predicted == largest], (1 + np.array(below)) / (max(counts) + 1)
    )


def test_calibration_images_are_their_share(fitted, digit_split):
    labels = digit_split[1]
    assert abs(fitted.record_["calibration_images"] - 0.25 * len(labels)) < 1
    kept = fitted.record_["calibration_images"]
    assert fitted.record_["training_images"] == len(labels) - kept
    assert all(len(scores) == kept for scores in fitted.calibration_scores_.values())


def test_by_default_the_usual_alpha_can_be_had_of_100_images(make, every_digit):
    images, labels, anomalies = (part[:100] for part in every_digit)
    fitted = make(epochs=1, calibration=None).fit(images, labels)
    assert fitted.record_["calibration_images"] == 20
    assert set(fitted.predict(anomalies)) <= {-1, 1}
    assert make(calibration=None).calibration_share(10_000) == 0.1


def test_without_labels_there_is_one_class(make, two_classes, tmp_path):
    images, _ = two_classes
    fitted, same = (make(epochs=1).fit(images, *labels) for labels in ((), [[7] * 48]))
    assert fitted.classes_.tolist() == ["normal"]
    assert fitted.card_["classes"] == {"normal": 48}
    np.testing.assert_array_equal(fitted.score_samples(images), same.score_samples(images))
    fitted.save(tmp_path / "m")
    assert load(tmp_path / "m").classes_.tolist() == ["normal"]


def test_heatmaps_have_one_scale(fitted, digit_split):
    images = digit_split[0]
    if not hasattr(fitted, "reconstruct") and fitted.heat_scale_ is None:
        with pytest.raises(InputError, match="no heatmaps"):
            fitted.heatmaps(images)
        return
    maps = fitted.heatmaps(images)
    assert maps.shape == images.shape and maps.dtype == np.float32
    assert maps.min() >= 0 and maps.max() <= 1
    assert 0 < np.mean(maps > 0) < 0.1  # a normal image looks calm
    np.testing.assert_allclose(fitted.heatmaps(images[:1]), maps[:1], atol=1e-5)
    np.testing.assert_allclose(fitted.heatmaps(images / 255), maps, atol=1e-5)


def test_the_card_counts_what_was_used(fitted, digit_split, side):
    labels = digit_split[1]
    card = fitted.card_
    assert card["images"] == len(labels) and card["size"] == [side, side, 1]
    assert card["classes"] == {str(c): int(np.sum(labels == c)) for c in (5, 15, 25)}
    parts = [card[f"{use}_images"] for use in ("training", "validation", "calibration")]
    assert sum(parts) == len(labels) and parts[2] == len(fitted.calibration_scores())
    assert card["smallest_alpha"] == 1 / (parts[2] + 1)
    assert (card["accuracy"] is None) != hasattr(fitted, "classify")


def test_without_calibration_there_are_scores_but_no_verdicts(make, digit_split):
    images, labels, anomalies = digit_split
    fitted = make(calibration=0.0, epochs=1).fit(images, labels)
    assert len(fitted.score_samples(anomalies)) == len(anomalies)
    for use in (fitted.predict, fitted.p_values, fitted.class_p_values, fitted.decision_function):
        with pytest.raises(InputError, match="calibration=0"):
            use(anomalies)
    judged = fitted.judge(anomalies)
    assert np.isnan(judged.p_value).all() and np.isnan(judged.p_value_class).all()
    assert judged.p_values == {} and fitted.card_["smallest_alpha"] is None


def test_the_seed_fixes_everything(make, digit_split):
    images, labels, anomalies = digit_split
    first, same, other = (
        make(epochs=1, seed=seed).fit(images, labels).score_samples(anomalies) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


def test_an_interrupted_fit_resumes_to_the_same_scores(make, digit_split, tmp_path, monkeypatch):
    images, labels, anomalies = digit_split
    monkeypatch.setattr("anocaps.training.progress.REPORT_EVERY_SECONDS", 0.0)
    steps = []
    whole = make(epochs=3).fit(images, labels, progress=lambda *_: steps.append(0))
    if not steps:
        pytest.skip("it trains no network")
    left = int(0.6 * len(steps))  # in the middle of an epoch, of a middle stage if there are some

    def interrupt(*_):
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    path = tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        make(epochs=3).fit(images, labels, checkpoint=path, progress=interrupt)
    torch.randn(5)  # nothing may hang on the state of torch's own generator
    resumed = make(epochs=3).fit(images, labels, checkpoint=path, resume=True)
    for name in whole._usable_scores():
        np.testing.assert_array_equal(
            resumed.score_samples(anomalies, name), whole.score_samples(anomalies, name)
        )
    assert resumed.record_["losses"] == whole.record_["losses"]


def test_save_and_load_give_identical_scores(fitted, digit_split, tmp_path):
    fitted.save(tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors", device="cpu")
    images = digit_split[2]
    for name in fitted._usable_scores():
        np.testing.assert_array_equal(
            loaded.score_samples(images, score_function=name),
            fitted.score_samples(images, score_function=name),
        )
    np.testing.assert_array_equal(loaded.predict(images, 0.1), fitted.predict(images, 0.1))
    want, found = fitted.judge(images), loaded.judge(images)
    np.testing.assert_array_equal(found.p_value_class, want.p_value_class)
    assert found.predicted == want.predicted
    assert loaded.card_ == fitted.card_ and loaded.heat_scale_ == fitted.heat_scale_
    assert loaded.classes_.tolist() == fitted.classes_.tolist() == [5, 15, 25]
    assert loaded.get_params() == fitted.get_params()
    assert loaded.record_ == fitted.record_


def test_classes_of_a_loaded_file_need_not_be_sorted(fitted, digit_split, tmp_path):
    """A file may list classes in any order; nothing may search them as if they were sorted."""
    if "class" not in fitted.gives:
        pytest.skip("it names no class")
    other = copy.deepcopy(fitted)
    other.classes_ = np.array([25, 5, 15])
    other.save(tmp_path / "m")
    loaded, images = load(tmp_path / "m", device="cpu"), digit_split[0]
    given = loaded.outputs(images, ["class"])["class"]
    assert len(set(given)) > 1
    want = [str((25, 5, 15)[index]) for index in given]
    assert loaded.judge(images).predicted == want == [str(c) for c in loaded.classify(images)]
    np.testing.assert_array_equal(loaded.class_p_values(images), fitted.class_p_values(images))


def test_bad_scoring_input_is_named(fitted, side):
    images = np.zeros((2, side, side), np.uint8)
    with pytest.raises(InputError, match=f"{side}×{side}×1 images, not {side + 1}×{side}×1"):
        fitted.score_samples(np.zeros((2, side + 1, side), np.uint8))
    with pytest.raises(InputError, match="unknown"):
        fitted.score_samples(images, score_function="magic")
    with pytest.raises(InputError, match="between 0 and 1"):
        fitted.predict(images, alpha=0)
    with pytest.raises(InputError, match="calibration images"):
        fitted.predict(images, alpha=1e-5)
