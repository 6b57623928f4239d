"""What a missing package is answered with is what pyproject.toml brings it with."""

import ast
import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from anocaps.base.errors import InputError
from anocaps.base.extras import _EXTRAS, how_to_install, needing

ROOT = Path(__file__).resolve().parents[2]
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
    assert set(extras) == {*FOR_USERS, "all", "bench", "dev"}
    named = {name for each in extras["all"] for name in re.search(r"\[(.*)\]", each)[1].split(",")}
    assert named | {"train", "runtime"} == set(FOR_USERS)  # which export brings


@pytest.mark.parametrize(("package", "extra"), _EXTRAS.items())
def test_the_advice(package, extra):
    said = how_to_install(missed(f"{package}.inner"))
    assert said == f"this needs {package}, which is not installed: pip install 'anocaps[{extra}]'"
    assert how_to_install(missed("numbers_of_my_own")) is None


@pytest.mark.parametrize("package", _EXTRAS)
def test_export_needs_all_of_its_extra(package):
    advice = rf"needs {package}, .*'anocaps\[export\]'"
    with pytest.raises(InputError, match=advice), needing("anocaps[export]"):
        raise missed(package)


def test_a_package_of_nobody_is_a_bug():
    with pytest.raises(ModuleNotFoundError), needing("anocaps[export]"):
        raise missed("numbers_of_my_own")


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Writes an onnxruntime that is there and fails to load."""

    def ours() -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] == "onnxruntime"]

    for name in ours():
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    yield (tmp_path / "onnxruntime.py").write_text
    for name in ours():
        del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("raise ImportError('libonnx.so: cannot open\\nand more')", "libonnx.so: cannot open"),
        ("import numbers_of_my_own", "No module named 'numbers_of_my_own'"),
        ("from json import nothing", "cannot import name 'nothing' from 'json'"),
        ("raise ImportError", "for no reason given"),
    ],
)
def test_a_broken_package_is_named(broken, text, why):
    broken(text)
    with pytest.raises(ImportError) as caught:
        import_module("onnxruntime")
    said = how_to_install(caught.value)
    assert said.startswith(f"onnxruntime is installed but cannot be loaded ({why}")
    assert said.endswith("pip install --force-reinstall onnxruntime")
    assert "\n" not in said
    with (
        pytest.raises(InputError, match=r"--force-reinstall onnxruntime$"),
        needing("anocaps[export]"),
    ):
        import_module("onnxruntime")


def test_a_package_is_installed_again_by_the_name_that_pip_knows():
    extras = PROJECT["optional-dependencies"]
    known = {re.match(r"[\w-]+", each)[0] for extra in FOR_USERS for each in extras[extra]}
    for package in _EXTRAS:
        raised = ImportError("libgone.so: cannot open", name=package)
        assert how_to_install(raised).rpartition(" ")[2] in known - {"anocaps"}


def test_a_package_that_lacks_a_name_is_broken(broken):
    broken("")
    with pytest.raises(ImportError) as caught:
        from onnxruntime import InferenceSession  # noqa: F401
    assert "onnxruntime is installed but" in how_to_install(caught.value)


def test_a_wrong_name_of_our_own_is_a_bug():
    with pytest.raises(ImportError) as caught:
        from anocaps.base.errors import nothing  # noqa: F401
    assert how_to_install(caught.value) is None


def test_nothing_else_is_imported():
    """Every import of the package is of Python's own, of what always comes, or has an extra."""
    known = {*sys.stdlib_module_names, "anocaps", *packages(PROJECT["dependencies"]), *_EXTRAS}
    known |= {"requests", "triton"}  # which come with pooch and torch
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            assert {name.partition(".")[0] for name in names} <= known, file
