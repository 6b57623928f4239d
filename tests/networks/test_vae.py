"""The variational autoencoder: shapes, the reparameterised z, and the bound against torch's own."""

import pytest
import torch
from torch.distributions import Bernoulli, Normal, kl_divergence
from torch.nn.functional import interpolate

from anocaps.networks.vae import VAE, elbo


def test_z_is_the_mean_plus_noise_times_spread():
    network, x = VAE(1, 8, 8), torch.rand(3, 1, 8, 8)
    mean, log_variance = network.encode(x)
    noise = torch.randn(3, 64)
    with torch.no_grad():
        z = mean + noise * log_variance.exp().sqrt()
        torch.testing.assert_close(network(x, noise)[0], network.decode(z))
        torch.testing.assert_close(network(x)[0], network.decode(mean))
        assert not torch.allclose(network(x, noise)[0], network(x)[0])


@pytest.mark.parametrize("shape", [(1, 8, 10), (2, 9, 7)])
def test_the_decoder_is_the_encoder_mirrored(shape):
    torch.manual_seed(0)
    network, z = VAE(*shape), torch.randn(3, 64)
    maps = network.maps(network.hidden(z).relu()).relu().view(3, 64, *network.pooled)
    maps = interpolate(maps, (shape[1] - 4, shape[2] - 4))
    want = network.conv1(network.conv2(maps).relu())
    torch.testing.assert_close(network.decode(z), want)


def test_elbo_is_likelihood_minus_divergence():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.bernoulli(torch.full((4, 2, 5, 5), 0.4), generator=generator)
    logits = torch.randn(4, 2, 5, 5, generator=generator)
    mean, log_variance = torch.randn(2, 4, 64, generator=generator)
    likelihood = Bernoulli(logits=logits).log_prob(pixels).sum((1, 2, 3))
    posterior = Normal(mean, (log_variance / 2).exp())
    divergence = kl_divergence(posterior, Normal(0.0, 1.0)).sum(1)
    torch.testing.assert_close(
        elbo(pixels, logits, mean, log_variance), likelihood - divergence, rtol=1e-5, atol=1e-4
    )
