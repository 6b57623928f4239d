"""A missing or broken package is answered with the command that installs it."""

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
IMPORTED_AS = {
    "scikit-learn": "sklearn", "pillow": "PIL", "python-multipart": "python_multipart"
}  # fmt: skip
FOR_USERS = ("train", "photo", "runtime", "export", "parquet", "ray", "serve", "sign")


def packages(requirements: list[str]) -> set[str]:
    """Names to import of the required packages, without anocaps itself."""
    names = {re.match(r"[\w-]+", each)[0] for each in requirements} - {"anocaps"}
    return {IMPORTED_AS.get(name, name) for name in names}


def test_every_package_belongs_to_the_extra_of_pyproject():
    extras = PROJECT["optional-dependencies"]
    brought = {name: extra for extra in FOR_USERS for name in packages(extras[extra])}
    assert brought == _EXTRAS
    assert set(extras) == {*FOR_USERS, "all", "bench", "dev"}
    named = {name for each in extras["all"] for name in re.search(r"\[(.*)\]", each)[1].split(",")}
    assert named | {"train", "runtime"} == set(FOR_USERS)  # export brings these two


@pytest.mark.parametrize(("package", "extra"), _EXTRAS.items())
def test_a_missing_package_names_its_extra(package, extra):
    missing = ModuleNotFoundError(f"No module named '{package}.inner'", name=f"{package}.inner")
    assert f"pip install 'anocaps[{extra}]'" in how_to_install(missing)
    advice = rf"{package}, .*'anocaps\[export\]'"
    with pytest.raises(InputError, match=advice), needing("anocaps[export]"):
        raise missing
    broken = ImportError("libgone.so: cannot open", name=package)
    known = [each for extra in FOR_USERS for each in PROJECT["optional-dependencies"][extra]]
    pip_name = how_to_install(broken).rpartition(" ")[2]
    assert pip_name in {re.match(r"[\w-]+", each)[0] for each in known}


def test_an_unknown_package_or_name_is_a_bug():
    with pytest.raises(ModuleNotFoundError) as caught, needing("anocaps[export]"):
        import_module("numbers_of_my_own")
    assert how_to_install(caught.value) is None
    with pytest.raises(ImportError) as caught:
        from anocaps.base.errors import nothing  # noqa: F401
    assert how_to_install(caught.value) is None


@pytest.mark.parametrize(
    "text",
    [
        "raise ImportError('libonnx.so: cannot open\\nand more')",
        "import numbers_of_my_own",
        "raise ImportError",
        "",
    ],
)
def test_a_broken_package_is_named(tmp_path, monkeypatch, text):
    """An installed onnxruntime that cannot be loaded, or lacks a name."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "onnxruntime"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "onnxruntime.py").write_text(text)
    with (
        pytest.raises(InputError, match=r"^onnxruntime .*--force-reinstall onnxruntime$"),
        needing("anocaps[export]"),
    ):
        from onnxruntime import InferenceSession  # noqa: F401
    sys.modules.pop("onnxruntime", None)


def test_no_other_package_is_imported():
    """Every import is of Python itself, of a dependency, or has an extra."""
    known = {*sys.stdlib_module_names, "anocaps", *packages(PROJECT["dependencies"]), *_EXTRAS}
    known |= {"requests", "triton"}  # come with pooch and torch
    known |= {"pydantic", "starlette"}  # come with fastapi
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            assert {name.partition(".")[0] for name in names} <= known, file
