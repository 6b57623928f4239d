"""The paper's detector: a capsule network trained as a classifier of the normal classes.

This file trains it; `capsnet_scoring.py` scores with it.
"""

import logging
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anocaps.base import arrayfile as modelfile
from anocaps.base.errors import InputError
from anocaps.capsules.textbook import Gradient
from anocaps.detectors.base import AUTO, Detector
from anocaps.detectors.capsnet_scoring import CapsNetScoring, Network, built
from anocaps.detectors.gate import Given
from anocaps.detectors.neighbours import FeatureNeighbours, Neighbours, draw
from anocaps.detectors.photo.features import Features, features_of
from anocaps.detectors.photo.model import SCORES, SCORES_OF_ONE_CLASS, Effort, PhotoModel
from anocaps.detectors.presets import AUTO_SCORE_FUNCTION, advice, choose_preset, find_preset
from anocaps.detectors.saving import arrays_of
from anocaps.judging import combining
from anocaps.judging.calibration import split
from anocaps.judging.combining import ClassReferences
from anocaps.kernels import choose
from anocaps.networks.capsnet import CapsNet, CapsNetConfig, Start
from anocaps.networks.deep import DeepConfig
from anocaps.networks.photo import PhotoConfig
from anocaps.training.device import Precision, pick_device, pick_precision
from anocaps.training.loop import Loss, Run, TrainingConfig
from anocaps.training.preprocessing import Chosen, Images, Preprocessing
from anocaps.training.validation import Validation

_log = logging.getLogger("anocaps")
_NOT_OF_PHOTO = (
    "reconstruction_weight", "crop", "shift", "standardize", "class_bias", "gradient", "start",
)  # fmt: skip
_FEWEST_VALIDATION = 20  # images; with fewer, chance would choose the epoch
_MOST_STANDARD_IMAGES = 5000  # for mean and standard deviation; more images only take time

T = TypeVar("T")


