"""Shared by all tests: datasets, real ones where they are, and the smallest set that trains."""

import os
import signal
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
from brightness import Brightness
from real_data import real

from anocaps.cli import main as cli
from anocaps.data import Dataset, available, load_dataset, store


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "run the contract suite on the detector that this Python file defines"
    parser.addoption("--method", metavar="FILE.py", help=what)


def pytest_configure() -> None:
    """One thread for each worker and for the commands that tests start; torch is not loaded yet."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load_dataset("digits")


@pytest.fixture(scope="session")
def mnist() -> Dataset:
    return real("mnist")


@pytest.fixture
def two_classes() -> tuple[np.ndarray, np.ndarray]:
    """48 tiny images of two kinds that anything can tell apart: a bright left or right half."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 60, size=(48, 8, 8), dtype=np.uint8)
    labels = np.arange(48) % 2
    images[labels == 0, :, :4] += 150
    images[labels == 1, :, 4:] += 150
    return images, labels


@pytest.fixture
def command(capsys, monkeypatch):
    """Runs a command of anocaps here: code, output, errors."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # put back afterwards

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["anocaps", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture
def anocaps(command, monkeypatch):
    """Runs a command, for which `model.onnx` is the judge by brightness."""
    onnx = types.SimpleNamespace(OnnxModel=lambda path, device: Brightness())
    monkeypatch.setitem(sys.modules, "anocaps.export.runtime", onnx)
    return command


@pytest.fixture(autouse=True)
def user_cache(monkeypatch, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("user-cache")
    monkeypatch.setattr(store, "user_cache", lambda: folder)
    return folder


@pytest.fixture
def real_root() -> Path:
    root = os.environ.get("ANOCAPS_DATA")
    if not root:
        pytest.skip("ANOCAPS_DATA is not set: no real data")
    return Path(root)


@pytest.fixture
def real_mnist(real_root) -> Path:
    if not available("mnist", real_root):
        pytest.skip("MNIST is not in ANOCAPS_DATA")
    return real_root
