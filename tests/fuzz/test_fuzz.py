"""Damaged inputs are accepted or refused in one line; so are those that once were a fault."""

import logging
import signal
import sys
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


def _too_late(*_):
    raise TimeoutError("an input takes too long")


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
