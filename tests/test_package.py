"""What is built and what is pinned: equal wheels, the SBOM in the sdist, hashes for every extra."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PIN = re.compile(
    r"^([\w.-]+)==(\S+)(?: ; [^\n\\]*)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE
)
BUILD = "from setuptools import build_meta; build_meta.build_{}('built')"


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(name: str) -> dict[str, str]:
    text = (LOCKS / f"{name}.txt").read_text("utf-8")
    return {plain(package): version for package, version, _ in PIN.findall(text)}


CONSTRAINTS = {
    plain(package): version
    for package, _, version in (
        line.partition("==") for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    )
}


@pytest.mark.parametrize("extra", ["base", *EXTRAS])
def test_every_extra_is_pinned_with_hashes(extra):
    found = pins(extra)
    for each in (*PROJECT["dependencies"], *EXTRAS.get(extra, ())):
        name = plain(re.match(r"[\w.-]+", each)[0])
        assert name in found or name in ("anocaps", "torch"), f"run make lock: {name} is missing"
    assert {name: CONSTRAINTS.get(name, version) for name, version in found.items()} == found
    assert "torch" not in found and not any(name.startswith("nvidia") for name in found)


def test_torch_is_pinned_by_itself():
    assert pins("torch")["torch"] == CONSTRAINTS["torch"]


@pytest.mark.parametrize("path", sorted(LOCKS.iterdir()), ids=lambda path: path.name)
def test_nothing_but_pins_with_hashes(path):
    """No address of a package index, no path of a machine, no version without a hash."""
    text = path.read_text("utf-8")
    assert "://" not in text.replace("http://cyclonedx.org/", "").replace(
        PROJECT["urls"]["Paper"], ""
    )
    if path.suffix == ".txt":
        rest = PIN.sub("", text)
        assert not [line for line in rest.splitlines() if line and not line.startswith("#")]


def test_the_sbom_names_what_is_pinned():
    sbom = json.loads((LOCKS / "sbom.json").read_text("utf-8"))
    assert sbom["bomFormat"] == "CycloneDX"
    found = {plain(each["name"]): each["version"] for each in sbom["components"]}
    assert found == pins("all") | pins("torch")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Two builds of the same files, copied at different times: wheels and sdists."""
    found = []
    for hours in (0, 5):
        copy = tmp_path_factory.mktemp("copy") / "anocaps"
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
        shutil.copytree(LOCKS, copy / "requirements")
        for path in ROOT.iterdir():
            if path.is_file():
                shutil.copy(path, copy)
        for path in copy.rglob("*"):
            os.utime(path, (10**9 + 3600 * hours,) * 2)
        for kind in ("sdist", "wheel"):
            subprocess.run(
                [sys.executable, "-c", BUILD.format(kind)],
                cwd=copy, env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}, check=True,
                capture_output=True,
            )  # fmt: skip
        found.append(copy / "built")
    return found


def test_a_wheel_can_be_built_again(built):
    digests = {
        hashlib.sha256(path.read_bytes()).hexdigest()
        for each in built
        for path in each.glob("*.whl")
    }
    assert len(digests) == 1


def test_the_sdist_holds_the_sbom_and_the_pins(built):
    (path,) = built[0].glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"requirements/sbom.json", "requirements/all.txt", "constraints.txt"} <= names
    assert "src/anocaps/pages/templates/macros.html" in names
