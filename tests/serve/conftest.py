"""A server whose model is the judge by brightness."""

import pytest
from brightness import Brightness
from running_server import running

from anocaps.serve import scoring


@pytest.fixture
def bright(monkeypatch):
    """Every model is the judge by brightness."""
    monkeypatch.setattr(scoring, "load_judge", lambda path, device: Brightness())


@pytest.fixture
def server(bright, tmp_path):
    with running(tmp_path / "project", [tmp_path]) as found:
        yield found