class CapsNetDetector(CapsNetScoring, Detector):
    """Detect anomalous images with a capsule network that learns normal classes only.

    The network learns to tell the normal classes apart and to reconstruct their images. An image
    that it cannot explain gets a low normality score.

    Parameters
    ----------
    preset : {"auto", "photo", "deep", "quick", "paper", "paper-tuned"}, default="auto"
        The network and how it is trained. "auto" chooses "photo" for one class, and for several
        classes of images whose shorter side has 48 pixels or more, or whose longer side has more
        than 128. Otherwise it chooses "deep" for images of 28 pixels or more, and "quick" for
        smaller ones. "photo" has features that are pretrained on ImageNet. It needs the extra
        `anocaps[photo]`; without it, "auto" never chooses "photo". "paper" is the paper's network,
        for 17 to 48 pixels. "paper-tuned" has another reconstruction weight and learning rate.
    score_function : {"auto", "combined", "pp", "re", "pp+re", "mse", "knn", "stem-knn", "patch"}, \
default="auto"
        The score function of the verdict. "auto" chooses "combined", which joins several scores by
        their p-values. "knn" is minus the distance to training images in the space of class
        capsules. "stem-knn" is the same for the features under the capsules. "patch" is minus the
        distance of patches to normal ones (preset "photo" only). "pp" is the length of the longest
        class capsule. "re" is minus the normalised reconstruction error. "pp+re" is the sum of both
        after standardising. "mse" is minus the plain reconstruction error. Preset "photo" has no
        "re", "pp+re" and "mse". "pp" and "pp+re" need two normal classes.
    size : int, default=None
        The shorter side of the stem's input in pixels, for preset "photo". None: that of the
        images, but at least 112 and at most 192. Small defects may need more.
    epochs : int, default=None
        Passes over the training images. None: the preset's number.
    calibration : float, default=None
        The share of images kept out of training to set false-alarm rates. None: 0.1, or more for
        few images. 0: scores without verdicts.
    seed : int, default=0
        Seed of everything random.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Device of training and scoring. "auto" takes a GPU if there is one.
    batch_size : int, default=None
        Images per training step. None: the preset's number.
    learning_rate : float, default=None
        The rate of the first step. None: the preset's rate.
    final_share : float, default=None
        Learning rate at the end, as a share of `learning_rate`. None: the preset's share.
    reconstruction_weight : float, default=None
        The weight of the squared reconstruction error in the loss. None: the preset's weight.
    crop : int, default=None
        The side of the window that the network sees: random in training, central in scoring.
        None: the whole image.
    shift : int, default=None
        Largest random shift in training, in pixels. None: the preset's number.
    standardize : bool, default=False
        Whether the network sees each image with mean 0 and variance 1.
    class_bias : bool, default=False
        Whether class capsules have a bias. Not for presets "deep" and "photo".
    gradient : {"all", "last"}, default=None
        Through which routing iterations the gradient flows. None: the preset's choice.
    start : {"scaled", "flat", "released"}, default="scaled"
        How initial routing weights are drawn: so small that class capsules start short, with one
        standard deviation for all shapes, or as in the code of Sabour et al. Not for presets "deep"
        and "photo".
    precision : {"auto", "fp32", "bf16"}, default="auto"
        Precision of training. "auto" is bf16 on a GPU that supports it, otherwise fp32.
    scoring_precision : {"fp32", "bf16"}, default="fp32"
        Precision of scoring. Only fp32 gives the same scores on every device.

    Attributes
    ----------
    classes_ : array of shape (classes,)
        The labels of the normal classes, sorted.
    score_function_ : str
        The score function of the verdict.
    offset_ : float
        The threshold of `predict` at its default false-alarm rate.
    calibration_scores_ : dict of str to array
        Scores of the calibration set, by score function.
    heat_scale_ : float
        The squared error, or squared distance of a patch, that a heatmap shows as full heat.
    n_features_in_ : int
        Numbers per image: height × width × channels.
    record_ : dict
        How training went: preset, losses, seconds, versions.
    card_ : dict
        The facts of the model card.

    See Also
    --------
    anocaps.ImageFolder : Images from a folder, one sub-folder per class.
    anocaps.load : A detector from its model file.
    anocaps.score_files : Score image files with a model.

    Examples
    --------
    >>> from anocaps import CapsNetDetector
    >>> from anocaps.data import load_dataset
    >>> digits = load_dataset("digits")
    >>> normal = digits.train.labels < 5
    >>> detector = CapsNetDetector(epochs=2, device="cpu")
    >>> detector.fit(digits.train.images[normal], digits.train.labels[normal])
    CapsNetDetector(device='cpu', epochs=2)
    >>> detector.record_["preset"], detector.score_function_
    ('quick', 'combined')
    >>> detector.predict(digits.test.images).shape  # +1 normal, −1 anomalous
    (898,)
    """

    method = "capsnet"
    learns_in_parts = True
    _effort = Effort()  # of preset "photo"; the self-check sets a smaller one

    def __init__(
        self,
        preset: str = AUTO,
        score_function: str = AUTO,
        size: int | None = None,
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
        self.size = size
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

    def _preset_for(self, shape: tuple[int, ...], classes: int) -> str:
        _, height, width, channels = shape
        if self.preset != AUTO:
            find_preset(self.preset)
            return self.preset
        return choose_preset(height, width, channels, classes)

    def _prepared(self, data: Given) -> Given:
        """The features of all images for preset "photo", otherwise the images themselves."""
        if isinstance(data.images, Features):
            return data
        shape, classes = data.images.shape, len(data.classes)
        name = self._preset_for(shape, classes)
        said = advice(name, shape[1], shape[2], classes) if self.preset == AUTO else None
        if said is not None:
            _log.warning(said)
        if name != "photo":
            return data
        size, device = self.size, pick_device(self.device)
        return replace(data, images=features_of(data.images, data.index, classes, size, device))

    def _scores_after(self, images: Any) -> tuple[str, ...]:
        if isinstance(images, Features):
            return SCORES if len(self.classes_) > 1 else SCORES_OF_ONE_CLASS
        return self._usable_scores()

    def _training_of_photo(self, features: Features, labels: NDArray[np.int64]) -> Iterator[Run]:
        for name in _NOT_OF_PHOTO:
            if getattr(self, name) not in (None, False, "scaled"):
                raise InputError(f"preset 'photo' has no setting {name}: leave it out")
        if self.precision not in ("auto", "fp32"):
            raise InputError(f"preset 'photo' trains in precision 'fp32', not {self.precision!r}")
        preset = find_preset("photo")
        epochs, batch_size = preset.schedule(len(features))
        training = TrainingConfig(
            epochs=_either(self.epochs, epochs),
            batch_size=_either(self.batch_size, batch_size),
            learning_rate=_either(self.learning_rate, preset.learning_rate),
            final_share=_either(self.final_share, preset.share_for(0)),
            seed=self.seed,
        )
        self.preprocessing_ = features.preprocessing
        network = features.network_for(len(self.classes_), self.seed)
        self.photo_ = PhotoModel(network, self.preprocessing_)
        losses: list[float] = []
        for run in self.photo_.train(features, labels, training, self._effort):
            yield run
            losses = losses or run.losses  # of the first run, which is the model itself
        self.record_ = {"preset": "photo", "losses": losses, "training": asdict(training)}
        self.record_ |= features.record()

    def _training(self, images: Images | Features, labels: NDArray[np.int64]) -> Iterator[Run]:
        if isinstance(images, Features):
            yield from self._training_of_photo(images, labels)
            return
        self.photo_ = None
        device = pick_device(self.device)
        _, height, width, channels = images.shape
        name = self._preset_for(images.shape, len(self.classes_))
        preset = find_preset(name)
        self.preprocessing_ = Preprocessing(
            height,
            width,
            channels,
            crop=self.crop,
            shift=_either(self.shift, preset.shift_for(height, width)),
            standardize=self.standardize,
            padding=preset.padding,
        )
        chosen = preset.network(*self.preprocessing_.window, channels, len(self.classes_))
        assert not isinstance(chosen, PhotoConfig)
        network_config = self._network_config(chosen)
        epochs, batch_size = preset.schedule(len(images))
        training = TrainingConfig(
            epochs=_either(self.epochs, epochs),
            batch_size=_either(self.batch_size, batch_size),
            learning_rate=_either(self.learning_rate, preset.learning_rate),
            final_share=1.0,  # set below
            precision=pick_precision(self.precision, device),
            seed=self.seed,
        )
        images, labels, validation = _keep_some_back(
            images, labels, preset.validation, self.seed, patience=max(3, training.epochs // 5)
        )
        share = preset.share_for(training.images_seen(len(images)))
        training = replace(training, final_share=_either(self.final_share, share))
        pixels = channels * network_config.height * network_config.width
        weight = _either(self.reconstruction_weight, preset.weight_for(pixels))
        if not 0 <= weight < float("inf"):
            raise InputError(f"reconstruction_weight must be 0 or more, not {weight!r}")
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
        yield run
        self.network_ = network
        self.record_ = {
            "preset": name,
            "losses": run.losses,
            "training": asdict(training) | {"reconstruction_weight": weight},
            "training_seconds": round(run.seconds, 3),
            "validation_images": 0 if validation is None else len(validation.labels),
            "validation_losses": [] if validation is None else validation.losses,
        }
        kept = draw(labels, network_config.classes * network_config.class_size, self.seed)
        seen = [each[1:3] for each in self._explained(images[kept], reconstruct=False)]
        features, capsules = (torch.cat(each) for each in zip(*seen))
        self.neighbours_ = Neighbours.fit(capsules)
        self.stem_neighbours_ = FeatureNeighbours.fit(features)
        if validation is None:
            self._compare_with(images[self._some(len(images))])
        else:
            predicted = self._compare_with(validation.images)
            self.record_["validation_accuracy"] = float(np.mean(predicted == validation.labels))

    def _some(self, count: int) -> NDArray[np.int64]:
        """A seeded draw of at most `_MOST_STANDARD_IMAGES` images."""
        generator = np.random.default_rng([self.seed, 0x57D])
        return np.sort(generator.permutation(count)[:_MOST_STANDARD_IMAGES])

    def _compare_with(self, normal: NDArray[Any]) -> NDArray[np.int64]:
        """Learn the scores of normal images for `pp+re` and `combined`; return their classes.

        The images must not be those of the calibration set.
        """
        names, parts = self._standardized(), self._combined_parts()
        found = self._forward(normal, {*names, *parts, "class"})
        # identical images have a spread of 0, which must not divide
        self.standard_ = {
            name: (float(found[name].mean()), max(float(found[name].std()), 1e-12))
            for name in names
        }
        predicted: NDArray[np.int64] = found["class"]
        self.references_ = {k: ClassReferences.fit(found[k], predicted) for k in parts}
        return predicted

    def _network_config(self, config: CapsNetConfig | DeepConfig) -> CapsNetConfig | DeepConfig:
        """The preset's network with the constructor's settings."""
        if self.gradient is not None:
            config = replace(config, gradient=self.gradient)
        if isinstance(config, CapsNetConfig):
            return replace(config, class_bias=self.class_bias, start=self.start)
        if self.class_bias or self.start != "scaled":
            raise InputError("preset 'deep' has no settings class_bias and start: leave them out")
        return config

    def _auto_score_function(self) -> str:
        return AUTO_SCORE_FUNCTION

    # ── the model file ───────────────────────────────────────────────────────────────────────

    def _learned(self) -> tuple[modelfile.Arrays, dict[str, Any]]:
        if self.photo_ is not None:
            network = self.photo_.network
            return arrays_of(network) | self.photo_.arrays(), {
                "kind": "photo",
                "network": asdict(network.config),
                "preprocessing": asdict(self.preprocessing_),
            }
        arrays = arrays_of(self.network_) | {"neighbours": self.neighbours_.kept.cpu().numpy()}
        arrays |= self.stem_neighbours_.arrays() | combining.arrays_of(self.references_)
        return arrays, {
            "kind": "capsnet" if isinstance(self.network_, CapsNet) else "deep",
            "network": asdict(self.network_.config),
            "preprocessing": asdict(self.preprocessing_),
            "standard": self.standard_,
        }


def _keep_some_back(
    images: Images, labels: NDArray[np.int64], share: float, seed: int, patience: int
) -> tuple[Images, NDArray[np.int64], Validation | None]:
    """Split off validation images, which choose the best epoch, if there are enough images."""
    rest, chosen = split(labels, share, seed, purpose=0x7A1)
    if len(chosen) < _FEWEST_VALIDATION:
        return images, labels, None
    validation = Validation(images[chosen], labels[chosen], patience)
    return Chosen(images, rest), labels[rest], validation


def capsnet_loss(network: Network, preprocessing: Preprocessing, weight: float) -> Loss:
    """Margin loss plus `weight` × squared error of the reconstruction from the true class."""

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        capsules = network(preprocessing.encoder_input(pixels))
        return choose.capsule_loss(network, capsules, labels, pixels, weight)

    return loss


def _either(given: T | None, otherwise: T) -> T:
    return otherwise if given is None else given
