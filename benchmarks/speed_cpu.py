"""Claim: on a CPU, in fp32, anocaps trains and scores the paper's network faster than a textbook
PyTorch version of the same equations, with the same outputs: the printed table proves it or not.

Both run in this process on random 28×28 images with 9 classes, warmed up, turn by turn; median and
spread of several repeats. Results: results/speed-cpu.json.

    python benchmarks/speed_cpu.py        (make bench-cpu)
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from textbook import TextbookCapsNet

from anocaps.circumstances import circumstances
from anocaps.detectors import CapsNetDetector
from anocaps.files import write_text
from anocaps.preprocessing import Preprocessing
from anocaps.training import Run, TrainingConfig

CLASSES = 9
BATCH = 100


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
            textbook=lambda: textbook_scores(book, pixels),
        ),
        "scoring PP": alternate(
            options.repeats, options.images,
            ours=lambda: detector.score_samples(images, "pp"),
            textbook=lambda: textbook_scores(book, pixels),
        ),
    }  # fmt: skip
    result = {
        "what": "images/s, paper's network, 28×28×1, 9 classes, fp32",
        "batch": BATCH,
        "repeats": options.repeats,
        "largest score difference": difference,
        "peak memory MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "rates": rates,
        **circumstances(torch.device("cpu")),
    }
    write_text(options.out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    for name, row in rates.items():
        print(
            f"{name:20} anocaps {row['ours']['median']:7.0f} images/s   "
            f"textbook {row['textbook']['median']:7.0f}   ratio {row['ratio']:.2f}"
        )
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
        torch.device("cpu"),
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


def textbook_scores(book: TextbookCapsNet, pixels: torch.Tensor) -> None:
    with torch.inference_mode():
        for part in pixels.split(BATCH):
            book.scores(part)


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


if __name__ == "__main__":
    main()
