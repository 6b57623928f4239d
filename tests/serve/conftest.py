"""A server whose model is the judge by brightness, and a browser."""

import pytest
from brightness import Brightness
from browser import chromium
from running_server import running

from anocaps.serve import scoring, training


@pytest.fixture
def bright(monkeypatch):
    """Every model is the judge by brightness, and nothing is trained."""
    monkeypatch.setattr(scoring, "load_judge", lambda path, device: Brightness())
    monkeypatch.setattr(training, "available", lambda: False)


@pytest.fixture
def server(bright, tmp_path):
    with running(tmp_path / "project", [tmp_path]) as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found
