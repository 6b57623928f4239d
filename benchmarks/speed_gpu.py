"""Claim: on one GPU anocaps trains the paper's network several times faster than a textbook PyTorch
version of the same equations, ten networks at once faster still, and scores faster too. The printed
table proves it or not.

28×28 images, 9 classes, batch 100. Outputs are checked first: the routing kernels against the plain
path (kernel_checks.py; if they are wrong the script ends with 1, after everything else), scores of
equal weights against the textbook, and a network of a fleet against the same one trained alone.
Median and spread of several repeats. Results: results/speed-gpu.json.

    python benchmarks/speed_gpu.py        (make bench-gpu)
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import primary_convolution
import torch
from growth import Kind, run_on, steps_of
from kernel_checks import run_checks
from speed_cpu import BATCH, CLASSES, TRAINING_GFLOP, check_equal, textbook_step
from textbook import TextbookCapsNet

from anocaps.circumstances import circumstances
from anocaps.detectors import CapsNetDetector
from anocaps.files import write_text
from anocaps.training import Run

STEPS = 200
STEP_TFLOP = TRAINING_GFLOP * BATCH / 1000
SCORED_AT_ONCE = 1000  # by the textbook
T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--images", type=int, default=200_000, help="scored in one repeat")
    parser.add_argument("--fleet", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("results/speed-gpu.json"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("speed_gpu.py needs an NVIDIA GPU")
    device = torch.device("cuda")
    checks = run_checks()
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (STEPS * BATCH, 28, 28), dtype=np.uint8)
    labels = np.arange(len(images)) % CLASSES

    detector = CapsNetDetector(epochs=1, calibration=0.0).fit(images, labels)
    book = TextbookCapsNet(CLASSES).to(device)
    book.load_state_dict(detector.network_.state_dict())
    pixels = (torch.from_numpy(images[:BATCH]).unsqueeze(1) / 255).to(device)
    difference = check_equal(detector, book, images[:64], pixels[:64])

    memory = {}
    alone, memory["training one network"] = with_memory(lambda: make_run(images, labels, 0, device))
    runs, memory[f"training {options.fleet} networks"] = with_memory(
        lambda: [make_run(images, labels, seed, device) for seed in range(options.fleet)]
    )
    step = steps_of([alone])
    table = {
        "textbook eager fp32, one network": milliseconds(
            textbook_step(book, pixels, torch.from_numpy(labels[:BATCH]).to(device)), 5, 20
        ),
        "one network": milliseconds(step, options.repeats, STEPS),
        f"{options.fleet} networks at once, per network": milliseconds(
            steps_of(runs), options.repeats, STEPS, per=options.fleet
        ),
    }
    spread = fleet_difference(alone, runs[0])
    scoring, many = {}, np.resize(images, (options.images, 28, 28))
    for name, score in {
        "textbook eager fp32": lambda: textbook_scores(book, many),
        "fp32": lambda: scores(detector, many, "fp32"),
        "bf16": lambda: scores(detector, many, "bf16"),
    }.items():
        scoring[name], memory[f"scoring, {name}"] = with_memory(
            lambda score=score: rate(score, options.images, options.repeats)
        )
    one = table["one network"]["median"]
    peak = peak_tflops()
    result = {
        "what": "ms per training step, batch 100, and images/s of scoring PP and RE",
        "steps": table,
        "scoring": scoring,
        "speed-up of one network over textbook": round(
            table["textbook eager fp32, one network"]["median"] / one, 2
        ),
        "peak bf16 TFLOP/s measured": peak,
        "share of peak": {
            name: round(STEP_TFLOP / (row["median"] * 1e-3) / peak, 3)
            for name, row in table.items()
            if not name.startswith("textbook")  # whose fp32 has another peak
        },
        "largest score difference to textbook": difference,
        "largest relative weight difference, fleet against alone": spread,
        "peak memory MiB": memory,
        "kernel checks": checks,
        "top kernels, µs a step": optional(lambda: top_kernels(step)),
        "primary convolution": optional(lambda: primary_convolution.compare(milliseconds)),
        **circumstances(device),
    }
    write_text(options.out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    for name, row in table.items():
        print(f"{name:36} {row['median']:.3f} ms  ({row['lowest']:.3f}–{row['highest']:.3f})")
    for name, row in scoring.items():
        print(f"scoring {name:28} {row['median']:,.0f} images/s")
    rest = {k: v for k, v in result.items() if k not in ("steps", "scoring")}
    print(json.dumps(rest, indent=1, ensure_ascii=False))
    if not checks["ok"]:
        raise SystemExit(
            f"the routing kernels are wrong in {len(checks['wrong'])} cases: "
            f"see 'kernel checks' in {options.out}"
        )


def optional(section: Callable[[], T]) -> T | str:
    """What is not the claim itself: a failure is told in the results and loses nothing else."""
    try:
        return section()
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"[:500]


def with_memory(call: Callable[[], T]) -> tuple[T, dict[str, int]]:
    """What a call returns, and the most device memory that it needed beside what was there.

    Tensors: what they held; reserved: what the allocator took for them, recorded steps included.
    Tensors may find room in blocks that were taken before, so that the larger of the two counts.
    """
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    result = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    names = ("tensors", "reserved")
    return result, {k: (p - b) // 2**20 for k, p, b in zip(names, peak, before)}


def make_run(images: np.ndarray, labels: np.ndarray, seed: int, device: torch.device) -> Run:
    """A run of the paper's network as the detector makes it."""
    run = run_on(images, labels, Kind("paper", 28, CLASSES), seed, device)
    run.prepare()  # records the step, so that its memory is counted
    return run


