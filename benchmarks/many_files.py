"""Claim: `anocaps score` takes a million files as it takes ten thousand: in the same memory, in a
time that is in proportion, and a run that is stopped goes on with no row lost or doubled.

Half of the bundled digits train a small network by the command line. The pictures of the other half
are linked again and again, 1,000 to a folder, until there are as many files as wanted, and scored
by the command line into a CSV file; each size adds files to those before. The largest run is
stopped by the signal of Ctrl-C when half of its rows are there, and continued with --resume: its
seconds are those of both parts. Each row of each run is compared with the row of the picture that
its file is a link to.

Memory is what the process and all that it started hold, as Linux tells it in /proc, read twice a
second: the most of it, and the most in each tenth of the time. Where more cores are busy than torch
has threads, pictures are decoded while others are scored. Links share their bytes, so that these
come from the system's cache: no disk is measured. Results: results/many-files.json.

    python benchmarks/many_files.py
    python benchmarks/many_files.py --files 10000 --out many-files.json
"""

import argparse
import csv
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from arguments import (
    Parser,
    at_least,
    device_name,
    existing,
    one_line,
    writable,
    writable_folder,
)
from folders import command, write_pictures

from anocaps.base.files import write_text
from anocaps.data import load_dataset
from anocaps.inspect.tables import partial_path
from anocaps.training.device import circumstances, pick_device

ROOT = Path(__file__).resolve().parents[1]
ANOCAPS = (sys.executable, "-m", "anocaps")
FILES = (10_000, 100_000, 1_000_000)
IN_A_FOLDER = 1_000
SECONDS = 0.5  # between two looks at the memory
ROUNDING = 1e-5  # by which a score may differ in another batch, relative where it is above 1
TRAINING = ("--size", "8", "--no-self-check")

Row = dict[str, Any]


