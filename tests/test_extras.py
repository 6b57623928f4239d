"""What a missing package is answered with is what pyproject.toml brings it with."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from anocaps.errors import InputError
from anocaps.extras import _EXTRAS, how_to_install, needing

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
IMPORTED_AS = {"scikit-learn": "sklearn", "pillow": "PIL"}
FOR_USERS = ("train", "runtime", "export", "parquet")


def packages(requirements: list[str]) -> set[str]:
    """Names to import of what is required, without anocaps itself."""
    names = {re.match(r"[\w-]+", each)[0] for each in requirements} - {"anocaps"}
    return {IMPORTED_AS.get(name, name) for name in names}


def missed(name: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_every_package_is_asked_for_by_the_extra_that_brings_it():
    extras = PROJECT["optional-dependencies"]
    brought = {name: extra for extra in FOR_USERS for name in packages(extras[extra])}
    assert brought == _EXTRAS
    assert set(extras) == {*FOR_USERS, "bench", "dev"}


@pytest.mark.parametrize(("package", "extra"), _EXTRAS.items())
def test_the_advice(package, extra):
    said = how_to_install(missed(f"{package}.inner"))
    assert said == f"this needs {package}, which is not installed: pip install 'anocaps[{extra}]'"
    assert how_to_install(missed("numbers_of_my_own")) is None


@pytest.mark.parametrize("package", _EXTRAS)
def test_export_needs_all_of_its_extra(package):
    advice = rf"needs {package}, .*'anocaps\[export\]'"
    with pytest.raises(InputError, match=advice), needing("export"):
        raise missed(package)


def test_a_package_of_nobody_is_a_bug():
    with pytest.raises(ModuleNotFoundError), needing("export"):
        raise missed("numbers_of_my_own")


def test_nothing_else_is_imported():
    """Every import of the package is of Python's own, of what always comes, or has an extra."""
    known = {*sys.stdlib_module_names, "anocaps", *packages(PROJECT["dependencies"]), *_EXTRAS}
    known |= {"requests", "triton"}  # which come with pooch, and with torch where it uses them
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            assert {name.partition(".")[0] for name in names} <= known, file
