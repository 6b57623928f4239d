"""The paper's DBN benchmark: a deep belief network of all normal images, no labels used.

Three restricted Boltzmann machines are trained one after the other by contrastive divergence with
one step (CD-1, Hinton 2002). Scores compare the image with what a mean-field pass up and down
makes of it: `re`, minus the squared error summed over pixels; `nse`, the same divided by the
image's norm, as CapsNet's RE.
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
        What decides the verdict; the top of this file explains each. "auto" is "re".

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
    """A loss whose gradient is that of CD-1; its value is the squared reconstruction error.

    The gradient is that of free energy(data) − free energy(reconstruction) with the reconstruction
    held constant: v h − v′h′ with hidden probabilities h. The reconstruction comes from sampled
    binary hidden states; its own units are probabilities.
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
