"""Claim: on a CPU, in fp32, anocaps trains and scores the paper's network faster than a textbook
PyTorch version of the same equations, with the same outputs: the printed table proves it or not.

Both run in this process on random 28×28 images with 9 classes, warmed up, turn by turn; median and
spread of several repeats. The share of peak counts the arithmetic of the direct convolutions for
both sides, so that doing less of it counts as speed: it can be above 1. Memory is what each side
needed in a process of its own. Results: results/speed-cpu.json.

    python benchmarks/speed_cpu.py        (make bench-cpu)
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from growth import Kind, Peak, apart, fitted, scoring_cost, training_cost
from textbook import TextbookCapsNet

from anocaps.circumstances import circumstances
from anocaps.detectors import CapsNetDetector
from anocaps.files import write_text
from anocaps.preprocessing import Preprocessing
from anocaps.training import Run, TrainingConfig

CLASSES = 9
BATCH = 100
SCORING_GFLOP = 0.4  # an image: 200 M multiply-adds, nearly all in the primary convolution
TRAINING_GFLOP = 1.2  # that three times: forward, and the gradients of maps and weights
CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--images", type=int, default=512, help="scored in one repeat")
    parser.add_argument("--out", type=Path, default=Path("results/speed-cpu.json"))
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (options.images, 28, 28), dtype=np.uint8)
    labels = np.arange(options.images) % CLASSES
    detector, book = pair(images, labels)
    pixels = torch.from_numpy(images).unsqueeze(1) / 255
    difference = check_equal(detector, book, images[:64], pixels[:64])

    rates = {
        "training": alternate(
            options.repeats, BATCH, turn=4, ours=training_step(detector, images, labels),
            textbook=textbook_step(book, pixels[:BATCH], torch.from_numpy(labels[:BATCH])),
        ),
        "scoring PP and RE": alternate(
            options.repeats, options.images,
            ours=lambda: detector.all_scores(images, ("pp", "re")),
            textbook=lambda: textbook_scores(book.scores, pixels),
        ),
        "scoring PP": alternate(
            options.repeats, options.images,
            ours=lambda: detector.score_samples(images, "pp"),
            textbook=lambda: textbook_scores(book.pp, pixels),
        ),
    }  # fmt: skip
    peak = peak_gflops(options.repeats)
    for name, row in rates.items():
        gflop = TRAINING_GFLOP if name == "training" else SCORING_GFLOP
        row["share of peak"] = {
            side: round(row[side]["median"] * gflop / peak, 3) for side in ("ours", "textbook")
        }
    result = {
        "what": "images/s, paper's network, 28×28×1, 9 classes, fp32",
        "batch": BATCH,
        "repeats": options.repeats,
        "largest score difference": difference,
        "peak fp32 GFLOP/s measured": peak,
        "peak memory MiB": memory(options.images),
        "rates": rates,
        **circumstances(CPU),
    }
    write_text(options.out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    for name, row in rates.items():
        print(
            f"{name:20} anocaps {row['ours']['median']:7.0f} images/s   "
            f"textbook {row['textbook']['median']:7.0f}   ratio {row['ratio']:.2f}   "
            f"share of peak {row['share of peak']['ours']:.0%}, "
            f"{row['share of peak']['textbook']:.0%}"
        )
    for name, row in result["peak memory MiB"].items():
        print(f"{name:20} anocaps {row['ours']:7} MiB        textbook {row['textbook']:7}")
    print(f"largest score difference {difference:.1e}; written to {options.out}")


def pair(images: np.ndarray, labels: np.ndarray) -> tuple[CapsNetDetector, TextbookCapsNet]:
    """A detector of the `paper` preset after one short epoch, and a textbook with its weights."""
    detector = CapsNetDetector(epochs=1, calibration=0.0, device="cpu")
    detector.fit(images[:BATCH], labels[:BATCH])
    book = TextbookCapsNet(CLASSES)
    book.load_state_dict(detector.network_.state_dict())
    return detector, book


def check_equal(
    detector: CapsNetDetector, book: TextbookCapsNet, images: np.ndarray, pixels: torch.Tensor
) -> float:
    """The same weights must give the same scores before anything is timed."""
    with torch.inference_mode():
        want = [scores.cpu().double().numpy() for scores in book.scores(pixels)]
    got = detector.all_scores(images, ("pp", "re"))
    largest = max(float(np.abs(g - w).max()) for g, w in zip(got.values(), want))
    if largest > 1e-4:
        raise SystemExit(f"the outputs differ by {largest}: nothing was timed")
    return largest


def training_step(
    detector: CapsNetDetector, images: np.ndarray, labels: np.ndarray
) -> Callable[[], None]:
    """One step of the detector's own loop over the same first batch again and again."""
    from anocaps.detectors.capsnet import capsnet_loss

    network = detector.network_
    preprocessing = Preprocessing(28, 28, 1)
    run = Run(
        network, capsnet_loss(network, preprocessing, 0.0005), images[..., None],
        labels.astype(np.int64), preprocessing, TrainingConfig(epochs=1000, batch_size=BATCH),
        CPU,
    )  # fmt: skip
    run.begin_epoch()

    def step() -> None:
        network.train()
        run.cursor.zero_()
        run.step()
        network.eval()

    return step


