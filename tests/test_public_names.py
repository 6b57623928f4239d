"""Every public name has documentation, with every parameter, or `make docs` fails."""

import importlib.util
import types
from pathlib import Path

import pytest
from mkdocs.exceptions import PluginError

import anocaps

_SPEC = importlib.util.spec_from_file_location(
    "hooks", Path(__file__).parents[1] / "docs" / "hooks.py"
)
hooks = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(hooks)


def test_every_public_name_is_documented():
    assert hooks.undocumented() == []


def silent(x):
    pass


def half(x, y):
    """Add.

    Parameters
    ----------
    x : int
        A number.
    """


@pytest.mark.parametrize(
    ("function", "says"), [(silent, "silent has no docstring"), (half, "half does not document y")]
)
def test_an_undocumented_name_fails_the_build(monkeypatch, function, says):
    examples = types.SimpleNamespace(**{function.__name__: function})
    monkeypatch.setattr(anocaps, "examples", examples, raising=False)
    monkeypatch.setattr(hooks, "NAMES", (f"anocaps.examples.{function.__name__}",))
    with pytest.raises(PluginError, match=says):
        hooks.on_config(None)
