"""Claim: `anocaps score` reads a million files in the memory that ten thousand take (515 MiB) at
2,300 files a second on 2 cores, and a run that was stopped is resumed with no row lost or doubled.
The printed rows prove it or not.

Half of the bundled digits train a small network. The images of the other half are linked again and
again, 1,000 to a folder, and scored by the command line into a CSV file. The largest run is stopped
by Ctrl-C when half of its rows are written, and resumed with --resume; its seconds are those of
both parts. Each row is compared with the row of the image that its file links to. Memory is what
the process and all its children hold, read from /proc twice a second (Linux only). Links share
their bytes, so that they come from the system's cache: no disk is measured.

With --train it is the memory of `anocaps train --preset photo` instead, on noisy photos of 48×48
in four classes. Asked is less than 4 GiB for 100,000.

    python benchmarks/many_files.py
    python benchmarks/many_files.py --files 2000 --out many-files.json        (half a minute)
    python benchmarks/many_files.py --train 20000 100000   (results/many-files-training.json)
"""

import csv
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import common
import numpy as np
import torch
from folders import command, write_images
from PIL import Image

from anocaps.data import load_dataset
from anocaps.inspect.tables import partial_path
from anocaps.training.device import circumstances

IN_A_FOLDER = 1_000
ROUNDING = 1e-5  # by which a score may differ in another batch, relative where it is above 1

Row = dict[str, Any]


def main() -> None:
    parser = common.parser(__doc__, "many-files.json")
    parser.add_argument("--files", type=int, nargs="+", default=(10_000, 100_000, 1_000_000))
    parser.add_argument("--train", type=int, nargs="+", metavar="FILES")
    parser.add_argument("--size", type=int, help="of --train: shorter side that the stem sees")
    options = parser.parse_args()
    if options.train:
        training(options.train, options.size, options.out.with_stem("many-files-training"))
        return
    with TemporaryDirectory(prefix="many-files-") as place:
        result = measured(Path(place), sorted(set(options.files)))
    common.write(options.out, result | circumstances(torch.device("cpu")))
    for row in result["rows"]:
        if row["rows"] != row["files"] or row["lost"] + row["doubled"] + row["unlike the original"]:
            sys.exit(f"rows are lost, doubled or unlike their originals: of {row['files']} files")


