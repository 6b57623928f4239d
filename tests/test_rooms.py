"""The rooms that need no torch work in an interpreter where it cannot be imported."""

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

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
IMAGES = """
from pathlib import Path
from PIL import Image
Path("new").mkdir()
for k in range(20):
    Image.new("L", (8, 8), 90 + k).save(f"new/{k:02}.png")
"""
NEEDS_TORCH = ("anocaps.inspect.forecast", "anocaps.inspect.selfcheck")  # they train
# Room → what it does in that interpreter, after all its modules are imported.
TORCH_FREE = {
    "base": """
import numpy as np
from anocaps.base import arrayfile
arrayfile.write("x.safetensors", "model", {"a": np.ones(2)}, {"b": 1})
assert arrayfile.read("x.safetensors", "model")[1]["b"] == 1
""",
    "images": f"""{IMAGES}
from anocaps.images.decode import Fit, read_image
from anocaps.images.walk import list_images
file, *_ = list_images([Path("new")])
assert read_image(file, Fit(4, 4, 1, "resize")).tolist() == [[[90]] * 4] * 4
""",
    "data": """
from anocaps.data import load_dataset
assert load_dataset("digits").official
""",
    "judging": """
import numpy as np
from anocaps.judging.calibration import p_values
assert p_values(np.array([0.5]), np.arange(9.0)).tolist() == [0.2]
""",
    "pages": """
from anocaps.pages.rendering import render
assert "A & B" not in render("base.html", title="A & B", lead="")
""",
    "engines": """
from anocaps.engines.base import collect
from anocaps.engines.choose import open_engine
with open_engine("local") as engine:
    assert list(collect(engine, abs, [-1, 2])) == [(-1, 1), (2, 2)]
""",
    "inspect": f"""{IMAGES}
from brightness import Brightness
from anocaps.inspect.scoring import score_files
assert score_files(Brightness(), ["new"])[0].score == 90
""",
    "export.runtime": "",
    "serve": """
from pathlib import Path
from anocaps.serve.project import Project
project = Project(Path("project"))
assert project.models.paths() == {}
project.close()
""",
    "cli": f"""{IMAGES}
from anocaps.cli.main import main
sys.argv = ["anocaps", "check", "new"]
try:
    main()
except SystemExit as ended:
    assert not ended.code
""",
}


@pytest.mark.parametrize("room", TORCH_FREE)
def test_a_room_without_torch(room, tmp_path):
    package = importlib.import_module(f"anocaps.{room}")
    inside = [
        module.name
        for module in pkgutil.walk_packages(
            getattr(package, "__path__", []), f"{package.__name__}."
        )
        if module.name not in NEEDS_TORCH
    ]
    code = f"{REFUSE}\nimport {', '.join([package.__name__, *inside])}\n{TORCH_FREE[room]}"
    helpers = {"PYTHONPATH": str(Path(__file__).parent / "helpers")}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=os.environ | helpers)


def test_only_rooms_stand_at_the_top():
    files = [module.name for module in pkgutil.iter_modules(anocaps.__path__) if not module.ispkg]
    assert files == ["__main__"]
