"""The contract suite: what every detector says about wrong use."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from anocaps.base.errors import InputError
from anocaps.study.studies import accepted


def test_unfitted_use_says_so(make, tmp_path):
    image = np.zeros((1, 8, 8), np.uint8)
    for use in (
        lambda d: d.score_samples(image),
        lambda d: d.predict(image),
        lambda d: d.judge(image),
        lambda d: d.p_values(image),
        lambda d: d.class_p_values(image),
        lambda d: d.heatmaps(image),
        lambda d: d.decision_function(image),
        lambda d: d.save(tmp_path / "x"),
    ):
        with pytest.raises(NotFittedError):
            use(make())


@pytest.mark.parametrize(
    ("images", "labels", "match"),
    [
        (np.zeros((4, 8, 8), np.uint8), [0, 0, 1], "3 labels for 4 images"),
        (np.zeros((3, 8, 8), np.uint8), [0, 0, 1], "class 1 has one image"),
        (np.zeros((0, 8, 8), np.uint8), [], "empty"),
        (np.full((4, 8, 8), np.nan), [0, 0, 1, 1], "image 0"),
        (np.zeros((4, 8)), [0, 0, 1, 1], "shape"),
        (np.zeros((4, 8, 8), np.uint8), [[0], [0], [1], [1]], "one label per image"),
        (np.zeros((4, 8, 8), np.uint8), [0, 0, np.nan, np.nan], "not a finite number"),
        (np.zeros((4, 8, 8), np.uint8), [b"a", b"a", b"b", b"b"], "numbers or text"),
        ([np.zeros((8, 8)), np.zeros((9, 8))], [0, 0], "the same size"),
    ],
)
def test_bad_training_input_is_named(make, images, labels, match):
    with pytest.raises(InputError, match=match):
        make().fit(images, labels)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"calibration": 1.0}, "calibration"),
        ({"calibration": 0.001}, "keeps none"),
        ({"score_function": "magic"}, "magic"),
        ({"epochs": 0}, "epochs"),
        ({"device": "abacus"}, "abacus"),
        ({"epochs": 1.5}, "epochs"),
        ({"seed": -1}, "seed"),
        ({"seed": None}, "seed"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"batch_size": 0}, "batch_size"),
        ({"shift": -1}, "shift"),
        ({"precision": "fp16"}, "precision"),
        ({"scoring_precision": "tf32"}, "scoring_precision"),
    ],
)
def test_bad_settings_are_named(make, method, two_classes, options, match):
    if not accepted(method, options):
        pytest.skip("not a setting of this method")
    with pytest.raises(InputError, match=match):
        make(**options).fit(*two_classes)
