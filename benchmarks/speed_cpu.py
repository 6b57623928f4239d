"""Claim: on a CPU, in fp32, anocaps trains and scores the paper's network faster than a textbook
PyTorch version of the same equations, with the same outputs: the printed table proves it or not.

Both run in this process on random 28×28 images with 9 classes, warmed up, turn by turn, from arrays
of bytes to scores in batches of 256; median and spread of several repeats. The share of peak counts
the arithmetic of the direct convolutions for both sides, so that doing less of it counts as speed:
it can be above 1. Memory is what each side needed in a process of its own. The demo's seconds are
those of the whole command. Results: results/speed-cpu.json.

    python benchmarks/speed_cpu.py        (make bench-cpu)
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from arguments import Parser, at_least, one_line, writable
from gates import check_equal
from measuring import Peak, Side, apart, product_flops, rates, ratio, take_turns
from numpy.typing import NDArray
from textbook import TextbookCapsNet
from workloads import (
    BATCH,
    CLASSES,
    PAPER,
    PAPER_CONFIG,
    SCORED_AT_ONCE,
    SCORES,
    SCORING_FLOP,
    TRAINING_FLOP,
    as_pixels,
    fitted,
    multiply_adds,
    noise,
    run_on,
    scoring_cost,
    textbook_scores,
    textbook_step,
    training_cost,
)

from anocaps.base.files import write_text
from anocaps.detectors import CapsNetDetector
from anocaps.networks.capsnet import CapsNet
from anocaps.training.device import circumstances

CPU = torch.device("cpu")
DEMO = (sys.executable, "-m", "anocaps", "demo")
TURN = 4  # steps: training never has another network's numbers in its cache


@dataclass(frozen=True)
class Sizes:
    repeats: int = 7
    scored: int = 512  # images in a turn
    batch: int = BATCH
    product: int = 2048  # rows and columns of the matrices whose product is the peak


@one_line
def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--repeats", type=at_least(1), default=Sizes.repeats)
    parser.add_argument(
        "--images", type=at_least(1), default=Sizes.scored, help="scored in one repeat"
    )
    parser.add_argument("--out", type=writable, default="results/speed-cpu.json")
    options = parser.parse_args()
    result = measure(Sizes(options.repeats, options.images))
    result |= {"peak memory MiB": memory(options.images), "demo seconds": demo_seconds()}
    write_text(options.out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(report(result))
    print(f"written to {options.out}")


def measure(sizes: Sizes) -> dict[str, Any]:
    images, labels = noise(PAPER, max(sizes.scored, sizes.batch))
    detector, book = pair(images[: sizes.batch], labels[: sizes.batch])
    scored = images[: sizes.scored]
    difference = check_equal(detector, book, images[:64])

    first = as_pixels(images[: sizes.batch], CPU), torch.from_numpy(labels[: sizes.batch])
    table = {
        "training": side_by_side(
            sizes,
            sizes.batch,
            training_step(detector, images[: sizes.batch], labels[: sizes.batch]),
            textbook_step(book, *first),
            TURN,
        ),
        "scoring PP and RE": side_by_side(
            sizes,
            sizes.scored,
            lambda: detector.all_scores(scored, SCORES),
            lambda: textbook_scores(book.scores, scored, CPU),
        ),
        "scoring PP": side_by_side(
            sizes,
            sizes.scored,
            lambda: detector.score_samples(scored, "pp"),
            lambda: textbook_scores(lambda x: (book.pp(x),), scored, CPU),
        ),
    }
    peak = product_flops(sizes.product, torch.float32, CPU, sizes.repeats)
    for name, row in table.items():
        flop = TRAINING_FLOP if name == "training" else SCORING_FLOP
        row["share of peak"] = {
            side: round(row[side]["median"] * flop / peak, 3) for side in ("ours", "textbook")
        }
    return {
        "what": "images/s, paper's network, 28×28×1, 9 classes, fp32",
        "batch": sizes.batch,
        "scored at once": SCORED_AT_ONCE["cpu"],
        "parameters": sum(weight.numel() for weight in book.parameters()),
        "multiply-adds an image": multiply_adds(PAPER_CONFIG),
        "repeats": sizes.repeats,
        "largest score difference": difference,
        "peak fp32 GFLOP/s measured": round(peak / 1e9, 1),
        "rates": table,
        **circumstances(CPU),
    }


def pair(
    images: NDArray[np.uint8], labels: NDArray[np.int64]
) -> tuple[CapsNetDetector, TextbookCapsNet]:
    """A detector of the `paper` preset after one short epoch, and a textbook with its weights."""
    detector = CapsNetDetector(epochs=1, calibration=0.0, device="cpu").fit(images, labels)
    book = TextbookCapsNet(len(detector.classes_))
    book.load_state_dict(detector.network_.state_dict())
    return detector, book


def training_step(
    detector: CapsNetDetector, images: NDArray[np.uint8], labels: NDArray[np.int64]
) -> Callable[[], None]:
    """One step of the detector's own loop over the same first batch again and again."""
    network = detector.network_
    assert isinstance(network, CapsNet)
    run = run_on(network, images, labels, 0, CPU)
    run.begin_epoch()

    def step() -> None:
        network.train()
        run.cursor.zero_()
        run.step()
        network.eval()

    return step


