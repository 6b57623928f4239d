"""Claim: scoring an exported model needs 22 packages of 161 MB together, and torch is not one.

Installs anocaps with its extra `runtime` into a new environment, at the versions of
constraints.txt, and adds up the files. The printed list proves it or not.

    python benchmarks/runtime_size.py
"""

import json
import platform
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import common
from common import ROOT

# Run in the new environment: the distributions and the bytes of their files, bytecode left out.
_LIST = """
import json
from importlib.metadata import distributions
print(json.dumps([
    {
        "package": d.metadata["Name"],
        "version": d.version,
        "bytes": sum(f.locate().stat().st_size for f in d.files if f.suffix != ".pyc"),
    }
    for d in distributions()
]))
"""


def install(folder: Path) -> Path:
    """The Python of a new environment with anocaps[runtime] alone; wheels are in folder/wheels.

    It is built from a copy of the sources, since building leaves files beside them.
    """
    copy, wheels = folder / "sources", folder / "wheels"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    constraint = ROOT / "constraints.txt"
    _pip("wheel", "--wheel-dir", wheels, "--constraint", constraint, f"{copy}[runtime]")
    python = folder / "environment" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    venv.create(folder / "environment", with_pip=False)
    offline = ["--no-index", "--find-links", wheels, "--no-compile"]
    _pip("--python", python, "install", *offline, "anocaps[runtime]")
    return python


def _pip(*words: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--retries", "1", *words]
    subprocess.run(command, check=True, capture_output=True, text=True)


def measured(folder: Path) -> dict[str, Any]:
    python = install(folder)
    found = subprocess.run([python, "-c", _LIST], check=True, capture_output=True, text=True)
    packages = sorted(json.loads(found.stdout), key=lambda each: -each["bytes"])
    downloaded = sum(wheel.stat().st_size for wheel in (folder / "wheels").iterdir())
    return {
        "packages": packages,
        "installed_mb": round(sum(each["bytes"] for each in packages) / 1e6, 1),
        "downloaded_mb": round(downloaded / 1e6, 1),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def main() -> None:
    out = common.parser(__doc__, "runtime-size.json").parse_args().out
    with TemporaryDirectory() as folder:
        result = measured(Path(folder))
    for each in result["packages"]:
        print(f"{each['package']:<20} {each['version']:<12} {each['bytes'] / 1e6:8.1f} MB")
    common.write(out, result)


if __name__ == "__main__":
    common.run_script(main)
