"""The paper's CNN+OCSVM benchmark. A small CNN is trained to tell the normal classes apart. Then a
one-class support vector machine (SVM) is fitted to its last hidden layer.

The score `ocsvm` is how far inside the SVM's boundary an image lies. With one normal class, the CNN
has nothing to learn, and the SVM gets the features of random weights.
"""

import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anocaps.base import arrayfile as modelfile
from anocaps.detectors.base import AUTO
from anocaps.detectors.baselines.one_class_svm import NU, OneClassSVM
from anocaps.detectors.baselines.plain import PlainDetector
from anocaps.networks.cnn import CNN
from anocaps.training.device import Precision, pick_device
from anocaps.training.loop import Loss, Run
from anocaps.training.preprocessing import Images, Preprocessing


class CNNOCSVMDetector(PlainDetector):
    """Detect anomalous images with a CNN and a one-class SVM (the paper's benchmark).

    Parameters
    ----------
    score_function : {"auto", "ocsvm"}, default="auto"
        The score function of the verdict: how far inside the boundary an image lies.
    standardize : bool, default=False
        Whether the network sees each image with mean 0 and variance 1.

    Notes
    -----
    The other parameters, `**settings`, are those of `PlainDetector`.
    """

    method = "cnn-ocsvm"
    score_names: ClassVar[tuple[str, ...]] = ("ocsvm",)
    gives: ClassVar[tuple[str, ...]] = ("class",)
    network_: CNN

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
        standardize: bool = False,
        precision: Literal["auto", "fp32", "bf16"] = "fp32",
        scoring_precision: Precision = "fp32",
    ) -> None:
        super().__init__(
            score_function,
            epochs,
            calibration,
            seed,
            device,
            batch_size,
            learning_rate,
            crop,
            shift,
            precision,
            scoring_precision,
        )
        self.standardize = standardize

    # ── training ─────────────────────────────────────────────────────────────────────────────

    def _preprocessing(self, height: int, width: int, channels: int) -> Preprocessing:
        return Preprocessing(
            height,
            width,
            channels,
            crop=self.crop,
            shift=self.shift,
            standardize=self.standardize,
        )

    def _network(self) -> CNN:
        shape = self.preprocessing_.channels, *self.preprocessing_.window
        return CNN(*shape, classes=len(self.classes_))

    def _stages(self, noise: torch.Generator) -> Iterable[tuple[nn.Module, Loss]]:
        yield self.network_, cnn_loss(self.network_, self.preprocessing_)

    def _training(self, images: Images, labels: NDArray[np.int64]) -> Iterator[Run]:
        if len(self.classes_) == 1:
            warnings.warn(
                "only one normal class: the CNN learns nothing and keeps its random weights",
                UserWarning,
                stacklevel=2,
            )
        yield from super()._training(images, labels)
        self._learn_features(
            torch.cat([each for each, _ in self._each(images, self._classified)]), labels
        )

    def _learn_features(self, features: Tensor, labels: NDArray[np.int64]) -> None:
        """Fit the SVM to the last hidden layer of the training images, [N, 128]."""
        started = time.perf_counter()
        self.svm_ = OneClassSVM.fit(features, self.seed)
        self.record_["svm"] = {
            "nu": NU,
            "gamma": self.svm_.gamma,
            "support_vectors": len(self.svm_.support),
            "seconds": round(time.perf_counter() - started, 3),
        }

    # ── scoring ──────────────────────────────────────────────────────────────────────────────

    def _classified(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Features [B, 128] and class logits [B, classes]."""
        features, logits = self.network_(self.preprocessing_.encoder_input(pixels))
        return features.float(), logits

    def _batch(self, pixels: Tensor) -> dict[str, Tensor]:
        features, logits = self._classified(pixels)
        return {"ocsvm": self.svm_.decision(features), "class": logits.argmax(1)}

    # ── the model file ───────────────────────────────────────────────────────────────────────

    def _learned(self) -> tuple[modelfile.Arrays, dict[str, Any]]:
        arrays, header = super()._learned()
        return arrays | self.svm_.arrays(), header

    def _relearn(self, arrays: modelfile.Arrays, header: dict[str, Any]) -> None:
        super()._relearn(arrays, header)
        self.svm_ = OneClassSVM.from_arrays(arrays, pick_device(self.device))


def cnn_loss(network: CNN, preprocessing: Preprocessing) -> Loss:
    """Cross-entropy of the normal classes."""

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        _, logits = network(preprocessing.encoder_input(pixels))
        return nn.functional.cross_entropy(logits.float(), labels)

    return loss
