"""Four more scores of the paper's VAE, with the same training, without labels.

elbo         evidence lower bound in nats
iwae         the tighter importance-weighted bound (Burda et al. 2016)
probability  reconstruction probability (An and Cho 2015): the bound without its divergence
ocsvm        one-class SVM on the 64 means of z

The first three average over 50 random draws, which are the same for every image.
"""

from collections.abc import Iterator
from math import log
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from anocaps.base import arrayfile as modelfile
from anocaps.detectors.baselines.one_class_svm import OneClassSVM
from anocaps.detectors.baselines.vae import VAEDetector
from anocaps.networks.vae import LATENTS, VAE
from anocaps.training.device import pick_device
from anocaps.training.loop import Run
from anocaps.training.preprocessing import Images

DRAWS = 50


class VAEScoresDetector(VAEDetector):
    """Detect anomalous images with bounds of a variational autoencoder, and an SVM on its code.

    Parameters
    ----------
    score_function : {"auto", "elbo", "iwae", "probability", "ocsvm"}, default="auto"
        The score function of the verdict. The top of this file explains each. "auto" is "elbo".

    Notes
    -----
    The other parameters, `**settings`, are those of `PlainDetector`.
    """

    method = "vae-scores"
    score_names = ("elbo", "iwae", "probability", "ocsvm")
    gives = ()

    def _training(self, images: Images, labels: NDArray[np.int64]) -> Iterator[Run]:
        yield from super()._training(images, labels)
        means = torch.cat(list(self._each(images, lambda pixels: self.network_.encode(pixels)[0])))
        self.svm_ = OneClassSVM.fit(means, self.seed)

    def _batch(self, pixels: Tensor) -> dict[str, Tensor]:
        mean, log_variance = self.network_.encode(pixels)
        likelihood, ratio = sampled(self.network_, pixels, mean, log_variance)
        divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).double().sum(1)
        return {
            "elbo": likelihood.mean(1) - divergence,
            "iwae": torch.logsumexp(likelihood + ratio, 1) - log(DRAWS),
            "probability": likelihood.mean(1),
            "ocsvm": self.svm_.decision(mean),
        }

    # ── the model file ───────────────────────────────────────────────────────────────────────

    def _learned(self) -> tuple[modelfile.Arrays, dict[str, Any]]:
        arrays, header = super()._learned()
        return arrays | self.svm_.arrays(), header

    def _relearn(self, arrays: modelfile.Arrays, header: dict[str, Any]) -> None:
        super()._relearn(arrays, header)
        self.svm_ = OneClassSVM.from_arrays(arrays, pick_device(self.device))


def sampled(
    network: VAE, pixels: Tensor, mean: Tensor, log_variance: Tensor
) -> tuple[Tensor, Tensor]:
    """log p(x|z) and log p(z) − log q(z|x) for each draw of z, both [B, DRAWS] in float64."""
    noise = torch.randn(DRAWS, LATENTS, generator=torch.Generator().manual_seed(DRAWS))
    spread = (log_variance / 2).exp()
    likelihood, ratio = [], []
    for drawn in noise.to(pixels.device):
        z = mean + drawn * spread
        misses = functional.binary_cross_entropy_with_logits(
            network.decode(z), pixels, reduction="none"
        )
        likelihood.append(-misses.flatten(1).double().sum(1))
        ratio.append(0.5 * (drawn.square() + log_variance - z.square()).double().sum(1))
    return torch.stack(likelihood, 1), torch.stack(ratio, 1)
