"""Damaged inputs are accepted or refused in one line; so are those that once were a fault."""

import logging
import signal
import sys
import time
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from targets import TARGETS

REGRESSIONS = sorted((Path(__file__).parent / "regressions").glob("*/*"))
INPUTS = {"onnx": 8, "model file": 40, "packed results": 40}  # else 120: they take milliseconds


@pytest.fixture(scope="module", params=TARGETS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def target(kind, tmp_path_factory):
    for module in ("torch", "onnx", "pyarrow", "fastapi"):
        pytest.importorskip(module)
    made = TARGETS[kind](tmp_path_factory.mktemp("fuzz"))
    logging.disable()
    yield made
    logging.disable(logging.NOTSET)
    made.close()


@pytest.fixture(autouse=True)
def soon():
    """An endless loop is an error."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return
    before = signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


class TooLate(BaseException):
    """No reader takes this for the error of a damaged file."""


def _too_late(*_):
    raise TooLate("an input takes too long")


@pytest.mark.filterwarnings("ignore")
def test_damaged_inputs_are_refused_or_read(target, kind):
    assert all(target.accepted(seed) for seed in target.seeds if kind != "http")
    for number in range(INPUTS.get(kind, 120)):
        random = Random(number)
        content = target.mutated(random, random.choice(target.seeds))
        target.accepted(content)


@pytest.mark.filterwarnings("ignore")
def test_inputs_that_were_a_fault(target, kind):
    paths = [path for path in REGRESSIONS if path.parent.name == kind]
    if not paths:
        pytest.skip("no input was a fault, or a test of the reader makes it")
    for path in paths:
        assert not target.accepted(path.read_bytes()), path.name


def test_every_regression_belongs_to_a_target():
    assert {path.parent.name for path in REGRESSIONS} <= set(TARGETS)


class Swallows:
    """A target whose reader takes every error for a damaged file, and waits."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def accepted(self, content: bytes) -> bool:
        try:
            time.sleep(self.seconds)
        except Exception:
            return False
        return True


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs SIGALRM")
@pytest.mark.parametrize(("waits", "most", "faults"), [(0, 10, 0), (0, -1, 1), (60, 10, 1)])
def test_an_input_that_takes_too_long_is_a_fault(tmp_path, monkeypatch, waits, most, faults):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import fuzz

    monkeypatch.setattr(fuzz.logging, "disable", lambda: None)  # it would outlast this test
    monkeypatch.setattr(fuzz.faulthandler, "enable", lambda: None)
    monkeypatch.setattr(fuzz, "FAULTS", tmp_path)
    monkeypatch.setattr(fuzz, "WAIT", 0.05 if waits else 60)
    monkeypatch.setitem(fuzz.SLOW, "images", most)  # seconds of CPU time
    tally = fuzz.Tally("images", Swallows(waits))
    tally.read(b"")
    assert (sum(tally.faults.values()), tally.accepted) == (faults, 1 - faults)
