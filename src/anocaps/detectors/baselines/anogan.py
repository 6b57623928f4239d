"""AnoGAN (Schlegl et al. 2017): a generative adversarial network learns normal images, without
labels. For each image, a search in latent space finds the most similar generated image.

The score `search` is minus the loss at the end of the search. The loss is .9 times the absolute
difference of the pixels plus .1 times that of the discriminator's features. Many searches run at
once, without affecting each other.

Differs from the original: generator and discriminator take their training steps at the same time,
not one after the other. Adam has β₁ = .9 instead of .5, and its rate decays to a tenth. All
searches begin at the same random z, not each at its own. `networks/dcgan.py` says what differs in
the networks.
"""

import copy
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from anocaps.detectors.base import AUTO
from anocaps.detectors.baselines.plain import PlainDetector
from anocaps.networks.dcgan import DCGAN, LATENTS
from anocaps.training.device import Precision
from anocaps.training.loop import Loss

_FEATURES = 0.1  # the share of the feature loss in the score
_SEARCH_RATE = 0.02


class AnoGANDetector(PlainDetector):
    """Detect anomalous images with a generative adversarial network of normal images.

    Parameters
    ----------
    search_steps : int, default=500
        Steps of the search in latent space.

    Notes
    -----
    The other parameters, `**settings`, are those of `PlainDetector`.
    """

    method = "anogan"
    score_names = ("search",)
    network_: DCGAN

    def __init__(
        self,
        score_function: str = AUTO,
        epochs: int = 20,
        calibration: float | None = None,
        seed: int = 0,
        device: str = "auto",
        batch_size: int = 128,
        learning_rate: float = 2e-4,
        crop: int | None = None,
        shift: int = 0,
        precision: Literal["auto", "fp32", "bf16"] = "fp32",
        scoring_precision: Precision = "fp32",
        search_steps: int = 500,
    ) -> None:
        super().__init__(
            score_function, epochs, calibration, seed, device, batch_size, learning_rate, crop,
            shift, precision, scoring_precision,
        )  # fmt: skip
        self.search_steps = search_steps

    def _network(self) -> DCGAN:
        return DCGAN(self.preprocessing_.channels, *self.preprocessing_.window)

    def _stages(self, noise: torch.Generator) -> Iterable[tuple[nn.Module, Loss]]:
        yield self.network_, gan_loss(self.network_, noise)

    def _batch(self, pixels: Tensor) -> dict[str, Tensor]:
        with torch.inference_mode(False), torch.enable_grad():
            return {"search": -self._search(pixels.clone().double())}

    def _search(self, pixels: Tensor) -> Tensor:
        """Pixels [B, C, h, w] → loss at the end of the search [B], in float64."""
        network = copy.deepcopy(self.network_).double().requires_grad_(False)
        start = torch.randn(LATENTS, generator=torch.Generator().manual_seed(self.seed))
        z = start.to(pixels.device).double().repeat(len(pixels), 1).requires_grad_()
        wanted = network.discriminator(pixels)[0]
        optimizer = torch.optim.Adam([z], _SEARCH_RATE)

        def left() -> Tensor:
            made = network.generator(z)
            residual: Tensor = (pixels - made).abs().flatten(1).sum(1)
            features = (wanted - network.discriminator(made)[0]).abs().sum(1)
            total: Tensor = (1 - _FEATURES) * residual + _FEATURES * features
            return total

        for _ in range(self.search_steps):
            (z.grad,) = torch.autograd.grad(left().sum(), [z])
            optimizer.step()
        return left().detach()


def gan_loss(network: DCGAN, noise: torch.Generator) -> Loss:
    """The loss of the discriminator plus that of the generator. Each trains its own network."""
    cross_entropy = functional.binary_cross_entropy_with_logits

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        z = torch.randn(len(pixels), LATENTS, generator=noise, device=pixels.device)
        made = network.generator(z)
        real = network.discriminator(pixels)[1].float()
        fake = network.discriminator(made.detach())[1].float()
        ones = torch.ones_like(real)
        judging = cross_entropy(real, ones) + cross_entropy(fake, torch.zeros_like(fake))
        held = {name: p.detach() for name, p in network.discriminator.named_parameters()}
        seen = functional_call(network.discriminator, held, (made,))[1].float()
        return judging + cross_entropy(seen, ones)

    return loss
