"""Claim: the time to score images is in proportion to their number, and the memory does not depend
on it, but for the scores; more classes, larger images and larger fleets cost what the rows say.

Four things grow, one at a time: images scored (10³ to 10⁶: one random image, repeated without a
copy), classes (2 to 100), the side of an image (28 to 128 pixels; the paper's network is made for
48 at most, beyond that the quick preset's), networks trained at once (1 to 32, on a GPU; a CPU
trains them in turn, at the time and memory of one). On a CPU the images are scored by the quick
preset's network at 8×8: the paper's would take half an hour. Training steps are of 100 images, in
bf16 on a GPU; scores are PP and RE in fp32. Times are medians.

Memory, in MiB: on a CPU the most that a process of its own held beyond what it began with; on a GPU
the most that torch took from the device. Results: results/growth-cpu.json, results/growth-gpu.json.

    python benchmarks/growth.py --device cpu
"""

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from anocaps.circumstances import circumstances
from anocaps.detectors import CapsNetDetector, load
from anocaps.detectors.capsnet import capsnet_loss
from anocaps.detectors.presets import find_preset
from anocaps.files import write_text
from anocaps.memory import ran_out, release
from anocaps.networks.capsnet import CapsNet
from anocaps.preprocessing import Preprocessing
from anocaps.training import Run, TrainingConfig, pick_device, pick_precision

BATCH = 100
SCORES = ("pp", "re")
Row = dict[str, float | int | str]


@dataclass(frozen=True)
class Kind:
    """A network: a preset's, for images of so many pixels a side and so many classes."""

    preset: str
    side: int = 28
    classes: int = 9


@dataclass(frozen=True)
class Plan:
    scorer: Kind
    images: tuple[int, ...]
    classes: tuple[Kind, ...]
    sides: tuple[Kind, ...]
    fleet: tuple[int, ...]
    scored: int  # images, where their number does not grow
    seconds: float  # of repeats for one row: 1 to 5 of them
    steps: int  # in a repeat


