"""The paper's detector: a capsule network trained as a classifier of the normal classes.

Scores: `pp`, the longest class capsule; `re`, minus the normalised reconstruction error; `pp+re`,
the sum of both after standardising each over normal images; `mse`, minus the reconstruction error
as it is.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from anocaps import modelfile, scores
from anocaps.capsules import Gradient, lengths, margin_loss
from anocaps.detectors.base import Detector, arrays_of, fill
from anocaps.detectors.presets import find_preset
from anocaps.errors import InputError
from anocaps.networks.capsnet import CapsNet, CapsNetConfig, Start
from anocaps.preprocessing import Preprocessing
from anocaps.scoring import batches, exact, pictures
from anocaps.training import (
    Loss,
    Precision,
    Run,
    TrainingConfig,
    pick_device,
    pick_precision,
)

T = TypeVar("T")


class CapsNetDetector(Detector):
    """Detect images that a capsule network, trained on normal classes only, cannot explain.

    preset: "paper" (28×28 to 48×48) or "quick" (small images, CPUs). Arguments left at None take
    the preset's value. calibration: the share of each class kept out of training to set false
    alarm rates. precision: of training; "auto" is bf16 on a GPU that has it, fp32 elsewhere.
    """

    method = "capsnet"
    score_names = ("pp", "re", "pp+re", "mse")

    def __init__(
        self,
        preset: str = "paper",
        score: str = "pp",
        epochs: int | None = None,
        calibration: float = 0.1,
        seed: int = 0,
        device: str = "auto",
        batch_size: int | None = None,
        learning_rate: float | None = None,
        final_share: float = 0.1,
        reconstruction_weight: float | None = None,
        crop: int | None = None,
        shift: int | None = None,
        standardize: bool = False,
        class_bias: bool = False,
        gradient: Gradient | None = None,
        start: Start = "scaled",
        precision: Literal["auto", "fp32", "bf16"] = "auto",
        scoring_precision: Precision = "fp32",
    ) -> None:
        self.preset = preset
        self.score = score
        self.epochs = epochs
        self.calibration = calibration
        self.seed = seed
        self.device = device
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.final_share = final_share
        self.reconstruction_weight = reconstruction_weight
        self.crop = crop
        self.shift = shift
        self.standardize = standardize
        self.class_bias = class_bias
        self.gradient = gradient
        self.start = start
        self.precision = precision
        self.scoring_precision = scoring_precision

    # ── training ─────────────────────────────────────────────────────────────────────────────

    def _training(self, images: NDArray[Any], labels: NDArray[np.int64]) -> Iterator[Run]:
        device = pick_device(self.device)
        preset = find_preset(self.preset)
        _, height, width, channels = images.shape
        self.preprocessing_ = Preprocessing(
            height,
            width,
            channels,
            crop=self.crop,
            shift=_either(self.shift, preset.shift),
            standardize=self.standardize,
        )
        network_config = replace(
            preset.network(*self.preprocessing_.window, channels, len(self.classes_)),
            class_bias=self.class_bias,
            start=self.start,
        )
        if self.gradient is not None:
            network_config = replace(network_config, gradient=self.gradient)
        training = TrainingConfig(
            epochs=_either(self.epochs, preset.epochs),
            batch_size=_either(self.batch_size, preset.batch_size),
            learning_rate=_either(self.learning_rate, preset.learning_rate),
            final_share=self.final_share,
            precision=pick_precision(self.precision, device),
            seed=self.seed,
        )
        pixels = channels * network_config.height * network_config.width
        weight = _either(
            self.reconstruction_weight, _either(preset.reconstruction_weight, 1.6 / pixels)
        )
        if not 0 <= weight < float("inf"):
            raise InputError(f"reconstruction_weight is 0 or more, not {weight!r}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = CapsNet(network_config)
        loss = capsnet_loss(network, self.preprocessing_, weight)
        described = asdict(network_config) | {"reconstruction_weight": weight}
        run = Run(
            network, loss, images, labels, self.preprocessing_, training, device,
            described=described,
        )  # fmt: skip
        started = time.perf_counter()
        yield run
        self.network_ = network
        self.record_ = {
            "losses": run.losses,
            "training": asdict(training) | {"reconstruction_weight": weight},
            "training_seconds": round(time.perf_counter() - started, 3),
        }

    # ── scoring ──────────────────────────────────────────────────────────────────────────────

    def _explained(
        self, images: NDArray[Any], redraw: bool
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Batch by batch: pixels, class capsule lengths, redrawn pixels. The one scoring path."""
        device = next(self.network_.parameters()).device
        for batch in batches(images, device):
            with exact(device, self.scoring_precision):
                pixels = self.preprocessing_.central(batch)
                x = self.preprocessing_.encoder_input(pixels)
                length, redrawn = self.network_.explain(x, redraw)
            yield pixels, length, redrawn

    def _raw_scores(
        self, images: NDArray[Any], names: Iterable[str]
    ) -> dict[str, NDArray[np.float64]]:
        names = tuple(names)
        needs_pp = not {"pp", "pp+re"}.isdisjoint(names)
        redraw = not {"re", "pp+re", "mse"}.isdisjoint(names)
        parts: dict[str, list[Tensor]] = {"pp": [], "re": [], "mse": []}
        for pixels, length, redrawn in self._explained(images, redraw):
            if needs_pp:
                parts["pp"].append(scores.pp(length))
            if redrawn is not None:
                parts["re"].append(scores.re(pixels, redrawn))
                parts["mse"].append(scores.squared_error(pixels, redrawn))
        found = {k: torch.cat(v).cpu().double().numpy() for k, v in parts.items() if v}
        if "pp+re" in names:
            standard = [(found[k] - mean) / spread for k, (mean, spread) in self.standard_.items()]
            found["pp+re"] = np.sum(standard, axis=0)
        return {name: found[name] for name in names}

    def _standardize(self, normal: NDArray[Any]) -> None:
        self.standard_: dict[str, tuple[float, float]] = {}
        if len(self.classes_) > 1:
            for name, values in self._raw_scores(normal, ("pp", "re")).items():
                # a spread of zero (identical images) must not divide
                self.standard_[name] = float(values.mean()), max(float(values.std()), 1e-12)

    def _usable_scores(self) -> tuple[str, ...]:
        return self.score_names if len(self.classes_) > 1 else ("re", "mse")

    def class_lengths(self, images: ArrayLike) -> NDArray[np.float64]:
        """Lengths of all class capsules, N×classes, in the order of `classes_`."""
        found = [length for _, length, _ in self._explained(self._gate(images), redraw=False)]
        return torch.cat(found).cpu().double().numpy()

    def classify(self, images: ArrayLike) -> NDArray[Any]:
        """The normal class that each image looks most like: the longest capsule's label."""
        found: NDArray[Any] = self.classes_[self.class_lengths(images).argmax(1)]
        return found

    def reconstruct(self, images: ArrayLike) -> NDArray[np.float32]:
        """Each image's window, redrawn from its longest capsule: N×h×w×C in [0, 1].

        Images without a channel axis come back without one.
        """
        array = self._gate(images)
        found = (redrawn for _, _, redrawn in self._explained(array, redraw=True))
        return pictures((r for r in found if r is not None), images)

    # ── the model file ───────────────────────────────────────────────────────────────────────

    def _learned(self) -> tuple[modelfile.Arrays, dict[str, Any]]:
        return arrays_of(self.network_), {
            "network": asdict(self.network_.config),
            "preprocessing": asdict(self.preprocessing_),
            "standard": self.standard_,
        }

    def _relearn(self, arrays: modelfile.Arrays, header: dict[str, Any]) -> None:
        network = dict(header["network"])
        config = CapsNetConfig(**(network | {"decoder": tuple(network["decoder"])}))
        if config.classes != len(self.classes_):
            raise InputError("the network and the list of classes differ in number")
        self.network_ = CapsNet(config)
        fill(self.network_, arrays)
        self.network_.to(pick_device(self.device)).eval()
        self.preprocessing_ = Preprocessing(**header["preprocessing"])
        self.standard_ = {k: (v[0], v[1]) for k, v in header["standard"].items()}


def capsnet_loss(network: CapsNet, preprocessing: Preprocessing, weight: float) -> Loss:
    """Margin loss plus `weight` × summed squared error of the image redrawn from its own class."""

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        capsules = network(preprocessing.encoder_input(pixels))
        redrawn = network.decode(capsules, labels).float()
        error = (redrawn - pixels).square().flatten(1).sum(1).mean()
        total: Tensor = margin_loss(lengths(capsules), labels) + weight * error
        return total

    return loss


def _either(given: T | None, otherwise: T) -> T:
    return otherwise if given is None else given
