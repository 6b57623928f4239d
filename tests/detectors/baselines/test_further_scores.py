"""Further scores of the paper's CNN, VAE and DBN: they learn, and equal a second source."""

import numpy as np
import pytest
import torch
from learning import assert_separates, digit_cell, freshly_drawn, speckled, with_network
from scipy.special import log_softmax, logsumexp
from scipy.stats import norm
from sklearn.neighbors import NearestNeighbors

from anocaps.detectors.baselines import dbn_scores, vae_scores
from anocaps.detectors.baselines.cnn_scores import CNNScoresDetector
from anocaps.detectors.baselines.dbn_scores import DBNScoresDetector
from anocaps.detectors.baselines.one_class_svm import NU, LinearMachine, OneClassSVM
from anocaps.detectors.baselines.vae_scores import DRAWS, VAEScoresDetector
from anocaps.networks.dbn import RBM, log_partition

SETTINGS = {"epochs": 10, "device": "cpu", "calibration": 0.0, "batch_size": 32}


@pytest.fixture(scope="module")
def cell(digits):
    return digit_cell(digits, 4)


@pytest.fixture(scope="module")
def halves(digits):
    """Training images and labels of 0 to 4, test images of these and of 5 to 9.

    Drawn weights separate plain digits well, since they keep the distances of images. Tests add
    what makes images of one digit differ, which training must learn to leave out.
    """
    train, test = digits.train, digits.test
    first, normal = train.labels < 5, test.labels < 5
    return train.images[first], train.labels[first], test.images[normal], test.images[~normal]


@pytest.fixture
def speckled_halves(halves):
    images, labels, normal, anomalous = halves
    images, normal, anomalous = speckled((images, normal, anomalous), 0.1)
    return images, labels, normal, anomalous


def codes(detector, images, code):
    return torch.cat(list(detector._each(images[..., None], code)))


# ── CNN ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def cnn(cell):
    return CNNScoresDetector(**SETTINGS).fit(*cell[:2])


def hidden(detector, images):
    images = images if images.ndim == 4 else images[..., None]
    parts = detector._each(images, detector._classified)
    features, logits = zip(*parts)
    return torch.cat(features), torch.cat(logits)


def test_scores_of_the_cnn_learn(cnn, cell):
    images, labels, normal, anomalous = cell
    untrained = with_network(cnn, freshly_drawn(cnn, 123))
    index = np.searchsorted(cnn.classes_, labels)
    untrained._learn_features(hidden(untrained, images)[0], index)
    margins = {"softmax": 0.1, "logit": 0.1, "energy": 0.1}  # features of drawn weights do well
    assert_separates(cnn, untrained, normal, anomalous, margins)


def test_features_of_the_cnn_learn(digits, halves):
    """Beside each digit stands another, which no label names. The two cameras see one each."""
    generator = np.random.default_rng(0)

    def pair(images):
        others = generator.integers(0, len(digits.train.images), len(images))
        return np.stack([images, digits.train.images[others]], -1)

    images, labels, normal, anomalous = halves
    images, normal, anomalous = map(pair, (images, normal, anomalous))
    detector = CNNScoresDetector(**SETTINGS | {"epochs": 20}).fit(images, labels)
    untrained = with_network(detector, freshly_drawn(detector, 123))
    untrained._learn_features(hidden(untrained, images)[0], labels)
    margins = {"knn": 0.15, "mahalanobis": 0.18}
    assert_separates(detector, untrained, normal, anomalous, margins)


def test_scores_of_the_cnn_equal_a_second_source(cnn, cell):
    images, labels, normal, _ = cell
    kept, _ = hidden(cnn, images)
    features, logits = (each.double().numpy() for each in hidden(cnn, normal[:40]))
    found = cnn.outputs(normal[:40])
    np.testing.assert_allclose(found["softmax"], log_softmax(logits, 1).max(1), atol=1e-5)
    np.testing.assert_allclose(found["logit"], logits.max(1), rtol=1e-5)
    np.testing.assert_allclose(found["energy"], logsumexp(logits, 1), rtol=1e-5)
    nearest = NearestNeighbors(n_neighbors=5, metric="cosine").fit(kept.double().numpy())
    want = -nearest.kneighbors(features)[0].mean(1)
    np.testing.assert_allclose(found["knn"], want, atol=1e-5)
    points = kept.double().numpy()
    means = np.array([points[labels == c].mean(0) for c in cnn.classes_])
    rest = points - means[np.searchsorted(cnn.classes_, labels)]
    covariance = rest.T @ rest / len(rest)
    covariance += 1e-3 * covariance.diagonal().mean() * np.eye(len(covariance))
    away = features[:, None] - means
    want = np.einsum("nci,ij,ncj->nc", away, np.linalg.inv(covariance), away).min(1) ** 0.5
    np.testing.assert_allclose(found["mahalanobis"], -want, rtol=1e-4)


def test_one_class_has_no_scores_of_logits(two_classes):
    with pytest.warns(UserWarning, match="learns nothing"):
        detector = CNNScoresDetector(**SETTINGS | {"epochs": 1}).fit(two_classes[0])
    assert set(detector.outputs(two_classes[0])) == {"knn", "mahalanobis"}


# ── VAE ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def vae(cell):
    return VAEScoresDetector(**SETTINGS | {"learning_rate": 3e-3}).fit(*cell[:2])


def test_scores_of_the_vae_learn(vae, cell):
    _, _, normal, anomalous = cell
    untrained = with_network(vae, freshly_drawn(vae, 123))
    margins = {"elbo": 0.25, "iwae": 0.25, "probability": 0.2}
    assert_separates(vae, untrained, normal[:200], anomalous, margins)


