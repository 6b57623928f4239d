"""What the VAE detector does beyond the contract, that it learns, and its noise."""

import numpy as np
import torch
from learning import assert_moved, assert_separates, digit_cell, freshly_drawn, with_network
from torch import nn

from anocaps.detectors import VAEDetector, scores
from anocaps.detectors.baselines.vae import vae_loss
from anocaps.networks.vae import VAE, elbo
from anocaps.training.loop import Run, TrainingConfig
from anocaps.training.preprocessing import Preprocessing

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def small(**options):
    settings = {"epochs": 10, "device": "cpu", "calibration": 0.0, "batch_size": 32}
    return VAEDetector(**(settings | {"learning_rate": 3e-3} | options))


def test_it_learns_digits(digits):
    images, labels, normal, anomalous = digit_cell(digits, 4)
    detector = small().fit(images, labels)
    losses = detector.record_["losses"]
    assert losses[-1] < 0.9 * losses[0]  # most of a Bernoulli bound on grey pixels is entropy
    assert_moved(detector)
    untrained = with_network(detector, freshly_drawn(detector, 123))
    margins = {"re": 0.25, "nse": 0.25, "elbo": 0.25}
    assert_separates(detector, untrained, normal, anomalous, margins)


def test_the_loss_is_minus_the_bound_with_one_drawn_z():
    torch.manual_seed(0)
    network, pixels = VAE(1, 8, 8), torch.rand(5, 1, 8, 8)
    loss = vae_loss(network, torch.Generator().manual_seed(3))(pixels, torch.zeros(5))
    noise = torch.randn(5, 64, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(loss, -elbo(pixels, *network(pixels, noise)).mean())


def test_scores_are_those_of_the_reconstructions(digits):
    images = digits.test.images[:20]
    detector = small(epochs=1).fit(digits.train.images, digits.train.labels)
    reconstructed = torch.from_numpy(detector.reconstruct(images))
    assert reconstructed.shape == images.shape
    pixels = torch.from_numpy(images / 255).float()
    want = {
        "re": scores.squared_error(pixels, reconstructed),
        "nse": scores.re(pixels, reconstructed),
    }
    with torch.inference_mode():
        want["elbo"] = elbo(pixels[:, None], *detector.network_(pixels[:, None]))
    for name, values in detector.outputs(images).items():
        np.testing.assert_allclose(values, want[name], rtol=1e-4)
    assert detector.reconstruct(images[..., None]).shape == (*images.shape, 1)


def test_noise_is_new_in_every_step_and_the_same_in_every_run():
    """On a GPU the step is replayed from a graph: it must draw anew all the same."""

    def drawn(seed):
        noise = torch.Generator(DEVICE)
        network = nn.Linear(1, 1)

        def loss(pixels, labels):
            return torch.rand((), generator=noise, device=DEVICE) + 0 * network.weight.sum()

        config = TrainingConfig(epochs=2, batch_size=2, seed=seed)
        images, labels = np.zeros((6, 4, 4, 1), np.uint8), np.zeros(6, np.int64)
        run = Run(network, loss, images, labels, Preprocessing(4, 4, 1), config, DEVICE, noise)
        values = []
        for run.epoch in range(2):
            run.begin_epoch()
            for _ in range(run.steps):
                before = run.mean_loss(1)
                run.step()
                values.append(run.mean_loss(1) - before)
        return values

    first = drawn(0)
    assert len(set(first)) == len(first) == 6
    assert drawn(0) == first != drawn(1)
