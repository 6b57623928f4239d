"""The extra that provides a missing package, and how to install it."""

from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote
from traceback import walk_tb

from anocaps.base.errors import InputError

# Import name → extra; pyproject.toml lists the packages of each extra.
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
_INSTALLED_AS = {"sklearn": "scikit-learn"}  # import name → package name, where they differ


def how_to_install(error: ImportError, wanted: str | None = None) -> str | None:
    """Advice for a missing or broken package; None if no extra provides the package.

    `wanted` is what to install if it is missing, by default its extra.
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
    """Turn a failed import in the block into an error that says to install `wanted`."""
    try:
        yield
    except ImportError as error:
        if (advice := how_to_install(error, wanted)) is None:
            raise
        raise InputError(advice) from error


def _being_loaded(error: ImportError) -> str | None:
    """The package of an extra whose import by anocaps raised the error."""
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