def measured(place: Path, sizes: list[int]) -> Row:
    images = write_digits(place)
    model = place / "model.safetensors"
    settings = ("--size", 8, "--no-self-check", "--epochs", 5, "--device", "cpu", "--json")
    command("train", place / "photos", "-o", model, *settings)
    straight = Scoring(model, place / "digits", place / "digits.csv")
    straight.run()
    originals = list(read_rows(straight.table))
    many, rows, before = place / "many", [], 0
    for files in sizes:
        link(images, many, range(before, files))
        scoring = Scoring(model, many, place / f"{files}.csv")
        if files == sizes[-1]:
            scoring.run(stop_at=files // 2)
        scoring.run()
        rows.append(scoring.told(files) | compared(read_rows(scoring.table), originals, files))
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
        before = files
    more = sizes[-1] - sizes[0]
    grown = 2**20 * (rows[-1]["peak MiB"] - rows[0]["peak MiB"])
    return {
        "what": "anocaps score of links to images; the last run stopped and resumed",
        "images": len(images),
        "model": "quick, 8×8, 5 epochs",
        "bytes a file": round(grown / more, 1) if more else None,
        "rows": rows,
    }


def write_digits(place: Path) -> list[Path]:
    """place/photos/CLASS to train on, and the images of place/digits, in their order."""
    digits = load_dataset("digits")
    for label, name in enumerate(digits.class_names):
        members = np.flatnonzero(digits.train.labels == label)
        write_images(place / "photos" / name, name, digits.train, members)
    write_images(place / "digits", "digit", digits.test, np.arange(len(digits.test.images)))
    return sorted((place / "digits").iterdir())


def link(images: Sequence[Path], folder: Path, numbers: Iterable[int]) -> None:
    """One file for each number, from the images in turn; copies, where a disk has no links."""
    for number in numbers:
        file = folder / f"{number // IN_A_FOLDER:04}" / f"{number:07}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(images[number % len(images)], file)
        except OSError:
            shutil.copyfile(images[number % len(images)], file)


# ── training on many photos ──────────────────────────────────────────────────────────────────


def training(sizes: Iterable[int], size: int | None, out: Path) -> None:
    """Rows are added to those in the file."""
    stored = common.stored(out) or {
        "what": "peak memory of anocaps train --preset photo, photos of 48×48 in four classes",
        "rows": [],
    }
    for files in sorted(sizes):
        with TemporaryDirectory(prefix="many-files-") as place:
            write_photos(Path(place) / "photos", files)
            words = ["train", f"{place}/photos", "-o", f"{place}/model.safetensors", "--preset"]
            words += ["photo", "--device", "cpu"]
            words += [] if size is None else ["--size", str(size)]
            started, peak = time.perf_counter(), 0
            process = subprocess.Popen([sys.executable, "-m", "anocaps", *words])
            while process.poll() is None:
                peak = max(peak, resident(process.pid))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
            if process.returncode != 0:
                sys.exit(f"anocaps train: exit code {process.returncode}")
            row = {
                "files": files,
                "size": size,
                "self_check": True,
                "seconds": round(time.perf_counter() - started, 1),
                "peak MiB": round(peak / 1024, 1),
                **circumstances(torch.device("cpu")),
            }
        stored["rows"].append(row)
        common.write(out, stored)
        print(f"{files} files: {row['seconds']} s, {row['peak MiB']} MiB", flush=True)


def write_photos(folder: Path, files: int) -> None:
    """Coarse random colours, alike within a class, and fine noise."""
    generator = np.random.default_rng(0)
    usual = generator.integers(60, 196, (4, 6, 6, 3))  # of each class
    for number in range(files):
        kind = number % len(usual)
        coarse = usual[kind] + generator.normal(0, 30, (6, 6, 3))
        image = coarse.repeat(8, axis=0).repeat(8, axis=1) + generator.normal(0, 8, (48, 48, 3))
        file = folder / f"class-{kind}" / f"{number // IN_A_FOLDER:04}" / f"{number:07}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(file)


# ── one run, watched ─────────────────────────────────────────────────────────────────────────


class Scoring:
    """`anocaps score`, in one part or, where it is stopped, in two."""

    def __init__(self, model: Path, folder: Path, table: Path) -> None:
        self.model, self.folder, self.table = model, folder, table
        self.seconds: list[float] = []  # of each part
        self.peak = 0  # KiB
        self.kept = 0  # rows of the first part, where it was stopped

    def run(self, stop_at: int | None = None) -> None:
        """Run to the end, or until `stop_at` rows are written; continue a stopped run."""
        words = ["score", self.model, self.folder, "-o", self.table, "--device", "cpu"]
        words += ["--resume"] if self.kept else []
        log = self.table.with_suffix(".log")
        started = time.perf_counter()
        with open(log, "w", encoding="utf-8") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "anocaps", *map(str, words)],
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        stopped = False
        try:
            while process.poll() is None:
                self.peak = max(self.peak, resident(process.pid))
                if stop_at is not None and not stopped and self._rows() >= stop_at:
                    process.send_signal(signal.SIGINT)
                    stopped = True
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
        finally:
            process.kill()  # nothing, if it has ended
            process.wait()
        self.seconds.append(time.perf_counter() - started)
        if process.returncode != (130 if stop_at is not None else 0):
            said = log.read_text("utf-8")[-1000:]
            sys.exit(f"anocaps score: exit code {process.returncode}\n{said}")
        if stop_at is not None:
            self.kept = self._rows()

    def _rows(self) -> int:
        """Written so far; the first line is the header."""
        with suppress(FileNotFoundError), open(partial_path(self.table), "rb") as file:
            return sum(part.count(b"\n") for part in iter(lambda: file.read(2**20), b"")) - 1
        return 0

    def told(self, files: int) -> Row:
        seconds = sum(self.seconds)
        return {
            "files": files,
            "seconds": round(seconds, 1),
            "files/s": round(files / seconds, 1),
            "peak MiB": round(self.peak / 1024, 1),
            "stopped after rows": self.kept or None,
        }


def resident(root: int) -> int:
    """KiB of memory that a process and all its children hold; 0 if it is gone."""
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


def compared(rows: Iterable[Row], images: Sequence[Row], files: int) -> Row:
    """The rows of links against those of the images: link k is image k modulo their number."""
    times: Counter[int] = Counter()
    unlike = 0
    for row in rows:
        number = int(Path(row["file"]).stem)
        times[number] += 1
        original = images[number % len(images)]
        unlike += any(_apart(row[key], original[key]) for key in original if key != "file")
    return {
        "rows": times.total(),
        "lost": sum(number not in times for number in range(files)),
        "doubled": times.total() - len(times),
        "unlike the original": unlike,
    }


def _apart(one: str, other: str) -> bool:
    """Whether two cells differ by more than rounding."""
    if one == other:
        return False
    try:
        return not math.isclose(float(one), float(other), rel_tol=ROUNDING, abs_tol=ROUNDING)
    except ValueError:
        return True


if __name__ == "__main__":
    common.run_script(main)
