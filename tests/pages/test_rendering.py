"""Templates escape their values, refuse missing ones, and are loaded only when used."""

import subprocess
import sys

import pytest
from jinja2 import UndefinedError

from anocaps.pages.rendering import render


def test_values_are_escaped_also_inside_a_script() -> None:
    evil = "</script><script>alert(1)</script>"
    names = ("model", "pretrained", "date", "verdict")
    about = dict.fromkeys(names, evil) | {"level": "bad"}
    words = {"title": evil, "lead": evil, "notes": evil, "many": evil, "about": about}
    page = render("gallery.html", content={"rows": [evil]}, chart="", heated=True, **words)
    assert page.count("<script") == 2 and "alert(1)</script>" not in page


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("gallery.html", title="a", lead="b", content={})


def test_a_library_is_loaded_only_when_it_is_used() -> None:
    code = """
import sys, anocaps.cli.main, anocaps.inspect.illustrate, anocaps.study.reports
assert not {"jinja2", "matplotlib"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
