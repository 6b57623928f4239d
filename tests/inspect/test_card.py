"""The model card: what it says, and when it warns."""

import json

import numpy as np
import pytest
from cards import card, check

from anocaps import CapsNetDetector
from anocaps.inspect.card import add_check, add_files, expected_auroc, sentences, warnings_of
from anocaps.inspect.selfcheck import _MOST_CLASSES, _MOST_CLASSES_ON_CPU


def said(*changes, **more):
    return "\n".join(sentences(card(*changes, **more)))


def test_it_says_what_was_used_and_what_to_expect():
    text = said(fit="Images are read in grey.", self_check=check(knn=0.91, pp=0.8))
    for part in (
        "1,234 images of 2 classes: bolt 1,000, nut 234",
        "Images are read in grey.",
        "\nOf the 1,234 images, 1,000 to learn from, 111 to choose the best epoch, 123 to set the "
        "false-alarm rate",
        "62 s",
        "98.7 % of 111 images",
        "--alpha can be 0.0081 or more. At 0.05 and with 123 images to set it, the rate lies "
        "between 2.1 and 8.4 % nine times in ten, for normal images taken as these were.\n",
        "Score function: knn; it was asked for.",
        "each class left out in turn",
        "31 s in all",
        "AUROC 0.91 (0.76 to 0.94) to expect for oddities as unlike as another class",
        "the range is what so many images leave open over all classes.",
        "\n  bolt: AUROC 0.91 (0.85 to 0.94), 1,000 odd and 46 normal images",
        "\n  nut: AUROC 0.81 (0.76 to 0.85), 210 odd and 180 normal images",
    ):
        assert part in text, part
    assert not any(part in text for part in ("skipped", "left out as", "Not looked at"))
    assert warnings_of(card(self_check=check(knn=0.91))) == []


def test_a_poor_self_check_warns_in_plain_words():
    poor = card(self_check=check(knn=0.69, pp=0.9))
    assert expected_auroc(poor) == 0.69  # of its own score, not of the best
    (said,) = warnings_of(poor)
    assert "0.69" in said and "Do not rely on this model" in said
    assert warnings_of(card(self_check=check(knn=0.70))) == []


def test_a_class_with_too_few_images_has_no_number():
    found = check(knn=0.9) | {"classes": 3}
    found["tested"]["washer"] = {"odd": 6, "normal": 200}
    text = said(self_check=found)
    assert "the 2 largest of 3 classes (at most 5, on a CPU 3) left out" in text
    assert "\n  washer: too few to tell, 6 odd and 200 normal images" in text
    del found["left_out"]["nut"]
    assert "the largest of 3 classes (at most 5, on a CPU 3) left" in said(self_check=found)
    assert (_MOST_CLASSES, _MOST_CLASSES_ON_CPU) == (5, 3)


def test_groups_of_classes_are_told_as_such():
    classes = {"bolt": 11, "nut": 11, "pin": 11, "rod and ring": 11, "washer": 11}
    found = check(knn=0.9) | {"classes": 5}
    for part in ("left_out", "tested"):
        found[part] = {"bolt and nut": found[part]["bolt"], "pin and washer": found[part]["nut"]}
    text = said(classes=classes, self_check=found)
    told = "2 groups of classes (at most 5, on a CPU 3; single ones are too small) left out in turn"
    assert f"Self-check: {told} of another training" in text
    assert "leave open over all groups." in text and "all classes" not in text
    assert "\n  bolt and nut: AUROC 0.90 (0.84 to 0.94), 1,000 odd and 46 normal images" in text
    del found["left_out"]["pin and washer"]
    text = said(classes=classes, self_check=found)
    assert "one group of classes (at" in text and "\n  pin and washer: too few to tell" in text
    for part in ("left_out", "tested"):  # a class may have such a name
        found[part] = {"rod and ring": found[part]["bolt and nut"]}
    text = said(classes=classes, self_check=found)
    assert "the largest of 5 classes (at" in text and "group" not in text


def test_a_score_that_the_check_chose_is_said_to_be_flattered():
    less = "as these were, or a little less, as the score is the best of several by these same"
    assert less in said(
        self_check=check(knn=0.9), score_function_reason="the best in the self-check: knn"
    )
    assert "a little less" not in said(self_check=check(knn=0.9))  # it was asked for


def test_an_auroc_of_few_images_is_called_a_guess():
    found = check(knn=1.0)
    assert "rough guess" not in said(self_check=found)
    found["tested"]["nut"] = {"odd": 29, "normal": 200}
    assert "It is a rough guess: few images were left to test with." in said(self_check=found)


def test_nothing_is_promised_of_a_network_that_learned_nothing():
    found = check(knn=1.0) | {"classes": 3}
    poor = {"share": 0.8, "images": 111}  # where always naming bolts gives 0.81
    assert "AUROC 1.00 (0.86 to 1.00) to expect" in said(self_check=found)
    text = said(self_check=found, accuracy=poor)
    assert "to expect" not in text and "AUROC 1.00 (0.5 is guessing" in text
    assert "do not expect it of this model" in text


def test_with_two_classes_the_checked_networks_knew_one():
    alone = "Each network of the check knew one class, where the model knows two."
    assert alone in said(self_check=check(knn=0.9))
    assert alone not in said(self_check=check(knn=0.9) | {"classes": 3})


