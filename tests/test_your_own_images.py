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
from anocaps.spread import auroc_range, rate_range

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs/your-own-images.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
MODEL_FILE = (ROOT / "docs/model-file.md").read_text("utf-8")
BLOCKS = re.findall(r"```(python|console)\n(.*?)```", DOCUMENT, re.DOTALL)
FIGURES = re.findall(r"\((figures/own-images-[a-z]+\.png)\)", DOCUMENT)
SHORT = ("--size", "8", "--epochs", "3", "--device", "cpu")  # below 28 pixels: preset quick
SENTENCE = re.compile(r"new/\d-\d{5}\.png: .*odder than .*")  # on an odd picture
SCORED = re.compile(r"\d+ images scored by [a-z+]+, (\d+) anomalous at a .* of 1 %\.")


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
    for without in (
        " No images were spared to choose the best epoch, so the last one was taken.",
        " (those that set the false-alarm rate)",
    ):
        text = text.replace(without, "")
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


def test_the_card_in_the_exported_model_is_that_of_training(walk):
    trained, (found, shown) = printed_by(walk, "anocaps train")[0], printed_by(walk, "anocaps card")
    assert words(found)[0] == words(shown)[0] and shown.splitlines()[1:] == ["…"]
    *card, model, following = trained.splitlines()
    assert sorted(card) == sorted(found.splitlines())
    assert model.startswith("Model: ") and following.startswith("Next: ")


def test_scoring_writes_what_the_document_shows(walk):
    folder, _, _ = walk
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


def score_output(text: str) -> tuple[int, int, int, list[str]]:
    """How many sentences, odd pictures beyond them, odd pictures in all, and the files written.
    … stands for sentences that the document leaves out."""
    lines = text.splitlines()
    (last,) = (k for k, line in enumerate(lines) if SCORED.fullmatch(line))
    sentences = [line for line in lines[:last] if SENTENCE.fullmatch(line)]
    more = re.findall(r"^and (\d+) more in scores\.csv$", text, re.MULTILINE)
    assert len(sentences) + len(more) + lines.count("…") == last  # and no other line
    return len(sentences), sum(map(int, more)), int(SCORED.findall(text)[0]), lines[last + 1 :]


def test_a_table_comes_with_the_first_sentences_from_either_model(walk):
    commands = [f"anocaps score {model} new -o" for model in ("model.safetensors", "model.onnx")]
    for found, output in (printed_by(walk, command) for command in commands):
        sentences, more, odd, files = score_output(found)
        assert sentences == min(odd, 20) > 0 and more == odd - sentences
        shown, more, odd, shown_files = score_output(output)
        assert shown < 20 and more == odd - 20 and "…" in output
        assert files == shown_files
    runs, shown_runs = zip(*(printed_by(walk, command) for command in commands))
    for one, other in (runs, shown_runs):
        assert score_output(one)[2] == score_output(other)[2]


def test_odd_pictures_have_a_sentence_each(walk):
    for text in printed_by(walk, "anocaps score model.safetensors new/"):
        sentences, more, odd, files = score_output(text)
        assert sentences == odd and more == 0 and files == []
    assert odd > 0