def side_by_side(
    sizes: Sizes,
    images: int,
    ours: Callable[[], object],
    textbook: Callable[[], object],
    calls: int = 1,
) -> dict[str, Any]:
    """Images/s of both sides, which take turns of so many calls, and their ratio."""
    sides = {"ours": Side(ours, calls), "textbook": Side(textbook, calls)}
    seconds = take_turns(sides, sizes.repeats, CPU)
    found = {name: rates(values, images) for name, values in seconds.items()}
    return {**found, "ratio": ratio(seconds["ours"], seconds["textbook"])}


def memory(images: int) -> dict[str, dict[str, int]]:
    """The most that each side held beyond an idle process with torch: network, images, the rest."""
    with fitted(PAPER) as model:
        ours = {
            "training": apart(CPU, training_cost, PAPER, 10 * BATCH, 1, 0.0, CPU).mib,
            "scoring PP and RE": apart(CPU, scoring_cost, model, images, 0.0, CPU).mib,
        }
    return {
        work: {"ours": mib, "textbook": apart(CPU, textbook_mib, work, images)}
        for work, mib in ours.items()
    }


def textbook_mib(work: str, images: int) -> int:
    peak = Peak(CPU)
    book = TextbookCapsNet(CLASSES)
    if work == "training":
        drawn, labels = noise(PAPER, BATCH)
        step = textbook_step(book, as_pixels(drawn, CPU), torch.from_numpy(labels))
        for _ in range(2):  # the first makes Adam's moments
            step()
    else:
        textbook_scores(book.scores, noise(PAPER, images)[0], CPU)
    return peak.mib()


def demo_seconds() -> float:
    """Of `anocaps demo` on the CPU, in a process of its own: imports, networks, report."""
    with TemporaryDirectory() as folder:
        command = [*DEMO, "--out", str(Path(folder) / "report.html")]
        started = time.perf_counter()
        subprocess.run(
            command, check=True, capture_output=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        )
        return round(time.perf_counter() - started, 1)


def report(result: dict[str, Any]) -> str:
    lines = []
    for name, row in result["rates"].items():
        share = row["share of peak"]
        lines.append(
            f"{name:20} anocaps {row['ours']['median']:7.0f} images/s   "
            f"textbook {row['textbook']['median']:7.0f}   ratio {row['ratio']:.2f}   "
            f"share of peak {share['ours']:.0%}, {share['textbook']:.0%}"
        )
    for name, row in result["peak memory MiB"].items():
        lines.append(f"{name:20} anocaps {row['ours']:7} MiB        textbook {row['textbook']:7}")
    lines.append(
        f"anocaps demo: {result['demo seconds']} s; largest score difference "
        f"{result['largest score difference']:.1e}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
