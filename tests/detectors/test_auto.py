"""What `auto` chooses, and that it is said."""

import numpy as np
import pytest

from anocaps import CapsNetDetector
from anocaps.detectors.presets import choose_preset


@pytest.mark.parametrize(("side", "preset"), [(8, "quick"), (27, "quick"), (28, "deep")])
def test_the_size_of_images_chooses_the_preset(side, preset):
    assert choose_preset(side, 5) == choose_preset(5, side) == preset


def test_the_defaults_work_with_and_without_labels(two_classes):
    images, labels = two_classes
    for given in ((images, labels), (images,)):
        detector = CapsNetDetector(epochs=1, device="cpu").fit(*given)
        assert detector.record_["preset"] == detector.card_["preset"] == "quick"
        assert detector.score_function_ == detector.card_["score_function"] == "knn"
        assert detector.get_params()["preset"] == "auto"
        assert set(detector.predict(images, alpha=0.3)) <= {-1, 1}
    same = CapsNetDetector("quick", "knn", epochs=1, device="cpu").fit(images)
    np.testing.assert_array_equal(same.score_samples(images), detector.score_samples(images))
    assert same.card_["preset_reason"] != detector.card_["preset_reason"]
    assert same.card_["score_function_reason"] != detector.card_["score_function_reason"]
