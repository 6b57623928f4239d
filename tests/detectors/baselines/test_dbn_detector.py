"""What the DBN detector does beyond the contract, that it learns, and the gradient of CD-1."""

import numpy as np
import torch
from learning import assert_moved, assert_separates, digit_cell, freshly_drawn, with_network

from anocaps.detectors import DBNDetector
from anocaps.detectors.baselines.dbn import cd1_loss
from anocaps.networks.dbn import DBN


def small(**options):
    return DBNDetector(**({"device": "cpu", "calibration": 0.0, "batch_size": 32} | options))


def test_it_learns_digits(digits):
    images, labels, normal, anomalous = digit_cell(digits, 4)
    detector = small(epochs=20, batch_size=16, learning_rate=0.01).fit(images, labels)
    losses = np.reshape(detector.record_["losses"], (3, 20))  # one row per layer
    assert (losses[:, -1] < 0.6 * losses[:, 0]).all()
    assert_moved(detector)
    untrained = with_network(detector, freshly_drawn(detector, 123))
    assert_separates(detector, untrained, normal, anomalous, {"re": 0.2, "nse": 0.2})
    # What is reconstructed is the image, not the mean of all images.
    error = np.square(detector.reconstruct(images) - images / 255).sum((1, 2)).mean()
    assert error < 0.6 * (images / 255).var(0).sum()


def test_the_gradient_is_that_of_contrastive_divergence():
    torch.manual_seed(0)
    network = DBN(1, 4, 4)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    pixels = torch.rand(6, 1, 4, 4)
    for below, layer in enumerate(network.rbms):
        network.zero_grad()
        loss = cd1_loss(network, below, layer, torch.Generator().manual_seed(7))
        value = loss(pixels, torch.zeros(6))
        value.backward()

        data = network.up(pixels, below).detach()
        hidden = layer.up(data)
        states = torch.bernoulli(hidden, generator=torch.Generator().manual_seed(7))
        reconstructed = layer.down(states)
        after = layer.up(reconstructed)
        for gradient, want in (
            (layer.weight.grad, (after.T @ reconstructed - hidden.T @ data) / 6),
            (layer.hidden_bias.grad, (after - hidden).mean(0)),
            (layer.visible_bias.grad, (reconstructed - data).mean(0)),
        ):
            torch.testing.assert_close(gradient, want.detach(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(value, (data - reconstructed).square().sum(1).mean())
        others = [
            p.grad for other in network.rbms if other is not layer for p in other.parameters()
        ]
        assert others == [None] * 6