def textbook_step(
    book: TextbookCapsNet, pixels: torch.Tensor, labels: torch.Tensor
) -> Callable[[], None]:
    optimizer = torch.optim.Adam(book.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        book.loss(pixels, labels).backward()
        optimizer.step()

    return step


def textbook_scores(score: Callable[[torch.Tensor], object], pixels: torch.Tensor) -> None:
    with torch.inference_mode():
        for part in pixels.split(BATCH):
            score(part)


def alternate(
    repeats: int, images: int, turn: int = 1, **sides: Callable[[], object]
) -> dict[str, object]:
    """images/s of each side, run turn by turn so that both meet the same disturbances.

    A turn is several calls: training never has another network's numbers in its cache.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for call in sides.values():
        call()  # warm up
    for _ in range(repeats):
        for name, call in sides.items():
            started = time.perf_counter()
            for _ in range(turn):
                call()
            seconds[name].append((time.perf_counter() - started) / turn)
    rates = {
        name: {
            "median": round(images / statistics.median(values), 1),
            "lowest": round(images / max(values), 1),
            "highest": round(images / min(values), 1),
        }
        for name, values in seconds.items()
    }
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["textbook"])]
    return rates | {"ratio": round(statistics.median(ratios), 2)}


def peak_gflops(repeats: int, side: int = 2048) -> float:
    """Of a large fp32 matrix product of random numbers, on the same threads."""
    a, b = torch.randn(side, side), torch.randn(side, side)
    torch.mm(a, b)  # warm up
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        torch.mm(a, b)
        seconds.append(time.perf_counter() - started)
    return round(2 * side**3 / statistics.median(seconds) / 1e9, 1)


def memory(images: int) -> dict[str, dict[str, object]]:
    """The most that each side held beyond an idle process with torch: network, images, the rest."""
    kind = Kind("paper", classes=CLASSES)
    with fitted(kind) as model:
        ours = {
            "training": apart(CPU, training_cost, kind, 1, 0.0, CPU),
            "scoring PP and RE": apart(CPU, scoring_cost, model, images, 0.0, CPU),
        }
    return {
        work: {
            "ours": cost["peak MiB"],
            "textbook": apart(CPU, textbook_cost, work, images)["peak MiB"],
        }
        for work, cost in ours.items()
    }


def textbook_cost(work: str, images: int) -> dict[str, float | int | str]:
    peak = Peak(CPU)
    book = TextbookCapsNet(CLASSES)
    if work == "training":
        call = textbook_step(book, torch.rand(BATCH, 1, 28, 28), torch.arange(BATCH) % CLASSES)
    else:
        pixels = torch.rand(images, 1, 28, 28)
        call = partial(textbook_scores, book.scores, pixels)
    for _ in range(2):  # the first step makes Adam's moments
        call()
    return {"peak MiB": peak.mib()}


if __name__ == "__main__":
    main()
