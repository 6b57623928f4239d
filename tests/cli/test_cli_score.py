"""`anocaps score` as a user meets it: what is printed, written, refused."""

import csv
import io
import json
import os
import sys
import types

import numpy as np
import pytest
from brightness import DARK, NORMAL, Brightness, draw, draw_twelve
from PIL import Image

from anocaps import CapsNetDetector, load
from anocaps.cli import terminal
from anocaps.detectors.judge import DetectorJudge
from anocaps.images.decode import read_image
from anocaps.inspect import judge as judging
from anocaps.inspect import listing
from anocaps.inspect import scoring as scorefiles

SUMMARY = "12 images scored by mean, 2 anomalous at a false-alarm rate of"


@pytest.fixture
def refused(anocaps):
    """The command must end with exit code 2 and one line that says what is wrong."""

    def run(*words, says):
        code, _, errors = anocaps(*words)
        lines = [line for line in errors.splitlines() if line.strip()]
        assert code == 2 and len(lines) == 1 and lines[0].startswith("Error: "), errors
        for part in [says] if isinstance(says, str) else says:
            assert part in lines[0]

    return run


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"a graph")
    return tmp_path / "model.onnx"


@pytest.fixture
def new(tmp_path):
    return draw_twelve(tmp_path / "new")


# ── what is printed and written ──────────────────────────────────────────────────────────────


def test_counts_per_folder_and_the_most_anomalous(anocaps, model, new, tmp_path):
    for k in range(4):
        draw(tmp_path / "dark" / f"{k}.png", DARK - k - 1)
    code, out, errors = anocaps("score", model, new, tmp_path / "dark")
    lines = out.splitlines()
    assert code == 0 and errors == "" and lines[0].startswith("16 images scored by mean, 6 anom")
    assert lines[1:3] == [
        f"  {tmp_path / 'dark'}: 4 images, 4 anomalous",
        f"  {new}: 12 images, 2 anomalous",
    ]
    told = [line.strip().partition(":")[0] for line in lines[4:]]
    dark = [str(tmp_path / "dark" / f"{k}.png") for k in (3, 2, 1, 0)]
    assert told == [*dark, str(new / "03.png")]


def test_one_image_gets_its_verdict(anocaps, model, new):
    code, out, errors = anocaps("score", model, new / "03.png")
    assert (code, errors) == (0, "") and out.count("\n") == 1
    assert out.startswith(f"{new / '03.png'}: anomalous, p-value 0.01, closest is grey")
    assert "00.png: normal, p-value 0.82" in anocaps("score", model, new / "00.png")[1]


