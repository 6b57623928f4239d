"""Runs docs/your-own-images.md from top to bottom: its code, its commands, their output.

The model is a small one, trained for a few epochs, so that figures differ; words may not.
"""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anocaps import ImageFolder

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs/your-own-images.md").read_text("utf-8")
BLOCKS = re.findall(r"```(python|console)\n(.*?)```", DOCUMENT, re.DOTALL)
FIGURES = re.findall(r"\((figures/own-images-[a-z]+\.png)\)", DOCUMENT)
SHORT = ("--size", "8", "--epochs", "3", "--device", "cpu")  # below 28 pixels: preset quick


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """The folder that the document leaves behind, what its Python left, and what was printed."""
    folder = tmp_path_factory.mktemp("own-images")
    names, printed, here = {}, {}, Path.cwd()
    os.chdir(folder)
    try:
        for kind, text in BLOCKS:
            if kind == "python":
                exec(text, names)
            else:
                command, output = text.removeprefix("$ ").split("\n", 1)
                printed[command] = run(command), output
    finally:
        os.chdir(here)
    return folder, names, printed


def run(command: str) -> str:
    words = shlex.split(command)
    assert words[0] == "anocaps"
    if words[1] == "train":
        words += SHORT
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PATH": path},
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def words(text: str) -> list[str]:
    """Line by line, without what another model says otherwise: numbers, the score that is chosen,
    and the images that choose an epoch, which the small one does not keep."""
    text = re.sub(r"^Score: [a-z+]+;", "Score: it;", text, flags=re.MULTILINE)
    text = text.replace(", 71 to choose the best epoch", "")
    return re.sub(r"[\d.,]*\d", "0", text).splitlines()


def printed_by(walk, start: str) -> tuple[str, str]:
    (found,) = (pair for command, pair in walk[2].items() if command.startswith(start))
    return found


def test_the_folder_has_no_4_and_the_new_one_has(walk):
    folder, _, _ = walk
    photos, new = (ImageFolder(folder / name, size=8, fewest=1) for name in ("photos", "new"))
    assert photos.class_names == tuple("012356789") and len(photos.files) == 808
    assert {file.name[0] for file in new.files} == set("0123456789")
    assert not {i.tobytes() for i in photos.images} & {i.tobytes() for i in new.images}


def test_check_says_what_the_document_says(walk):
    found, output = printed_by(walk, "anocaps check")
    assert found == output


@pytest.mark.parametrize("command", ["anocaps train", "anocaps export"])
def test_the_output_has_the_words_of_the_document(walk, command):
    found, output = printed_by(walk, command)
    assert words(found) == words(output) and len(words(output)) > 0


def test_scoring_writes_what_the_document_shows(walk):
    folder, _, _ = walk
    found, output = printed_by(walk, "anocaps score model.safetensors new -o")
    assert words(found) == words(output)
    with open(folder / "scores.csv", newline="") as file:
        rows = {row["file"]: row for row in csv.DictReader(file)}
    assert len(rows) == len(list((folder / "new").iterdir()))
    (head,) = re.findall(r"^\| (file \|.*?) \|$", DOCUMENT, re.MULTILINE)
    shown = [name.strip() for name in head.split("|")]
    assert shown == list(rows["new/4-00012.png"])[: len(shown)]
    for line in re.findall(r"^\| (new/.*?) \|$", DOCUMENT, re.MULTILINE):
        cells = [cell.strip() for cell in line.split("|")]
        assert cells[0] in rows
        assert cells[3] == ("anomalous" if float(cells[2]) <= 0.01 else "normal")
    assert (folder / "odd.html").read_text("utf-8").count("<html") == 1
    assert {file.name.removesuffix(".png") for file in (folder / "maps").iterdir()} == {
        Path(file).name for file in rows
    }


def test_odd_pictures_have_a_sentence_each(walk):
    found, output = printed_by(walk, "anocaps score model.safetensors new/")
    for text in (found, output):
        *sentences, last = text.splitlines()
        assert all(re.match(r"new/\d-\d{5}\.png: .*odder than", line) for line in sentences)
        assert last.endswith("anomalous at a false-alarm rate of 1 %.")
        assert f"{len(sentences)} anomalous" in last


def test_the_python_does_what_its_comments_say(walk):
    _, names, _ = walk
    p, verdicts, maps = names["p"], names["verdicts"], names["maps"]
    np.testing.assert_array_equal(verdicts == -1, p <= 0.01)
    assert maps.shape == (len(p), 8, 8) and maps.min() >= 0 and maps.max() <= 1
    assert set(names["kinds"]) <= set("012356789")
    assert names["truth"].sum() == sum(file.name[0] == "4" for file in names["new"].files)
    np.testing.assert_array_equal(names["outlier_labels"] == 1, p <= 0.05)
    np.testing.assert_array_equal(np.argsort(-names["outlier_scores"]), np.argsort(names["scores"]))
    assert names["alarms"].shape == (3,) and names["alarms"].mean() < 0.2
    assert names["aurocs"].shape == (3,) and names["aurocs"].mean() > 0.6
    assert names["false_alarms"](names["model"], names["images"], names["labels"]) < 0.2


def test_figures_are_there_small_and_no_others(walk):
    assert len(FIGURES) == 3
    folder = ROOT / "docs" / "figures"
    assert {file.name for file in folder.glob("own-images-*")} == {Path(f).name for f in FIGURES}
    for file in FIGURES:
        with Image.open(ROOT / "docs" / file) as image:
            assert image.format == "PNG"
        assert (ROOT / "docs" / file).stat().st_size < 150_000


def test_the_card_is_that_of_the_measured_model():
    """results/folders.json has a model of the same pictures and settings."""
    rows = json.loads((ROOT / "results/folders.json").read_text("utf-8"))["rows"]
    (row,) = (r for r in rows if r["folder"] == "digits-4" and r["method"] == "anocaps")
    assert f"Score: {row['score']}; " in DOCUMENT
    assert f"AUROC {row['self_check']['auroc'][row['score']]:.2f} to expect" in DOCUMENT
    assert f"Accuracy: {100 * row['accuracy']['share']:.1f} %" in DOCUMENT
    assert f"model.safetensors ({row['model_mb']:.1f} MB)" in DOCUMENT
    others = {r["auroc"]: r["method"] for r in rows if r["folder"] == "digits-4"}
    assert others[max(others)] == "PyOD kNN, pixels"  # which the document admits


def test_times_are_in_the_table_alone():
    """Which is filled from results/folders.json; the commands' own output may have them too."""
    text = re.sub(r"<!-- folders -->.*<!-- /folders -->|```.*?```", "", DOCUMENT, flags=re.DOTALL)
    assert not re.findall(r"\d+ (?:s|seconds|minutes|hours)\b", text)
    assert "| whole command |" in DOCUMENT


def test_the_rate_on_unseen_toys_is_the_measured_one():
    found = json.loads((ROOT / "results/conformal.json").read_text("utf-8"))["small-norb"]
    rate = found["calibrated_once"]["rates"]["0.05"]
    assert f"toys of training, {100 * rate:.0f} % were called\nanomalous at alpha 0.05" in DOCUMENT
