"""The work that the speed scripts time: networks in training, images to score, and the textbook
doing the same. It is in one place, so that all scripts time the same.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np
import torch
from measuring import Peak, median_seconds
from numpy.typing import NDArray
from torch import Tensor, nn

from anocaps.data import load_dataset
from anocaps.detectors import CapsNetDetector, load
from anocaps.detectors.capsnet import built, capsnet_loss
from anocaps.detectors.presets import find_preset
from anocaps.networks.capsnet import CapsNet, CapsNetConfig
from anocaps.networks.deep import DeepCapsNet
from anocaps.training.device import pick_precision
from anocaps.training.loop import Run, TrainingConfig
from anocaps.training.memory import in_parts
from anocaps.training.preprocessing import Preprocessing

CLASSES = 9
BATCH = 100  # images in a training step
SCORED_AT_ONCE = {"cpu": 256, "cuda": 4096}  # images, as anocaps.training.inference takes them
SCORES = ("pp", "re")


@dataclass(frozen=True)
class Kind:
    """A network: a preset's, for images of so many pixels a side and so many classes."""

    preset: str
    side: int = 28
    classes: int = CLASSES

    def network(self) -> CapsNet | DeepCapsNet:
        return built(find_preset(self.preset).network(self.side, self.side, 1, self.classes))


PAPER = Kind("paper")
PAPER_CONFIG = find_preset(PAPER.preset).network(28, 28, 1, CLASSES)


def multiply_adds(config: CapsNetConfig) -> dict[str, int]:
    """Of one image, forward, with direct convolutions; sums of routing are small and left out."""
    widths = (
        config.classes * config.class_size,
        *config.decoder,
        config.channels * config.height * config.width,
    )
    conv1 = prod(config.conv_grid) * config.conv_maps
    primary = config.primary_capsules * config.primary_size
    return {
        "conv1": conv1 * config.channels * config.conv_kernel**2,
        "primary": primary * config.conv_maps * config.primary_kernel**2,
        "votes": primary * config.classes * config.class_size,
        "decoder": sum(before * after for before, after in pairwise(widths)),
    }


SCORING_FLOP = 2 * sum(multiply_adds(PAPER_CONFIG).values())  # an image
TRAINING_FLOP = 3 * SCORING_FLOP  # forward, and the gradients of what came in and of the weights


# ── images ───────────────────────────────────────────────────────────────────────────────────


def noise(kind: Kind, images: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Random images [N, side, side] and labels [N]."""
    shape = (images, kind.side, kind.side)
    drawn = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return drawn, np.arange(images) % kind.classes


def large_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bundled digits with every pixel 3×3 and a black border: [1797, 28, 28] and labels."""
    dataset = load_dataset("digits")
    images = np.concatenate([dataset.train.images, dataset.test.images])
    labels = np.concatenate([dataset.train.labels, dataset.test.labels])
    large = images.repeat(3, axis=1).repeat(3, axis=2)
    return np.pad(large, ((0, 0), (2, 2), (2, 2))), labels


# ── anocaps ──────────────────────────────────────────────────────────────────────────────────


def make_run(kind: Kind, seed: int, device: torch.device, images: int) -> Run:
    """Training on so many images of noise."""
    torch.manual_seed(seed)
    return run_on(kind.network(), *noise(kind, images, seed), seed, device, kind.preset)


def run_on(
    network: CapsNet | DeepCapsNet,
    images: NDArray[np.uint8],  # [N, side, side]
    labels: NDArray[np.int64],
    seed: int,
    device: torch.device,
    preset: str = PAPER.preset,
) -> Run:
    """Training as the detector does it, but for the preset's own batches and learning rate."""
    settings, (height, width) = find_preset(preset), images.shape[1:]
    shift = settings.shift_for(height, width)
    preprocessing = Preprocessing(height, width, 1, shift=shift, padding=settings.padding)
    return Run(
        network,
        capsnet_loss(network, preprocessing, settings.weight_for(height * width)),
        images[..., None],
        labels.astype(np.int64),
        preprocessing,
        TrainingConfig(
            epochs=1000, batch_size=BATCH, precision=pick_precision("auto", device), seed=seed
        ),
        device,
    )


def steps_of(runs: Sequence[Run], steps: int = 1) -> Callable[[], None]:
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


@contextmanager
def fitted(kind: Kind) -> Iterator[Path]:
    """A model file, so that training has no part in the memory of scoring."""
    detector = CapsNetDetector(kind.preset, epochs=1, calibration=0.0, device="cpu")
    detector.fit(*noise(kind, 2 * kind.classes))
    with TemporaryDirectory() as folder:
        detector.save(model := Path(folder) / "model.safetensors")
        yield model


@dataclass(frozen=True)
class Cost:
    seconds: float
    mib: int  # of memory, at most


def training_cost(
    kind: Kind, images: int, steps: int, seconds: float, device: torch.device
) -> Cost:
    """Of a step, and the memory of training on so many images; see measuring.apart."""
    peak = Peak(device)
    step = steps_of([make_run(kind, 0, device, images)], steps)
    step()  # warm up
    return Cost(median_seconds(step, seconds, device) / steps, peak.mib())


def scoring_cost(model: Path, images: int, seconds: float, device: torch.device) -> Cost:
    """Of PP and RE of so many images, which are one, repeated without a copy."""
    peak = Peak(device)
    detector = load(model, device=str(device))
    seen = detector.preprocessing_
    one = np.random.default_rng(0).integers(0, 256, (1, seen.height, seen.width), dtype=np.uint8)
    many = np.broadcast_to(one, (images, *one.shape[1:]))
    detector.all_scores(many[:5000], SCORES)  # warm up
    found = median_seconds(lambda: detector.all_scores(many, SCORES), seconds, device)
    return Cost(found, peak.mib())


# ── the textbook, and whoever has its methods ────────────────────────────────────────────────


def as_pixels(images: NDArray[np.uint8], device: torch.device) -> Tensor:
    """[N, 28, 28] → [N, 1, 28, 28] in [0, 1] on the device."""
    return torch.from_numpy(images).unsqueeze(1).to(device) / 255


class Trained(Protocol):
    def parameters(self) -> Iterator[nn.Parameter]: ...

    @property
    def loss(self) -> Callable[[Tensor, Tensor], Tensor]: ...  # pixels, labels → scalar


def textbook_step(book: Trained, pixels: Tensor, labels: Tensor) -> Callable[[], None]:
    """One step over the same batch again and again."""
    optimizer = torch.optim.Adam(book.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        book.loss(pixels, labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def textbook_scores(
    score: Callable[[Tensor], tuple[Tensor, ...]],
    images: NDArray[np.uint8],  # [N, 28, 28]
    device: torch.device,
) -> list[NDArray[Any]]:
    """From arrays in the computer's memory to scores there, in batches of anocaps' size."""

    def of_part(part: slice) -> list[NDArray[Any]]:
        return [scores.cpu().numpy() for scores in score(as_pixels(images[part], device))]

    size = SCORED_AT_ONCE[device.type]
    with torch.inference_mode():
        parts = list(in_parts(len(images), size, of_part, whole="batch", thing="image"))
    return [np.concatenate(scores) for scores in zip(*parts)]