def milliseconds(step: Callable[[], None], repeats: int, steps: int, per: int = 1) -> dict:
    for _ in range(steps):
        step()  # warm up
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) / steps / per * 1e3)
    return spread_of(times, 4)


def scores(detector: CapsNetDetector, images: np.ndarray, precision: str) -> None:
    detector.scoring_precision = precision
    detector.all_scores(images, ("pp", "re"))


def textbook_scores(book: TextbookCapsNet, images: np.ndarray) -> None:
    with torch.inference_mode():
        for part in torch.from_numpy(images).unsqueeze(1).split(SCORED_AT_ONCE):
            for score in book.scores(part.to(book.routing.device) / 255):
                score.cpu()


def rate(score: Callable[[], None], images: int, repeats: int) -> dict:
    """Images/s from arrays in the computer's memory to scores in the computer's memory.

    One whole pass to warm up: the last batch may have a shape of its own.
    """
    times = []
    for _ in range(1 + repeats):
        started = time.perf_counter()
        score()
        times.append(time.perf_counter() - started)
    return spread_of([images / value for value in times[1:]], 0)


def spread_of(values: list[float], digits: int) -> dict:
    return {
        "median": round(statistics.median(values), digits),
        "lowest": round(min(values), digits),
        "highest": round(max(values), digits),
    }


def fleet_difference(alone: Run, member: Run) -> float:
    """Both have the same seed and have taken the same number of steps."""
    pairs = zip(alone.network.parameters(), member.network.parameters())
    return max(float((a - b).detach().norm() / a.detach().norm()) for a, b in pairs)


def peak_tflops() -> float:
    """Of a large bf16 matrix product of random numbers."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    row = milliseconds(lambda: torch.mm(a, b), 3, 10)
    return round(2 * 8192**3 / (row["median"] * 1e-3) / 1e12, 1)


def top_kernels(step: Callable[[], None]) -> dict[str, float]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(20):
            step()
        torch.cuda.synchronize()
    rows = sorted(profiled.key_averages(), key=lambda row: -row.device_time_total)
    return {f"{row.key[:90]} ×{row.count // 20}": round(row.device_time_total / 20, 1)
            for row in rows[:25]}  # fmt: skip


if __name__ == "__main__":
    main()