IMAGES = (10**3, 10**4, 10**5, 10**6)
CLASSES = tuple(Kind("paper", classes=count) for count in (2, 5, 20, 100))
SIDES = (
    *(Kind("paper", side) for side in (28, 48)),
    *(Kind("quick", side) for side in (28, 64, 128)),
)
PLANS = {
    "cpu": Plan(Kind("quick", 8), IMAGES, CLASSES, SIDES, (), scored=256, seconds=1.5, steps=1),
    "cuda": Plan(
        Kind("paper"), IMAGES, CLASSES, SIDES, (1, 2, 4, 8, 16, 32),
        scored=20_000, seconds=0.5, steps=20,
    ),
}  # fmt: skip
TINY = Kind("quick", 8, 2)
QUICK = Plan(TINY, (100, 300), (TINY,), (Kind("quick", 12, 3),), (1, 2), 64, 0.0, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", help="'auto', 'cpu' or 'cuda'")
    parser.add_argument("--out", type=Path, help="results/growth-cpu.json or -gpu.json if left out")
    parser.add_argument("--quick", action="store_true", help="tiny networks, to test the script")
    options = parser.parse_args()
    device = pick_device(options.device)
    plan = QUICK if options.quick else PLANS[device.type]
    short = "gpu" if device.type == "cuda" else "cpu"
    out = options.out or Path(f"results/growth-{short}.json")

    started = time.perf_counter()
    if device.type == "cuda":
        compile_kernels(plan)
    result = {
        "what": "PP and RE in fp32; training steps of 100 images; medians; peak memory in MiB",
        "images": by_images(plan, device),
        "classes": [both(kind, plan, device) for kind in plan.classes],
        "side": [both(kind, plan, device) for kind in plan.sides],
        "fleet": by_fleet(plan, device) if device.type == "cuda" else [],
        "seconds": round(time.perf_counter() - started, 1),
        **circumstances(device),
    }
    write_text(out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if not result["fleet"]:
        print("networks in a fleet: a CPU trains them in turn, at the time and memory of one")
    print(proportion(result["images"]))
    print(f"written to {out}")


def proportion(rows: list[Row]) -> str:
    """How far the claim holds, over two powers of ten: below, a GPU has no full batches."""
    middle, last = rows[-min(3, len(rows))], rows[-1]
    more = last["images"] / middle["images"]
    slower = last["seconds"] / middle["seconds"]
    grown = last["peak MiB"] - middle["peak MiB"]
    return f"{more:g} × the images: {slower:.3g} × the time, {grown:+.0f} MiB"


# ── what grows ───────────────────────────────────────────────────────────────────────────────


def by_images(plan: Plan, device: torch.device) -> list[Row]:
    rows = []
    with fitted(plan.scorer) as model:
        for images in plan.images:
            cost = apart(device, scoring_cost, model, images, plan.seconds, device)
            kind = {"preset": plan.scorer.preset, "side": plan.scorer.side}
            rows.append(told({**kind, "images": images, **cost}))
    return rows


def both(kind: Kind, plan: Plan, device: torch.device) -> Row:
    """A training step, and scoring."""
    step = apart(device, training_cost, kind, plan.steps, plan.seconds, device)
    with fitted(kind) as model:
        score = apart(device, scoring_cost, model, plan.scored, plan.seconds, device)
    return told(
        {
            "preset": kind.preset,
            "side": kind.side,
            "classes": kind.classes,
            "training ms a step": round(step["seconds"] * 1e3, 3),
            "training peak MiB": step["peak MiB"],
            "scoring µs an image": round(score["seconds"] / plan.scored * 1e6, 3),
            "scoring peak MiB": score["peak MiB"],
        }
    )


def by_fleet(plan: Plan, device: torch.device) -> list[Row]:
    """The paper's network as often as named; ends where the device is full."""
    rows: list[Row] = []
    runs: list[Run] = []
    peak = Peak(device)
    for count in plan.fleet:
        try:
            for seed in range(len(runs), count):
                run = make_run(plan.scorer, seed, device)
                run.prepare(alone=False)
                runs.append(run)
        except Exception as error:
            if not ran_out(error):
                raise
            print(f"{count} networks do not fit into the memory of this device")
            break
        seconds = median_seconds(steps_of(runs, plan.steps), plan.seconds, device)
        each = round(seconds / plan.steps / count * 1e3, 4)
        rows.append(
            told({"networks": count, "ms a step and network": each, "peak MiB": peak.mib()})
        )
    return rows


def told(row: Row) -> Row:
    print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    return row


def compile_kernels(plan: Plan) -> None:
    """Of all kinds at once, in processes that leave them where this one finds them."""
    kinds = list(dict.fromkeys((plan.scorer, *plan.classes, *plan.sides)))
    workers = min(len(kinds), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        list(pool.map(try_out, kinds))


def try_out(kind: Kind) -> None:
    torch.set_num_threads(1)  # the others fit at the same time
    device = torch.device("cuda")
    training_cost(kind, 1, 0.0, device)
    with fitted(kind) as model:
        scoring_cost(model, 2048, 0.0, device)


# ── what it costs ────────────────────────────────────────────────────────────────────────────


def apart(device: torch.device, cost: Callable[..., Row], *given: object) -> Row:
    """On a CPU in a process of its own, since a process only knows its peak since its start.

    It is forked from one that has imported everything and done nothing.
    """
    if device.type == "cuda":
        return cost(*given)
    context = get_context("forkserver")
    context.set_forkserver_preload(["anocaps.detectors", "torch._dynamo"])  # Adam imports that
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(cost, *given).result()


@contextmanager
def fitted(kind: Kind) -> Iterator[Path]:
    """A model file, so that training has no part in the memory of scoring."""
    shape = (2 * kind.classes, kind.side, kind.side)
    few = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    detector = CapsNetDetector(kind.preset, epochs=1, calibration=0.0, device="cpu")
    detector.fit(few, np.arange(len(few)) % kind.classes)
    with TemporaryDirectory() as folder:
        detector.save(model := Path(folder) / "model.safetensors")
        yield model


def scoring_cost(model: Path, images: int, seconds: float, device: torch.device) -> Row:
    peak = Peak(device)
    detector = load(model, device=str(device))
    seen = detector.preprocessing_
    one = np.random.default_rng(0).integers(0, 256, (1, seen.height, seen.width), dtype=np.uint8)
    many = np.broadcast_to(one, (images, *one.shape[1:]))
    detector.all_scores(many[:5000], SCORES)  # warm up
    found = median_seconds(lambda: detector.all_scores(many, SCORES), seconds, device)
    return {"seconds": round(found, 5), "peak MiB": peak.mib()}


def training_cost(kind: Kind, steps: int, seconds: float, device: torch.device) -> Row:
    peak = Peak(device)
    step = steps_of([make_run(kind, 0, device)], steps)
    step()  # warm up
    found = median_seconds(step, seconds, device) / steps
    return {"seconds": found, "peak MiB": peak.mib()}


def make_run(kind: Kind, seed: int, device: torch.device) -> Run:
    """Training on ten batches of noise."""
    shape = (10 * BATCH, kind.side, kind.side)
    images = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    return run_on(images, np.arange(len(images)) % kind.classes, kind, seed, device)


def run_on(
    images: np.ndarray, labels: np.ndarray, kind: Kind, seed: int, device: torch.device
) -> Run:
    """Training as the detector does it; images [N, side, side]."""
    torch.manual_seed(seed)
    network = CapsNet(find_preset(kind.preset).network(kind.side, kind.side, 1, kind.classes))
    preprocessing = Preprocessing(kind.side, kind.side, 1)
    precision = pick_precision("auto", device)
    return Run(
        network,
        capsnet_loss(network, preprocessing, 0.0005),
        images[..., None],
        labels.astype(np.int64),
        preprocessing,
        TrainingConfig(epochs=1000, batch_size=BATCH, precision=precision, seed=seed),
        device,
    )


def steps_of(runs: list[Run], steps: int = 1) -> Callable[[], None]:
    """So many steps of every run; the data begin again when they are used up."""
    place = 0

    def step() -> None:
        nonlocal place
        for _ in range(steps):
            if place % runs[0].steps == 0:
                for run in runs:
                    run.begin_epoch()
            for run in runs:
                run.step()
            place += 1

    return step


def median_seconds(call: Callable[[], object], seconds: float, device: torch.device) -> float:
    times: list[float] = []
    while not times or (sum(times) < seconds and len(times) < 5):
        synchronize(device)
        started = time.perf_counter()
        call()
        synchronize(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


class Peak:
    """The most memory since it was made, beyond what there was."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            release()
            torch.cuda.reset_peak_memory_stats(device)
        self.before = self._most()

    def _most(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_reserved(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def mib(self) -> int:
        return max(1, (self._most() - self.before) // 2**20)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
