"""The names in docs/architecture.md exist, and its tree shows every room."""

import pkgutil
import re
from pathlib import Path

import pytest

import anocaps

PAGE = Path(__file__).parents[1].joinpath("docs/architecture.md").read_text("utf-8")
NAMES = sorted(set(re.findall(r"anocaps(?:\.\w+)+", PAGE)))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_page_exists(name):
    pkgutil.resolve_name(name)


def test_the_tree_shows_every_room():
    rooms = {module.name for module in pkgutil.iter_modules(anocaps.__path__) if module.ispkg}
    assert set(re.findall(r"^  (\w+)/ ", PAGE, re.MULTILINE)) == rooms