def test_the_readme_has_the_same_commands(walk):
    section = README[README.index("## Your own images") :]
    (block,) = re.findall(r"```\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    told = [shlex.split(line, comments=True) for line in block.splitlines()]
    names = [command[1] for command in told]
    assert names == ["check", "train", "score", "export", "score", "card"]
    run_here = [set(shlex.split(command)) for command in walk[2]]
    for command in told:
        assert any({word.rstrip("/") for word in command} <= each for each in run_here), command


def test_every_key_of_a_card_is_explained(walk):
    card, fit = walk[1]["detector"].card_, walk[1]["detector"].record_["fit"]
    explained = re.findall(r"^\| (`.*?) \|", MODEL_FILE, re.MULTILINE)
    names = {name for cell in explained for name in re.findall(r"`([\w.]+)`", cell)}
    tested = next(iter(card["self_check"]["tested"].values()))
    assert {*card, *fit, *card["self_check"]} <= names
    assert all(f"`{name}`" in MODEL_FILE for name in tested)


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
    assert f"Accuracy: {100 * row['accuracy']['share']:.1f} %" in DOCUMENT
    assert f"model.safetensors ({row['model_mb']:.1f} MB)" in DOCUMENT
    check = row["self_check"]
    ranges = []
    for name, tested in check["tested"].items():
        auroc = check["left_out"][name][row["score"]]
        ranges.append(auroc_range(auroc, tested["odd"], tested["normal"]))
        told = "AUROC {:.2f} ({:.2f} to {:.2f})".format(auroc, *ranges[-1])
        line = f"  {name}: {told}, {tested['odd']} odd and {tested['normal']} normal"
        assert line in DOCUMENT
    lows, highs = zip(*ranges)
    told = f"AUROC {check['auroc'][row['score']]:.2f} ({min(lows):.2f} to {max(highs):.2f})"
    assert f"{told} to expect" in DOCUMENT
    low, high = (100 * rate for rate in rate_range(0.05, row["calibration_images"]))
    assert f"the rate lies between {low:.2g} and {high:.2g} % nine times in ten" in DOCUMENT
    odd, normal = row["settings"]["images"]["odd"], row["settings"]["images"]["normal"]
    found, alarms = odd * row["found"]["0.01"], normal * row["false_alarms"]["0.01"]
    assert f"Of the {odd} fours, {found:.0f} were found" in DOCUMENT
    assert f"Of the {normal} others, {alarms:.0f} were called anomalous" in DOCUMENT
    assert f", {found + alarms:.0f} anomalous at a false-alarm rate of 1 %" in DOCUMENT
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


def test_small_norb_is_as_bad_as_the_document_says():
    rows = json.loads((ROOT / "results/folders.json").read_text("utf-8"))["rows"]
    (row,) = (r for r in rows if r["folder"] == "small-norb-truck" and r["method"] == "anocaps")
    promised, met = row["self_check"]["auroc"][row["score"]], row["auroc"]
    told = f"promised {promised:.2f}, and unseen toys gave {met:.2f}".replace("0.", ".")
    assert told in DOCUMENT and promised > met + 0.1
    assert f"and {100 * row['false_alarms']['0.05']:.0f} % by the network of this page" in DOCUMENT
    assert row["false_alarms"]["0.05"] > 0.1
    (best,) = (r for r in rows if r["folder"] == "small-norb-truck" and "features" in r["method"])
    assert best["auroc"] > row["auroc"]  # which the document admits


def test_sandals_are_better_redrawn_than_judged():
    rows = json.loads((ROOT / "results/folders.json").read_text("utf-8"))["rows"]
    (row,) = (r for r in rows if r["folder"] == "fashion-mnist-sandal" and r["method"] == "anocaps")
    told = f"self-check chose `{row['score']}`. For sandals `re` would have been better, "
    assert told + f"{row['auroc_by_score']['re']:.2f};".replace("0.", ".") in DOCUMENT
    assert row["auroc_by_score"]["re"] > row["auroc"]


def test_the_document_admits_where_others_are_better():
    """Neighbours of CNN features on all folders but the smallest, its softmax on none."""
    rows = json.loads((ROOT / "results/folders.json").read_text("utf-8"))["rows"]
    found = {(r["folder"], r["method"]): r["found_at_equal_rates"]["0.05"] for r in rows}
    names = {folder for folder, _ in found}
    assert "three of\nfour folders, all but the smallest" in DOCUMENT and len(names) == 4
    better = {n for n in names if found[n, "CNN features, kNN"] > found[n, "anocaps"]}
    assert better == names - {"digits-4-11"}
    assert all(found[n, "CNN, maximum softmax"] < found[n, "anocaps"] for n in names)


def test_the_promise_of_few_pictures_was_too_much():
    rows = json.loads((ROOT / "results/folders.json").read_text("utf-8"))["rows"]
    (row,) = (r for r in rows if r["folder"] == "digits-4-11" and r["method"] == "anocaps")
    promised, met = row["self_check"]["auroc"][row["score"]], row["auroc"]
    told = f"promised there, {promised:.2f}, was too much: {met:.2f} was met".replace("0.", ".")
    assert told in DOCUMENT and promised > met


def test_the_self_check_takes_as_long_as_the_document_says():
    rows = json.loads((ROOT / "results/folders.json").read_text("utf-8"))["rows"]
    ratio = {
        r["folder"]: r["self_check"]["seconds"] / r["training_seconds"]
        for r in rows
        if r["method"] == "anocaps" and "seconds" in r["self_check"]
    }
    told = " ".join(DOCUMENT.split())
    assert "takes as long as the training again on a small folder and a CPU" in told
    assert 0.7 < ratio["digits-4"] < 1.5
    assert "on a GPU, where training is short, about twice as long" in told
    for name in ("fashion-mnist-sandal", "small-norb-truck"):
        assert 1.5 < ratio[name] < 2.8