@one_line
def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument(
        "--files", type=at_least(1), nargs="+", default=FILES, help="numbers of files"
    )
    parser.add_argument("--model", type=existing, help="a model file; else a small one is trained")
    parser.add_argument("--epochs", type=at_least(1), default=5, help="of that training")
    parser.add_argument(
        "--device", type=device_name, default="auto", help="'auto', 'cpu' or 'cuda'"
    )
    parser.add_argument("--folder", type=writable_folder, help="for the files; else temporary")
    parser.add_argument("--out", type=writable, default="results/many-files.json")
    options = parser.parse_args()
    if not Path("/proc/self/status").exists():
        raise SystemExit("memory is read from /proc, which only Linux has")
    device = pick_device(options.device)
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="many-files-", dir=options.folder) as place:
        result = measured(Path(place), sorted(set(options.files)), options, device.type)
    result |= circumstances(device)
    write_text(options.out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(proportion(result))
    print(f"written to {options.out}")
    if wrong := [row["files"] for row in result["rows"] if not sound(row)]:
        raise SystemExit(f"rows are lost, doubled or unlike their originals: of {wrong} files")


def measured(place: Path, sizes: list[int], options: argparse.Namespace, device: str) -> Row:
    pictures = write_digits(place)
    model = options.model or trained(place, options.epochs, device)
    straight = Scoring(model, place / "digits", place / "digits.csv", device)
    straight.run()
    originals = list(read_rows(straight.table))
    many, rows, before = place / "many", [], 0
    for files in sizes:
        link(pictures, many, range(before, files))
        scoring = Scoring(model, many, place / f"{files}.csv", device)
        if files == sizes[-1]:
            scoring.run(stop_at=files // 2)
        scoring.run()
        found = compared(read_rows(scoring.table), originals, files)
        rows.append({**scoring.told(files), **found})
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
        before = files
    return {
        "what": "anocaps score of links to pictures; the last run stopped and continued",
        "pictures": len(pictures),
        "model": options.model.name if options.model else f"quick, 8×8, {options.epochs} epochs",
        "bytes a file": bytes_a_file(rows) if len(rows) > 1 else None,
        "bytes of a name": sys.getsizeof(str(linked(many, 0))),
        "rows": rows,
    }


def proportion(result: Row) -> str:
    """How far the claim holds, from the smallest size to the largest."""
    first, last = result["rows"][0], result["rows"][-1]
    if first is last:
        return "one size tells nothing of growth"
    more, slower = last["files"] / first["files"], last["seconds"] / first["seconds"]
    return (
        f"{more:.3g} × the files: {slower:.3g} × the time, "
        f"{last['peak MiB'] - first['peak MiB']:+.0f} MiB, which is {result['bytes a file']:g} "
        f"bytes a file; a name alone has {result['bytes of a name']}"
    )


def bytes_a_file(rows: Sequence[Row]) -> float:
    """By which the peak grows from the smallest size to the largest."""
    first, last = rows[0], rows[-1]
    more = last["files"] - first["files"]
    return round((last["peak MiB"] - first["peak MiB"]) * 2**20 / more, 1)


# ── pictures, a model, many files ────────────────────────────────────────────────────────────


def write_digits(place: Path) -> list[Path]:
    """place/photos/CLASS to train on, and the pictures of place/digits, in their order."""
    digits = load_dataset("digits")
    for label, name in enumerate(digits.class_names):
        members = np.flatnonzero(digits.train.labels == label)
        write_pictures(place / "photos" / name, name, digits.train, members)
    write_pictures(place / "digits", "digit", digits.test, np.arange(len(digits.test.images)))
    return sorted((place / "digits").iterdir())


def trained(place: Path, epochs: int, device: str) -> Path:
    model = place / "model.safetensors"
    more = ("--epochs", epochs, "--device", device, "--json")
    command("train", place / "photos", "-o", model, *TRAINING, *more)
    return model


def linked(folder: Path, number: int) -> Path:
    return folder / f"{number // IN_A_FOLDER:04}" / f"{number:07}.png"


def link(pictures: Sequence[Path], folder: Path, numbers: Iterable[int]) -> None:
    """As many files as numbers, from the pictures in turn; copies, where a disk has no links."""
    for number in numbers:
        file, picture = linked(folder, number), pictures[number % len(pictures)]
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(picture, file)
        except OSError:
            shutil.copyfile(picture, file)


# ── one run, watched ─────────────────────────────────────────────────────────────────────────


@dataclass
class Scoring:
    """`anocaps score`, in one part or, where it is stopped, in two."""

    model: Path
    folder: Path
    table: Path
    device: str
    seconds: list[float] = field(default_factory=list)  # of each part; all that follows, of both
    start: float = 0.0  # seconds before there was a row
    busy: float = 0.0  # seconds of all cores together
    held: list[int] = field(default_factory=list)  # KiB, look by look
    kept: int = 0  # rows of the first part, where it was stopped
    progress: str | None = None  # the last line that told a rate and the time left

    def run(self, stop_at: int | None = None) -> None:
        """To the end, from where it was stopped before; or until so many rows are there."""
        rows, log = Lines(partial_path(self.table)), self.table.with_suffix(".log")
        words = [*ANOCAPS, "score", self.model, self.folder, "-o", self.table]
        words += ["--device", self.device, *(["--resume"] if self.kept else [])]
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        busy, started = cpu_seconds(), time.perf_counter()
        with open(log, "w", encoding="utf-8") as errors:
            process = subprocess.Popen(
                list(map(str, words)),
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=os.environ | {"PYTHONPATH": path},
            )
        try:
            self._watch(process, rows, stop_at)
        finally:
            process.kill()  # nothing, if it has ended
            process.wait()
        self.seconds.append(time.perf_counter() - started)
        self.busy += cpu_seconds() - busy
        self._check(process.returncode, log.read_text("utf-8"), stop_at is not None)
        self.kept = rows.count() - 1 if stop_at is not None else self.kept

    def _watch(
        self, process: "subprocess.Popen[bytes]", rows: "Lines", stop_at: int | None
    ) -> None:
        before, started, first = rows.count(), time.perf_counter(), None
        while process.poll() is None:
            self.held.append(resident(process.pid))
            if (there := rows.count()) > before and first is None:
                first = time.perf_counter()
            if stop_at is not None and there > stop_at:  # the first line is no row
                process.send_signal(signal.SIGINT)
                stop_at = None
            with suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS)
        self.start += (first or time.perf_counter()) - started

    def _check(self, code: int, said: str, stopped: bool) -> None:
        if code != (130 if stopped else 0):
            early = "It ended before it could be stopped. " if stopped and code == 0 else ""
            raise SystemExit(f"{early}anocaps score: exit code {code}\n{said[-1000:]}")
        notes = re.findall(r"^.* files/s, .* left$", said, re.MULTILINE)
        self.progress = notes[-1] if notes else self.progress

    def told(self, files: int) -> Row:
        seconds = sum(self.seconds)
        tenths = [max(map(int, part)) for part in np.array_split(self.held, 10) if len(part)]
        return {
            "files": files,
            "seconds": round(seconds, 1),
            "seconds before the first row": round(self.start, 1),
            "files/s": round(files / seconds, 1),
            "cores busy": round(self.busy / seconds, 2),
            "peak MiB": round(max(self.held) / 1024, 1),
            "MiB by tenths of the time": [round(most / 1024, 1) for most in tenths],
            "progress": self.progress,
            "stopped after rows": self.kept or None,
            "seconds of the parts": [round(part, 1) for part in self.seconds],
        }


class Lines:
    """How many lines a growing file has, by what was added since they were counted last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = self.end = 0

    def count(self) -> int:
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            file.seek(self.end)
            while part := file.read(2**20):
                self.lines += part.count(b"\n")
                self.end += len(part)
        return self.lines


def cpu_seconds() -> float:
    """Of all processes that this one has started and seen end."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def resident(root: int) -> int:
    """KiB of memory that a process and all that it started hold; 0 if it is gone."""
    parent_of, held = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):  # ended meanwhile
            text = status.read_text("utf-8", "replace")
            said = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
            number = int(status.parent.name)
            parent_of[number] = int(said["PPid"])
            held[number] = int(said.get("VmRSS", "0").split()[0])
    family = {root}
    while more := {n for n, parent in parent_of.items() if parent in family} - family:
        family |= more
    return sum(held.get(number, 0) for number in family)


