"""`anocaps score` in its own process: stopped, killed, with a closed pipe or a full disk."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from brightness import DARK, draw, draw_twelve

# `model.onnx` judges by brightness. It is slow after SLOW_AFTER images. It loses a Ctrl-C after
# LOST_AFTER images, as torch can, or fails to import at one (LOST_AT_IMPORT).
PROCESS = """
import os, signal, sys, time, types
from contextlib import suppress
from brightness import Brightness

class Slow(Brightness):
    def judge(self, images, with_heat=False):
        if self.judged == int(os.environ.get("LOST_AFTER", -1)):
            with suppress(BaseException):
                signal.raise_signal(signal.SIGINT)
        slow = self.judged >= int(os.environ.get("SLOW_AFTER", 10**9))
        if slow:
            print("slow", flush=True)
        for _ in range(6000 * slow):
            time.sleep(0.1)  # a signal that comes just before a long sleep would wait for its end
        return super().judge(images, with_heat)

def load(path, device):
    if "LOST_AT_IMPORT" in os.environ:
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException as error:
            raise ImportError("initialization failed", name="onnxruntime") from error
    slow = Slow()
    slow.checksum = open(path).read()
    return slow

sys.modules["anocaps.export.runtime"] = types.SimpleNamespace(OnnxModel=load)
from anocaps.inspect import arrivals, scoring as scorefiles
scorefiles._BATCH = 4
arrivals._EVERY = 0.05
from anocaps.cli.main import main
try:
    main()
finally:
    if sys.argv[1] == "score":  # `check` times training
        assert "torch" not in sys.modules, "torch was imported"
"""


def process(*words, stdout=subprocess.PIPE, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, *map(str, words)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "helpers")} | environment,
    )


def ended(*words, **options):
    """Exit code, output and errors."""
    running = process(*words, **options)
    out, errors = running.communicate(timeout=60)
    return running.returncode, out, errors


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"a graph")
    return tmp_path / "model.onnx"


@pytest.fixture
def new(tmp_path):
    return draw_twelve(tmp_path / "new")


@pytest.fixture
def unfinished(model, new, tmp_path):
    """A run that has 8 rows and is slow to score more."""
    running = process("score", model, new, "-o", tmp_path / "s.csv", SLOW_AFTER="8")
    assert running.stdout.readline() == "slow\n", running.communicate()
    assert (tmp_path / "s.csv.partial").read_text().count("\n") == 9
    yield running
    running.kill()
    running.communicate()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_resumes_with_no_row_lost_or_doubled(unfinished, model, new, tmp_path, how):
    whole, out, partial = (tmp_path / n for n in ("w.csv", "s.csv", "s.csv.partial"))
    unfinished.send_signal(how)
    _, errors = unfinished.communicate(timeout=60)
    if how == signal.SIGINT:
        assert unfinished.returncode == 130 and "Traceback" not in errors
        assert str(partial) in errors and "--resume" in errors
    assert not out.exists()
    code, text, errors = ended("score", model, new, "-o", out, "--resume")
    _, at_once, _ = ended("score", model, new, "-o", whole)
    assert code == 0 and errors == "" and text == at_once.replace("w.csv", "s.csv")
    assert "03.png: anomalous" in text and "07.png: anomalous" in text
    assert out.read_text() == whole.read_text()
    assert {p.name for p in tmp_path.iterdir()} == {"model.onnx", "new", "s.csv", "w.csv"}


def test_a_lost_ctrl_c_is_handled_after_the_batch(model, new, tmp_path):
    out, partial = tmp_path / "s.csv", tmp_path / "s.csv.partial"
    code, _, errors = ended("score", model, new, "-o", out, LOST_AFTER="4")
    assert code == 130 and str(partial) in errors
    code, text, errors = ended("score", model, new, LOST_AFTER="4")
    assert (code, errors) == (130, "Stopped.\n") and text == ""
    code, _, _ = ended("score", model, new, "-o", out, "--resume")
    assert code == 0 and len(out.read_text().splitlines()) == 13


def test_ctrl_c_that_breaks_an_import_is_no_error(model, new):
    assert ended("score", model, new, LOST_AT_IMPORT="1") == (130, "", "Stopped.\n")


def test_scoring_an_export_does_not_import_torch(model, new, tmp_path):
    places = ("--gallery", tmp_path / "gallery.html", "--heatmaps", tmp_path / "maps")
    code, out, errors = ended("score", model, new, "-o", tmp_path / "s.csv", *places)
    assert code == 0, errors
    assert "12 images scored" in out


@pytest.mark.parametrize("words", [("-o", "s.csv"), ("--json",)])
def test_a_closed_pipe_is_one_line_and_costs_no_row(model, new, tmp_path, words):
    reading, writing = os.pipe()
    os.close(reading)
    out = tmp_path / "s.csv"
    words = (str(out) if word == "s.csv" else word for word in words)
    code, _, errors = ended("score", model, new, *words, stdout=writing)
    os.close(writing)
    assert code == 2 and errors.startswith("Error: ") and errors.count("\n") == 1
    assert not out.exists() or len(out.read_text().splitlines()) == 13


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", ["score", "check"])
def test_a_full_disk_under_standard_output_is_one_line(model, new, command):
    with open("/dev/full", "w") as full:
        words = (model, new) if command == "score" else (new,)
        code, _, errors = ended(command, *words, stdout=full)
    assert code == 2 and errors.startswith("Error: ") and errors.count("\n") == 1


def wait_for_lines(file, count):
    """The lines of a table, when it has so many."""
    for _ in range(600):
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) >= count:
            break
        time.sleep(0.05)
    assert len(lines) == count
    return lines


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_watch_takes_new_files_and_goes_on_after_its_end(model, new, tmp_path, how):
    out = tmp_path / "s.csv"
    command = ("score", model, new, "-o", out, "--watch")
    running = process(*command)
    try:
        wait_for_lines(out, 13)
        draw(new / "later" / "12.png", DARK)
        assert ",anomalous," in wait_for_lines(out, 14)[-1]
    finally:
        running.send_signal(how)
        text, errors = running.communicate(timeout=60)
    if how == signal.SIGINT:
        assert running.returncode == 0 and "13 images scored by mean, 3 anomalous" in text, errors
        assert text.count("12.png: anomalous") == 2  # when it came, and in the summary
    for file in new.glob("0*.png"):
        file.unlink()  # somebody took them away
    draw(new / "13.png", DARK)
    assert ended(*command)[0] == 2  # without --resume
    running = process(*command, "--resume")
    try:
        lines = wait_for_lines(out, 15)
    finally:
        running.send_signal(signal.SIGINT)
        text, errors = running.communicate(timeout=60)
    assert running.returncode == 0 and "14 images scored" in text, errors
    assert len({line.split(",")[0] for line in lines}) == 15


def test_a_watch_without_a_table_prints_json_lines(model, tmp_path):
    """And its gallery is there before it ends."""
    (tmp_path / "camera").mkdir()
    gallery = tmp_path / "gallery.html"
    running = process(
        "score", model, tmp_path / "camera", "--watch", "--json", "--gallery", gallery
    )
    try:
        assert "Watching" in running.stderr.readline()
        draw(tmp_path / "camera" / "a.png", DARK)
        assert '"verdict": "anomalous"' in running.stdout.readline()
        while not gallery.exists():
            assert running.poll() is None
            time.sleep(0.05)
        assert "a.png" in gallery.read_text()
    finally:
        running.send_signal(signal.SIGINT)
        text, errors = running.communicate(timeout=60)
    assert (running.returncode, text, errors) == (0, "", "")
