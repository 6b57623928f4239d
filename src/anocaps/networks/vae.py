"""A convolutional variational autoencoder (Kingma and Welling 2014), as in the paper's Appendix B.

image ─ encoder ─ mean, log-variance ─ z ─ 128 ─ maps ─ unpooling ─ 3×3, 32 ─ 3×3 ─ pixel logits

The encoder is that of the CNN. The decoder mirrors it.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from anocaps.networks.cnn import FEATURES, MAPS, Encoder, grid

LATENTS = 64


class VAE(nn.Module):
    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.pooled = grid(height, width)
        self.unpooled = (height - 4, width - 4)
        rows, columns = self.pooled
        self.encoder = Encoder(channels, height, width)
        self.latent = nn.Linear(FEATURES, 2 * LATENTS)
        self.hidden = nn.Linear(LATENTS, FEATURES)
        self.maps = nn.Linear(FEATURES, MAPS[1] * rows * columns)
        self.conv2 = nn.ConvTranspose2d(MAPS[1], MAPS[0], 3)
        self.conv1 = nn.ConvTranspose2d(MAPS[0], channels, 3)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, C, H, W] → mean and log-variance of z, both [N, 64] in fp32."""
        mean, log_variance = self.latent(self.encoder(x)).float().chunk(2, 1)
        return mean, log_variance

    def decode(self, z: Tensor) -> Tensor:
        """z [N, 64] → logits of the pixels [N, C, H, W] in fp32."""
        maps = torch.relu_(self.maps(torch.relu_(self.hidden(z))))
        maps = maps.view(-1, MAPS[1], *self.pooled).contiguous(memory_format=torch.channels_last)
        # unpooling by nearest neighbours, to the size before pooling
        maps = functional.interpolate(maps, self.unpooled)
        logits: Tensor = self.conv1(torch.relu_(self.conv2(maps))).float()
        return logits

    def forward(self, x: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Pixel logits, mean and log-variance.

        z = mean + noise × standard deviation; without noise, z = mean.
        """
        mean, log_variance = self.encode(x)
        z = mean if noise is None else mean + noise * (log_variance / 2).exp()
        return self.decode(z), mean, log_variance


def elbo(pixels: Tensor, logits: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """Evidence lower bound [N] in nats: log-likelihood at z minus KL(q(z|x) ‖ N(0, 1)).

    Each pixel is the probability of a Bernoulli variable.
    """
    misses = functional.binary_cross_entropy_with_logits(logits, pixels, reduction="none")
    divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1)
    return -misses.flatten(1).sum(1) - divergence.sum(1)
