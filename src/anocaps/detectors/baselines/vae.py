"""The paper's VAE benchmark: a variational autoencoder of all normal images, without labels.

For every score, z is the mean of its distribution. `re` is minus the squared error, summed over
pixels. `nse` is `re` divided by the image's norm, as in CapsNet's RE. `elbo` is the evidence lower
bound in nats. A true bound averages the log-likelihood over z. Here it is taken at the mean, so
that a score does not depend on random draws.
"""

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor, nn

from anocaps.detectors import scores
from anocaps.detectors.baselines.plain import PlainDetector
from anocaps.networks.vae import LATENTS, VAE, elbo
from anocaps.training.loop import Loss


class VAEDetector(PlainDetector):
    """Detect anomalous images with a variational autoencoder (the paper's benchmark).

    Parameters
    ----------
    score_function : {"auto", "re", "nse", "elbo"}, default="auto"
        The score function of the verdict. The top of this file explains each. "auto" is "re".

    Notes
    -----
    The other parameters, `**settings`, are those of `PlainDetector`.
    """

    method = "vae"
    score_names: ClassVar[tuple[str, ...]] = ("re", "nse", "elbo")
    gives: ClassVar[tuple[str, ...]] = ("reconstruction",)
    network_: VAE

    def _network(self) -> VAE:
        return VAE(self.preprocessing_.channels, *self.preprocessing_.window)

    def _stages(self, noise: torch.Generator) -> Iterable[tuple[nn.Module, Loss]]:
        yield self.network_, vae_loss(self.network_, noise)

    def _batch(self, pixels: Tensor) -> dict[str, Tensor]:
        logits, mean, log_variance = self.network_(pixels)
        reconstructed = torch.sigmoid(logits)
        return {
            "re": scores.squared_error(pixels, reconstructed),
            "nse": scores.re(pixels, reconstructed),
            "elbo": elbo(pixels, logits, mean, log_variance),
            "reconstruction": reconstructed.permute(0, 2, 3, 1),
        }


def vae_loss(network: VAE, noise: torch.Generator) -> Loss:
    """Minus the evidence lower bound, with one random z per image."""

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        drawn = torch.randn(len(pixels), LATENTS, generator=noise, device=pixels.device)
        return -elbo(pixels, *network(pixels, drawn)).mean()

    return loss
