"""The extra that provides a missing package, and how to install it."""

from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote
from traceback import walk_tb

from anocaps.base.errors import InputError

# By the name to import; pyproject.toml has the packages of each extra.
_EXTRAS = {
    "torch": "train",
    "sklearn": "train",
    "safetensors": "train",
    "pooch": "train",
    "platformdirs": "train",
    "matplotlib": "train",
    "onnx": "export",
    "onnxruntime": "runtime",
    "pyarrow": "parquet",
}
_INSTALLED_AS = {"sklearn": "scikit-learn"}  # else by its own name


def how_to_install(error: ImportError, wanted: str | None = None) -> str | None:
    """What to do about a package that is missing or broken; None if no extra provides it.

    A missing package is provided by `wanted`, if given, or by its extra.
    """
    named = _top(error.name)
    package = named if named in _EXTRAS else _being_loaded(error)
    if package is None:
        return None
    if isinstance(error, ModuleNotFoundError) and package == named:
        wanted = wanted or f"anocaps[{_EXTRAS[package]}]"
        return f"this needs {package}, which is not installed: pip install {quote(wanted)}"
    why = (str(error).splitlines() or ["for no reason given"])[0]
    again = f"pip install --force-reinstall {_INSTALLED_AS.get(package, package)}"
    return f"{package} is installed but cannot be loaded ({why}): {again}"


@contextmanager
def needing(wanted: str) -> Iterator[None]:
    """Around imports: a missing package becomes an error that says to install `wanted`."""
    try:
        yield
    except ImportError as error:
        if (advice := how_to_install(error, wanted)) is None:
            raise
        raise InputError(advice) from error


def _being_loaded(error: ImportError) -> str | None:
    """The package of an extra that was being imported by anocaps, directly or not."""
    found = None
    for frame, _ in walk_tb(error.__traceback__):
        package = _top(frame.f_globals.get("__name__"))
        if package == "anocaps":
            found = None
        elif found is None and package in _EXTRAS:
            found = package
    return found


def _top(module: str | None) -> str:
    return (module or "").partition(".")[0]
