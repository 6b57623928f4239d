"""The rooms that need no torch work in an interpreter where it cannot be imported."""

import importlib
import pkgutil
import subprocess
import sys

import pytest

import anocaps

REFUSE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("torch is refused", name="torch")

sys.meta_path.insert(0, Refuse())
"""
TORCH_FREE = (
    "base", "images", "data", "judging", "pages", "cli", "export.runtime", "inspect.judge",
    "inspect.scoring", "inspect.tables", "inspect.illustrate", "inspect.card",
)  # fmt: skip


@pytest.mark.parametrize("room", TORCH_FREE)
def test_a_room_without_torch(room):
    package = importlib.import_module(f"anocaps.{room}")
    inside = [
        module.name
        for module in pkgutil.walk_packages(
            getattr(package, "__path__", []), f"{package.__name__}."
        )
    ]
    code = f"{REFUSE}\nimport {', '.join([package.__name__, *inside])}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_rooms_stand_at_the_top():
    files = [module.name for module in pkgutil.iter_modules(anocaps.__path__) if not module.ispkg]
    assert files == ["__main__"]
