"""The paper's detector: a capsule network trained as a classifier of the normal classes.

Scores: `pp`, the longest class capsule; `re`, minus the normalised reconstruction error; `pp+re`,
the sum of both after standardising each over normal images; `mse`, minus the reconstruction error
as it is; `knn`, minus the distance to the nearest training images in the space of class capsules.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from anocaps.base import arrayfile as modelfile
from anocaps.base.errors import InputError
from anocaps.capsules.textbook import Gradient, lengths
from anocaps.detectors import scores
from anocaps.detectors.base import Detector
from anocaps.detectors.neighbours import Neighbours, draw
from anocaps.detectors.presets import find_preset
from anocaps.detectors.saving import arrays_of, rebuilt
from anocaps.judging.calibration import split
from anocaps.kernels import choose
from anocaps.networks.capsnet import CapsNet, CapsNetConfig, Start
from anocaps.networks.deep import DeepCapsNet, DeepConfig
from anocaps.training.device import Precision, pick_device, pick_precision
from anocaps.training.inference import gathered, in_batches, inference, pictures
from anocaps.training.loop import Loss, Run, TrainingConfig
from anocaps.training.preprocessing import Chosen, Images, Preprocessing
from anocaps.training.validation import Validation

_FEWEST_VALIDATION = 20  # images: fewer would choose an epoch by chance
_MOST_STANDARD_IMAGES = 5000  # for a mean and a standard deviation: more add nothing but time

_MOST_ITERATIONS = 100  # of routing, in a model file: it takes 3

T = TypeVar("T")
Network = CapsNet | DeepCapsNet


class CapsNetDetector(Detector):
    """Detect images that a capsule network, trained on normal classes only, cannot explain.

    preset: "paper" (28×28 to 48×48), "deep" (real pictures, 28×28 to 128×128) or "quick" (small
    images, CPUs). Arguments left at None take the preset's value. calibration: the share of each
    class kept out of training to set false-alarm rates; None is 0.1, and up to a third where images
    are few. precision: of training; "auto" is bf16 on a GPU that has it, fp32 elsewhere. With one
    class `score_function` is "knn", "re" or "mse", as the others compare classes.
    """

    method = "capsnet"
    score_names = ("pp", "re", "pp+re", "mse", "knn")
    learns_in_parts = True

    def __init__(
        self,
        preset: str = "paper",
        score_function: str = "pp",
        epochs: int | None = None,
        calibration: float | None = None,
        seed: int = 0,
        device: str = "auto",
        batch_size: int | None = None,
        learning_rate: float | None = None,
        final_share: float | None = None,
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
        self.score_function = score_function
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

    def _training(self, images: Images, labels: NDArray[np.int64]) -> Iterator[Run]:
        device = pick_device(self.device)
        preset = find_preset(self.preset)
        _, height, width, channels = images.shape
        self.preprocessing_ = Preprocessing(
            height,
            width,
            channels,
            crop=self.crop,
            shift=_either(self.shift, preset.shift_for(height, width)),
            standardize=self.standardize,
            padding=preset.padding,
        )
        network_config = self._network_config(
            preset.network(*self.preprocessing_.window, channels, len(self.classes_))
        )
        epochs, batch_size = preset.schedule(len(images))
        training = TrainingConfig(
            epochs=_either(self.epochs, epochs),
            batch_size=_either(self.batch_size, batch_size),
            learning_rate=_either(self.learning_rate, preset.learning_rate),
            final_share=_either(self.final_share, preset.final_share),
            precision=pick_precision(self.precision, device),
            seed=self.seed,
        )
        images, labels, validation = _keep_some_back(
            images, labels, preset.validation, self.seed, patience=max(3, training.epochs // 5)
        )
        pixels = channels * network_config.height * network_config.width
        weight = _either(self.reconstruction_weight, preset.weight_for(pixels))
        if not 0 <= weight < float("inf"):
            raise InputError(f"reconstruction_weight is 0 or more, not {weight!r}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = built(network_config)
        loss = capsnet_loss(network, self.preprocessing_, weight)
        described = asdict(network_config) | {
            "reconstruction_weight": weight,
            "validation": None if validation is None else validation.fingerprint,
        }
        run = Run(
            network, loss, images, labels, self.preprocessing_, training, device,
            described=described, validation=validation,
        )  # fmt: skip
        started = time.perf_counter()
        yield run
        self.network_ = network
        self.record_ = {
            "losses": run.losses,
            "training": asdict(training) | {"reconstruction_weight": weight},
            "training_seconds": round(time.perf_counter() - started, 3),
            "validation_images": 0 if validation is None else len(validation.labels),
            "validation_losses": [] if validation is None else validation.losses,
        }
        kept = draw(labels, network_config.classes * network_config.class_size, self.seed)
        found = [capsules for _, capsules, _ in self._explained(images[kept], redraw=False)]
        self.neighbours_ = Neighbours.fit(torch.cat(found))
        if validation is None:
            self._standardize(images[self._some(len(images))])
        else:
            predicted = self._standardize(validation.images)
            self.record_["validation_accuracy"] = float(np.mean(predicted == validation.labels))

    def _some(self, count: int) -> NDArray[np.int64]:
        """A seeded draw of at most `_MOST_STANDARD_IMAGES` of so many images."""
        generator = np.random.default_rng([self.seed, 0x57D])
        return np.sort(generator.permutation(count)[:_MOST_STANDARD_IMAGES])

    def _standardize(self, normal: NDArray[Any]) -> NDArray[np.int64]:
        """Learn mean and spread of PP and RE, from images that are not to calibrate with; the
        classes that the images are given."""
        self.standard_: dict[str, tuple[float, float]] = {}
        found, predicted = self._judged(normal, self._standardized())
        for name, values in found.items():
            # a spread of zero (identical images) must not divide
            self.standard_[name] = float(values.mean()), max(float(values.std()), 1e-12)
        return predicted

    def _standardized(self) -> tuple[str, ...]:
        """What `pp+re` adds up."""
        return ("pp", "re") if len(self.classes_) > 1 else ()

    def _network_config(self, config: CapsNetConfig | DeepConfig) -> CapsNetConfig | DeepConfig:
        """The preset's, with what was asked for."""
        if self.gradient is not None:
            config = replace(config, gradient=self.gradient)
        if isinstance(config, CapsNetConfig):
            return replace(config, class_bias=self.class_bias, start=self.start)
        if self.class_bias or self.start != "scaled":
            raise InputError(
                f"class_bias and start are settings of the paper's network, preset {self.preset!r} "
                "has neither: leave them out"
            )
        return config

    # ── scoring ──────────────────────────────────────────────────────────────────────────────

    def _explained(
        self, images: NDArray[Any], redraw: bool
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Batch by batch: pixels, class capsules, redrawn pixels. The one scoring path."""
        device = next(self.network_.parameters()).device

        def explain(batch: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
            with inference(device, self.scoring_precision):
                pixels = self.preprocessing_.central(batch)
                x = self.preprocessing_.encoder_input(pixels)
                capsules = self.network_(x)
                longest = lengths(capsules).argmax(1)
                return pixels, capsules, self.network_.decode(capsules, longest) if redraw else None

        return in_batches(images, device, explain)

    def _raw_scores(
        self, images: NDArray[Any], names: Iterable[str]
    ) -> dict[str, NDArray[np.float64]]:
        return self._judged(images, names)[0]

    def _judged(
        self, images: NDArray[Any], names: Iterable[str]
    ) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.int64]]:
        names = tuple(names)
        needs_pp = not {"pp", "pp+re"}.isdisjoint(names)
        redraw = not {"re", "pp+re", "mse"}.isdisjoint(names)

        def of_batch(pixels: Tensor, capsules: Tensor, redrawn: Tensor | None) -> dict[str, Tensor]:
            length = lengths(capsules)
            parts = {"class": length.argmax(1)}
            if needs_pp:
                parts["pp"] = scores.pp(length)
            if "knn" in names:
                parts["knn"] = self.neighbours_.score(capsules)
            if redrawn is not None:
                parts["re"] = scores.re(pixels, redrawn)
                parts["mse"] = scores.squared_error(pixels, redrawn)
            return parts

        explained = self._explained(images, redraw)
        found = gathered((of_batch(*each) for each in explained), len(images))
        if "pp+re" in names:
            standard = [(found[k] - mean) / spread for k, (mean, spread) in self.standard_.items()]
            found["pp+re"] = np.sum(standard, axis=0)
        return {name: found[name] for name in names}, found["class"]

    def _usable_scores(self) -> tuple[str, ...]:
        return self.score_names if len(self.classes_) > 1 else ("re", "mse", "knn")

    def class_lengths(self, images: ArrayLike) -> NDArray[np.float64]:
        """Lengths of all class capsules, N×classes, in the order of `classes_`."""
        array = self._gate(images)
        explained = self._explained(array, redraw=False)
        return gathered(({"length": lengths(v)} for _, v, _ in explained), len(array))["length"]

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
        arrays = arrays_of(self.network_) | {"neighbours": self.neighbours_.kept.cpu().numpy()}
        return arrays, {
            "kind": "capsnet" if isinstance(self.network_, CapsNet) else "deep",
            "network": asdict(self.network_.config),
            "preprocessing": asdict(self.preprocessing_),
            "standard": self.standard_,
        }

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


def _keep_some_back(
    images: Images, labels: NDArray[np.int64], share: float, seed: int, patience: int
) -> tuple[Images, NDArray[np.int64], Validation | None]:
    """Images to train on, and those that choose the epoch, where there are enough of them."""
    rest, chosen = split(labels, share, seed, purpose=0x7A1)
    if len(chosen) < _FEWEST_VALIDATION:
        return images, labels, None
    validation = Validation(images[chosen], labels[chosen], patience)
    return Chosen(images, rest), labels[rest], validation


def built(config: CapsNetConfig | DeepConfig) -> Network:
    return CapsNet(config) if isinstance(config, CapsNetConfig) else DeepCapsNet(config)


def capsnet_loss(network: Network, preprocessing: Preprocessing, weight: float) -> Loss:
    """Margin loss plus `weight` × summed squared error of the image redrawn from its own class."""

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        capsules = network(preprocessing.encoder_input(pixels))
        return choose.capsule_loss(network, capsules, labels, pixels, weight)

    return loss


def _either(given: T | None, otherwise: T) -> T:
    return otherwise if given is None else given
