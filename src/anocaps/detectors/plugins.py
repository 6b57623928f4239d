"""Find methods by name: those of this package, and those of a user's Python file.

docs/your-own-method.md shows such a file.
"""

import importlib.util
import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING
from zlib import crc32

from anocaps.base.errors import InputError

if TYPE_CHECKING:
    from anocaps.detectors.base import Detector

# modules, one per method
_OURS = (
    "capsnet", "baselines.cnn_ocsvm", "baselines.cnn_scores", "baselines.dbn",
    "baselines.dbn_scores", "baselines.vae", "baselines.vae_scores", "baselines.kde",
    "baselines.pixel_svm", "baselines.deep_svdd", "baselines.matrix_capsnet", "baselines.geom",
    "baselines.anogan",
)  # fmt: skip

registry: dict[str, type["Detector"]] = {}  # methods imported so far


def register(kind: type["Detector"]) -> None:
    """Register a method by its name. Only the same file may define it again."""
    known = registry.get(kind.method, kind)
    if _source(known) != _source(kind):
        raise InputError(
            f"{_source(kind)}: the method name {kind.method!r} is taken; choose another"
        )
    registry[kind.method] = kind


def find_method(name: str) -> type["Detector"]:
    """The method with this name, or the one that a Python file defines."""
    return _method_in(Path(name)) if name.endswith(".py") else known_method(name)


def known_methods() -> dict[str, type["Detector"]]:
    """Every method of this package, and of the files that were run."""
    for module in _OURS:
        import_module(f"anocaps.detectors.{module}")
    return registry


def known_method(name: str) -> type["Detector"]:
    """The method with this name, without running a file."""
    if name not in known_methods():
        raise InputError(
            f"method {name!r} is unknown: use one of {', '.join(sorted(registry))}, or first "
            "load the file that defines it with find_method('FILE.py')"
        )
    return registry[name]


class _UncachedLoader(SourceFileLoader):
    """Always compile the file: a .pyc file may be stale if the file changed within a second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _method_in(path: Path) -> type["Detector"]:
    """Run a user's file and return the method that it defines."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a Python file that defines a detector")
    # The hash makes the name differ from packages and from other files of the same name.
    name = f"{path.stem}_{crc32(str(path.resolve()).encode()):08x}"
    loader = _UncachedLoader(name, str(path))
    specification = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # needed to copy and pickle its objects
    try:
        specification.loader.exec_module(module)
    except Exception as error:  # the user's code may raise any error
        raise InputError(
            f"{path}: it cannot be run, correct it ({type(error).__name__}: {error})"
        ) from error
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == name and value in registry.values()
    ]
    if len(found) != 1:
        raise InputError(
            f"{path}: it must define one Detector with a `method` name, but defines {len(found)}"
        )
    return found[0]


def own_source(kind: type["Detector"]) -> str | None:
    """The text of the user's file that defines a method; None for methods of this package."""
    if kind.__module__.split(".")[0] == __name__.split(".")[0]:
        return None
    file = Path(_source(kind))
    return file.read_text() if file.is_file() else None


def _source(kind: type["Detector"]) -> str:
    """The file that defines a method, or the module's name if there is no file (notebooks)."""
    file = getattr(sys.modules[kind.__module__], "__file__", None)
    return file or kind.__module__
