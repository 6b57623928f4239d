"""Claim: on one GPU anocaps trains the paper's network several times faster than a textbook PyTorch
version of the same equations, ten networks at once faster still, and scores faster too. The printed
table proves it or not.

28×28 images, 9 classes, training steps of 100 images; scoring in batches of 4,096 on both sides,
from arrays in the computer's memory to scores there. The textbook is timed as PyTorch ships it
(TF32 in convolutions) and in fp32. Before anything is timed, and else nothing is timed or written
(gates.py, kernel_checks.py): the routing kernels on many shapes; a whole recorded training step
against the textbook in float64; a network of a fleet against the same one alone; scores of equal
weights against the textbook's, and those in bf16 against fp32, on the bundled digits.

All sides take turns; median and spread of several repeats. The share of peak is of a large matrix
product in the row's own precision and counts the arithmetic of the direct convolutions, so that
doing less of it counts as speed: it can be above 1. Results: results/speed-gpu.json.

    python benchmarks/speed_gpu.py        (make bench-gpu)
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import primary_convolution
import torch
from arguments import Parser, at_least, one_line, writable
from gates import check_bf16, check_equal, check_fleet, check_step, scores_in
from kernel_checks import run_checks
from measuring import Side, milliseconds, optional, product_flops, rates, take_turns, with_memory
from textbook import TextbookCapsNet
from workloads import (
    BATCH,
    CLASSES,
    PAPER,
    PAPER_CONFIG,
    SCORED_AT_ONCE,
    SCORING_FLOP,
    TRAINING_FLOP,
    as_pixels,
    large_digits,
    make_run,
    multiply_adds,
    noise,
    run_on,
    steps_of,
    textbook_scores,
    textbook_step,
)

from anocaps.base.files import write_text
from anocaps.detectors import CapsNetDetector
from anocaps.training.device import Precision, circumstances
from anocaps.training.loop import Run

TEXTBOOKS = {"textbook eager, TF32": True, "textbook eager fp32": False}  # whether TF32 is allowed
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")  # of scoring
FEW_STEPS = 20  # of a fleet, before it is compared with a network alone


@dataclass(frozen=True)
class Sizes:
    repeats: int = 5
    scored: int = 49 * 4096  # images in a turn
    scored_by_textbook: int = 10 * 4096
    fleet: int = 10
    images: int = 200 * BATCH  # to train on; a turn is one epoch
    textbook_steps: int = 20  # in a turn
    digits: int = 1797  # for the checks
    epochs: int = 10  # on them
    product: int = 8192  # rows and columns of the matrices whose product is the peak


@one_line
def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--repeats", type=at_least(1), default=Sizes.repeats)
    parser.add_argument("--fleet", type=at_least(1), default=Sizes.fleet)
    parser.add_argument("--out", type=writable, default="results/speed-gpu.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs an NVIDIA GPU, and none is usable here")
    checks = run_checks()
    if not checks["ok"]:
        print(json.dumps(checks["wrong"], indent=1))
        raise SystemExit("the routing kernels are wrong in the cases above: nothing was timed")
    sizes = Sizes(repeats=options.repeats, fleet=options.fleet)
    result = {**measure(torch.device("cuda"), sizes), "kernel checks": checks}
    write_text(options.out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(report(result))
    print(f"written to {options.out}")


def measure(device: torch.device, sizes: Sizes) -> dict[str, Any]:
    detector, book, checked = scoring_checks(device, sizes)
    memory: dict[str, dict[str, int]] = {}
    training, alone, runs, trained = training_sides(device, sizes, memory)
    taken = take_turns(training, sizes.repeats, device)
    per = {name: sizes.fleet if name.endswith("per network") else 1 for name in training}
    steps = {name: milliseconds(seconds, per[name]) for name, seconds in taken.items()}

    sides, scored = scoring_sides(detector, book, device, sizes, memory)
    taken = take_turns(sides, sizes.repeats, device)
    scoring = {name: rates(seconds, scored[name]) for name, seconds in taken.items()}

    precision = alone.config.precision
    peaks = {
        "bf16": product_flops(sizes.product, torch.bfloat16, device, 3, calls=10),
        "TF32": product_flops(sizes.product, torch.float32, device, 3, calls=10, tf32=True),
        "fp32": product_flops(sizes.product, torch.float32, device, 3, calls=10),
    }
    done = {name: alone.batch * TRAINING_FLOP / (row["median"] * 1e-3)
            for name, row in steps.items()}  # fmt: skip
    done |= {f"scoring, {name}": row["median"] * SCORING_FLOP for name, row in scoring.items()}
    shares = {name: round(flops / peaks[precision_of(name, precision)], 3)
              for name, flops in done.items()}  # fmt: skip
    at_once = SCORED_AT_ONCE[device.type]
    batch, _ = noise(PAPER, at_once)
    quickest = min(row["median"] for name, row in steps.items() if name.startswith("textbook"))
    return {
        "what": "ms per training step, and images/s of scoring PP and RE",
        "batch": alone.batch,
        "scored at once": at_once,
        "parameters": sum(weight.numel() for weight in book.parameters()),
        "multiply-adds an image": multiply_adds(PAPER_CONFIG),
        "training precision": precision,
        "repeats": sizes.repeats,
        "steps": steps,
        "scoring": scoring,
        "speed-up of one network over textbook": round(
            quickest / steps["one network"]["median"], 2
        ),
        **{f"peak {name} TFLOP/s measured": round(v / 1e12, 1) for name, v in peaks.items()},
        "share of peak": shares,
        "peak memory MiB": memory,
        **checked,
        **trained,
        "top kernels, µs a step": optional(lambda: top_kernels(training["one network"].call, 20)),
        "top kernels of a fleet, µs a step and network": optional(
            lambda: top_kernels(steps_of(runs), 5, networks=len(runs))
        ),
        f"top kernels of scoring {at_once} images in fp32, µs": optional(
            lambda: top_kernels(lambda: scores_in("fp32", detector, batch), 5)
        ),
        "primary convolution": optional(lambda: primary_convolution.compare(device)),
        **circumstances(device),
    }


def precision_of(row: str, training: Precision) -> str:
    """What a row of `steps`, or one of `scoring` with its prefix, computes in."""
    return next((name for name in ("TF32", "fp32", "bf16") if name in row), training)


# ── training ─────────────────────────────────────────────────────────────────────────────────


def training_sides(
    device: torch.device, sizes: Sizes, memory: dict[str, dict[str, int]]
) -> tuple[dict[str, Side], Run, list[Run], dict[str, Any]]:
    """What takes turns, the run alone, those of the fleet, and what was checked of them."""
    sides = {}
    for name, allowed in TEXTBOOKS.items():
        name = f"{name}, one network"
        step, memory[name] = with_memory(partial(textbook, device, sizes, allowed), device)
        sides[name] = Side(step, sizes.textbook_steps)
    together = f"{sizes.fleet} networks at once, per network"
    [alone], memory["one network"] = with_memory(lambda: fleet(1, device, sizes), device)
    runs, memory[together] = with_memory(lambda: fleet(sizes.fleet, device, sizes), device)

    torch.manual_seed(0)
    found = check_step(run_on(PAPER.network(), *normal_digits(sizes.digits), 0, device))
    few = min(FEW_STEPS, alone.steps)
    for each in ([alone], runs):
        steps_of(each, few)()
    checked = {
        "bf16 step against float64": found,
        "largest relative weight difference, fleet against alone": check_fleet(alone, runs[0]),
    }
    sides["one network"] = Side(steps_of([alone]), alone.steps)
    sides[together] = Side(steps_of(runs), alone.steps)
    return sides, alone, runs, checked


def textbook(device: torch.device, sizes: Sizes, tf32: bool) -> Callable[[], None]:
    """A step of a textbook of its own, which has been taken once."""
    images, labels = noise(PAPER, min(BATCH, sizes.images))
    book = TextbookCapsNet(CLASSES).to(device)
    step = with_tf32(
        tf32,
        textbook_step(book, as_pixels(images, device), torch.from_numpy(labels).to(device)),
    )
    step()
    return step


def with_tf32(allowed: bool, call: Callable[[], object]) -> Callable[[], None]:
    """A call whose convolutions may use TF32, or not; matrix products do not, as PyTorch ships."""

    def calls() -> None:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=allowed):
            call()

    return calls


def fleet(count: int, device: torch.device, sizes: Sizes) -> list[Run]:
    """Runs whose step is recorded, so that its memory counts."""
    runs = []
    for seed in range(count):
        run = make_run(PAPER, seed, device, sizes.images)
        run.prepare(alone=count == 1)
        runs.append(run)
    return runs


# ── scoring ──────────────────────────────────────────────────────────────────────────────────


def normal_digits(most: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Enlarged digits without the nine, so that there are as many classes as in the rows."""
    images, labels = large_digits()
    normal = np.flatnonzero(labels < CLASSES)[:most]
    return images[normal], labels[normal]


