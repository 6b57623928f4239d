"""Five scores of the paper's CNN, with the same training as for CNN+OCSVM.

softmax      logarithm of the largest class probability (Hendrycks and Gimpel 2017)
logit        largest logit
energy       log Σ exp of the logits (Liu et al. 2020)
knn          minus the cosine distance to the nearest training images, in the last hidden layer
             (Sun et al. 2022)
mahalanobis  minus the distance to the nearest class mean, with one covariance for all classes
             (Lee et al. 2018)

Differs from the original: `knn` is the mean cosine distance to the 5 nearest of at most 5,000
training images. Sun et al. take the distance to the k-th nearest. `mahalanobis` uses the last
hidden layer alone, and does not perturb the image as Lee et al. do.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anocaps.base import arrayfile as modelfile
from anocaps.detectors.baselines.cnn_ocsvm import CNNOCSVMDetector
from anocaps.detectors.baselines.plain import PlainDetector
from anocaps.detectors.neighbours import Neighbours, draw
from anocaps.networks.cnn import FEATURES
from anocaps.training.device import pick_device

_OF_LOGITS = ("softmax", "logit", "energy")  # meaningless with one class
_RIDGE = 1e-3  # share of the mean variance, added to each: a unit that is always 0 has variance 0


class CNNScoresDetector(CNNOCSVMDetector):
    """Detect anomalous images with the paper's CNN and scores of classifiers.

    Parameters
    ----------
    score_function : {"auto", "knn", "mahalanobis", "softmax", "logit", "energy"}, default="auto"
        The score function of the verdict. The top of this file explains each. "auto" is "knn".

    Notes
    -----
    The other parameters, `**settings`, are those of `CNNOCSVMDetector`.
    """

    method = "cnn-scores"
    score_names = ("knn", "mahalanobis", *_OF_LOGITS)

    def _usable_scores(self) -> tuple[str, ...]:
        alone = len(self.classes_) == 1
        return tuple(n for n in self.score_names if not (alone and n in _OF_LOGITS))

    def _learn_features(self, features: Tensor, labels: NDArray[np.int64]) -> None:
        kept = torch.from_numpy(draw(labels, FEATURES, self.seed)).to(features.device)
        self.neighbours_ = Neighbours.fit(features[kept][:, None])
        index = torch.from_numpy(labels).to(features.device)
        points = features.double()
        classes = range(len(self.classes_))
        self.means_ = torch.stack([points[index == c].mean(0) for c in classes])  # [classes, 128]
        rest = points - self.means_[index]
        covariance = rest.T @ rest / len(rest)
        covariance += torch.eye(FEATURES).to(covariance) * max(
            _RIDGE * float(covariance.diagonal().mean()), 1e-12
        )
        # precision = L Lᵀ, so a distance is the norm of (x − mean) L
        self.whitening_ = torch.linalg.cholesky(torch.linalg.inv(covariance)).contiguous()

    def _batch(self, pixels: Tensor) -> dict[str, Tensor]:
        features, logits = self._classified(pixels)
        logits = logits.double()
        energy = torch.logsumexp(logits, 1)
        largest = logits.amax(1)
        away = (features.double()[:, None] - self.means_) @ self.whitening_  # [B, classes, 128]
        return {
            "softmax": largest - energy,
            "logit": largest,
            "energy": energy,
            "knn": self.neighbours_.score(features[:, None]),
            "mahalanobis": -torch.linalg.vector_norm(away, dim=2).amin(1),
            "class": logits.argmax(1),
        }

    # ── the model file ───────────────────────────────────────────────────────────────────────

    def _learned(self) -> tuple[modelfile.Arrays, dict[str, Any]]:
        arrays, header = PlainDetector._learned(self)
        tensors = {
            "neighbours": self.neighbours_.kept,
            "means": self.means_,
            "whitening": self.whitening_,
        }
        return arrays | {name: each.cpu().numpy() for name, each in tensors.items()}, header

    def _relearn(self, arrays: modelfile.Arrays, header: dict[str, Any]) -> None:
        PlainDetector._relearn(self, arrays, header)
        device = pick_device(self.device)
        kept, self.means_, self.whitening_ = (
            torch.from_numpy(arrays[name]).to(device)
            for name in ("neighbours", "means", "whitening")
        )
        self.neighbours_ = Neighbours(kept)
