"""Templates escape what they are given, miss nothing in silence, and cost nothing unused."""

import subprocess
import sys

import pytest
from jinja2 import UndefinedError

from anocaps.pages.rendering import render


def test_values_are_escaped_also_inside_a_script() -> None:
    evil = "</script><script>alert(1)</script>"
    page = render("gallery.html", title=evil, lead=evil, notes=evil, content={"rows": [evil]})
    assert page.count("<script") == 2 and "alert(1)</script>" not in page


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("gallery.html", title="a", lead="b", content={})


@pytest.mark.parametrize(
    ("modules", "library"),
    [
        ("anocaps.cli.main, anocaps.inspect.illustrate", "jinja2"),
        ("anocaps.cli.main, anocaps.study.reports", "matplotlib"),
    ],
)
def test_a_library_is_loaded_only_when_it_is_used(modules: str, library: str) -> None:
    code = f"import sys, {modules}; assert {library!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