def test_without_validation_images_it_says_so():
    last, whose = "so the last one was taken", "(those that set the false-alarm rate)"
    assert last not in said() and whose not in said()
    text = said(validation_images=0, accuracy={"share": 0.9, "images": 123})
    assert f"Training took 62 s. No images were spared to choose the best epoch, {last}." in text
    assert f"90.0 % of 123 images that it did not learn from {whose} are" in text


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
    told = warnings_of(card(classes=classes, accuracy={"share": share, "images": 100}))
    assert len(told) == warned
    if warned:
        assert told[0].startswith("the network did not learn to tell your classes apart: ")
        assert f"{100 * share:.0f} % of new images" in told[0]
    assert warnings_of(card(classes=classes, accuracy=None)) == []


def test_names_cannot_steer_a_terminal():
    evil = "nut\x1b[2J\n"
    found = check(knn=0.9)
    for part in ("left_out", "tested"):
        found[part][evil] = found[part].pop("nut")
    for classes in ({"bolt": 5, evil: 6}, {evil: 6}):
        lines = sentences(card(classes=classes, self_check=found))
        assert all(line.isprintable() for line in lines)
        assert sum(r"nut\x1b[2J\n" in line for line in lines) == 2


def test_what_is_not_known_is_said():
    assert "Self-check: none. It was not asked for" in said()
    one = said(
        classes={"bolt": 5},
        accuracy=None,
        self_check={"skipped": "There is one class, so that none can be left out"},
    )
    assert "one class, bolt" in one and "There is one class" in one and "Accuracy" not in one
    assert warnings_of(card(self_check={"skipped": "why"})) == []
    assert "says nothing of pp" in said(score_function="pp", self_check=check(knn=0.9))
    assert "scores but no verdicts" in said(smallest_alpha=None, calibration_images=0)


def test_too_few_images_for_the_usual_alpha_are_told():
    text = said(smallest_alpha=1 / 11, calibration_images=10)
    usual = "0.05, the usual one, needs 19 and 0.01 needs 99 images to set it."
    assert f"--alpha can be 0.091 or more; {usual} At 0.091 and with 10 images" in text
    assert "--alpha can be 0.05 or more; 0.01 needs 99 images to" in said(smallest_alpha=1 / 20)
    assert "--alpha can be 0.01 or more. At 0.05" in said(smallest_alpha=1 / 100)


def test_with_plenty_of_images_the_rate_is_alpha():
    for images, told in ((10_000, True), (10_001, False)):
        text = said(smallest_alpha=1 / (images + 1), calibration_images=images)
        assert ("At 0.05 and with 10,000 images to set it" in text) == told
        assert ("between 4.6 and 5.4 %" in text) == told


def test_skipped_files_are_named_up_to_a_point():
    files = [(f"photos/{k}.png", f"photos/{k}.png is empty") for k in range(150)]
    long = card()
    add_files(long, "Images are read in grey.", files, 0, ())
    assert long["skipped"] == 150 and len(long["skipped_files"]) == 100
    text = "\n".join(sentences(long))
    assert "150 files were skipped" in text and "photos/9.png is empty" in text
    assert "photos/10.png" not in text and "and 140 more." in text
    add_files(long, "Images are read in grey.", files[:1], 0, ())
    assert "One file was skipped:\n  photos/0.png is empty\n" in "\n".join(sentences(long))


def test_copies_that_were_left_out_are_counted():
    for copies, words in (
        (1, "One image was left out as a copy of another."),
        (1200, "1,200 images were left out as copies of others."),
    ):
        found = card()
        add_files(found, "Images are read in grey.", (), copies, ())
        assert words in sentences(found)


def test_files_that_are_not_taken_for_images_are_counted():
    found = card()
    others = [(".heic", 1200), ("", 2), *((f".{k}", 1) for k in range(200))]
    add_files(found, "Images are read in grey.", (), 0, others[:2])
    line = "Not looked at, since their names are not those of images: .heic 1,200, no extension 2."
    assert line in sentences(found) and found["passed_over"] == {".heic": 1200, "": 2}
    add_files(found, "Images are read in grey.", (), 0, others)
    assert len(found["passed_over"]) == 100


def test_many_classes_are_not_all_named():
    text = said(classes={f"class {k}": 10 for k in range(30)})
    assert "30 classes" in text and "class 9 10, 20 more." in text and "class 10 10" not in text
    found = check(knn=0.9) | {"classes": 30}
    assert "the 2 largest of 30 classes (at" in said(self_check=found)


def test_a_fitted_detector_has_one_in_its_file(two_classes, tmp_path):
    images, labels = two_classes
    names = np.array(["left", "right"])[labels]
    detector = CapsNetDetector("quick", epochs=20, calibration=0.25, device="cpu")
    detector.fit(images, names)
    found = detector.card_
    assert found["classes"] == {"left": 24, "right": 24}
    assert found["accuracy"] == {"share": 1.0, "images": 12} and found["score_function"] == "knn"
    add_check(found, check(knn=0.9), "knn", "the best")
    assert json.loads(json.dumps(found)) == found
    assert "48 images of 2 classes" in sentences(found)[0]
