"""`anocaps score`: what it prints, writes and refuses."""

import csv
import io
import json
import sys
import types

import numpy as np
import pytest
from brightness import DARK, Brightness, draw, draw_twelve
from image_files import no_file_above
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
    """The command must end with exit code 2 and one line of error."""

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


def test_counts_per_folder_and_the_most_anomalous(anocaps, model, new, tmp_path):
    for k in range(4):
        draw(tmp_path / "dark" / f"{k}.png", DARK - k - 1)
    code, out, _ = anocaps("score", model, new, tmp_path / "dark")
    lines = out.splitlines()
    assert code == 0 and lines[0].startswith("16 images scored by mean, 6 anom")
    assert lines[1:3] == [
        f"  {tmp_path / 'dark'}: 4 images, 4 anomalous",
        f"  {new}: 12 images, 2 anomalous",
    ]
    told = [line.strip().partition(":")[0] for line in lines[4:]]
    dark = [str(tmp_path / "dark" / f"{k}.png") for k in (3, 2, 1, 0)]
    assert told == [*dark, str(new / "03.png")]


def test_far_more_anomalous_images_than_alpha_are_a_warning(anocaps, model, new, tmp_path):
    assert "Warning" not in anocaps("score", model, new)[2]
    for k in range(12):
        draw(tmp_path / "dark" / f"{k}.png", DARK)
    code, out, errors = anocaps("score", model, tmp_path / "dark", "-o", tmp_path / "s.csv")
    assert code == 0 and "Warning" not in out
    assert errors.startswith("Warning: 12 of 12 images") and "anocaps test" in errors
    code, out, _ = anocaps("score", model, tmp_path / "dark", "-o", tmp_path / "s.csv", "--json")
    assert code == 0 and json.loads(out)["far_more"]


def test_names_are_escaped_and_other_formats_are_counted(anocaps, model, tmp_path):
    draw(tmp_path / "new" / "a\x1b[2J\n.png", DARK)
    for name in ("a.HEIC", "b.heic", "notes"):
        (tmp_path / "new" / name).touch()
    for words in ((), ("-o", tmp_path / "a\x1b[2J.csv")):
        code, text, errors = anocaps("score", model, tmp_path / "new", *words)
        assert code == 0 and "a\\x1b[2J\\n.png: anomalous" in text and ".heic 2" in errors
        assert "\x1b" not in text + errors


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
    counts = {"schema": 1, "scored": 12, "anomalous": 2, "failed": 0, "far_more": False}
    known = {"score_function": "mean", "pretrained": None, "out": str(tmp_path / "s.jsonl")}
    assert json.loads(out) == counts | known
    lines = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert [row["score"] for row in lines] == [float(row["score"]) for row in rows]


def test_files_named_twice_have_one_row(anocaps, model, new, tmp_path):
    out = tmp_path / "s.csv"
    code, text, errors = anocaps("score", model, new / "03.png", new, new / "03.png", "-o", out)
    assert code == 0 and f"{SUMMARY} 5 %." in text
    assert "named again: 2" in errors
    rows = list(csv.DictReader(out.open()))
    assert len({row["file"] for row in rows}) == len(rows) == 12


def test_bad_files_are_named_on_standard_error(anocaps, model, new, tmp_path):
    (new / "05.png").write_bytes(b"")
    (new / "06.png").unlink()
    (new / "06.png").symlink_to("06.png")
    code, out, errors = anocaps("score", model, new)
    assert code == 0 and out.startswith("10 images scored by mean, 2 anomalous")
    lines = errors.splitlines()
    assert "05.png" in lines[0] and "06.png" in lines[1] and "2 of 12" in lines[2]
    code, out, errors = anocaps("score", model, new, "-o", tmp_path / "s.csv", "--json")
    assert code == 0 and json.loads(out)["failed"] == 2
    assert "2 of 12" in errors and str(tmp_path / "s.csv") in errors


