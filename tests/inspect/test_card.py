"""The model card: what it tells, and when it warns."""

import json

import numpy as np
import pytest
from cards import card, check, of_one_class

from anocaps import CapsNetDetector
from anocaps.inspect.card import (
    add_files,
    expected_auroc,
    four_lines,
    promised_range,
    sentences,
    verdict_of,
    warnings_of,
)


def four(**changes):
    return four_lines(card(**changes), "anocaps score m.onnx")


def test_four_lines_tell_the_auroc_the_rate_the_weakest_class_and_what_to_do():
    well, alarms, weakest, following = four(self_check=check(knn=0.91))
    assert "0.91 (0.76 to 0.94)" in well
    assert "0.05" in alarms and "2.1 to 8.4 %" in alarms and "0.0081" in alarms
    assert "nut" in weakest and "0.81" in weakest
    assert following.endswith("anocaps score m.onnx")


def test_classes_and_synthetic_anomalies_are_told_apart():
    both = check(knn=0.98) | {"synthetic": of_one_class(of_5=0.91, of_2=0.63)["synthetic"]}
    well = four(self_check=both)[0]
    assert "0.98" in well and "5 % of the side 0.91" in well and "2 % 0.63" in well
    full = "\n".join(sentences(card(self_check=both)))
    assert "pasted pieces of 2 % of the side: AUROC 0.63 (0.5" in full


def test_with_one_class_synthetic_anomalies_tell_how_well():
    changes = {"classes": {"bolt": 99}, "accuracy": None}
    well, _, weakest, _ = four(self_check=of_one_class(of_5=0.91, of_2=0.63), **changes)
    assert "0.91" in well and "0.63" in well and "2 %" in weakest and "0.63" in weakest
    one = card(self_check=of_one_class(of_5=0.91, of_2=0.63), **changes)
    assert expected_auroc(one) is None and warnings_of(one) == []
    (said,) = warnings_of(card(self_check=of_one_class(of_5=0.69, of_2=0.5), **changes))
    assert "0.69" in said


@pytest.mark.parametrize(
    ("found", "level"),
    [
        (check(knn=0.9), "good"),
        (check(knn=0.89), "partly"),
        (check(knn=0.69), "bad"),
        (of_one_class(of_10=0.99, of_5=0.9, of_2=0.5), "good"),
        (of_one_class(of_10=0.99, of_5=0.8, of_2=0.5), "partly"),
        (of_one_class(of_10=0.6, of_5=0.5, of_2=0.5), "bad"),
        ({"skipped": "There is one class", "synthetic": []}, "unknown"),
        (None, "unknown"),
    ],
)
def test_a_model_at_chance_does_not_look_like_a_good_one(found, level):
    assert verdict_of(card(self_check=found))[0] == level
    not_learned = {"share": 0.3, "images": 100}
    assert verdict_of(card(self_check=found, accuracy=not_learned))[0] == "bad"


def test_the_whole_card_tells_of_photos():
    told = card(near_copies=1234, pretrained="ImageNet", working_size=[192, 480])
    text = "\n".join(sentences(told))
    assert "1,234" in text and "480×192" in text
    label = "pretrained on imagenet"
    assert four(pretrained="ImageNet")[0].lower().count(label) == 1 and label not in text.lower()
    assert not any(label in line.lower() for line in four())


@pytest.mark.parametrize(
    "unknown",
    [
        {"self_check": None},
        {"self_check": {"skipped": "There is one class"}, "classes": {"bolt": 5}, "accuracy": None},
        {"self_check": check(knn=0.9), "score_function": "pp"},
    ],
)
def test_what_is_not_known_is_said(unknown):
    well, _, weakest, _ = four(**unknown)
    assert "not known" in well and "not known" in weakest
    assert "not known" in four(smallest_alpha=None, calibration_images=0)[1]
    assert all(sentences(card(**unknown)))


