"""Claim: the time to score images is in proportion to their number, and the memory does not depend
on it, but for the scores; more classes, larger images and larger fleets cost what the rows say.

Four things grow, one at a time: images scored (10³ to 10⁶: one random image, repeated without a
copy), classes (2 to 100), the side of an image (28 to 128 pixels: the deep preset, that of `anocaps
train`, and the quick one; the paper's network is made for 48 at most), networks trained at once (1
to 32, on a GPU; a CPU trains them in turn, at the time and memory of one). On a CPU the images are
scored by the quick preset's network at 8×8: the paper's would take half an hour. Training steps are
of 100 images, whatever the preset, in bf16 on a GPU; scores are PP and RE in fp32. Times are
medians; an epoch is 10 batches on a CPU and 200 on a GPU, where what begins it would count
otherwise.

Memory, in MiB, with the images that are trained on: on a CPU the most that a process of its own
held beyond what it began with; on a GPU the most that torch took from the device. Results:
results/growth-cpu.json, results/growth-gpu.json.

    python benchmarks/growth.py --device cpu
"""

import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch
from arguments import Parser, device_name, one_line, writable
from measuring import Peak, apart, median_seconds
from workloads import BATCH, Kind, fitted, make_run, scoring_cost, steps_of, training_cost

from anocaps.base.files import write_text
from anocaps.training.device import circumstances, pick_device
from anocaps.training.loop import Run
from anocaps.training.memory import ran_out

Row = dict[str, Any]


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
    batches: int  # of images to train on


IMAGES = (10**3, 10**4, 10**5, 10**6)
CLASSES = tuple(Kind("paper", classes=count) for count in (2, 5, 20, 100))
SIDES = (
    *(Kind("paper", side) for side in (28, 48)),
    *(Kind(preset, side) for preset in ("quick", "deep") for side in (28, 64, 128)),
)
PLANS = {
    "cpu": Plan(
        Kind("quick", 8), IMAGES, CLASSES, SIDES, (),
        scored=256, seconds=1.5, steps=1, batches=10,
    ),
    "cuda": Plan(
        Kind("paper"), IMAGES, CLASSES, SIDES, (1, 2, 4, 8, 16, 32),
        scored=20_000, seconds=0.5, steps=20, batches=200,
    ),
}  # fmt: skip
TINY = Kind("quick", 8, 2)
QUICK = Plan(TINY, (100, 300), (TINY,), (Kind("quick", 12, 3),), (1, 2), 64, 0.0, 1, 10)


@one_line
def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument(
        "--device", type=device_name, default="auto", help="'auto', 'cpu' or 'cuda'"
    )
    parser.add_argument("--out", type=writable, help="else results/growth-cpu.json or -gpu.json")
    parser.add_argument("--quick", action="store_true", help="tiny networks, to test the script")
    options = parser.parse_args()
    device = pick_device(options.device)
    plan = QUICK if options.quick else PLANS[device.type]
    short = "gpu" if device.type == "cuda" else "cpu"
    out = options.out or writable(f"results/growth-{short}.json")

    started = time.perf_counter()
    if device.type == "cuda":
        compile_kernels(plan)
    result = {
        "what": "PP and RE in fp32; training steps of 100 images; medians; peak memory in MiB",
        "batch": BATCH,
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
            kind = {"preset": plan.scorer.preset, "side": plan.scorer.side, "images": images}
            rows.append(told({**kind, "seconds": round(cost.seconds, 5), "peak MiB": cost.mib}))
    return rows


def both(kind: Kind, plan: Plan, device: torch.device) -> Row:
    """A training step, and scoring."""
    images = plan.batches * BATCH
    step = apart(device, training_cost, kind, images, plan.steps, plan.seconds, device)
    with fitted(kind) as model:
        score = apart(device, scoring_cost, model, plan.scored, plan.seconds, device)
    return told(
        {
            "preset": kind.preset,
            "side": kind.side,
            "classes": kind.classes,
            "training ms a step": round(step.seconds * 1e3, 3),
            "training peak MiB": step.mib,
            "scoring µs an image": round(score.seconds / plan.scored * 1e6, 3),
            "scoring peak MiB": score.mib,
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
                run = make_run(plan.scorer, seed, device, plan.batches * BATCH)
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
    training_cost(kind, BATCH, 1, 0.0, device)
    with fitted(kind) as model:
        scoring_cost(model, 2048, 0.0, device)


if __name__ == "__main__":
    main()
