"""Claim: scoring 100,000 small files on a running Ray cluster takes at most 15 % more time than in
processes of this computer, two workers each, in memory that does not grow. The printed lines prove
it or not. A cluster that the command starts itself adds a few seconds for any number of files.

`anocaps score … -o FOLDER` scores links to the bundled digits (many_files.py), in turns: with
`--engine local`, with `--engine ray`, which starts and ends its own cluster, and with `--address`
of a cluster that is running. Seconds are those of the whole command; "first part" is when the first
part was finished. The overhead is the median ratio of turns. CPU seconds hardly depend on what else
the computer does. Memory is what the command, its children and the cluster hold, by tenths of its
time (both from /proc, Linux only). The folders must have equal bytes. Where pandas is installed,
Ray Data scores the same files with the same functions, in two actors.

It also measures on one core how many files of several kinds are read and decoded in a second, and
how many photos an exported model of preset `photo` scores, at the size that the preset chooses.

    python benchmarks/engines.py
    python benchmarks/engines.py --files 2000 --out engines.json        (two minutes)
    python benchmarks/engines.py --one-core                             (one minute)
"""

import hashlib
import os
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import common
import numpy as np
import torch
from folders import command
from many_files import link, write_digits
from PIL import Image

from anocaps.images.decode import Fit, read_image
from anocaps.inspect.judge import load_judge
from anocaps.judging.judgement import Judge
from anocaps.training.device import circumstances

WORKERS = 2
TURNS = 3
ALPHA = 0.05
RUNNING = "ray, running cluster"
SETTLE = 3.0  # seconds that a started cluster gets to finish its start

Row = dict[str, Any]


def main() -> None:
    parser = common.parser(__doc__, "engines.json")
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument(
        "--one-core", action="store_true", help="measure one core only; keep the rest of the file"
    )
    parser.add_argument("--ray-data", nargs=3, metavar=("MODEL", "FOLDER", "OUT"), help="one run")
    options = parser.parse_args()
    if options.ray_data:
        score_with_ray_data(*options.ray_data)
        return
    with TemporaryDirectory(prefix="engines-") as place:
        if options.one_core:
            result = common.stored(options.out)
        else:
            before = os.getloadavg()
            result = compared(Path(place), options.files, options.turns)
            result |= {"load average": {"before": before, "after": os.getloadavg()}}
            result |= circumstances(torch.device("cpu"))
        common.write(options.out, result | one_core(Path(place)))


# ── engines in turns ─────────────────────────────────────────────────────────────────────────


