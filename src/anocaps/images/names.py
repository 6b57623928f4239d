"""Find class names that look like splits or verdicts, and suggest the right commands."""

import re
from collections.abc import Collection
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from anocaps.base.text import shown
from anocaps.images.folder import ClassFolders

_TRAIN = {"train", "training", "trainset", "learn"}
_TEST = {
    "test", "testing", "testset", "val", "valid", "validation", "eval", "evaluation", "dev",
    "holdout",
}  # fmt: skip
_NORMAL = {
    "good", "ok", "okay", "normal", "pass", "passed", "io", "fine", "clean", "healthy", "intact",
    "inlier", "inliers", "conforming",
}  # fmt: skip
_ANOMALOUS = {
    "bad", "ng", "nok", "nio", "defect", "defects", "defective", "anomaly", "anomalies",
    "anomalous", "abnormal", "odd", "fault", "faults", "faulty", "fail", "failed", "broken",
    "damaged", "reject", "rejected", "rejects", "scrap", "outlier", "outliers", "nonconforming",
}  # fmt: skip
_NOT = {"not", "no", "non", "without"}
_FILLERS = {
    "set", "data", "dataset", "image", "images", "img", "photo", "photos", "sample", "samples",
    "part", "parts", "split", "class", "free", "only", "new",
}  # fmt: skip
_MOST_NAMED = 6  # folders in a command


class Meaning(NamedTuple):
    split: str = ""  # "train" or "test"
    verdict: str = ""  # "normal" or "anomalous"


def meaning_of(name: str) -> Meaning:
    """Split and verdict in a folder's name: "Train-Good", "test_NG", "not ok", "defect-free".

    A name with any other word, such as "test tube", has no such meaning.
    """
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)  # "testGood"
    words = re.findall(r"[^\W\d_]+", spaced.lower())
    known = _TRAIN | _TEST | _NORMAL | _ANOMALOUS
    if not set(words) & known or not set(words) <= known | _NOT | _FILLERS:
        return Meaning()
    given = set(words)
    split = "train" if given & _TRAIN else "test" if given & _TEST else ""
    verdict = "anomalous" if given & _ANOMALOUS else "normal" if given & _NORMAL else ""
    if verdict and (given & _NOT or (verdict == "anomalous" and "free" in given)):
        verdict = "normal" if verdict == "anomalous" else "anomalous"
    return Meaning(split, verdict)


def name_warnings(found: ClassFolders, command: str = "anocaps") -> list[str]:
    """Lines for the user, if classes look like splits or verdicts. `command` starts anocaps.

    Training takes every sub-folder as a class of normal images. One class called "good" is fine.
    """
    meanings = {name: meaning_of(name) for name in found.classes}
    flat = (
        list(found.classes) == [found.folder.resolve().name]
        and not (found.folder / next(iter(found.classes))).is_dir()
    )
    splits = [] if flat else [name for name, meant in meanings.items() if meant.split]
    anomalous = [name for name, meant in meanings.items() if meant.verdict == "anomalous"]
    if not splits and not anomalous:
        return []
    what = "splits" if not anomalous else "verdicts" if not splits else "splits and verdicts"
    names = ", ".join(shown(name) for name in dict.fromkeys([*splits, *anomalous]))
    lines = [
        f"Classes that look like {what}: {names}. Training takes every sub-folder as a class of "
        "normal images."
    ]
    if meant := [] if flat else _meant(found.folder, meanings, command):
        lines[0] += " Probably meant:"
        lines += [f"  {line}" for line in meant]
    return lines


def one_class(classes: Collection[str]) -> list[str]:
    """A line on the score functions if there is only one class."""
    if len(classes) > 1:
        return []
    return ["There is one class. The scores pp and pp+re need two; so does knn of preset photo."]


def _meant(folder: Path, meanings: dict[str, Meaning], command: str) -> list[str]:
    """The commands to train on normal images and to test with the others."""
    normal, anomalous = _test_folders(folder, meanings)
    training = [
        folder / name
        for name, meant in meanings.items()
        if meant.split != "test" and meant.verdict != "anomalous" and (meant.split or meant.verdict)
    ]
    training.sort(key=lambda place: meaning_of(place.name).split != "train")
    lines = []
    if training:
        lines.append(f"{command} train {_quoted(training[0])} -o model.safetensors")
    if normal or anomalous:
        good = normal or [Path("OTHER_NORMAL_IMAGES")]
        options = [*(f"--normal {_quoted(place)}" for place in good[:_MOST_NAMED])]
        options += [f"--anomalous {_quoted(place)}" for place in anomalous[:_MOST_NAMED]]
        lines.append(f"{command} test model.safetensors {' '.join(options)}")
    return lines


def _test_folders(folder: Path, meanings: dict[str, Meaning]) -> tuple[list[Path], list[Path]]:
    """Folders of normal and of anomalous images to test with.

    In a test split, a folder is normal if its name means so or if the training split has it too.
    """
    learned = {
        inner.name
        for name, meant in meanings.items()
        if meant.split == "train"
        for inner in _sub_folders(folder / name)
    }
    normal: list[Path] = []
    anomalous: list[Path] = []
    for name, meant in meanings.items():
        place = folder / name
        if meant.verdict == "anomalous":
            anomalous.append(place)
        elif meant.split == "test" and meant.verdict == "normal":
            normal.append(place)
        elif meant.split == "test":
            for inner in _sub_folders(place):
                known = inner.name in learned or meaning_of(inner.name).verdict == "normal"
                (normal if known else anomalous).append(inner)
    return normal, anomalous


def _sub_folders(place: Path) -> list[Path]:
    return sorted(each for each in place.glob("[!.]*") if each.is_dir())


def _quoted(place: Path) -> str:
    return quote(shown(place))
