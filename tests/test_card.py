"""The model card: what it says, and when it warns."""

import json

import numpy as np

from anocaps import CapsNetDetector
from anocaps.card import add_check, add_files, expected_auroc, sentences, warning


def card(**changes):
    return {
        "images": 1234,
        "classes": {"bolt": 1000, "nut": 234},
        "size": [28, 28, 1],
        "fit": None,
        "skipped": 0,
        "skipped_files": [],
        "training_images": 1000,
        "validation_images": 111,
        "calibration_images": 123,
        "training_seconds": 61.7,
        "accuracy": {"share": 0.987, "images": 111},
        "smallest_alpha": 1 / 124,
        "score": "knn",
        "score_reason": "it was asked for",
        "self_check": None,
    } | changes


def check(**means):
    left_out = {"bolt": means, "nut": {name: value - 0.1 for name, value in means.items()}}
    return {"classes": 2, "left_out": left_out, "auroc": dict(means), "seconds": 1.0}


def said(*changes, **more):
    return "\n".join(sentences(card(*changes, **more)))


def test_it_says_what_was_used_and_what_to_expect():
    text = said(fit="Images are read in grey.", self_check=check(knn=0.91, pp=0.8))
    for part in (
        "1,234 images of 2 classes: bolt 1,000, nut 234",
        "Images are read in grey.",
        "1,000 to learn from, 111 to choose the best epoch, 123 to set the false-alarm rate",
        "62 s",
        "98.7 % of 111 images",
        "--alpha can be 0.0081 or more.",
        "Score: knn; it was asked for.",
        "each class left out in turn",
        "AUROC 0.91 to expect",
        "0.81 for nut",
    ):
        assert part in text, part
    assert "skipped" not in text
    assert warning(card(self_check=check(knn=0.91))) is None


def test_a_poor_self_check_warns_in_plain_words():
    poor = card(self_check=check(knn=0.69, pp=0.9))
    assert expected_auroc(poor) == 0.69  # of its own score, not of the best
    assert "0.69" in warning(poor) and "Do not rely on this model" in warning(poor)
    assert warning(card(self_check=check(knn=0.70))) is None


def test_what_is_not_known_is_said():
    assert "Self-check: none. It was not asked for" in said()
    one = said(
        classes={"bolt": 5},
        accuracy=None,
        self_check={"skipped": "There is one class, so that none can be left out"},
    )
    assert "one class, bolt" in one and "There is one class" in one and "Accuracy" not in one
    assert warning(card(self_check={"skipped": "why"})) is None
    assert "says nothing of pp" in said(score="pp", self_check=check(knn=0.9))
    assert "scores but no verdicts" in said(smallest_alpha=None, calibration_images=0)


def test_too_few_images_for_the_usual_alpha_are_told():
    text = said(smallest_alpha=1 / 11, calibration_images=10)
    assert "--alpha can be 0.091 or more; 0.05, the usual one, needs 19 images" in text
    assert "needs 19" not in said(smallest_alpha=1 / 20)


def test_skipped_files_are_named_up_to_a_point():
    files = [(f"photos/{k}.png", f"photos/{k}.png is empty") for k in range(150)]
    long = card()
    add_files(long, "Images are read in grey.", files)
    assert long["skipped"] == 150 and len(long["skipped_files"]) == 100
    text = "\n".join(sentences(long))
    assert "150 files were skipped" in text and "photos/9.png is empty" in text
    assert "photos/10.png" not in text and "and 140 more." in text
    add_files(long, "Images are read in grey.", files[:1])
    assert "One file was skipped:\n  photos/0.png is empty\n" in "\n".join(sentences(long))


def test_many_classes_are_not_all_named():
    text = said(classes={f"class {k}": 10 for k in range(30)})
    assert "30 classes" in text and "class 9 10, 20 more." in text and "class 10 10" not in text
    found = check(knn=0.9) | {"classes": 30}
    assert "the 2 largest of 30 classes left out" in said(self_check=found)


def test_a_fitted_detector_has_one_in_its_file(two_classes, tmp_path):
    images, labels = two_classes
    names = np.array(["left", "right"])[labels]
    detector = CapsNetDetector("quick", epochs=20, calibration=0.25, device="cpu")
    detector.fit(images, names)
    found = detector.card_
    assert found["classes"] == {"left": 24, "right": 24}
    assert found["accuracy"] == {"share": 1.0, "images": 12} and found["score"] == "pp"
    add_check(found, check(knn=0.9), "knn", "the best")
    assert json.loads(json.dumps(found)) == found
    assert "48 images of 2 classes" in sentences(found)[0]
