"""A sample of the crash points of some commands; `make crash` takes all of all commands."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from disk import Disk, unsynced_renames
from faults import Call, build, environment

# Case → every how many-th point is taken.
SAMPLE = {
    "model file": 3, "score, csv": 4, "keygen": 1, "sign": 1, "page": 25, "page, training": 200,
}  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    found = build(tmp_path_factory.mktemp("layer"))
    if found is None:
        pytest.skip("the layer needs Linux and a C compiler")
    return found


@pytest.mark.parametrize("case", SAMPLE)
def test_no_point_costs_data(library, case):
    command = [sys.executable, Path(__file__).with_name("crash.py"), case, str(SAMPLE[case])]
    answer = subprocess.run(command, env=environment(library), capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["points"] > 5 and found["examples"] == []
    assert {"kill", "error", "full", "power"} <= found["outcomes"].keys()


# A writer that forgets to sync, and one that writes in place: the layer must find both.
CARELESS = """
import os, sys
from pathlib import Path
sys.path.insert(0, {here!r})
import cases

def careless(place):
    work = place / "work"
    (work / "m.tmp").write_text("new" * 5000)
    {write}

def prepare(place):
    (place / "work").mkdir()
    (place / "work" / "m.txt").write_text("old" * 5000)

cases.CASES["careless"] = cases.Case(prepare, careless, careless)
from crash import main
main("careless")
"""


@pytest.mark.parametrize(
    ("write", "found"),
    [
        ('os.replace(work / "m.tmp", work / "m.txt")', "before its content was synced"),
        ('(work / "m.txt").write_text("new" * 5000); os.unlink(work / "m.tmp")', "nor new"),
    ],
)
def test_a_careless_writer_is_found(library, write, found):
    code = CARELESS.format(here=str(Path(__file__).parent), write=write)
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment(library), capture_output=True, text=True
    )
    told = json.loads(answer.stdout)
    assert told["faults"] and any(found in line for line in told["examples"]), told


# ── power cuts ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def calls(tmp_path):
    """A file is written to a temporary name and renamed; nothing is synced."""
    temporary, final = str(tmp_path / "a.tmp"), str(tmp_path / "a")
    return [
        Call("create", 7, 0, temporary, "", b""),
        Call("write", 7, 0, temporary, "", b"content"),
        Call("rename", 7, 0, temporary, final, b""),
    ]


@pytest.mark.parametrize(
    ("synced", "case", "left", "warnings"),
    [
        ((), "synced", {}, 2),
        ((), "names", {"a": b""}, 2),
        (("file",), "names", {"a": b"content"}, 1),
        (("file", "folder"), "synced", {"a": b"content"}, 0),
    ],
)
def test_what_a_power_cut_leaves(calls, tmp_path, synced, case, left, warnings):
    disk = Disk(tmp_path)
    if "file" in synced:
        calls.insert(2, Call("sync", 7, 0, calls[0].path, "", b""))
    if "folder" in synced:
        calls.append(Call("sync", 1, 0, str(tmp_path), "", b""))
    disk.apply(calls)
    disk.leave(case)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == left
    assert len(unsynced_renames(calls)) == warnings
