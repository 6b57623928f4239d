"""The base class of methods with one network: arguments, training in stages, scoring, model file.

A method adds its network, its stages and its scores.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import asdict
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anocaps.base import arrayfile as modelfile
from anocaps.detectors.base import AUTO, Detector
from anocaps.detectors.saving import arrays_of, rebuilt
from anocaps.training.device import Precision, pick_device, pick_precision
from anocaps.training.inference import gathered, in_batches, inference
from anocaps.training.loop import Loss, Run, TrainingConfig
from anocaps.training.preprocessing import Images, Preprocessing

T = TypeVar("T")


class PlainDetector(Detector):
    """Base class of detectors with one network. A method adds network, losses and outputs.

    Parameters
    ----------
    score_function : str, default="auto"
        The score function of the verdict. "auto" is the first of `score_names`.
    epochs : int, default=20
        Passes over the training images in each stage.
    calibration : float, default=None
        The share of images kept out of training to set false-alarm rates. None: 0.1, or more for
        few images. 0: scores without verdicts.
    seed : int, default=0
        Seed of everything random.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Device of training and scoring. "auto" takes a GPU if there is one.
    batch_size : int, default=100
        Images per training step.
    learning_rate : float, default=0.001
        The rate of the first step.
    crop : int, default=None
        The side of the window that the network sees: random in training, central in scoring.
        None: the whole image.
    shift : int, default=0
        Largest random shift in training, in pixels.
    precision : {"auto", "fp32", "bf16"}, default="fp32"
        Precision of training. "auto" is bf16 on a GPU that supports it, otherwise fp32.
    scoring_precision : {"fp32", "bf16"}, default="fp32"
        Precision of scoring. Only fp32 gives the same scores on every device.
    """

    learns_in_parts = True
    network_: nn.Module

    def __init__(
        self,
        score_function: str = AUTO,
        epochs: int = 20,
        calibration: float | None = None,
        seed: int = 0,
        device: str = "auto",
        batch_size: int = 100,
        learning_rate: float = 1e-3,
        crop: int | None = None,
        shift: int = 0,
        precision: Literal["auto", "fp32", "bf16"] = "fp32",
        scoring_precision: Precision = "fp32",
    ) -> None:
        self.score_function = score_function
        self.epochs = epochs
        self.calibration = calibration
        self.seed = seed
        self.device = device
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.crop = crop
        self.shift = shift
        self.precision = precision
        self.scoring_precision = scoring_precision

    # ── hooks of a method ────────────────────────────────────────────────────────────────────

    @abstractmethod
    def _network(self) -> nn.Module:
        """A new network for `preprocessing_` and `classes_`, with random weights."""

    @abstractmethod
    def _stages(self, noise: torch.Generator) -> Iterable[tuple[nn.Module, Loss]]:
        """The stages of training, in order: a part of `network_`, and its loss."""

    @abstractmethod
    def _batch(self, pixels: Tensor) -> dict[str, Tensor]:
        """Every output of pixels [B, C, h, w] by name. `Verdicts._forward` lists the names."""

    # ── training ─────────────────────────────────────────────────────────────────────────────

    def _preprocessing(self, height: int, width: int, channels: int) -> Preprocessing:
        return Preprocessing(height, width, channels, crop=self.crop, shift=self.shift)

    def _training(self, images: Images, labels: NDArray[np.int64]) -> Iterator[Run]:
        device = pick_device(self.device)
        self.preprocessing_ = self._preprocessing(*images.shape[1:])
        config = TrainingConfig(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            precision=pick_precision(self.precision, device),
            seed=self.seed,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.network_ = self._network()
        noise = torch.Generator(device)
        losses, seconds = [], 0.0
        for stage, (part, loss) in enumerate(self._stages(noise)):
            run = Run(
                part,
                loss,
                images,
                labels,
                self.preprocessing_,
                config,
                device,
                noise,
                described={"method": self.method, "stage": stage},
            )
            yield run
            losses += run.losses
            seconds += run.seconds
        self.network_.eval()
        self.record_ = {
            "losses": losses,
            "training": asdict(config),
            "training_seconds": round(seconds, 3),
        }

    # ── scoring ──────────────────────────────────────────────────────────────────────────────

    def _each(self, images: Images, function: Callable[[Tensor], T]) -> Iterator[T]:
        """The results of `function` on batches of pixels [B, C, h, w]. All scoring passes here."""
        device = next(self.network_.parameters()).device

        def work(batch: Tensor) -> T:
            with inference(device, self.scoring_precision):
                return function(self.preprocessing_.central(batch))

        return in_batches(images, device, work)

    def _forward(self, images: NDArray[Any], wanted: AbstractSet[str]) -> dict[str, NDArray[Any]]:
        def of_batch(pixels: Tensor) -> dict[str, Tensor]:
            found = self._batch(pixels)
            return {name: found[name] for name in wanted}

        return gathered(self._each(images, of_batch), len(images))

    # ── the model file ───────────────────────────────────────────────────────────────────────

    def _learned(self) -> tuple[modelfile.Arrays, dict[str, Any]]:
        return arrays_of(self.network_), {"preprocessing": asdict(self.preprocessing_)}

    def _relearn(self, arrays: modelfile.Arrays, header: dict[str, Any]) -> None:
        self.preprocessing_ = Preprocessing(**header["preprocessing"])
        self.network_ = rebuilt(self._network, arrays)
        self.network_.to(pick_device(self.device)).eval()
        # as in training, because the rounding of a convolution depends on the layout
        self.network_.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
