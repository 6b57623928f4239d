"""The half of the CapsNet detector that scores: from images to scores, class and reconstruction.

pp        length of the longest class capsule
re        minus the normalised reconstruction error
pp+re     sum of both, each standardised over normal images
mse       minus the plain reconstruction error
knn       minus the distance to the nearest training images, in the space of class capsules
stem-knn  the same for the features under the capsules
patch     minus the distances of patches to normal patches (preset `photo`)
combined  several of these, joined by their p-values
"""

from collections.abc import Iterator, Mapping
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
from anocaps.detectors.neighbours import FeatureNeighbours, Neighbours
from anocaps.detectors.photo.model import PhotoModel
from anocaps.detectors.saving import rebuilt
from anocaps.detectors.verdicts import Verdicts
from anocaps.judging.calibration import score_range
from anocaps.judging.combining import ClassReferences, fisher, references_of
from anocaps.networks.capsnet import CapsNet, CapsNetConfig
from anocaps.networks.deep import DeepCapsNet, DeepConfig
from anocaps.networks.photo import PhotoConfig, PhotoNetwork
from anocaps.training.device import pick_device
from anocaps.training.inference import gathered, in_batches, inference
from anocaps.training.preprocessing import Preprocessing

_MOST_ITERATIONS = 100  # of routing, allowed in a model file; the presets use 3
_RECONSTRUCTED = frozenset(("re", "mse", "reconstruction"))  # outputs that need the decoder

Network = CapsNet | DeepCapsNet


