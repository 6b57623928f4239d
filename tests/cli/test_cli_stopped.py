"""Ctrl-C in long commands other than score: exit code 130, one line, nothing half-written."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from anocaps.cli import terminal
from anocaps.detectors import CapsNetDetector, saving
from anocaps.training import loop

# A command that waits for Ctrl-C in one place (WAIT), or loses one there while Python cleans up
# (LOST). `decode` runs in other threads than the main one. If Ctrl-C comes just before the main
# thread waits for them, it is handled only when one of them is done. So they wait for 5 s at most.
PROCESS = """
import os, signal, sys, threading, time
from anocaps.cli import terminal
from anocaps.cli.main import main

WAIT, LOST = (os.environ.get(name) for name in ("WAIT", "LOST"))

class Cleaned:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

steps = 0

def stop_here(place):
    global steps
    steps += place == "train"
    if place == LOST and not terminal._stop_asked:
        Cleaned()
    if place == WAIT:
        os.write(1, b"here\\n")
        main_thread = threading.current_thread() is threading.main_thread()
        for _ in range(6000 if main_thread else 500):
            if terminal._stop_asked:
                return
            time.sleep(0.01)

def stopping(module, name, place):
    whole = getattr(module, name)
    def call(*args, **options):
        stop_here(place)
        return whole(*args, **options)
    setattr(module, name, call)

from anocaps.images import check, reading
stopping(reading, "read_image", "decode")
stopping(check, "fingerprint", "read")
if sys.argv[1] != "check":
    from anocaps.training import loop, progress
    progress.REPORT_EVERY_SECONDS = 0
    stopping(loop.Run, "_step", "train")
try:
    main()
finally:
    print("steps:", steps)
"""
QUICK = ("--size", 8, "--epochs", 3, "--device", "cpu")


def process(*words, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )


def stopped_in(place, *words):
    """Output and errors of a command that gets Ctrl-C in this place."""
    running = process(*words, WAIT=place)
    try:
        while (line := running.stdout.readline()) != "here\n":
            assert line, running.communicate()
        running.send_signal(signal.SIGINT)
        out, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130, errors
    return out, errors


@pytest.fixture
def photos(tmp_path):
    """Two classes of 20 small images, no two alike."""
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(20):
            pixels = generator.integers(0, 255, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{index}.png")
    return tmp_path / "photos"


def left(folder):
    return {path.name for path in folder.iterdir()} - {"photos"}


NOTHING_KEPT = "Stopped. No epoch was finished, so nothing was kept.\n"


def test_train_stopped_while_it_reads(photos, tmp_path):
    words = ("train", photos, "-o", tmp_path / "m.safetensors", *QUICK)
    out, errors = stopped_in("decode", *words)
    assert errors == "Stopped.\n" and "steps: 0\n" in out and not left(tmp_path)


def test_train_stopped_while_it_trains(photos, tmp_path):
    words = ("train", photos, "-o", tmp_path / "m.safetensors", *QUICK)
    out, errors = stopped_in("train", *words)
    assert errors == NOTHING_KEPT and "steps: 1\n" in out and not left(tmp_path)


def test_check_when_a_ctrl_c_is_lost(photos):
    running = process("check", photos, LOST="read")
    assert running.communicate(timeout=60) == ("steps: 0\n", "Stopped.\n")
    assert running.returncode == 130


@pytest.fixture
def lost(monkeypatch):
    """Makes a function lose a Ctrl-C."""

    def lose(module, name):
        whole = getattr(module, name)

        def call(*args, **options):
            monkeypatch.setattr(terminal, "_stop_asked", True)
            return whole(*args, **options)

        monkeypatch.setattr(module, name, call)

    return lose


def test_evaluate_when_a_ctrl_c_is_lost(command, lost, tmp_path):
    lost(loop.Run, "_step")
    words = ("--dataset", "digits", "--held-out", 1, "--preset", "quick", "--limit", 20, "--json")
    ended = command("evaluate", *words, "--device", "cpu", "--save-scores", tmp_path / "raw.npz")
    assert ended == (130, "", "Stopped.\n") and not left(tmp_path)


def test_export_when_a_ctrl_c_is_lost(command, lost, two_classes, tmp_path):
    model = tmp_path / "m.safetensors"
    CapsNetDetector("quick", epochs=1, device="cpu").fit(*two_classes).save(model)
    lost(saving, "_try")
    assert command("export", model, tmp_path / "m.onnx") == (130, "", "Stopped.\n")
    assert left(tmp_path) == {"m.safetensors"}


# Interrupts itself while typer is imported, before any command exists.
AT_FIRST = """
import runpy, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == "typer":
            print("here")
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""
SCRIPT = "from anocaps.cli.main import main; main()"  # as pyproject.toml has it
MODULE = "runpy.run_module('anocaps', run_name='__main__')"


@pytest.mark.parametrize("start", [SCRIPT, MODULE])
def test_any_command_during_the_first_imports(start):
    command = [sys.executable, "-c", AT_FIRST + start, "card", "model.safetensors"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "here\n", "Stopped.\n")


@pytest.mark.parametrize("shown", [True, False])
def test_progress_reports_raise_the_stop(monkeypatch, shown):
    monkeypatch.setattr(terminal, "_stop_asked", True)
    with pytest.raises(terminal.Stopped), terminal.files_bar("checking", shown) as tell:
        tell(1, 2, 1)
    with pytest.raises(terminal.Stopped), terminal.training_bar("training", shown) as tell:
        tell(1, 2, 0.5, 1.0)
    with pytest.raises(terminal.Stopped), terminal.cells_bar(shown) as tell:
        tell(1, 2)


def test_other_errors_of_clean_up_are_shown(capsys, monkeypatch):
    class Cleaned:
        def __init__(self, error):
            self.error = error

        def __del__(self):
            raise self.error

    monkeypatch.setattr(sys, "unraisablehook", terminal._show_dropped)
    Cleaned(terminal.Stopped())
    assert capsys.readouterr().err == ""
    Cleaned(OSError("a disk is gone"))
    assert "OSError: a disk is gone" in capsys.readouterr().err


def test_an_error_after_ctrl_c_is_a_stop(monkeypatch):
    for asked, kind in ((False, OSError), (True, terminal.Stopped)):
        monkeypatch.setattr(terminal, "_stop_asked", asked)
        with pytest.raises(kind), terminal.stop_kept():
            raise OSError