def test_the_machine_of_the_vae_learns(speckled_halves, monkeypatch):
    monkeypatch.setattr(vae_scores, "DRAWS", 1)  # of the other scores
    images, labels, normal, anomalous = speckled_halves
    settings = SETTINGS | {"epochs": 25, "learning_rate": 1e-3, "batch_size": 16}
    detector = VAEScoresDetector(**settings).fit(images, labels)
    untrained = with_network(detector, freshly_drawn(detector, 123))
    untrained.svm_ = OneClassSVM.fit(codes(untrained, images, mean_of(untrained)), 0)
    assert_separates(detector, untrained, normal, anomalous, {"ocsvm": 0.12})


def mean_of(detector):
    return lambda pixels: detector.network_.encode(pixels)[0]


def test_scores_of_the_vae_equal_numpy(vae, cell):
    images = cell[2][:7]
    found = vae.outputs(images)
    pixels = (images / 255).astype(np.float32)
    with torch.inference_mode():
        mean, log_variance = vae.network_.encode(torch.from_numpy(pixels)[:, None])
        noise = torch.randn(DRAWS, 64, generator=torch.Generator().manual_seed(DRAWS))
        z = mean[:, None] + noise * (log_variance[:, None] / 2).exp()  # [n, draws, 64]
        logits = vae.network_.decode(z.flatten(0, 1)).double().numpy()
    chance = 1 / (1 + np.exp(-logits.reshape(7, DRAWS, -1)))
    x = pixels.reshape(7, 1, -1).astype(np.float64)
    likelihood = (x * np.log(chance) + (1 - x) * np.log(1 - chance)).sum(2)
    m, s, z = mean.double().numpy(), np.exp(log_variance.double().numpy() / 2), z.double().numpy()
    ratio = (norm.logpdf(z) - norm.logpdf(z, m[:, None], s[:, None])).sum(2)
    divergence = 0.5 * (m**2 + s**2 - 2 * np.log(s) - 1).sum(1)
    np.testing.assert_allclose(found["probability"], likelihood.mean(1), rtol=1e-4)
    np.testing.assert_allclose(found["elbo"], likelihood.mean(1) - divergence, rtol=1e-4)
    iwae = logsumexp(likelihood + ratio, 1) - np.log(DRAWS)
    np.testing.assert_allclose(found["iwae"], iwae, rtol=1e-4)
    # a tighter bound, but for the noise of the divergence, which only one of both knows exactly
    assert np.mean(found["iwae"]) > np.mean(found["elbo"])


def test_machines_see_the_code_of_the_training_images(vae, dbn, cell):
    """The machines themselves are tested elsewhere."""
    images, _, normal, _ = cell
    for detector, code in (vae, mean_of(vae)), (dbn, centred_top(dbn)):
        points, new = (codes(detector, x, code) for x in (images, normal[:9]))
        want = OneClassSVM.fit(points, detector.seed).decision(new)
        np.testing.assert_allclose(detector.score_samples(normal[:9], "ocsvm"), want, atol=1e-3)


# ── DBN ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def dbn(cell):
    return DBNScoresDetector(**SETTINGS | {"learning_rate": 5e-3}).fit(*cell[:2])


def test_scores_of_the_dbn_learn(dbn, cell):
    images, _, normal, anomalous = cell
    untrained = with_network(dbn, freshly_drawn(dbn, 123))
    units = codes(untrained, images, untrained._top)
    untrained.hyperplane_ = LinearMachine.fit(units, sphere=False)
    margins = {"rbm": 0.25, "energy": 0.2, "hyperplane": 0.25}
    assert_separates(dbn, untrained, normal, anomalous, margins)


def test_the_machine_of_the_dbn_learns(speckled_halves, monkeypatch):
    monkeypatch.setattr(dbn_scores, "log_partition", lambda *_: 0.0)  # of another score
    images, labels, normal, anomalous = speckled_halves
    settings = SETTINGS | {"epochs": 15, "learning_rate": 0.01, "batch_size": 16}
    detector = DBNScoresDetector(**settings).fit(images, labels)
    untrained = with_network(detector, freshly_drawn(detector, 123))
    untrained.svm_ = OneClassSVM.fit(codes(untrained, images, centred_top(untrained)), 0)
    assert_separates(detector, untrained, normal, anomalous, {"ocsvm": 0.18})


def centred_top(detector):
    return lambda pixels: (detector._top(pixels) - 0.5).float()


def test_few_training_images_are_outside_the_hyperplane(dbn, cell):
    """They are on the side of a positive score. The share outside is ν."""
    found = dbn.score_samples(cell[0], "hyperplane")
    assert np.mean(found < 0) == pytest.approx(NU, abs=0.03)


def test_the_partition_function_is_that_of_a_sum_over_all_states():
    torch.manual_seed(0)
    machine = RBM(6, 5)
    for parameter in machine.parameters():
        torch.nn.init.normal_(parameter, std=1.5)
    states = torch.tensor([[(k >> i) & 1 for i in range(6)] for k in range(64)]).float()
    with torch.inference_mode():
        want = float(torch.logsumexp(-machine.free_energy(states), 0))
        assert log_partition(machine, seed=1, chains=200) == pytest.approx(want, abs=0.05)


def test_the_likelihood_of_the_lowest_machine_is_normalised(dbn, cell):
    images = cell[2][:5]
    energy = dbn.network_.rbms[0].free_energy(torch.from_numpy(images / 255).float().flatten(1))
    want = -energy.detach().numpy() - dbn.record_["log_partition"]
    np.testing.assert_allclose(dbn.score_samples(images, "rbm"), want, rtol=1e-4)
