"""Which packages come with which extra, for the one line that a missing one is worth."""

from collections.abc import Iterator
from contextlib import contextmanager

from anocaps.errors import InputError

# `pip install anocaps` brings what reads and judges images; all else is asked for by name.
_EXTRAS = {
    "torch": "train",
    "sklearn": "train",
    "safetensors": "train",
    "pooch": "train",
    "onnx": "export",
    "onnxruntime": "runtime",
    "pyarrow": "parquet",
}


def how_to_install(missing: ModuleNotFoundError) -> str | None:
    """What to do about it; None if it is none of the packages that may be missing."""
    extra = _EXTRAS.get(_package(missing))
    return None if extra is None else _advice(missing, extra)


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Around the imports of what needs a whole extra: whichever package is missed first, the
    advice is the one that brings them all."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if _package(missing) not in _EXTRAS:
            raise
        raise InputError(_advice(missing, extra)) from missing


def _package(missing: ModuleNotFoundError) -> str:
    return (missing.name or "").partition(".")[0]


def _advice(missing: ModuleNotFoundError, extra: str) -> str:
    package = _package(missing)
    return f"this needs {package}, which is not installed: pip install 'anocaps[{extra}]'"