def test_a_model_without_calibration_gives_scores_only(anocaps, model, new, monkeypatch):
    onnx = types.SimpleNamespace(OnnxModel=lambda path, device: Brightness(calibrated=False))
    monkeypatch.setitem(sys.modules, "anocaps.export.runtime", onnx)
    code, out, errors = anocaps("score", model, new)
    assert code == 0 and "no verdicts" in errors and "anomalous" not in out.splitlines()[0]
    assert f"{new}/03.png: score 20" in out.splitlines()[2]


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
    for name in again._usable_scores():
        found = [row["score" if name == "pp+re" else name] for row in rows]
        np.testing.assert_allclose(found, again.score_samples(images, name), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose([row["p_value"] for row in rows], again.p_values(images))
    assert [row["class"] for row in rows] == [str(name) for name in again.classify(images)]
    flagged = [row["verdict"] == "anomalous" for row in rows]
    assert flagged == (again.predict(images, alpha=0.1) == -1).tolist() and any(flagged)


def test_impossible_requests_are_refused_before_an_image_is_read(
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
        refused("score", model, new, f"--alpha={alpha}", says="must be between 0 and 1")
    refused("score", model, tmp_path / "nowhere", "-o", out, says="nowhere does not exist")
    refused("score", model, tmp_path / "hollow", "-o", out, says="no image here")
    refused("score", tmp_path / "none.safetensors", new, "-o", out, says="no such file")
    refused("score", new, new, "-o", out, says="a folder")
    # the rest before the files are counted and the model is opened
    monkeypatch.setattr(listing, "list_images", never)
    monkeypatch.setattr(judging, "load_judge", never)
    refused("score", model, new, "--resume", says="-o")
    refused("score", model, new, "-o", tmp_path / "s.txt", says=["s.txt", ".parquet"])
    refused("score", model, new, "-o", tmp_path / "s.parquet", "--watch", says="no row can be")
    refused("score", model, new, "-o", new, says="holds the input")
    refused("score", model, new, "-o", model / "s.csv", says=["model.onnx", "a file"])
    refused("score", model, new, "-o", out, "--gallery", page, says=["page.html", "a folder"])
    refused(
        "score", model, new, "-o", out, "--gallery", model, says=["model.onnx", "name it .html"]
    )
    refused("score", model, new, "-o", out, "--gallery", out, says=["s.csv", "name it .html"])
    refused("score", model, new, "--heatmaps", new / "maps", says="lies inside")
    refused("score", model, new, "--heatmaps", model, says=["model.onnx", "a file, not a folder"])
    assert sorted(tmp_path.iterdir()) == before


def test_if_no_image_can_be_scored_the_table_says_why(anocaps, model, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a.png").write_bytes(b"")
    out = tmp_path / "s.csv"
    for words in (("-o", out), ("--gallery", tmp_path / "gallery.html"), ("--json",)):
        code, _, errors = anocaps("score", model, tmp_path / "new", *words)
        last = errors.splitlines()[-1]
        assert code == 2 and last.startswith("Error: ") and "a.png" in last
    (row,) = csv.DictReader(out.open())
    assert row["file"].endswith("a.png") and "is empty" in row["error"] and row["score"] == ""
    assert {path.name for path in tmp_path.iterdir()} == {
        "model.onnx", "new", "gallery.html", "s.csv",
    }  # fmt: skip


def test_a_full_disk_under_the_gallery_keeps_the_rows(anocaps, model, new, tmp_path, monkeypatch):
    monkeypatch.setattr(scorefiles, "_BATCH", 4)
    out, page, maps = tmp_path / "s.csv", tmp_path / "gallery.html", tmp_path / "maps"
    command = ("score", model, new, "-o", out, "--gallery", page, "--heatmaps", maps, "--resume")
    with no_file_above(6000):
        code, _, errors = anocaps(*command)
    last = errors.splitlines()[-1]
    assert code == 2 and str(page) in last and "12 rows" in last and "--resume" in last
    assert not out.exists() and not page.exists()
    code, _, errors = anocaps(*command)
    assert code == 0 and errors == ""
    assert len(out.read_text().splitlines()) == 13 and "03.png" in page.read_text()
    assert len(list(maps.glob("*.png"))) == 12


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
