"""The deep preset and the knn score, through the detector."""

import numpy as np
import pytest
import torch

from anocaps import CapsNetDetector, load
from anocaps.base.errors import InputError
from anocaps.detectors.presets import PRESETS
from anocaps.judging.calibration import share_for, split
from anocaps.judging.metrics import auroc
from anocaps.networks.deep import DeepCapsNet


def deep(**options):
    return CapsNetDetector(
        **({"preset": "deep", "device": "cpu", "calibration": 0.0, "epochs": 1} | options)
    )


@pytest.fixture(scope="module")
def fitted(digits):
    kept = digits.train.labels < 3
    images, labels = digits.train.images[kept], digits.train.labels[kept]
    return deep(epochs=2, calibration=0.2).fit(images, labels), images


def test_every_score_is_there_and_is_kept_in_the_file(fitted, digits, tmp_path):
    detector, _ = fitted
    assert isinstance(detector.network_, DeepCapsNet)
    detector.save(tmp_path / "m.safetensors")
    loaded = load(tmp_path / "m.safetensors", device="cpu")
    anomalous = digits.test.images[digits.test.labels == 7]
    for name in ("pp", "re", "pp+re", "knn"):
        scores = detector.score_samples(anomalous, name)
        assert np.isfinite(scores).all() and len(np.unique(scores)) > len(anomalous) // 2
        np.testing.assert_array_equal(loaded.score_samples(anomalous, name), scores)
        alone = [detector.score_samples(image[None], name)[0] for image in anomalous[:5]]
        most = 1e-6 if "+" not in name else 1e-5
        np.testing.assert_allclose(alone, scores[:5], rtol=most, atol=most)


def test_knn_is_measured_to_training_images_only(fitted, digits):
    """A kept image lies at distance 0 from itself; the calibration images lie at none."""
    detector, images = fitted
    assert len(detector.neighbours_.kept) == detector.record_["training_images"]
    directions = _capsules(detector, images).flatten(1)
    directions = directions / directions.norm(dim=1, keepdim=True)
    at_zero = (directions @ detector.neighbours_.kept.T).amax(1) > 1 - 1e-6
    assert at_zero.sum() == detector.record_["training_images"]
    calibration = detector.calibration_scores_["knn"]
    assert calibration.mean() < detector.score_samples(images[at_zero.numpy()], "knn").mean()


def _capsules(detector, images):
    with torch.inference_mode():
        return detector.network_(torch.from_numpy(images).unsqueeze(1) / 255)


@pytest.mark.parametrize(
    ("images", "steps"), [(90, 1000), (1000, 1000), (4000, 1875), (20_000, 2355), (100_000, 11_730)]
)
def test_the_number_of_steps_follows_the_number_of_images(images, steps):
    epochs, batch_size = PRESETS["deep"].schedule(images)
    assert epochs * -(-images // batch_size) == pytest.approx(steps, rel=0.03)
    assert PRESETS["deep"].schedule(10**6)[0] == 2
    assert PRESETS["paper"].schedule(images) == (20, 100)


def test_what_deep_has_not_is_refused(two_classes):
    with pytest.raises(InputError, match="128×128"):
        deep().fit(np.zeros((4, 130, 28), np.uint8), [0, 0, 1, 1])
    with pytest.raises(InputError, match="class_bias"):
        deep(class_bias=True).fit(*two_classes)
    with pytest.raises(InputError, match="start"):
        deep(start="flat").fit(*two_classes)
    assert deep(gradient="last").fit(*two_classes).network_.config.gradient == "last"


def test_training_validation_and_calibration_images_are_disjoint(digits, monkeypatch):
    """Together they are all images, each in one place."""
    kept = digits.train.labels < 3
    images, labels = digits.train.images[kept], digits.train.labels[kept]
    number = np.arange(len(images))
    images[:, 0, 0], images[:, 0, 1] = number // 256, number % 256  # each carries its own
    found = []

    def stop(network, loss, images, labels, *_, validation, **__):
        for pixels in (images[:], validation.images):
            found.append((256 * pixels[:, 0, 0, 0].astype(int) + pixels[:, 0, 1, 0]).tolist())
        raise KeyboardInterrupt

    monkeypatch.setattr("anocaps.detectors.capsnet.Run", stop)
    with pytest.raises(KeyboardInterrupt):
        deep(calibration=0.2).fit(images, labels)
    training, validation = found
    calibration = split(labels, 0.2, 0)[1].tolist()
    assert sorted(training + validation + calibration) == number.tolist()
    assert len(validation) == pytest.approx(0.1 * 0.8 * len(images), abs=1)
    assert len(calibration) == pytest.approx(0.2 * len(images), abs=1)


def test_validation_images_give_the_accuracy_and_the_spread(fitted, digits):
    detector, images = fitted
    record = detector.record_
    assert len(record["validation_losses"]) == len(record["losses"]) == 2
    labels = digits.train.labels[digits.train.labels < 3]
    rest, _ = split(labels, 0.2, 0)
    chosen = rest[split(labels[rest], 0.1, 0, purpose=0x7A1)[1]]
    assert record["validation_images"] == len(chosen) >= 20
    share = np.mean(detector.classify(images[chosen]) == labels[chosen])
    assert detector.card_["accuracy"] == {"share": share, "images": len(chosen)}
    for name, (mean, spread) in detector.standard_.items():
        values = detector.score_samples(images[chosen], name)
        assert (mean, spread) == pytest.approx((values.mean(), values.std()), rel=1e-5)


def test_about_a_hundred_images_are_enough(digits):
    """20 of each of five digits: 80 to learn from, 20 that make the usual alpha usable."""
    train, test = digits.train, digits.test
    draw = np.random.default_rng(0)
    chosen = [draw.permutation(np.flatnonzero(train.labels == c))[:20] for c in range(5)]
    chosen = np.concatenate(chosen)
    detector = deep(score_function="knn", calibration=share_for(100), epochs=15)
    detector.fit(train.images[chosen], train.labels[chosen])
    assert detector.record_["calibration_images"] == 20
    known = test.labels < 5
    normal, anomalous = (
        detector.score_samples(test.images[members]) for members in (known, ~known)
    )
    assert auroc(normal, anomalous) > 0.8
    assert np.mean(detector.classify(test.images[known]) == test.labels[known]) > 0.85
    assert np.mean(detector.predict(test.images[known], 0.05) == -1) < 0.25
    hottest = detector.heatmaps(test.images[known]).max(axis=(1, 2))
    assert np.mean(hottest > 0.5) < 0.13  # a normal image looks calm everywhere
