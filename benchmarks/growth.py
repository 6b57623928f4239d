"""Claim: the time to score images is in proportion to their number and the memory does not depend
on it. 10⁴ to 10⁶ images; the last printed line proves it or not.

Also measured: classes (2 to 100), the side of an image (28 to 128 pixels; the paper's network is
made for 48 at most) and networks trained at once (1 to 32, on a GPU). On a CPU images are scored by
the quick preset at 8×8: the paper's network would take half an hour. Training steps are of 100
images, in bf16 on a GPU. Scores are PP and RE in fp32. Times are medians. Memory is in MiB, with
the training images: on a CPU the peak of a process of its own, on a GPU what torch took.

    python benchmarks/growth.py --device cpu        (make growth; results/growth-cpu.json)
    python benchmarks/growth.py --device cuda       (results/growth-gpu.json)
"""

import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import common
import torch
from common import BATCH, Kind, Peak, apart, fitted, scoring_cost, training_cost

from anocaps.training.device import circumstances, pick_device
from anocaps.training.loop import Run
from anocaps.training.memory import ran_out

Row = dict[str, Any]
IMAGES = (10**3, 10**4, 10**5, 10**6)
CLASSES = tuple(Kind("paper", classes=count) for count in (2, 5, 20, 100))
SIDES = (
    *(Kind("paper", side) for side in (28, 48)),
    *(Kind(preset, side) for preset in ("quick", "deep") for side in (28, 64, 128)),
)
TINY = Kind("quick", 8, 2)


class Plan(NamedTuple):
    scorer: Kind
    images: tuple[int, ...]
    classes: tuple[Kind, ...]
    sides: tuple[Kind, ...]
    fleet: tuple[int, ...]
    scored: int  # images, where their number does not grow
    seconds: float  # of repeats for one row: 1 to 5 of them
    steps: int  # in a repeat
    batches: int  # to train on: on a GPU so many that the start of an epoch hardly counts


PLANS = {
    "cpu": Plan(Kind("quick", 8), IMAGES, CLASSES, SIDES, (), 256, 1.5, 1, 10),
    "cuda": Plan(Kind("paper"), IMAGES, CLASSES, SIDES, (1, 2, 4, 8, 16, 32), 20_000, 0.5, 20, 200),
}
QUICK = Plan(TINY, (100, 300), (TINY,), (Kind("quick", 12, 3),), (1, 2), 64, 0.0, 1, 10)


def main() -> None:
    parser = common.parser(__doc__, "growth-DEVICE.json")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--quick", action="store_true", help="tiny networks, to try the script")
    options = parser.parse_args()
    device = pick_device(options.device)
    plan = QUICK if options.quick else PLANS[device.type]
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
    middle, last = result["images"][-min(3, len(plan.images))], result["images"][-1]
    print(
        f"{last['images'] / middle['images']:g} × the images: "
        f"{last['seconds'] / middle['seconds']:.3g} × the time, "
        f"{last['peak MiB'] - middle['peak MiB']:+d} MiB"
    )
    name = "gpu" if device.type == "cuda" else "cpu"
    common.write(Path(str(options.out).replace("DEVICE", name)), result)


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
    """Several of the paper's networks at once, until the device is full."""
    rows: list[Row] = []
    runs: list[Run] = []
    peak = Peak(device)
    for count in plan.fleet:
        try:
            for seed in range(len(runs), count):
                run = common.make_run(plan.scorer, seed, device, plan.batches * BATCH)
                run.prepare(alone=False)
                runs.append(run)
        except Exception as error:
            if not ran_out(error):
                raise
            print(f"{count} networks do not fit into the memory of this device")
            break
        step = common.steps_of(runs, plan.steps)
        each = common.median_seconds(step, plan.seconds, device) / plan.steps / count
        took = {"ms a step and network": round(1e3 * each, 4), "peak MiB": peak.mib()}
        rows.append(told({"networks": count, **took}))
    return rows


def told(row: Row) -> Row:
    print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    return row


def compile_kernels(plan: Plan) -> None:
    """Fill Triton's cache with the kernels of all kinds, in several processes."""
    kinds = list(dict.fromkeys((plan.scorer, *plan.classes, *plan.sides)))
    workers = min(len(kinds), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        list(pool.map(try_out, kinds))


def try_out(kind: Kind) -> None:
    torch.set_num_threads(1)  # the others run at the same time
    device = torch.device("cuda")
    training_cost(kind, BATCH, 1, 0.0, device)
    with fitted(kind) as model:
        scoring_cost(model, 2048, 0.0, device)


if __name__ == "__main__":
    common.run_script(main)
