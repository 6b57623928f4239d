"""Claim: 1,000,000 rows go through `anocaps score` with random kills, and no row is lost, doubled
or wrong; an hour of mixed requests leaves the memory of `anocaps serve` flat.

`score`: a small network is exported to ONNX. Links to 898 images are scored into a CSV file. The
process is killed (SIGKILL) at random moments, a third of them soon after a start, and started again
with --resume. Each row is compared with the row of the image that its file links to.

`serve`: clients send what people and programs send, good and bad: images, broken images, uploads in
parts, half requests, wrong tokens, jobs, marks, downloads and streams of events. Each answer is
checked. Memory (VmRSS) and open files of the server are sampled every few seconds.

    python benchmarks/soak.py                     (make soak: both, an hour and a half)
    python benchmarks/soak.py score --rows 5000 --kills 4 --out soak.json
    python benchmarks/soak.py serve --minutes 1 --out soak.json
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import common
import numpy as np
from folders import command
from many_files import compared, link, read_rows, write_digits
from serving import served
from soak_load import Load

from anocaps.base.provenance import provenance, usable_cores
from anocaps.inspect.tables import partial_path

EVERY = 0.2  # seconds between two looks at a process that scores
SAMPLE = 5.0  # seconds between two samples of the server
FIRST_KILL = 100_000  # bytes of rows

Row = dict[str, Any]


def main() -> None:
    parser = common.parser(__doc__, "reliability.json")
    parser.add_argument(
        "what",
        nargs="*",
        metavar="WHAT",
        choices=["score", "serve", []],
        help="score or serve; else both",
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for what in given.what or ("score", "serve"):
        with TemporaryDirectory(prefix="soak-") as name:
            place = Path(name)
            images = write_digits(place)
            if what == "score":
                found = score(place, images, given.rows, given.kills, random.Random(given.seed))
            else:
                found = serve(place, images, given.minutes, given.seed)
        found |= {"circumstances": provenance("cpu", usable_cores())}
        stored = common.stored(given.out)
        soak = stored.get("soak", {}) | {what: found}
        common.write(given.out, stored | {"soak": soak})
        if found["faults"]:
            sys.exit(f"{what}: {found['faults']} faults")


def small_model(place: Path) -> Path:
    """An ONNX model for images of 8×8."""
    model = place / "model.safetensors"
    settings = ("--size", 8, "--no-self-check", "--epochs", 5, "--device", "cpu", "--json")
    command("train", place / "photos", "-o", model, *settings)
    command("export", model, model.with_suffix(".onnx"), "--json")
    return model.with_suffix(".onnx")


# ── rows ─────────────────────────────────────────────────────────────────────────────────────


def score(place: Path, images: Sequence[Path], rows: int, kills: int, chance: random.Random) -> Row:
    model, table = small_model(place), place / "scores.csv"
    command("score", model, place / "digits", "-o", place / "digits.csv", "--json")
    originals = list(read_rows(place / "digits.csv"))
    link(images, place / "many", range(rows))
    words = [sys.executable, "-m", "anocaps", "score", model, place / "many", "-o", table]
    started, kept, samples = time.perf_counter(), [], []
    wanted = FIRST_KILL  # bytes of new rows before the next kill
    while True:
        killing = len(kept) < kills
        soon = killing and chance.random() < 1 / 3
        after = chance.uniform(0, 15) if soon else None
        process = subprocess.Popen([*map(str, words), "--resume"], stdout=subprocess.DEVNULL)
        samples = watched(process, partial_path(table), after, wanted if killing else None, chance)
        if process.returncode not in (0, -signal.SIGKILL):
            sys.exit(f"anocaps score: exit code {process.returncode}")
        if table.exists() and not partial_path(table).exists():  # perhaps killed just afterwards
            break
        kept.append(lines(partial_path(table)) if partial_path(table).exists() else 0)
        if kept[-1]:
            size = partial_path(table).stat().st_size / kept[-1]
            wanted = round(chance.expovariate(kills / (0.9 * rows * size))) + 1
        print(f"kill {len(kept)}: {kept[-1]:,} rows kept", flush=True)
    found = compared(read_rows(table), originals, rows)
    left = sorted(path.name for path in place.iterdir() if path.name.startswith((".", "scores.")))
    # a kill while the rows are copied to the table keeps all of them
    shrunk = sum(after < before for before, after in pairwise(kept))
    faults = found["lost"] + found["doubled"] + found["unlike the original"] + shrunk
    return {
        "files": rows, **found, "kills": len(kept), "rows at the kills": kept,
        "left beside the table": [name for name in left if name != table.name],
        "seconds": round(time.perf_counter() - started, 1),
        "memory of the last process": trend(samples),
        "faults": faults + (left != [table.name]),
    }  # fmt: skip


def watched(
    process: "subprocess.Popen[bytes]", partial: Path, after: float | None, wanted: int | None,
    chance: random.Random,
) -> list[tuple[float, float]]:  # fmt: skip
    """Samples of memory until the process ends; kill it after some seconds, or some new bytes."""
    started, samples = time.perf_counter(), []
    before = partial.stat().st_size if partial.exists() else 0
    while process.poll() is None:
        passed = time.perf_counter() - started
        samples.append((passed, resident(process.pid)))
        grown = partial.stat().st_size - before if partial.exists() else 0
        if (after is not None and passed >= after) or (
            after is None and wanted is not None and grown >= wanted
        ):
            time.sleep(chance.uniform(0, EVERY))
            process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(EVERY)
    return [sample for sample in samples if sample[1]]


def lines(partial: Path) -> int:
    """Rows in a file; its first line is about the run."""
    with open(partial, "rb") as file:
        return max(0, sum(part.count(b"\n") for part in iter(lambda: file.read(2**20), b"")) - 1)


# ── the server ───────────────────────────────────────────────────────────────────────────────


def serve(place: Path, images: Sequence[Path], minutes: float, seed: int) -> Row:
    model = small_model(place)
    (place / "project" / "models").mkdir(parents=True)
    model.rename(place / "project" / "models" / "digits.onnx")
    samples, files = [], []
    with served(place) as port:
        server = _child(os.getpid())
        load = Load(port, place / "project", images, seed)
        load.start()
        started = time.perf_counter()
        while (passed := time.perf_counter() - started) < 60 * minutes:
            samples.append((passed, resident(server)))
            if len(samples) % 12 == 1:
                print(f"{passed / 60:.0f} min: {samples[-1][1]:.1f} MiB", flush=True)
            files.append(len(os.listdir(f"/proc/{server}/fd")))
            time.sleep(min(SAMPLE, 60 * minutes / 20))
        load.stop()
        left = sorted(path.name for path in (place / "project" / "incoming").iterdir())
    found = load.told()
    return {
        "minutes": minutes, **found,
        "memory": trend(samples),
        "open files": {"first": files[len(files) // 10], "last": files[-1], "most": max(files)},
        "left in incoming": left,
        "faults": found["wrong answers"] + len(left),
    }  # fmt: skip


def _child(parent: int) -> int:
    """The process that this one started."""
    (server,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(server)


def resident(process: int) -> float:
    """MiB that a process holds; 0 if it is gone."""
    with suppress(OSError, ValueError, StopIteration):
        status = Path(f"/proc/{process}/status").read_text("utf-8", "replace").splitlines()
        return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) / 1024
    return 0.0


def trend(samples: Sequence[tuple[float, float]]) -> Row:
    """Memory in MiB over time, after the first tenth, in which caches fill."""
    held = np.array([each for _, each in samples[len(samples) // 10 :]])
    tenth, half = max(1, len(held) // 10), len(held) // 2
    middle, last = (float(np.median(part)) for part in (held[half : half + tenth], held[-tenth:]))
    return {
        "samples": len(samples),
        "first MiB": round(float(np.median(held[:tenth])), 1),
        "last MiB": round(last, 1),
        "MiB gained in the second half": round(last - middle, 1),
        "peak MiB": round(max(each for _, each in samples), 1),
        "MiB, evenly spaced": [round(each, 1) for _, each in samples[:: len(samples) // 60 + 1]],
    }


if __name__ == "__main__":
    common.run_script(main)
