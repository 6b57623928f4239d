"""`anocaps check` and `anocaps score` as a user meets them: what is printed, written, refused."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
from brightness import Brightness, draw
from PIL import Image

from anocaps import CapsNetDetector, cli, load, terminal
from anocaps.judging import DetectorJudge
from anocaps.pictures import read_picture

NORMAL, DARK = 180, 20

# The same in a process of its own: slow once it has scored as many images as it is told.
PROCESS = """
import os, sys, time, types
from brightness import Brightness

class Slow(Brightness):
    def judge(self, images):
        if self.judged >= int(os.environ.get("SLOW_AFTER", 10**9)):
            time.sleep(600)
        return super().judge(images)

sys.modules["anocaps.runtime"] = types.SimpleNamespace(OnnxModel=lambda path: Slow())
from anocaps import scorefiles
scorefiles._BATCH = 4
from anocaps.cli import main
try:
    main()
finally:
    assert "torch" not in sys.modules, "torch was imported"
"""


@pytest.fixture
def anocaps(capsys, monkeypatch):
    """Runs a command here, where `model.onnx` is the judge by brightness: code, output, errors."""
    onnx = types.SimpleNamespace(OnnxModel=lambda path: Brightness())
    monkeypatch.setitem(sys.modules, "anocaps.runtime", onnx)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # put back afterwards

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["anocaps", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, *capsys.readouterr()

    return run


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


def process(*words, stdout=subprocess.PIPE, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, *map(str, words)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)} | environment,
    )


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"a graph")
    return tmp_path / "model.onnx"


@pytest.fixture
def new(tmp_path):
    """12 images, two of them dark."""
    for k in range(12):
        draw(tmp_path / "new" / f"{k:02}.png", DARK if k in (3, 7) else NORMAL + k)
    return tmp_path / "new"


# ── check ────────────────────────────────────────────────────────────────────────────────────


def test_check_says_what_is_in_a_folder(anocaps, new):
    (new / "12.png").write_bytes(b"no image")
    code, out, errors = anocaps("check", new)
    assert code == 0 and errors == ""
    assert "12 images in one class: new 12." in out and "12.png is not an image" in out
    code, out, _ = anocaps("check", new, "--json")
    found = json.loads(out)
    assert code == 0 and found["classes"] == {"new": 12} and len(found["unreadable"]) == 1
    assert found["fit"] == {"height": 32, "width": 32, "channels": 1, "how": "resize"}


def test_check_refuses_a_folder_with_nothing_usable(anocaps, refused, tmp_path):
    (tmp_path / "hollow").mkdir()
    refused("check", tmp_path / "hollow", says="no images and no sub-folders")
    refused("check", tmp_path / "nowhere", says="is not a folder")
    (tmp_path / "hollow" / "a.png").touch()
    code, out, errors = anocaps("check", tmp_path / "hollow")
    assert code == 2 and "a.png is empty" in out and "no image here that can be read" in errors


# ── score: what is printed and written ───────────────────────────────────────────────────────


def test_a_sentence_for_each_odd_image_and_a_summary(anocaps, model, new):
    code, out, errors = anocaps("score", model, new)
    assert code == 0 and errors == ""
    assert out.splitlines() == [
        f"{new}/03.png: closest is grey: odder than 99.0 % of normal images",
        f"{new}/07.png: closest is grey: odder than 99.0 % of normal images",
        "12 images scored, 2 anomalous at a false-alarm rate of 5 %.",
    ]


def test_json_lines_for_programs(anocaps, model, new):
    code, out, errors = anocaps("score", model, new, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and errors == ""
    assert [row["file"] for row in rows] == [str(file) for file in sorted(new.iterdir())]
    assert [row["verdict"] == "anomalous" for row in rows] == [k in (3, 7) for k in range(12)]


def test_a_table_and_its_summary(anocaps, model, new, tmp_path):
    code, out, errors = anocaps("score", model, new, "-o", tmp_path / "s.csv", "--alpha", 0.01)
    assert code == 0 and errors == ""
    assert out.splitlines() == [
        "12 images scored, 2 anomalous at a false-alarm rate of 1 %.",
        str(tmp_path / "s.csv"),
    ]
    rows = list(csv.DictReader((tmp_path / "s.csv").open()))
    assert list(rows[0]) == [
        "file", "score", "p_value", "verdict", "class", "error", "largest", "p_value_class",
    ]  # fmt: skip
    code, out, _ = anocaps("score", model, new, "-o", tmp_path / "s.jsonl", "--json")
    want = {"scored": 12, "anomalous": 2, "failed": 0, "out": str(tmp_path / "s.jsonl")}
    assert json.loads(out) == want
    lines = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert [row["score"] for row in lines] == [float(row["score"]) for row in rows]


def test_gallery_and_heatmaps(anocaps, model, new, tmp_path):
    places = ("--gallery", tmp_path / "odd.html", "--heatmaps", tmp_path / "maps")
    code, out, _ = anocaps("score", model, new, *places)
    assert code == 0 and out.splitlines()[-2:] == [str(places[1]), str(places[3])]
    assert "03.png" in (tmp_path / "odd.html").read_text()
    assert len(list((tmp_path / "maps").iterdir())) == 12


def test_bad_files_are_counted_on_standard_error(anocaps, model, new, tmp_path):
    (new / "05.png").write_bytes(b"")
    (new / "06.png").unlink()
    (new / "06.png").symlink_to("06.png")
    code, out, errors = anocaps("score", model, new)
    assert code == 0 and out.splitlines()[-1].startswith("10 images scored, 2 anomalous")
    lines = errors.splitlines()
    assert "05.png is empty" in lines[0] and "06.png" in lines[1]
    assert lines[2:] == ["2 of 12 files could not be scored"]
    code, out, errors = anocaps("score", model, new, "-o", tmp_path / "s.csv", "--json")
    assert code == 0 and json.loads(out)["failed"] == 2
    assert errors == "2 of 12 files could not be scored: see the column 'error'\n"


def test_a_model_without_calibration_gives_scores_only(anocaps, model, new, monkeypatch):
    onnx = types.SimpleNamespace(OnnxModel=lambda path: Brightness(calibrated=False))
    monkeypatch.setitem(sys.modules, "anocaps.runtime", onnx)
    code, out, errors = anocaps("score", model, new)
    assert code == 0 and "no verdicts" in errors
    assert out.splitlines()[0] == f"{new}/00.png: score 180.0"
    assert out.splitlines()[-1] == "12 images scored."


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
    images = np.stack([read_picture(file, DetectorJudge(again).fit) for file in files])
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


# ── score: what is refused ───────────────────────────────────────────────────────────────────


def test_requests_that_make_no_sense_are_refused_before_anything_is_done(
    refused, model, new, tmp_path
):
    (tmp_path / "s.csv.partial").write_text("of an earlier run")
    out = tmp_path / "s.csv"
    refused("score", model, new, "-o", out, "--alpha", 0.001, says=["alpha", "999"])
    refused("score", model, new, "-o", out, "--alpha", 2, says="alpha")
    refused("score", model, tmp_path / "nowhere", "-o", out, says="nowhere does not exist")
    (tmp_path / "hollow").mkdir()
    refused("score", model, tmp_path / "hollow", "-o", out, says="no image here")
    refused("score", model, new, "--resume", says="-o")
    refused("score", model, new, "-o", tmp_path / "s.txt", says=["s.txt", ".parquet"])
    refused("score", model, new, "-o", new, says="name it .csv")
    refused("score", model, new, "--heatmaps", new / "maps", says="lies inside")
    refused("score", tmp_path / "none.safetensors", new, "-o", out, says="no such file")
    refused("score", new, new, "-o", out, says="a folder")
    assert (tmp_path / "s.csv.partial").read_text() == "of an earlier run"
    assert {p.name for p in tmp_path.iterdir()} == {"hollow", "model.onnx", "new", "s.csv.partial"}


def test_if_nothing_can_be_scored_nothing_is_written(anocaps, model, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a.png").write_bytes(b"")
    for words in (("-o", tmp_path / "s.csv"), ("--gallery", tmp_path / "odd.html"), ("--json",)):
        code, _, errors = anocaps("score", model, tmp_path / "new", *words)
        assert code == 2 and "none of the 1 images could be scored" in errors
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "new"}


# ── score: stopped, killed, out of room ──────────────────────────────────────────────────────


def wait_for(condition, running):
    deadline = time.monotonic() + 60
    while not condition() and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition(), running.communicate()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_stopped_it_continues_with_no_row_lost_or_doubled(anocaps, model, new, tmp_path, how):
    whole, out, partial = (tmp_path / n for n in ("w.csv", "s.csv", "s.csv.partial"))
    anocaps("score", model, new, "-o", whole)
    running = process("score", model, new, "-o", out, SLOW_AFTER="8")
    wait_for(lambda: partial.exists() and partial.read_text().count("\n") == 9, running)
    running.send_signal(how)
    _, errors = running.communicate(timeout=60)
    if how == signal.SIGINT:
        assert running.returncode == 130 and "Traceback" not in errors
        assert f"8 rows are in {partial}; run the same command with --resume." in errors
    assert not out.exists()
    code, text, errors = anocaps("score", model, new, "-o", out, "--resume")
    assert code == 0 and errors == "" and text.startswith("12 images scored, 2 anomalous")
    assert out.read_text() == whole.read_text() and not partial.exists()
    code, _, errors = anocaps("score", model, new, "-o", out, "--resume")
    assert code == 0 and "There is no" in errors and "starting anew" in errors


def test_another_model_or_alpha_does_not_continue(anocaps, refused, model, new, tmp_path):
    out = tmp_path / "s.csv"
    running = process("score", model, new, "-o", out, SLOW_AFTER="8")
    partial = tmp_path / "s.csv.partial"
    wait_for(lambda: partial.exists() and partial.read_text().count("\n") == 9, running)
    running.kill()
    running.communicate()
    refused("score", model, new, "-o", out, "--resume", "--alpha", 0.1, says="another model, alpha")
    model.write_bytes(b"another graph")
    refused("score", model, new, "-o", out, "--resume", says="another model, alpha")
    code, _, errors = anocaps("score", model, new, "-o", out)
    assert code == 0 and errors == f"Replacing {partial} of an earlier run.\n"
    assert len(out.read_text().splitlines()) == 13


def test_a_process_without_torch(model, new, tmp_path):
    places = ("--gallery", tmp_path / "odd.html", "--heatmaps", tmp_path / "maps")
    running = process("score", model, new, "-o", tmp_path / "s.csv", *places)
    out, errors = running.communicate(timeout=60)
    assert running.returncode == 0, errors
    assert out.startswith("12 images scored")


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_closed_pipe_is_one_line(model, new, words):
    reading, writing = os.pipe()
    os.close(reading)
    running = process("score", model, new, *words, stdout=writing)
    os.close(writing)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 2
    assert errors == "Error: standard output cannot be written (Broken pipe)\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", ["score", "check"])
def test_a_full_disk_under_standard_output_is_one_line(model, new, command):
    with open("/dev/full", "w") as full:
        words = (model, new) if command == "score" else (new,)
        running = process(command, *words, stdout=full)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 2
    assert errors == "Error: standard output cannot be written (No space left on device)\n"


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
        print("an odd image")
    assert capsys.readouterr().out == "an odd image\n"
    assert "50 of 100" in shown.getvalue() and "odd" not in shown.getvalue()