def test_the_usual_alpha_is_out_of_reach_of_few_images():
    alarms = four(smallest_alpha=1 / 11, calibration_images=10)[1]
    assert alarms.count("0.091") == 2
    needs = [line for line in sentences(card(smallest_alpha=1 / 11)) if "needs" in line]
    assert len(needs) == 2 and "19" in needs[0] and "99" in needs[1]


def test_a_poor_self_check_warns():
    poor = card(self_check=check(knn=0.69, pp=0.9))
    assert expected_auroc(poor) == 0.69  # of its own score function, not of the best
    (said,) = warnings_of(poor)
    assert "0.69" in said
    assert warnings_of(card(self_check=check(knn=0.70))) == []


@pytest.mark.parametrize(
    ("counts", "share", "warned"),
    [
        ((50, 50), 0.66, True),
        ((50, 50), 0.67, False),
        ((90, 10), 0.92, True),  # 0.9 for always naming the larger one
        ((90, 10), 0.94, False),
        ((25,) * 4, 0.49, True),
        ((25,) * 4, 0.5, False),
        ((10,) * 100, 0.019, True),
        ((10,) * 100, 0.021, False),
    ],
)
def test_a_network_that_learned_nothing_is_called_so(counts, share, warned):
    classes = {f"class {k}": n for k, n in enumerate(counts)}
    changes = {"classes": classes, "accuracy": {"share": share, "images": 100}}
    assert len(warnings_of(card(**changes))) == warned
    promised = "AUROC" in four(self_check=check(knn=1.0), **changes)[0]
    assert promised != warned
    assert warnings_of(card(classes=classes, accuracy=None)) == []


def test_the_range_is_that_of_all_classes_left_out():
    low, high = promised_range(card(self_check=check(knn=0.9)))
    assert low < 0.8 and high > 0.9  # of nut, of bolt


def test_a_class_with_too_few_images_has_no_number():
    found = check(knn=0.9) | {"classes": 3}
    found["tested"]["washer"] = {"anomalous": 6, "normal": 200}
    lines = sentences(card(self_check=found))
    assert [("AUROC" in line) for line in lines if line.startswith("  ")] == [True, True, False]


def test_names_cannot_steer_a_terminal():
    evil = "nut\x1b[2J\n"
    found = check(knn=0.9)
    for part in ("left_out", "tested"):
        found[part][evil] = found[part].pop("nut")
    for classes in ({"bolt": 5, evil: 6}, {evil: 6}):
        told = card(classes=classes, self_check=found)
        lines = [*four_lines(told, "next"), *sentences(told)]
        assert all(line.isprintable() for line in lines)
        assert sum(r"nut\x1b[2J\n" in line for line in lines) == 3


def test_skipped_files_are_named_up_to_a_point():
    files = [(f"photos/{k}.png", f"photos/{k}.png is empty") for k in range(150)]
    others = [(f".{k}", 1) for k in range(200)]
    found = card()
    add_files(found, "Images are read in grey.", files, 1200, others)
    assert found["skipped"] == 150 and len(found["skipped_files"]) == 100
    assert len(found["passed_over"]) == 100
    text = "\n".join(sentences(found))
    assert "photos/9.png is empty" in text and "photos/10.png" not in text
    assert "150" in text and "140" in text and "1,200" in text
    few = "\n".join(sentences(card(classes={f"class {k}": 10 for k in range(30)})))
    assert "class 9" in few and "class 10" not in few


def test_a_fitted_detector_has_one(two_classes):
    images, labels = two_classes
    names = np.array(["left", "right"])[labels]
    detector = CapsNetDetector("quick", epochs=20, calibration=0.25, device="cpu")
    found = detector.fit(images, names).card_
    assert found.keys() == card().keys()
    assert found["classes"] == {"left": 24, "right": 24}
    assert (
        found["accuracy"] == {"share": 1.0, "images": 12} and found["score_function"] == "combined"
    )
    found["self_check"] = check(combined=0.9)
    assert json.loads(json.dumps(found)) == found
    assert sentences(found) and len(four_lines(found, "next")) == 4
