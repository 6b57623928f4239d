"""Harm a command at its points and check what is left. Started under the layer (faults.py):

    python crash.py CASE [STEP]
    python crash.py CASE calls

Every STEP-th point is taken. Prints one JSON object: what happened, or the number of calls of each
kind in an undisturbed run.

At a point the process is killed (`kill`), killed after half of a write (`tear`), gets one error
(`error`, EIO), or finds the disk full from then on (`full`, ENOSPC). A power cut (`power`) is not
injected but reckoned from the log of an undisturbed run (disk.py). Afterwards:

- a file with a final name has its old or its new content, or is a whole version between them;
- an error ends the command with one line and exit code 2, or 1 for a study with a failed cell; exit
  code 0 means that all outputs are there;
- the command is run again: names and contents of all files equal those of an undisturbed run.
"""

import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from importlib import import_module
from pathlib import Path

from cases import CASES, Case
from disk import CASES as CUTS
from disk import Disk, unsynced_renames
from faults import Call, Ended, Layer, read_log
from views import tree, view, views

FAULTS_TOLD = 20


class Crash:
    def __init__(self, name: str, place: Path) -> None:
        self.case: Case = CASES[name]
        self.place, self.work, self.start = place, place / "work", place / "start"
        self.log = place / "log"
        self.faults: list[str] = []
        self.counts: dict[str, Counter[str]] = {}
        self.recovered: set[str] = set()
        self.case.prepare(place)
        shutil.copytree(self.work, self.start, symlinks=True)
        self.layer = Layer(self.work)
        self.old = views(self.start, _final(self.start))
        self.disk = Disk(self.work)
        Path(f"{self.work}.begin").mkdir()  # marks for strace
        ended = self.layer.run(self.run_telling_modules, "record", log=self.log)
        Path(f"{self.work}.end").mkdir()
        assert ended.code == 0, ended.said
        self.points = ended.points
        self.calls = [call for call in read_log(self.log) if call.what != "map"]
        assert len(self.calls) == self.points
        for module in (place / "modules").read_text().split():
            with suppress(Exception):  # so that no child imports it again
                import_module(module)
        self.names = set(tree(self.work))
        self.new = views(self.work, _final(self.work))
        self.faults += unsynced_renames(self.calls)

    def run(self, mode: str, at: int) -> Ended:
        self.restore()
        return self.layer.run(lambda: self.case.run(self.place), mode, at)

    def run_telling_modules(self) -> None:
        try:
            self.case.run(self.place)
        finally:
            (self.place / "modules").write_text("\n".join(sys.modules))

    def restore(self) -> None:
        shutil.rmtree(self.work)
        shutil.copytree(self.start, self.work, symlinks=True)
        (self.place / "reported").unlink(missing_ok=True)

    # ── all that can happen ──────────────────────────────────────────────────────────────────

    def harm(self, step: int) -> None:
        for at in range(1, self.points + 1, step):
            for mode in ("kill", "tear", "error", "full"):
                call = self.calls[min(at, len(self.calls)) - 1]
                if mode == "tear" and call.what != "write":
                    continue  # as kill
                ended = self.run(mode, at)
                self.judge(mode, f"{mode} at {at}, {_told(call)}", ended)
        for case in CUTS:
            for at in (*range(1, self.points + 1, step), self.points + 1):
                self.cut(case, at)

    def cut(self, case: str, at: int) -> None:
        """A power cut before a call; the last one is after the end of the command."""
        disk = deepcopy(self.disk)
        disk.apply(self.calls[: at - 1])
        shutil.rmtree(self.work)
        self.work.mkdir()
        disk.leave(case)
        title = f"power cut ({case}) before {at}"
        self.judge("power", title, None, finished=at > self.points)

    # ── what is left ─────────────────────────────────────────────────────────────────────────

    def judge(self, mode: str, title: str, ended: Ended | None, finished: bool = False) -> None:
        counts = self.counts.setdefault(mode, Counter())
        counts["points"] += 1
        try:
            left = self.left()
            counts[left] += 1
            assert left == "new" or not finished, "the finished command is not all synced"
            if mode != "power":  # of which no child was told
                self.case.check(self.place)
            if ended is not None:
                _check_end(mode, ended, left)
            state = json.dumps(tree(self.work))
            if state not in self.recovered:
                self.recover()
                self.recovered.add(state)
                counts["run again"] += 1
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            self.faults.append(f"{title}: {type(error).__name__}: {reason}")

    def left(self) -> str:
        """`old`, `new` or `between`; AssertionError if a file is a mix."""
        found = {name: view(self.work / name) for name in _final(self.work)}
        for name, what in found.items():
            known = [side[name] for side in (self.old, self.new) if name in side]
            whole = name.endswith(self.case.versions) if self.case.versions else False
            assert what in known or whole, f"{name} is neither old nor new"
        gone = (self.old.keys() & self.new.keys()) - found.keys()
        assert not gone, f"{gone} are gone"
        return "new" if found == self.new else "old" if found == self.old else "between"

    def recover(self) -> None:
        ended = self.layer.run(lambda: self.case.again(self.place))
        assert ended.code == 0, f"run again: exit code {ended.code}: {ended.said[-300:]}"
        names = set(tree(self.work))
        assert names == self.names, f"run again: other files: {sorted(names ^ self.names)}"
        found = views(self.work, _final(self.work))
        other = [name for name in self.new if found[name] != self.new[name]]
        assert not other, f"run again: {other} differ"

    def told(self) -> dict[str, object]:
        return {
            "points": self.points,
            "calls": dict(Counter(call.what for call in self.calls)),
            "outcomes": {mode: dict(counts) for mode, counts in self.counts.items()},
            "faults": len(self.faults),
            "examples": self.faults[:FAULTS_TOLD],
        }


def _check_end(mode: str, ended: Ended, left: str) -> None:
    if mode in ("kill", "tear"):
        assert ended.code == -9, f"it was not killed: {ended.code}"
        return
    assert "Traceback" not in ended.said, ended.said[-300:]
    assert ended.code in (0, 1, 2), f"exit code {ended.code}: {ended.said[-300:]}"
    assert ended.code or left == "new", "exit code 0, but outputs are missing"


def _final(folder: Path) -> list[str]:
    """Files with a final name: not temporary, no lock, no rows of an unfinished table."""
    return list(_finals(folder))


def _finals(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        hidden = path.name.startswith(".") or path.suffix in (".partial", ".running", ".failed")
        beside = path.name.endswith(("-wal", "-shm", "-journal")) or "training" in path.parts
        if path.is_file() and not hidden and not beside:
            yield str(path.relative_to(folder))


def _told(call: Call) -> str:
    return f"{call.what} {Path(call.path).name}"


def main(name: str, step: str = "1") -> None:
    with tempfile.TemporaryDirectory(prefix="crash-") as folder:
        crash = Crash(name, Path(folder).resolve())
        if step == "calls":
            told = {"root": str(crash.work), "calls": Counter(call.what for call in crash.calls)}
            print(json.dumps(told))
            return
        crash.harm(int(step))
        print(json.dumps(crash.told()))


if __name__ == "__main__":
    main(*sys.argv[1:])
