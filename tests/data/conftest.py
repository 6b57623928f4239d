"""Keeps the tests off the user's real cache and finds the real datasets where there are any."""

import os
from pathlib import Path

import pytest

from anocaps.data import available, store


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