def scoring_checks(
    device: torch.device, sizes: Sizes
) -> tuple[CapsNetDetector, TextbookCapsNet, dict[str, Any]]:
    """A detector trained on digits, a textbook with its weights, and what was checked of them."""
    detector = CapsNetDetector(epochs=sizes.epochs, calibration=0.0, device=device.type)
    detector.fit(*normal_digits(sizes.digits))
    book = TextbookCapsNet(CLASSES).to(device)
    book.load_state_dict(detector.network_.state_dict())
    images = large_digits()[0][: sizes.digits]
    checked = {
        "largest score difference to textbook": check_equal(detector, book, images),
        "bf16 scores": check_bf16(detector, images),
    }
    return detector, book, checked


def scoring_sides(
    detector: CapsNetDetector,
    book: TextbookCapsNet,
    device: torch.device,
    sizes: Sizes,
    memory: dict[str, dict[str, int]],
) -> tuple[dict[str, Side], dict[str, int]]:
    """What takes turns, and how many images each scores in a turn."""
    images, _ = noise(PAPER, sizes.scored)
    few = images[: sizes.scored_by_textbook]
    calls: dict[str, Callable[[], object]] = {
        name: with_tf32(allowed, lambda: textbook_scores(book.scores, few, device))
        for name, allowed in TEXTBOOKS.items()
    }
    calls |= {name: partial(scores_in, name, detector, images) for name in PRECISIONS}
    for name, call in calls.items():
        _, memory[f"scoring, {name}"] = with_memory(call, device)
    scored = {name: len(few) if name in TEXTBOOKS else len(images) for name in calls}
    return {name: Side(call) for name, call in calls.items()}, scored


