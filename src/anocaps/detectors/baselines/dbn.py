"""The paper's DBN benchmark: a deep belief network of all normal images, without labels.

Three restricted Boltzmann machines are trained one after the other by contrastive divergence with
one step (CD-1, Hinton 2002). A mean-field pass up and down reconstructs the image. The score `re`
is minus the squared error, summed over pixels. `nse` is `re` divided by the image's norm, as in
CapsNet's RE.
"""

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor, nn

from anocaps.detectors import scores
from anocaps.detectors.baselines.plain import PlainDetector
from anocaps.networks.dbn import DBN, RBM
from anocaps.training.loop import Loss


class DBNDetector(PlainDetector):
    """Detect anomalous images with a deep belief network (the paper's benchmark).

    Parameters
    ----------
    score_function : {"auto", "re", "nse"}, default="auto"
        The score function of the verdict. The top of this file explains each. "auto" is "re".

    Notes
    -----
    The other parameters, `**settings`, are those of `PlainDetector`.
    """

    method = "dbn"
    score_names: ClassVar[tuple[str, ...]] = ("re", "nse")
    gives: ClassVar[tuple[str, ...]] = ("reconstruction",)
    network_: DBN

    def _network(self) -> DBN:
        return DBN(self.preprocessing_.channels, *self.preprocessing_.window)

    def _stages(self, noise: torch.Generator) -> Iterable[tuple[nn.Module, Loss]]:
        for below, layer in enumerate(self.network_.rbms):
            yield layer, cd1_loss(self.network_, below, layer, noise)

    def _batch(self, pixels: Tensor) -> dict[str, Tensor]:
        reconstructed = self.network_(pixels)
        return {
            "re": scores.squared_error(pixels, reconstructed),
            "nse": scores.re(pixels, reconstructed),
            "reconstruction": reconstructed.permute(0, 2, 3, 1),
        }


def cd1_loss(network: DBN, below: int, layer: RBM, noise: torch.Generator) -> Loss:
    """A loss with the gradient of CD-1. Its value is the squared reconstruction error.

    The gradient is that of free energy(data) − free energy(reconstruction), where the
    reconstruction is a constant: v h − v′h′ with hidden probabilities h. The reconstruction v′ is
    made from sampled binary hidden states. It consists of probabilities.
    """

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            data = network.up(pixels, below)  # [B, V]
            states = torch.bernoulli(layer.up(data), generator=noise)  # [B, H]
            reconstructed = layer.down(states)
            error = (data - reconstructed).square().sum(1).mean()
        contrast = (layer.free_energy(data) - layer.free_energy(reconstructed)).mean()
        return contrast - contrast.detach() + error

    return loss
