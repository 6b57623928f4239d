"""What `auto` chooses, and that it is said."""

import numpy as np
import pytest
from PIL import Image

from anocaps import CapsNetDetector, ImageFolder
from anocaps.base.extras import pretrained_available
from anocaps.detectors.presets import choose_preset


@pytest.mark.parametrize(
    ("side", "classes", "with_photo", "without"),
    [
        (8, 2, "quick", "quick"),
        (28, 2, "deep", "deep"),
        (48, 2, "photo", "deep"),
        (8, 1, "photo", "quick"),
        (60, 1, "photo", "deep"),
    ],
)
def test_size_and_classes_choose_the_preset(side, classes, with_photo, without, monkeypatch):
    for installed, preset in ((True, with_photo), (False, without)):
        monkeypatch.setattr("anocaps.detectors.presets.pretrained_available", lambda: installed)  # noqa: B023
        assert choose_preset(side, side, 3, classes) == preset


def test_long_images_get_the_preset_that_takes_them():
    if not pretrained_available():
        pytest.skip("the extra photo is not installed")
    assert choose_preset(32, 1024, 1, 2) == "photo"


def test_stereo_pairs_are_no_photos():
    assert choose_preset(96, 96, 2, 5) == "deep"


def test_the_defaults_work_with_and_without_labels(two_classes, monkeypatch):
    images, labels = two_classes
    monkeypatch.setattr("anocaps.detectors.presets.pretrained_available", lambda: False)
    for given in ((images, labels), (images,)):
        detector = CapsNetDetector(epochs=1, device="cpu").fit(*given)
        assert detector.record_["preset"] == detector.card_["preset"] == "quick"
        assert detector.score_function_ == detector.card_["score_function"] == "combined"
        assert detector.get_params()["preset"] == "auto"
        assert set(detector.predict(images, alpha=0.3)) <= {-1, 1}
    same = CapsNetDetector("quick", "combined", epochs=1, device="cpu").fit(images)
    np.testing.assert_array_equal(same.score_samples(images), detector.score_samples(images))
    assert same.card_["preset_reason"] != detector.card_["preset_reason"]
    assert same.card_["score_function_reason"] != detector.card_["score_function_reason"]


@pytest.mark.parametrize(("side", "preset"), [(8, "quick"), (27, "quick"), (28, "deep")])
def test_folders_and_arrays_get_the_same_preset(side, preset, tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (40, side, side), np.uint8)
    labels = np.repeat(["a", "b"], 20)
    for k, (image, label) in enumerate(zip(images, labels)):
        (tmp_path / label).mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / label / f"{k:02}.png")
    found = []
    for given in ((ImageFolder(tmp_path),), (images, labels)):
        detector = CapsNetDetector(epochs=1, device="cpu").fit(*given)
        assert detector.record_["preset"] == preset
        found.append(detector.score_samples(images))
    np.testing.assert_array_equal(*found)
