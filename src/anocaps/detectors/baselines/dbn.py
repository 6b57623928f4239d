"""The paper's DBN benchmark: a deep belief network of all normal images, no labels used.

Three restricted Boltzmann machines are trained one after the other by contrastive divergence with
one step (CD-1, Hinton 2002). Scores compare the image with what a mean-field pass up and down
makes of it: `re`, minus the squared error summed over pixels; `nse`, the same divided by the
image's norm, as CapsNet's RE.
"""

from collections.abc import Iterable

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
    score_function : str, default="re"
        What decides the verdict: "re" or "nse", as this file says.
    epochs : int, default=20
        Passes over the training images for each machine.
    calibration : float, default=None
        The share of images kept out of training to set false-alarm rates. None: 0.1, more where
        images are few. 0: scores without verdicts.
    seed : int, default=0
        Fixes everything random.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Where to train and score. "auto" takes a GPU where there is one.
    batch_size : int, default=100
        Images per training step.
    learning_rate : float, default=0.001
        Of the first step.
    crop : int, default=None
        The side of the window that the network sees: random in training, central in scoring.
        None: the whole image.
    shift : int, default=0
        Random shifts in training, pixels each way.
    precision : {"auto", "fp32", "bf16"}, default="fp32"
        Of training. "auto" is bf16 on a GPU that has it, else fp32.
    scoring_precision : {"fp32", "bf16"}, default="fp32"
        Of scoring. Only fp32 gives the same scores on every device.
    """

    method = "dbn"
    score_names = ("re", "nse")
    gives = ("reconstruction",)
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
