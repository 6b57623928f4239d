"""Claim: on a CPU with 2 threads, in fp32, anocaps trains the paper's network 2 times and scores
with it 3 times as fast as a textbook PyTorch version of the same equations, with the same scores
(difference below 1e-4). Median of 7 turns; the printed table proves it or not.

Both run in this process on random 28×28 images with 9 classes: training steps of 100 images, and
scoring from arrays of bytes to scores in batches of 256. The share of peak counts the arithmetic of
direct convolutions, so that a form with less arithmetic can pass 100 %.
Memory is what each side needed in a process of its own.

    python benchmarks/speed_cpu.py        (make bench-cpu, 2 minutes)
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import common
import numpy as np
import torch
from common import BATCH, CLASSES, PAPER, SCORES, Side, textbook_scores, textbook_step
from numpy.typing import NDArray

from anocaps.detectors import CapsNetDetector
from anocaps.training.device import circumstances

CPU = torch.device("cpu")
SIDES = ("ours", "textbook")
TURN = 4  # training steps: in real training no other network's numbers are in the cache


def main() -> None:
    parser = common.parser(__doc__, "speed-cpu.json")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--images", type=int, default=512, help="scored in one turn")
    options = parser.parse_args()
    result = measure(options.repeats, options.images)
    result |= {"peak memory MiB": memory(options.images), "demo seconds": demo_seconds()}
    print(report(result))
    common.write(options.out, result)


def measure(repeats: int, scored: int) -> dict[str, Any]:
    images, labels = common.noise(PAPER, max(scored, BATCH))
    batch, of_batch = images[:BATCH], labels[:BATCH]
    detector = CapsNetDetector("paper", epochs=1, calibration=0.0, device="cpu").fit(
        batch, of_batch
    )
    book = common.Textbook(CLASSES)
    book.load_state_dict(detector.network_.state_dict())
    difference = common.check_equal(detector, book, images[:64])
    first = common.as_pixels(batch, CPU), torch.from_numpy(of_batch)
    few = images[:scored]
    work = {
        "training": (
            Side(training_step(detector, batch, of_batch), TURN),
            Side(textbook_step(book, *first), TURN),
        ),
        "scoring PP and RE": (
            Side(lambda: detector.outputs(few, SCORES)),
            Side(lambda: textbook_scores(book.scores, few, CPU)),
        ),
        "scoring PP": (
            Side(lambda: detector.score_samples(few, "pp")),
            Side(lambda: textbook_scores(lambda x: (book.pp(x),), few, CPU)),
        ),
    }
    peak = common.product_flops(2048, torch.float32, CPU)
    rates = {}
    for name, sides in work.items():
        count, flop = scored, common.SCORING_FLOP
        if name == "training":
            count, flop = BATCH, common.TRAINING_FLOP
        row = rates[name] = common.side_by_side(*sides, count, repeats, CPU, SIDES)
        row["share of peak"] = {s: round(row[s]["median"] * flop / peak, 3) for s in SIDES}
    return {
        "what": "images/s, paper's network, 28×28×1, 9 classes, fp32",
        "batch": BATCH,
        "scored at once": common.SCORED_AT_ONCE["cpu"],
        "parameters": sum(weight.numel() for weight in book.parameters()),
        "multiply-adds an image": common.PAPER_MULTIPLY_ADDS,
        "repeats": repeats,
        "largest score difference": difference,
        "peak fp32 GFLOP/s measured": round(peak / 1e9, 1),
        "rates": rates,
        **circumstances(CPU),
    }


def training_step(
    detector: CapsNetDetector, images: NDArray[np.uint8], labels: NDArray[np.int64]
) -> Callable[[], None]:
    """One step of the detector's own loop over the same first batch again and again."""
    network = detector.network_
    run = common.run_on(network, images, labels, 0, CPU)
    run.begin_epoch()

    def step() -> None:
        network.train()
        run.cursor.zero_()
        run.step()
        network.eval()

    return step


def memory(images: int) -> dict[str, dict[str, int]]:
    """The most that each side held beyond an idle process with torch."""
    with common.fitted(PAPER) as model:
        trained = common.apart(CPU, common.training_cost, PAPER, 10 * BATCH, 1, 0.0, CPU)
        scored = common.apart(CPU, common.scoring_cost, model, images, 0.0, CPU)
    ours = {"training": trained.mib, "scoring PP and RE": scored.mib}
    return {
        work: {"ours": mib, "textbook": common.apart(CPU, textbook_mib, work, images)}
        for work, mib in ours.items()
    }


def textbook_mib(work: str, images: int) -> int:
    peak = common.Peak(CPU)
    book = common.Textbook(CLASSES)
    if work == "training":
        drawn, labels = common.noise(PAPER, BATCH)
        step = textbook_step(book, common.as_pixels(drawn, CPU), torch.from_numpy(labels))
        for _ in range(2):  # the first makes Adam's moments
            step()
    else:
        textbook_scores(book.scores, common.noise(PAPER, images)[0], CPU)
    return peak.mib()


def demo_seconds() -> float:
    """Of `anocaps demo` on the CPU: imports, networks, report."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "anocaps", "demo", "--out", str(Path(folder) / "r.html")]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=environment)
        return round(time.perf_counter() - started, 1)


def report(result: dict[str, Any]) -> str:
    lines = []
    for name, row in result["rates"].items():
        share, held = row["share of peak"], result["peak memory MiB"].get(name)
        lines.append(
            f"{name:20} anocaps {row['ours']['median']:7.0f} images/s   "
            f"textbook {row['textbook']['median']:7.0f}   ratio {row['ratio']:.2f}   "
            f"share of peak {share['ours']:.0%}, {share['textbook']:.0%}"
            + (f"   MiB {held['ours']}, {held['textbook']}" if held else "")
        )
    lines.append(
        f"anocaps demo: {result['demo seconds']} s; largest score difference "
        f"{result['largest score difference']:.1e}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    common.run_script(main)