# ── what the table says ──────────────────────────────────────────────────────────────────────


def read_rows(table: Path) -> Iterator[Row]:
    with open(table, newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def compared(rows: Iterable[Row], pictures: Sequence[Row], files: int) -> Row:
    """A table of links with that of the pictures: link k is picture k, counted round and round."""
    times: Counter[int] = Counter()
    unlike, largest = 0, 0.0
    for row in rows:
        number = int(Path(row["file"]).stem)
        times[number] += 1
        difference = differing(row, pictures[number % len(pictures)])
        unlike += difference > ROUNDING
        largest = max(largest, difference if math.isfinite(difference) else 0.0)
    return {
        "rows": times.total(),
        "lost": sum(number not in times for number in range(files)),
        "doubled": times.total() - len(times),
        "unlike the original": unlike,
        "largest difference of numbers": largest,
    }


def differing(row: Row, original: Row) -> float:
    """The largest difference of all columns but the name; infinite where words differ."""
    return max(_apart(row[name], original[name]) for name in original if name != "file")


def _apart(one: str, other: str) -> float:
    if one == other:
        return 0.0
    try:
        return abs(float(one) - float(other)) / max(1.0, abs(float(other)))
    except ValueError:
        return math.inf


def sound(row: Row) -> bool:
    wrong = row["lost"] + row["doubled"] + row["unlike the original"]
    return row["rows"] == row["files"] and wrong == 0


if __name__ == "__main__":
    main()
