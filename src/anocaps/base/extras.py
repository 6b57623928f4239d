"""Which packages come with which extra, for the one line that a missing or broken one is worth."""

from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote
from traceback import walk_tb

from anocaps.base.errors import InputError

# anocaps alone brings what reads and judges images; all else is asked for by name. Where this is
# said it is installed, from wherever, so that pip looks for what an extra adds and not for anocaps.
_EXTRAS = {
    "torch": "train",
    "sklearn": "train",
    "safetensors": "train",
    "pooch": "train",
    "platformdirs": "train",
    "onnx": "export",
    "onnxruntime": "runtime",
    "pyarrow": "parquet",
}
_INSTALLED_AS = {"sklearn": "scikit-learn"}  # else by its own name


def how_to_install(error: ImportError, wanted: str | None = None) -> str | None:
    """What to do about a package that is missing (install what is `wanted`, or else the extra that
    brings the package) or broken (install it again). None if no extra brings it."""
    named = _top(error.name)
    package = named if named in _EXTRAS else _being_loaded(error)
    if package is None:
        return None
    if isinstance(error, ModuleNotFoundError) and package == named:
        wanted = wanted or f"anocaps[{_EXTRAS[package]}]"
        return f"this needs {package}, which is not installed: pip install {quote(wanted)}"
    why = (str(error).splitlines() or ["for no reason given"])[0]
    return (
        f"{package} is installed but cannot be loaded ({why}): install it again with "
        f"pip install --force-reinstall {_INSTALLED_AS.get(package, package)}"
    )


@contextmanager
def needing(wanted: str) -> Iterator[None]:
    """Around the imports of what needs a whole extra, or less than one: whichever package is missed
    first, the advice is what brings all that is needed and no more."""
    try:
        yield
    except ImportError as error:
        if (advice := how_to_install(error, wanted)) is None:
            raise
        raise InputError(advice) from error


def _being_loaded(error: ImportError) -> str | None:
    """The package that this one was importing, whatever that imports in turn."""
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
