"""Runs docs/your-own-method.md: its file and its commands; and what may go wrong."""

import csv
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from anocaps import CapsNetDetector, load
from anocaps.base import arrayfile as modelfile
from anocaps.base.errors import InputError, ModelFileError
from anocaps.cli.app import app
from anocaps.detectors import find_method
from anocaps.detectors.plugins import known_methods, registry
from anocaps.study.reports import read_results

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/your-own-method.md").read_text("utf-8")
CODE, LOADING = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
COMMANDS = re.findall(r"^\$ (.*)$", DOCUMENT, re.MULTILINE)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The document's file, in a folder to work in; what it makes known is forgotten afterwards."""
    known = dict(known_methods())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nearest.py").write_text(CODE)
    yield tmp_path / "nearest.py"
    registry.clear()
    registry.update(known)


def run(command: str, *more: object, cwd: Path) -> str:
    """Its standard output."""
    words = [*shlex.split(command), *map(str, more)]
    environment = {"OMP_NUM_THREADS": "1", "COLUMNS": "90", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def called(*words: object) -> str:
    """The output of `anocaps …` without the seconds that a new process needs."""
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 0, done.output
    return done.output


def documented(start: str) -> str:
    """The command that starts like this."""
    (found,) = (command for command in COMMANDS if command.startswith(start))
    return found


def test_it_passes_the_contract_suite(own):
    last = run(documented("pytest").replace("nearest.py", str(own)), cwd=ROOT).splitlines()[-1]
    assert re.search(r"[1-9]\d* passed", last)


def test_it_stands_in_the_study(own):
    run(documented("anocaps study run"), "--epochs", 1, "--device", "cpu", cwd=own.parent)
    results = [r for r in read_results(own.parent / "runs/paper") if r.method == "nearest"]
    assert {r.held_out for r in results} == {(str(digit),) for digit in range(10)}
    assert all(r.settings["k"] == 3 for r in results)

    page = Path(called(*shlex.split(documented("anocaps study report"))[1:]).split()[-1])
    with open(page.with_name("tables") / "digits.csv") as file:
        table = list(csv.DictReader(file))
    assert np.mean([float(row["nearest (knn) mean"]) for row in table]) > 0.9
    with open(page.with_name("metrics.csv")) as file:
        methods = [row["method"] for row in csv.DictReader(file)]
    assert methods.count("nearest") == 10 and "capsnet" in methods


def test_it_is_saved_and_loaded_as_the_document_says(own, capsys):
    exec(LOADING, {})
    verdicts = capsys.readouterr().out.strip("[]\n").split()
    assert len(verdicts) == 9 and verdicts.count("1") > 6
    stored = load("nearest.safetensors")
    assert stored.k == 1 and stored.normal_.dtype == np.uint8


def test_a_name_can_be_defined_again_by_its_own_file_only(own, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    first, again = find_method("nearest.py"), find_method(str(own))
    assert first is not again and find_method("nearest") is again
    own.with_name("other.py").write_text(CODE)
    with pytest.raises(InputError, match=r"other\.py: the method name 'nearest' is taken"):
        find_method("other.py")
    before = own.stat()
    own.write_text(CODE.replace('"nearest"', '"capsnet"'))
    os.utime(own, ns=(before.st_atime_ns, before.st_mtime_ns))  # as if in the same second
    assert own.stat().st_size == before.st_size
    with pytest.raises(InputError, match=r"nearest\.py: the method name 'capsnet' is taken"):
        find_method("nearest.py")
    assert find_method("capsnet") is CapsNetDetector and find_method("nearest") is again


def test_a_file_defines_one_method(own):
    own.write_text("from anocaps import CapsNetDetector\n")
    with pytest.raises(InputError, match=r"nearest\.py: it must define one Detector.*defines 0"):
        find_method("nearest.py")
    second = "class Second(NearestDetector):\n    method = 'second'\n"
    own.write_text(f"{CODE}\n\n{second}")
    with pytest.raises(InputError, match="defines 2"):
        find_method("nearest.py")


def test_what_cannot_be_stored_is_named(own, two_classes):
    own.write_text(CODE.replace("self.normal_ = images", "self.normal_, self.other_ = images, {1}"))
    detector = find_method("nearest.py")().fit(*two_classes)
    with pytest.raises(TypeError, match="other_ is not a NumPy array"):
        detector.save("model")


def test_loading_a_model_file_runs_no_python_file(own):
    own.write_text("raise SystemExit('it was run')")
    modelfile.write("model", "model", {}, {"method": "nearest.py", "params": {}})
    with pytest.raises(ModelFileError, match=r"'nearest\.py' is unknown"):
        load("model")