class CapsNetScoring(Verdicts):
    """The part of a fitted CapsNet detector that scoring needs."""

    method = "capsnet"
    score_names = ("combined", "pp", "re", "pp+re", "mse", "knn", "stem-knn", "patch")

    photo_: PhotoModel | None  # preset `photo`; all others have the attributes below
    network_: Network
    neighbours_: Neighbours
    stem_neighbours_: FeatureNeighbours
    standard_: dict[str, tuple[float, float]]  # mean and spread of the parts of `pp+re`
    references_: dict[str, ClassReferences]  # normal scores of the parts of `combined`

    def __init__(self, **settings: Any) -> None:
        # scoring needs two of the detector's settings
        self.device = settings["device"]
        self.scoring_precision = settings["scoring_precision"]

    @property
    def gives(self) -> tuple[str, ...]:  # type: ignore[override]
        """Further outputs, by preset."""
        if getattr(self, "photo_", None) is None:
            return ("class", "class_lengths", "reconstruction")
        compared = ("class_lengths",) if len(self.classes_) > 1 else ()
        return ("class", *compared, "heat", "nearest")

    def _explained(
        self, images: NDArray[Any], reconstruct: bool
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
        """Pixels, features, class capsules and reconstructions, in batches.

        All scores come from here. Features [N, C] are those under the capsules.
        """
        device = next(self.network_.parameters()).device

        def explain(batch: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
            with inference(device, self.scoring_precision):
                pixels = self.preprocessing_.central(batch)
                seen = self.preprocessing_.encoder_input(pixels)
                features, primary = self.network_.features(seen)
                capsules = self.network_.class_capsules(primary)
                if not reconstruct:
                    return pixels, features, capsules, None
                longest = lengths(capsules).argmax(1)
                return pixels, features, capsules, self.network_.decode(capsules, longest)

        return in_batches(images, device, explain)

    def _forward(self, images: NDArray[Any], wanted: AbstractSet[str]) -> dict[str, NDArray[Any]]:
        if self.photo_ is not None:
            return self.photo_.forward(images, wanted)
        parts = set(wanted) - {"pp+re", "combined"}
        if "pp+re" in wanted:
            parts |= set(self._standardized())
        if "combined" in wanted:
            parts |= {*self._combined_parts(), "class"}

        def of_batch(
            pixels: Tensor, features: Tensor, capsules: Tensor, reconstructed: Tensor | None
        ) -> dict[str, Tensor]:
            length = lengths(capsules)
            found = {"class": length.argmax(1), "class_lengths": length}
            if "pp" in parts:
                found["pp"] = scores.pp(length)
            if "knn" in parts:
                found["knn"] = self.neighbours_.score(capsules)
            if "stem-knn" in parts:
                found["stem-knn"] = self.stem_neighbours_.score(features)
            if reconstructed is not None:
                found["re"] = scores.re(pixels, reconstructed)
                found["mse"] = scores.squared_error(pixels, reconstructed)
                found["reconstruction"] = reconstructed.permute(0, 2, 3, 1)
            return {name: found[name] for name in parts}

        explained = self._explained(images, not _RECONSTRUCTED.isdisjoint(parts))
        found = gathered((of_batch(*each) for each in explained), len(images))
        return found if wanted.isdisjoint(("pp+re", "combined")) else found | self._joined(found)

    def _joined(self, found: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
        """`pp+re` and `combined`, if their parts are found."""
        if self.photo_ is not None:
            return {"combined": self.photo_.combined(found)}
        joined = {}
        if self.standard_ and found.keys() >= self.standard_.keys():
            standard = [(found[k] - mean) / spread for k, (mean, spread) in self.standard_.items()]
            joined["pp+re"] = np.sum(standard, axis=0)
        if found.keys() >= {*self.references_, "class"}:
            joined["combined"] = -fisher(
                {k: v.surprise(found[k], found["class"]) for k, v in self.references_.items()}
            )
        return joined

    def _range(self, score: str) -> tuple[float, float]:
        size = self.preprocessing_
        return score_range(score, size.height * size.width * size.channels)

    def _usable_scores(self) -> tuple[str, ...]:
        photo: PhotoModel | None = getattr(self, "photo_", None)
        if photo is not None:
            return photo.score_names
        compared = ("pp", "pp+re") if len(self.classes_) == 1 else ()
        return tuple(name for name in self.score_names if name not in (*compared, "patch"))

    def _standardized(self) -> tuple[str, ...]:
        """The parts of `pp+re`."""
        return ("pp", "re") if len(self.classes_) > 1 else ()

    def _combined_parts(self) -> tuple[str, ...]:
        """The parts of `combined`. They were chosen on mock anomalies: docs/decisions.md."""
        if len(self.classes_) == 1:
            return ("re", "knn", "stem-knn")
        return (
            ("pp", "stem-knn")
            if isinstance(self.network_, DeepCapsNet)
            else ("pp", "re", "knn", "stem-knn")
        )

    # ── the model file ───────────────────────────────────────────────────────────────────────

    def _relearn(self, arrays: modelfile.Arrays, header: dict[str, Any]) -> None:
        network = dict(header["network"])
        config: CapsNetConfig | DeepConfig | PhotoConfig
        if header["kind"] == "photo":
            config = PhotoConfig(**network)
        elif header["kind"] == "deep":
            config = DeepConfig(**network)
        else:
            config = CapsNetConfig(**(network | {"decoder": tuple(network["decoder"])}))
        if config.classes != len(self.classes_):
            raise InputError("the network and the list of classes differ in number")
        self.preprocessing_ = Preprocessing(**header["preprocessing"])
        size = config.before if isinstance(config, PhotoConfig) else (config.height, config.width)
        if size != self.preprocessing_.window:
            raise InputError("the network and the images differ in size")
        if not 1 <= config.iterations <= _MOST_ITERATIONS:
            raise InputError(
                f"iterations must be 1 to {_MOST_ITERATIONS}, not {config.iterations!r}"
            )
        device = pick_device(self.device)
        self.photo_ = None
        if isinstance(config, PhotoConfig):
            photo = rebuilt(lambda: PhotoNetwork(config), arrays).to(device).eval()
            self.photo_ = PhotoModel(photo, self.preprocessing_)
            self.photo_.take(arrays)
            return
        self.network_ = rebuilt(lambda: built(config), arrays).to(device).eval()
        self.neighbours_ = Neighbours(torch.from_numpy(arrays["neighbours"]))
        if self.neighbours_.kept.shape[1] != config.classes * config.class_size:
            raise InputError("the network and the kept vectors differ in size")
        self.stem_neighbours_ = FeatureNeighbours.of_arrays(arrays)
        if len(self.stem_neighbours_.mean) != self.network_.feature_size:
            raise InputError("the kept features do not fit the network; train the model again")
        self.standard_ = {k: (v[0], v[1]) for k, v in header["standard"].items()}
        if tuple(self.standard_) != self._standardized():
            raise InputError("the mean and spread of a score are missing")
        self.references_ = references_of(arrays)
        if set(self.references_) != set(self._combined_parts()):
            raise InputError("its references are of other score functions than the model's")


def built(config: CapsNetConfig | DeepConfig) -> Network:
    return CapsNet(config) if isinstance(config, CapsNetConfig) else DeepCapsNet(config)
