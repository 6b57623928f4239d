"""Class names that are splits or verdicts are recognised; the names of things are not."""

import pytest
from brightness import draw

from anocaps.images.folder import find_classes
from anocaps.images.names import Meaning, meaning_of, name_warnings, one_class


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("train", ("train", "")), ("Training", ("train", "")), ("TEST", ("test", "")),
        ("val", ("test", "")), ("validation_set", ("test", "")), ("test-1", ("test", "")),
        ("good", ("", "normal")), ("OK", ("", "normal")), ("ok_parts", ("", "normal")),
        ("NG", ("", "anomalous")), ("ng2", ("", "anomalous")), ("Defect", ("", "anomalous")),
        ("not ok", ("", "anomalous")), ("not_good", ("", "anomalous")),
        ("no-defect", ("", "normal")), ("defect free", ("", "normal")),
        ("train_good", ("train", "normal")), ("testNormal", ("test", "normal")),
        ("test-odd", ("test", "anomalous")), ("non-conforming", ("", "anomalous")),
    ],
)  # fmt: skip
def test_splits_and_verdicts(name, meant):
    assert meaning_of(name) == Meaning(*meant)


@pytest.mark.parametrize(
    "name",
    [
        "cup", "test tube", "training shoes", "good apple", "bad-homburg", "trainer", "contest",
        "0", "", "größe", "passport", "new", "class 1", "no", "ingot", "goodyear",
    ],
)  # fmt: skip
def test_names_of_things(name):
    assert meaning_of(name) == Meaning()


def made(folder, *files):
    for file in files:
        draw(folder / file / "0.png", 100)
    return find_classes(folder)


def test_splits_lead_to_the_commands_for_them(tmp_path):
    found = made(tmp_path, "train/good", "test/good", "test/crack", "test/hole 1")
    warned, train, test = name_warnings(found)
    assert "test" in warned and "train" in warned
    assert train.split() == ["anocaps", "train", f"{tmp_path}/train", "-o", "model.safetensors"]
    assert f"--normal {tmp_path}/test/good --anomalous {tmp_path}/test/crack" in test
    assert test.endswith(f"--anomalous '{tmp_path}/test/hole 1'")


def test_names_that_training_has_are_normal_in_the_test_split(tmp_path):
    found = made(tmp_path, "Train/cup", "Train/jug", "Test/cup", "Test/jug", "Test/stain")
    test = name_warnings(found)[-1]
    normal = f"--normal {tmp_path}/Test/cup --normal {tmp_path}/Test/jug"
    assert test.endswith(f"{normal} --anomalous {tmp_path}/Test/stain")


def test_verdicts_lead_to_training_on_the_normal_ones(tmp_path):
    _, train, test = name_warnings(made(tmp_path, "OK", "NG"), "python -m anocaps")
    assert train.strip() == f"python -m anocaps train {tmp_path}/OK -o model.safetensors"
    assert f"--anomalous {tmp_path}/NG" in test and f"{tmp_path}/OK" not in test


@pytest.mark.parametrize("files", [("good",), ("good", "cup"), ("a", "b"), ("normal", "ok")])
def test_normal_classes_are_no_reason_to_warn(tmp_path, files):
    assert name_warnings(made(tmp_path, *files)) == []


def test_a_flat_folder_may_be_called_train_but_not_defect(tmp_path):
    draw(tmp_path / "train" / "0.png", 100)
    draw(tmp_path / "defect" / "0.png", 100)
    assert name_warnings(find_classes(tmp_path / "train")) == []
    assert len(name_warnings(find_classes(tmp_path / "defect"))) == 1


def test_one_class_has_no_score_that_compares_classes():
    assert one_class(["a"]) != []
    assert one_class(["a", "b"]) == []
