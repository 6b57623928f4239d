"""Shared by the tests of this room."""

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a page, in a folder that is not there yet."""
    return tmp_path / "new" / "gallery.html"
