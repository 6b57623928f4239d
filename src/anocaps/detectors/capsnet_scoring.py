"""The half of the CapsNet detector that scores: from images to scores, class and reconstruction.

Scores: `pp`, the longest class capsule; `re`, minus the normalised reconstruction error; `pp+re`,
the sum of both after standardising each over normal images; `mse`, minus the reconstruction error
as it is; `knn`, minus the distance to the nearest training images in the space of class capsules.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anocaps.base import arrayfile as modelfile
from anocaps.base.errors import InputError
from anocaps.capsules.textbook import lengths
from anocaps.detectors import scores
from anocaps.detectors.neighbours import Neighbours
from anocaps.detectors.saving import rebuilt
from anocaps.detectors.verdicts import Verdicts
from anocaps.judging.calibration import RANGES
from anocaps.networks.capsnet import CapsNet, CapsNetConfig
from anocaps.networks.deep import DeepCapsNet, DeepConfig
from anocaps.training.device import pick_device
from anocaps.training.inference import gathered, in_batches, inference
from anocaps.training.preprocessing import Preprocessing

_MOST_ITERATIONS = 100  # of routing, in a model file: it takes 3
_RECONSTRUCTED = frozenset(("re", "mse", "reconstruction"))  # outputs that need the decoder

Network = CapsNet | DeepCapsNet


class CapsNetScoring(Verdicts):
    """The part of a fitted CapsNet detector that scoring needs."""

    method = "capsnet"
    score_names = ("pp", "re", "pp+re", "mse", "knn")
    score_ranges = RANGES
    gives = ("class", "class_lengths", "reconstruction")

    network_: Network
    neighbours_: Neighbours
    standard_: dict[str, tuple[float, float]]  # mean and spread of what `pp+re` adds up

    def __init__(self, **settings: Any) -> None:
        # scoring needs two of the detector's settings
        self.device = settings["device"]
        self.scoring_precision = settings["scoring_precision"]

    def _explained(
        self, images: NDArray[Any], reconstruct: bool
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Batch by batch: pixels, class capsules, reconstructions. The one scoring path."""
        device = next(self.network_.parameters()).device

        def explain(batch: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
            with inference(device, self.scoring_precision):
                pixels = self.preprocessing_.central(batch)
                capsules = self.network_(self.preprocessing_.encoder_input(pixels))
                if not reconstruct:
                    return pixels, capsules, None
                longest = lengths(capsules).argmax(1)
                return pixels, capsules, self.network_.decode(capsules, longest)

        return in_batches(images, device, explain)

    def _forward(self, images: NDArray[Any], wanted: AbstractSet[str]) -> dict[str, NDArray[Any]]:
        parts = (wanted - {"pp+re"}) | (set(self._standardized()) if "pp+re" in wanted else set())

        def of_batch(
            pixels: Tensor, capsules: Tensor, reconstructed: Tensor | None
        ) -> dict[str, Tensor]:
            length = lengths(capsules)
            found = {"class": length.argmax(1), "class_lengths": length}
            if "pp" in parts:
                found["pp"] = scores.pp(length)
            if "knn" in parts:
                found["knn"] = self.neighbours_.score(capsules)
            if reconstructed is not None:
                found["re"] = scores.re(pixels, reconstructed)
                found["mse"] = scores.squared_error(pixels, reconstructed)
                found["reconstruction"] = reconstructed.permute(0, 2, 3, 1)
            return {name: found[name] for name in parts}

        explained = self._explained(images, not _RECONSTRUCTED.isdisjoint(parts))
        found = gathered((of_batch(*each) for each in explained), len(images))
        if "pp+re" in wanted:
            standard = [(found[k] - mean) / spread for k, (mean, spread) in self.standard_.items()]
            found["pp+re"] = np.sum(standard, axis=0)
        return found

    def _usable_scores(self) -> tuple[str, ...]:
        return self.score_names if len(self.classes_) > 1 else ("re", "mse", "knn")

    def _standardized(self) -> tuple[str, ...]:
        """What `pp+re` adds up."""
        return ("pp", "re") if len(self.classes_) > 1 else ()

    def _relearn(self, arrays: modelfile.Arrays, header: dict[str, Any]) -> None:
        network = dict(header["network"])
        config: CapsNetConfig | DeepConfig = (
            DeepConfig(**network)
            if header["kind"] == "deep"
            else CapsNetConfig(**(network | {"decoder": tuple(network["decoder"])}))
        )
        if config.classes != len(self.classes_):
            raise InputError("the network and the list of classes differ in number")
        self.preprocessing_ = Preprocessing(**header["preprocessing"])
        if (config.height, config.width) != self.preprocessing_.window:
            raise InputError("the network and the images differ in size")
        if not 1 <= config.iterations <= _MOST_ITERATIONS:
            raise InputError(f"iterations is 1 to {_MOST_ITERATIONS}, not {config.iterations!r}")
        self.network_ = rebuilt(lambda: built(config), arrays)
        self.network_.to(pick_device(self.device)).eval()
        self.neighbours_ = Neighbours(torch.from_numpy(arrays["neighbours"]))
        if self.neighbours_.kept.shape[1] != config.classes * config.class_size:
            raise InputError("the network and the kept vectors differ in size")
        self.standard_ = {k: (v[0], v[1]) for k, v in header["standard"].items()}
        if tuple(self.standard_) != self._standardized():
            raise InputError("the mean and spread of a score are missing")


def built(config: CapsNetConfig | DeepConfig) -> Network:
    return CapsNet(config) if isinstance(config, CapsNetConfig) else DeepCapsNet(config)