# ── where the time goes ──────────────────────────────────────────────────────────────────────


def top_kernels(call: Callable[[], object], calls: int, networks: int = 1) -> dict[str, float]:
    """The 25 longest kernels: "name ×launches" → µs, of a call and network."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    rows = sorted(profiled.key_averages(), key=lambda row: -row.device_time_total)
    per = calls * networks
    return {f"{row.key[:90]} ×{row.count // per}": round(row.device_time_total / per, 1)
            for row in rows[:25]}  # fmt: skip


# ── what is printed ──────────────────────────────────────────────────────────────────────────


def report(result: dict[str, Any]) -> str:
    share, memory = result["share of peak"], result["peak memory MiB"]
    lines = [f"{result['device']}: {result['what']}", ""]
    for name, row in result["steps"].items():
        lines.append(_row(name, row, ",.3f", "ms", share[name], memory[name]))
    for name, row in result["scoring"].items():
        name = f"scoring, {name}"
        lines.append(_row(name, row, ",.0f", "images/s", share[name], memory[name]))
    step, bf16 = result["bf16 step against float64"], result["bf16 scores"]
    lines += [
        "",
        f"{result['speed-up of one network over textbook']} × the faster textbook; peaks, TFLOP/s: "
        + ", ".join(
            f"{k} {result[f'peak {k} TFLOP/s measured']}" for k in ("bf16", "TF32", "fp32")
        ),
        "checked before: scores off the textbook by at most "
        f"{result['largest score difference to textbook']:.1e}; a step in "
        f"{result['training precision']} off float64: loss {step['loss']:.1e}, gradients "
        f"{step['gradients']:.1e} ({step['of']}), Adam {step['Adam']:.1e}; fleet off alone "
        f"{result['largest relative weight difference, fleet against alone']:.1e}",
        f"bf16 off fp32 on {bf16['images']} digits: PP {bf16['largest PP difference']:.1e}, RE "
        f"{bf16['largest RE difference']:.1e} (but for {bf16['another longest capsule']} with "
        f"another longest capsule); ties in PP: {bf16['ties in PP']['bf16']}, in fp32 "
        f"{bf16['ties in PP']['fp32']}",
    ]
    for title in (title for title in result if title.startswith("top kernels")):
        kernels = result[title]
        found = kernels if isinstance(kernels, dict) else {kernels: ""}
        lines += ["", title, *(f"{µs:>10}  {name}" for name, µs in list(found.items())[:10])]
    ways = result["primary convolution"]
    lines += ["", "primary convolution, ms: both ways, forward only"]
    for name, way in (ways["ways"] if isinstance(ways, dict) else {"": ways}).items():
        told = f"{way['ms']['median']:8.3f} {way['forward ms']['median']:8.3f}  {name}" if (
            isinstance(way, dict)
        ) else f"{name} {way}"  # fmt: skip
        lines.append(told)
    return "\n".join(lines)


def _row(
    name: str,
    row: dict[str, float],
    form: str,
    unit: str,
    share: float,
    memory: dict[str, int],
) -> str:
    low, middle, high = (format(row[k], form) for k in ("lowest", "median", "highest"))
    told = f"{middle} {unit} ({low}–{high})"
    return f"{name:36} {told:44} {share:6.1%} of peak {max(memory.values()):7,} MiB"


if __name__ == "__main__":
    main()