def compared(place: Path, files: int, turns: int) -> Row:
    images = write_digits(place)
    model, exported = place / "model.safetensors", place / "model.onnx"
    settings = ("--size", 8, "--no-self-check", "--epochs", 5, "--device", "cpu", "--json")
    command("train", place / "photos", "-o", model, *settings)
    command("export", model, exported, "--json")
    link(images, place / "many", range(files))
    score = [sys.executable, "-m", "anocaps", "score", str(exported), str(place / "many")]
    sides = {
        name: [*score, "--engine", name.partition(",")[0], "--jobs", str(WORKERS), "--json", "-o"]
        for name in ("local", "ray", RUNNING)
    }
    if find_spec("pandas"):
        sides["ray data"] = [sys.executable, __file__, "--ray-data", *score[-2:]]
    os.environ |= {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else Ray replaces 127.0.0.1
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    runs: dict[str, list[Row]] = {name: [] for name in sides}
    for turn in range(turns):
        for name, words in sides.items():
            out = place / f"{name.replace(' ', '-')}-{turn}"
            if name == RUNNING:
                with running_cluster(place / "ray") as (address, cluster):
                    joining = [*words, str(out), "--address", address]
                    runs[name].append(watched(joining, out, cluster))
            else:
                runs[name].append(watched([*words, str(out)], out))
            print(turn, name, runs[name][-1], flush=True)
            if name != "ray data":
                same = digests(out) == digests(place / f"local-{turn}")
                common.require(same, f"{name}: the parts are not those of the local engine")
    return {
        "what": "anocaps score of links to images into a folder, whole commands in turns",
        "files": files,
        "workers": WORKERS,
        "model": "quick, 8×8, 5 epochs, exported",
        "turns": turns,
        "sides": {name: told(found, files) for name, found in runs.items()},
        "overhead": {name: overhead(runs[name], runs["local"]) for name in runs if name != "local"},
    }


@contextmanager
def running_cluster(folder: Path) -> Iterator[tuple[str, int]]:
    """A Ray cluster at 127.0.0.1: its address, and the process whose children it consists of."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = ["--head", "--block", "--node-ip-address=127.0.0.1", f"--port={address[10:]}",
             f"--num-cpus={WORKERS}", f"--object-store-memory={256 * 2**20}",
             "--include-dashboard=false", "--disable-usage-stats",
             f"--temp-dir={folder}"]  # fmt: skip
    head = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        said = ""
        while "Ray runtime started" not in said:
            line = head.stdout.readline()
            common.require(bool(line), f"the cluster does not start:\n{said}")
            said += line
        time.sleep(SETTLE)
        yield address, head.pid
    finally:
        head.terminate()
        head.communicate()


def watched(words: list[str], out: Path, cluster: int | None = None) -> Row:
    """Seconds, seconds to the first part, CPU seconds, and bytes of memory twice a second."""
    held: list[int] = []
    used: dict[int, float] = {}  # CPU seconds of each process, when it was last seen
    idle = {} if cluster is None else {pid: cpu for pid, (_, cpu) in family(cluster).items()}
    first, before = None, 0.0
    started = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None:
        seen = family(process.pid) | ({} if cluster is None else family(cluster))
        held.append(sum(memory for memory, _ in seen.values()))
        used |= {pid: seconds - idle.get(pid, 0) for pid, (_, seconds) in seen.items()}
        if first is None and any(out.glob("*.parquet")):
            first, before = time.perf_counter() - started, sum(used.values())
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    seconds = time.perf_counter() - started
    if process.returncode:
        sys.exit(f"{' '.join(words)}: exit code {process.returncode}\n{process.stderr.read()}")
    cpu = sum(used.values())
    times = {"seconds": seconds, "first": first or seconds, "cpu": cpu, "cpu after": cpu - before}
    return times | {"memory": held}


def family(root: int) -> dict[int, tuple[int, float]]:
    """Bytes of memory and CPU seconds of a process and all its children, by number."""
    parent_of, found = {}, {}
    page, tick = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # ended meanwhile
            fields = path.read_text("utf-8", "replace").rpartition(")")[2].split()
            number = int(path.parent.name)
            parent_of[number] = int(fields[1])
            found[number] = int(fields[21]) * page, (int(fields[11]) + int(fields[12])) / tick
    members = {root}
    while more := {n for n, parent in parent_of.items() if parent in members} - members:
        members |= more
    return {number: found[number] for number in members if number in found}


def told(runs: list[Row], files: int) -> Row:
    rates = [files / run["seconds"] for run in runs]
    tenths = np.array_split(runs[-1]["memory"], 10)
    return {
        "seconds": common.spread([run["seconds"] for run in runs], 1),
        "seconds to the first part": common.spread([run["first"] for run in runs], 1),
        "CPU seconds": common.spread([run["cpu"] for run in runs], 1),
        "files/s": common.spread(rates, 1),
        "peak MiB": round(max(max(run["memory"]) for run in runs) / 2**20, 1),
        "MiB by tenths of the time": [round(max(t) / 2**20, 1) for t in tenths if len(t)],
    }


def overhead(runs: list[Row], local: list[Row]) -> Row:
    """More time than the local engine takes, as shares of it: medians of turns."""
    pairs = list(zip(runs, local))
    ratios = {
        "whole command": [run["seconds"] / other["seconds"] for run, other in pairs],
        "CPU": [run["cpu"] / other["cpu"] for run, other in pairs],
        "after the first part": [
            (run["seconds"] - run["first"]) / (other["seconds"] - other["first"])
            for run, other in pairs
            if other["seconds"] > other["first"]
        ],
        "CPU after the first part": [
            run["cpu after"] / other["cpu after"] for run, other in pairs if other["cpu after"]
        ],
    }
    return {name: round(statistics.median(r) - 1, 3) for name, r in ratios.items() if r}


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.glob("*.parquet")
    }


# ── the same with Ray Data ───────────────────────────────────────────────────────────────────


class Scorer:
    """An actor of Ray Data: from names to rows."""

    def __init__(self, model: str) -> None:
        self.judge = load_judge(Path(model), "cpu")

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        from anocaps.inspect.parts.sources import Files
        from anocaps.inspect.scoring import columns_of, score_images

        images = Files(tuple(batch["item"]), "").read(self.judge.fit, ahead=256)
        rows = [each.row for part in score_images(self.judge, images, ALPHA) for each in part]
        return {name: [row[name] for row in rows] for name in columns_of(self.judge)}


def score_with_ray_data(model: str, folder: str, out: str) -> None:
    import ray

    from anocaps.engines.choose import open_engine
    from anocaps.images.walk import list_images

    with open_engine("ray", workers=WORKERS + 1):
        ray.data.DataContext.get_current().enable_progress_bars = False
        names = [str(path) for path in list_images([Path(folder)])]
        actors = ray.data.ActorPoolStrategy(size=WORKERS)
        scored = ray.data.from_items(names).map_batches(
            Scorer, fn_constructor_args=(model,), batch_size=4096, compute=actors
        )
        scored.write_parquet(out)


# ── one core: decoding, and preset `photo` ───────────────────────────────────────────────────

KINDS = {  # width and height of the file; models of preset `photo` take the JPEG files
    "PNG 28×28": ("PNG", 28, 28),
    "JPEG 640×480": ("JPEG", 640, 480),
    "JPEG 4000×3000": ("JPEG", 4000, 3000),
}
SECONDS = 3.0  # of each kind
TRAINED = 24  # photos; they fill the memory of patches


def one_core(place: Path) -> Row:
    judge = photo_judge(place)
    fits = {"PNG": Fit(28, 28, 1, "resize"), "JPEG": judge.fit}
    return {
        "decoding": {name: decoding(*kind, fits[kind[0]]) for name, kind in KINDS.items()},
        "preset photo": photo_scoring(judge),
        "one core": circumstances(torch.device("cpu")),
    }


def photo_judge(place: Path) -> Judge:
    """An exported model of preset `photo` for photos of 640×480, with one thread."""
    folder, model, exported = place / "noise", place / "photo.safetensors", place / "photo.onnx"
    folder.mkdir()
    for number, content in enumerate(photos(*KINDS["JPEG 640×480"], TRAINED)):
        (folder / f"{number}.jpg").write_bytes(content)
    settings = ("--preset", "photo", "--no-self-check", "--device", "cpu", "--json")
    command("train", folder, "-o", model, *settings)
    command("export", model, exported, "--json")
    with patch.dict(os.environ, OMP_NUM_THREADS="1"):
        return load_judge(exported, "cpu")


def photo_scoring(judge: Judge) -> Row:
    """Photos/s that one core scores, without decoding. What is in a photo does not change it."""
    shape = (8, judge.fit.height, judge.fit.width, judge.fit.channels)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    judge.judge(images)  # allocates memory
    scored, started = 0, time.process_time()
    while (taken := time.process_time() - started) < SECONDS:
        judge.judge(images)
        scored += len(images)
    return {"height and width": shape[1:3], "photos/s": round(scored / taken, 2)}


def decoding(kind: str, width: int, height: int, fit: Fit) -> Row:
    """Files/s that one core reads and decodes, and their mean size."""
    contents = list(photos(kind, width, height, 8))
    with TemporaryDirectory() as folder:
        paths = [Path(folder, f"{k}.img") for k in range(len(contents))]
        for path, content in zip(paths, contents):
            path.write_bytes(content)
        read_image(paths[0], fit)
        files, started = 0, time.process_time()
        while (taken := time.process_time() - started) < SECONDS:
            read_image(paths[files % len(paths)], fit)
            files += 1
    size = statistics.mean(map(len, contents))
    return {"files/s": round(files / taken, 1), "KiB": round(size / 1024, 1)}


def photos(kind: str, width: int, height: int, count: int) -> Iterator[bytes]:
    """Coarse random colours with fine noise, about as large as photos are."""
    generator = np.random.default_rng(0)
    for _ in range(count):
        coarse = generator.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        image = np.asarray(
            Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        )
        noise = generator.normal(0, 6, image.shape)
        file = BytesIO()
        Image.fromarray((image + noise).clip(0, 255).astype(np.uint8)).save(file, kind, quality=90)
        yield file.getvalue()


if __name__ == "__main__":
    common.run_script(main)