def test_json_lines_for_programs(anocaps, model, new):
    code, out, errors = anocaps("score", model, new, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and errors == ""
    assert [row["file"] for row in rows] == [str(file) for file in sorted(new.iterdir())]
    assert [row["verdict"] == "anomalous" for row in rows] == [k in (3, 7) for k in range(12)]


def test_a_table_and_its_summary(anocaps, model, new, tmp_path):
    code, out, errors = anocaps("score", model, new, "-o", tmp_path / "s.csv", "--alpha", 0.01)
    assert code == 0 and errors == ""
    assert out.splitlines()[0] == f"{SUMMARY} 1 %." and str(tmp_path / "s.csv") in out
    rows = list(csv.DictReader((tmp_path / "s.csv").open()))
    assert list(rows[0]) == [
        "file", "score", "p_value", "verdict", "class", "error", "largest", "p_value_class",
    ]  # fmt: skip
    code, out, _ = anocaps("score", model, new, "-o", tmp_path / "s.jsonl", "--json")
    counts = {"scored": 12, "anomalous": 2, "failed": 0, "score_function": "mean"}
    assert json.loads(out) == counts | {"out": str(tmp_path / "s.jsonl")}
    lines = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert [row["score"] for row in lines] == [float(row["score"]) for row in rows]


def test_files_named_twice_have_one_row(anocaps, model, new, tmp_path):
    out = tmp_path / "s.csv"
    code, text, errors = anocaps("score", model, new / "03.png", new, new / "03.png", "-o", out)
    assert code == 0 and f"{SUMMARY} 5 %." in text
    assert "named again: 2" in errors
    rows = list(csv.DictReader(out.open()))
    assert len({row["file"] for row in rows}) == len(rows) == 12


def test_files_of_other_formats_are_told(anocaps, model, new):
    (new / "inner").mkdir()
    for name in ("a.HEIC", "inner/b.heic", "inner/c.gif", "notes"):
        (new / name).touch()
    kinds = ".heic 2, .gif 1, no extension 1"
    told = f"Left out, since they have no image extension: {kinds}.\n"
    for words in ((), ("--json",)):
        code, out, errors = anocaps("score", model, new, new / "03.png", *words)
        assert code == 0 and told in errors and "Left out" not in out


def test_files_that_vanish_have_an_error(anocaps, model, new, tmp_path, monkeypatch):
    def load_late(*_):
        (new / "05.png").unlink()
        return Brightness()

    walks = []
    whole = listing.list_images
    monkeypatch.setattr(listing, "list_images", lambda *a: walks.append(a) or whole(*a))
    monkeypatch.setattr(sys.modules["anocaps.export.runtime"], "OnnxModel", load_late)
    code, out, _ = anocaps("score", model, new, "-o", tmp_path / "s.csv", "--json")
    assert code == 0 and json.loads(out)["failed"] == 1
    rows = list(csv.DictReader((tmp_path / "s.csv").open()))
    assert len(rows) == 12 and "05.png" in rows[5]["error"]
    assert len(walks) == 1  # the folder is walked once


def test_names_cannot_steer_the_terminal(anocaps, model, tmp_path):
    draw(tmp_path / "new" / "a\x1b[2J\n.png", DARK)
    out = tmp_path / "a\x1b[2J.csv"
    for words in ((), ("-o", out), ("-o", out, "--resume")):
        code, text, errors = anocaps("score", model, tmp_path / "new", *words)
        assert code == 0 and "a\\x1b[2J\\n.png: anomalous" in text
        assert "\x1b" not in text + errors


def test_gallery_and_heatmaps(anocaps, model, new, tmp_path):
    places = ("--gallery", tmp_path / "gallery.html", "--heatmaps", tmp_path / "maps")
    code, out, _ = anocaps("score", model, new, *places)
    assert code == 0 and str(places[1]) in out and str(places[3]) in out
    assert "03.png" in (tmp_path / "gallery.html").read_text()
    assert len(list((tmp_path / "maps").iterdir())) == 12


def test_bad_files_are_counted_on_standard_error(anocaps, model, new, tmp_path):
    (new / "05.png").write_bytes(b"")
    (new / "06.png").unlink()
    (new / "06.png").symlink_to("06.png")
    code, out, errors = anocaps("score", model, new)
    assert code == 0 and out.startswith("10 images scored by mean, 2 anomalous")
    lines = errors.splitlines()
    assert "05.png is empty" in lines[0] and "06.png" in lines[1]
    assert lines[2:] == ["2 of 12 files could not be scored"]
    code, out, errors = anocaps("score", model, new, "-o", tmp_path / "s.csv", "--json")
    assert code == 0 and json.loads(out)["failed"] == 2
    where = f"see the column 'error' of {tmp_path / 's.csv'}"
    assert errors == f"2 of 12 files could not be scored: {where}\n"


def test_a_model_without_calibration_gives_scores_only(anocaps, model, new, monkeypatch):
    onnx = types.SimpleNamespace(OnnxModel=lambda path, device: Brightness(calibrated=False))
    monkeypatch.setitem(sys.modules, "anocaps.export.runtime", onnx)
    code, out, errors = anocaps("score", model, new)
    assert code == 0 and "no verdicts" in errors
    assert out.splitlines()[0] == "12 images scored by mean."
    assert out.splitlines()[2] == f"  {new}/03.png: score 20, closest is grey"


def test_a_trained_model_gives_the_scores_of_the_api(anocaps, digits, tmp_path):
    chosen = digits.train.labels < 3
    detector = CapsNetDetector("quick", "pp+re", epochs=4, calibration=0.2, device="cpu")
    detector.fit(digits.train.images[chosen], digits.train.labels[chosen])
    model = tmp_path / "model.safetensors"
    detector.save(model)
    for k in range(30):
        size = (8, 8) if k % 2 else (16, 16)  # both are brought to 8×8
        image = Image.fromarray(digits.test.images[k]).resize(size)
        image.save(tmp_path / f"{k:02}.png")
    files = sorted(tmp_path.glob("*.png"))
    code, out, errors = anocaps("score", model, *files, "--json", "--alpha", 0.1)
    assert code == 0, errors
    rows = [json.loads(line) for line in out.splitlines()]
    again = load(model, device="cpu")
    images = np.stack([read_image(file, DetectorJudge(again).fit) for file in files])
    assert images.shape == (30, 8, 8, 1)
    for name in again.score_names:
        found = [row["score" if name == "pp+re" else name] for row in rows]
        np.testing.assert_allclose(found, again.score_samples(images, name), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose([row["p_value"] for row in rows], again.p_values(images))
    assert [row["class"] for row in rows] == [str(name) for name in again.classify(images)]
    flagged = [row["verdict"] == "anomalous" for row in rows]
    assert flagged == (again.predict(images, alpha=0.1) == -1).tolist() and any(flagged)

    (tmp_path / "edited.safetensors").write_bytes(model.read_bytes()[:-1] + b"?")
    code, out, errors = anocaps("score", tmp_path / "edited.safetensors", files[0])
    assert code == 2 and "edited.safetensors" in errors and "checksum" in errors and out == ""


def test_a_model_of_stereo_pairs_is_refused(refused, two_classes, tmp_path):
    images, labels = two_classes
    pairs = np.stack([images, images], axis=3)
    detector = CapsNetDetector("quick", "re", epochs=1, device="cpu").fit(pairs, labels)
    detector.save(tmp_path / "m.safetensors")
    file = draw(tmp_path / "a.png", NORMAL)
    refused("score", tmp_path / "m.safetensors", file, says=["m.safetensors", "2 channels"])


# ── what is refused ──────────────────────────────────────────────────────────────────────────


def test_requests_that_make_no_sense_are_refused_before_anything_is_done(
    refused, model, new, tmp_path, monkeypatch
):
    out, page = tmp_path / "s.csv", tmp_path / "page.html"
    page.mkdir()
    (tmp_path / "hollow").mkdir()
    before = sorted(tmp_path.iterdir())

    def never(*_):
        raise AssertionError("an image was read")

    monkeypatch.setattr(scorefiles, "read_images", never)
    refused("score", model, new, "-o", out, "--alpha", 0.001, says=["alpha", "999"])
    for alpha in (0, 1):
        refused("score", model, new, f"--alpha={alpha}", says="a false-alarm rate between 0 and 1")
    refused("score", model, tmp_path / "nowhere", "-o", out, says="nowhere does not exist")
    refused("score", model, tmp_path / "hollow", "-o", out, says="no image here")
    refused("score", tmp_path / "none.safetensors", new, "-o", out, says="no such file")
    refused("score", new, new, "-o", out, says="a folder")
    # the rest before the files are counted and the model is opened
    monkeypatch.setattr(listing, "list_images", never)
    monkeypatch.setattr(judging, "load_judge", never)
    refused("score", model, new, "--resume", says="-o")
    refused("score", model, new, "-o", tmp_path / "s.txt", says=["s.txt", ".parquet"])
    refused("score", model, new, "-o", new, says="name it .csv")
    refused("score", model, new, "-o", model / "s.csv", says=["model.onnx", "a file"])
    refused("score", model, new, "-o", out, "--gallery", page, says=["page.html", "a folder"])
    refused(
        "score", model, new, "-o", out, "--gallery", model, says=["model.onnx", "name it .html"]
    )
    refused("score", model, new, "-o", out, "--gallery", out, says=["s.csv", "name it .html"])
    refused("score", model, new, "--heatmaps", new / "maps", says="lies inside")
    refused("score", model, new, "--heatmaps", model, says=["model.onnx", "a file, not a folder"])
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("option", ["-o", "--gallery", "--heatmaps"])
def test_a_folder_that_may_not_be_written_is_refused(
    refused, model, new, tmp_path, monkeypatch, option
):
    place = tmp_path / "shut"
    place.mkdir()
    monkeypatch.setattr(os, "access", lambda path, _: path != place)  # root may write everywhere
    name = {"-o": "s.csv", "--gallery": "gallery.html", "--heatmaps": "maps"}[option]
    refused("score", model, new, option, place / name, says=["shut", "cannot be written"])


def test_if_nothing_can_be_scored_the_table_still_says_why(anocaps, model, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a.png").write_bytes(b"")
    out = tmp_path / "s.csv"
    for words in (("-o", out), ("--gallery", tmp_path / "gallery.html"), ("--json",)):
        code, _, errors = anocaps("score", model, tmp_path / "new", *words)
        last = errors.splitlines()[-1]
        assert code == 2 and last.startswith("Error: the image could not be scored")
        assert ("see the column 'error'" in last) == ("-o" in words) and "a.png is empty" in last
    (row,) = csv.DictReader(out.open())
    assert row["file"].endswith("a.png") and "is empty" in row["error"] and row["score"] == ""
    code, text, _ = anocaps("score", model, tmp_path / "new", "-o", out, "--json")
    assert code == 2 and json.loads(text)["failed"] == 1
    assert {path.name for path in tmp_path.iterdir()} == {
        "model.onnx",
        "new",
        "gallery.html",
        "s.csv",
    }


def test_a_full_disk_under_the_table_is_one_line(refused, model, new, tmp_path):
    resource = pytest.importorskip("resource", reason="limits are of Unix")
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    (tmp_path / "s.csv").write_text("old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, most))
    try:
        refused("score", model, new, "-o", tmp_path / "s.csv", says=["s.csv", "cannot be written"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert (tmp_path / "s.csv").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "new", "s.csv"}


def test_a_full_disk_under_the_pictures_keeps_the_rows(anocaps, model, new, tmp_path, monkeypatch):
    resource = pytest.importorskip("resource", reason="limits are of Unix")
    monkeypatch.setattr(scorefiles, "_BATCH", 4)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    out, page, maps = tmp_path / "s.csv", tmp_path / "gallery.html", tmp_path / "maps"
    command = ("score", model, new, "-o", out, "--gallery", page, "--heatmaps", maps, "--resume")
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, most))
    try:
        kept = "cannot be written (File too large); 12 rows are kept, make room and add --resume"
        code, _, errors = anocaps(*command)
        assert code == 2 and errors.splitlines()[-1] == f"Error: {page}: {kept}"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert not out.exists() and not page.exists()
    code, _, errors = anocaps(*command)
    assert code == 0 and errors == ""
    assert len(out.read_text().splitlines()) == 13 and "03.png" in page.read_text()


def test_a_heatmap_that_cannot_be_written_keeps_the_rows_before_it(
    anocaps, model, new, tmp_path, monkeypatch
):
    monkeypatch.setattr(scorefiles, "_BATCH", 4)
    out, maps = tmp_path / "s.csv", tmp_path / "maps"
    (maps / "05.png.png").mkdir(parents=True)  # where the second batch writes
    command = ("score", model, new, "-o", out, "--heatmaps", maps)
    code, _, errors = anocaps(*command)
    assert code == 2 and not out.exists()
    assert f"{maps / '05.png.png'}: cannot be written (Is a directory); 4 rows are kept" in errors
    (maps / "05.png.png").rmdir()
    code, _, errors = anocaps(*command, "--resume")
    assert code == 0 and len(out.read_text().splitlines()) == 13


# ── progress ─────────────────────────────────────────────────────────────────────────────────


def test_progress_has_a_rate_and_the_time_left(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock[0])
    with terminal.files_bar("scoring", shown=True) as tell:
        for done, seconds in ((1000, 10), (2000, 31), (3000, 45), (7400, 62)):
            clock[0] = seconds
            tell(done + 500, 100_500, done)
    assert capsys.readouterr().err.splitlines() == [
        "scoring: 2,500 of 100,500, 65 files/s, 25 min left",
        "scoring: 7,900 of 100,500, 119 files/s, 13 min left",
    ]


def test_a_bar_on_a_terminal_leaves_standard_output_alone(monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    with terminal.files_bar("scoring", shown=True) as tell:
        tell(50, 100, 50)
        print("an image")
    assert capsys.readouterr().out == "an image\n"
    assert "50 of 100" in shown.getvalue() and "an image" not in shown.getvalue()
