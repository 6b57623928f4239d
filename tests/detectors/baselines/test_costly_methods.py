"""Deep SVDD, matrix capsules, GEOM and AnoGAN: each learns, and equals a second source."""

import copy

import numpy as np
import pytest
import torch
from learning import (
    assert_moved,
    assert_separates,
    digit_cell,
    freshly_drawn,
    speckled,
    with_network,
)
from scipy.stats import dirichlet
from torch import nn

from anocaps.base.errors import InputError
from anocaps.detectors.baselines.anogan import AnoGANDetector, gan_loss
from anocaps.detectors.baselines.deep_svdd import OBJECTIVES, DeepSVDDDetector, centre_of
from anocaps.detectors.baselines.geom import (
    GEOMDetector,
    fit_dirichlet,
    transformations,
    transformed,
)
from anocaps.detectors.baselines.matrix_capsnet import MatrixCapsNetDetector
from anocaps.networks.dcgan import DCGAN
from anocaps.training.preprocessing import Preprocessing

SETTINGS = {"device": "cpu", "calibration": 0.0, "batch_size": 32}


@pytest.fixture(scope="module")
def cell(digits):
    """A few training images."""
    images, labels, normal, anomalous = digit_cell(digits, 4)
    return images[:240], labels[:240], normal[:150], anomalous[:80]


def test_matrix_capsules_learn(digits):
    """Three classes are learned in a few steps."""
    train, test = digits.train, digits.test
    chosen = np.flatnonzero(np.isin(train.labels, (0, 4, 7)))[:300]
    detector = MatrixCapsNetDetector(
        epochs=7, learning_rate=2e-2, capsules=4, **SETTINGS | {"batch_size": 16}
    )
    detector.fit(train.images[chosen], train.labels[chosen])
    # the loss grows with the margin, but less than that of equal activations
    assert detector.record_["losses"][-1] < 2 * 0.9**2
    assert float(detector.network_.trained) == pytest.approx(1, abs=1e-4)
    assert_moved(detector)
    untrained = with_network(detector, freshly_drawn(detector, 123))
    normal = test.images[np.isin(test.labels, (0, 4, 7))][:150]
    anomalous = test.images[test.labels == 1]
    assert_separates(detector, untrained, normal, anomalous, {"pp": 0.25, "re": 0.2})


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_deep_svdd_learns(objective, digits):
    """Its authors' protocol: one normal class."""
    train, test = digits.train, digits.test
    images = train.images[train.labels == 8]
    settings = SETTINGS | {"epochs": 15, "learning_rate": 3e-3, "batch_size": 16}
    detector = DeepSVDDDetector(objective=objective, **settings).fit(images)
    losses = detector.record_["losses"]
    assert losses[14] < 0.7 * losses[0] and losses[-1] < 0.5 * losses[15]
    assert not [name for name, _ in detector.network_.named_parameters() if "bias" in name]
    untrained = with_network(detector, freshly_drawn(detector, 123))
    codes = torch.cat(list(untrained._each(images[..., None], untrained.network_)))
    untrained.centre_ = centre_of(codes)
    normal = test.labels == 8
    margins = {"distance": 0.15}
    assert_separates(detector, untrained, test.images[normal], test.images[~normal], margins)


class Activations(nn.Module):
    """A stand-in for the network of matrix capsules: its activations are the first pixels."""

    def __init__(self, trained):
        super().__init__()
        self.trained = torch.tensor(trained)

    def forward(self, pixels):
        return torch.zeros(len(pixels), 3, 4, 4), pixels[:, 0, 0, :3]

    def decode(self, poses, labels):
        return torch.full((len(poses), 1, 4, 8), 0.5)


@pytest.mark.parametrize(("trained", "margin"), [(0.0, 0.2), (0.5, 0.55), (1.0, 0.9)])
def test_the_loss_of_matrix_capsules_is_its_formula_in_numpy(trained, margin):
    torch.manual_seed(0)
    detector = MatrixCapsNetDetector()
    detector.network_, detector._seen = Activations(trained), 40
    detector.preprocessing_ = Preprocessing(4, 8, 1)
    pixels, labels = torch.rand(20, 1, 4, 8), torch.arange(20) % 3
    ((_, loss),) = detector._stages(torch.Generator())
    found = loss(pixels, labels)
    x = pixels.numpy().reshape(20, 4, 8).astype(float)
    active, rows = x[:, 0, :3], np.arange(20)
    gaps = np.maximum(0, margin - (active[rows, labels][:, None] - active)) ** 2
    gaps[rows, labels] = 0
    error = ((x - 0.5) ** 2).sum((1, 2))
    assert found.item() == pytest.approx(gaps.sum(1).mean() + 0.0005 * error.mean(), rel=1e-5)
    assert float(detector.network_.trained) == pytest.approx(trained + 0.5)


class Codes(nn.Module):
    """Its code is the image itself. Large weights make the weight decay visible."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Parameter(300 * torch.randn(n, 5)) for n in (7, 3))

    def forward(self, pixels):
        return pixels.flatten(1)

    def decode(self, code):
        return code.view(-1, 1, 4, 8) ** 2


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_losses_of_deep_svdd_are_the_authors_formulas_in_numpy(objective):
    torch.manual_seed(0)
    detector = DeepSVDDDetector(objective=objective, device="cpu")
    detector.network_, detector.centre_ = Codes(), torch.randn(32)
    pixels = torch.rand(40, 1, 4, 8, requires_grad=True)
    (_, autoencoder), (_, svdd) = detector._stages(torch.Generator())

    codes = pixels.detach().numpy().reshape(40, 32).astype(float)
    away = codes - detector.centre_.numpy()
    distance = (away**2).sum(1)
    weights = [w.detach().numpy().astype(float) for w in detector.network_.parameters()]
    decay = 1e-6 / 2 * sum((w**2).sum() for w in weights)
    assert decay > 1
    want, gradient = distance.mean(), 2 * away / 40
    if objective == "soft-boundary":
        radius, nu = np.quantile(distance, 0.9), 0.1  # the radius is squared
        want = radius + np.maximum(0, distance - radius).sum() / (nu * 40)
        gradient = np.where(distance > radius, 1 / nu, 0)[:, None] * gradient
    found = svdd(pixels, None)
    assert found.item() == pytest.approx(want + decay, rel=1e-5)
    (slope,) = torch.autograd.grad(found, [pixels])
    np.testing.assert_allclose(slope.reshape(40, 32), gradient, rtol=1e-4, atol=1e-6)
    want = ((codes**2 - codes) ** 2).sum(1).mean() + decay
    assert autoencoder(pixels, None).item() == pytest.approx(want, rel=1e-5)
    np.testing.assert_allclose(detector._batch(pixels.detach())["distance"], -distance, rtol=1e-5)


def test_the_centre_of_deep_svdd_is_not_near_zero():
    codes = torch.tensor([[0.05, -0.02, 3.0], [0.05, -0.04, 5.0]])
    np.testing.assert_allclose(centre_of(codes), [0.1, -0.1, 4.0])


def test_deep_svdd_refuses_an_unknown_objective(cell):
    with pytest.raises(InputError, match="objective"):
        DeepSVDDDetector(objective="soft").fit(cell[0])


def test_geom_learns(digits):
    """Two normal classes. Noise makes images of one digit differ: drawn weights keep distances."""
    train, test = digits.train, digits.test
    parts = [
        *(part.images[np.isin(part.labels, (0, 1))] for part in (train, test)),
        test.images[~np.isin(test.labels, (0, 1))][:100],
    ]
    images, normal, anomalous = speckled(parts, 0.2)
    settings = SETTINGS | {"epochs": 40, "learning_rate": 5e-3, "batch_size": 16}
    detector = GEOMDetector(width=1, **settings).fit(images)
    losses = detector.record_["losses"]
    assert losses[-1] < 0.5 * losses[0]
    assert_moved(detector)
    untrained = with_network(detector, freshly_drawn(detector, 123))
    logs = untrained._each(images[..., None], untrained._logs)
    untrained.alpha_ = fit_dirichlet(torch.cat(list(logs)).numpy())
    assert_separates(detector, untrained, normal, anomalous, {"dirichlet": 0.12, "simple": 0.2})


def test_geom_has_a_network_four_times_as_wide():
    """WRN-10-4 with one output for each transformation."""
    detector = GEOMDetector()
    detector.preprocessing_ = Preprocessing(32, 32, 3)
    network = detector._network()
    assert [block.conv2.out_channels for block in network.blocks] == [64, 128, 256]
    assert network.output.out_features == 72


def test_the_scores_of_geom_are_scipy_s_densities():
    """Up to a number that is the same for all images."""
    generator = np.random.default_rng(0)
    outputs = generator.dirichlet(np.ones(72), (5, 72))  # [images, transformations, classes]
    detector = GEOMDetector()
    detector.alpha_ = generator.gamma(2, 2, (72, 72))
    detector._logs = lambda pixels: torch.from_numpy(np.log(outputs))
    found = {name: score.numpy() for name, score in detector._batch(torch.zeros(5)).items()}
    want = np.mean(
        [dirichlet.logpdf(outputs[:, t].T, detector.alpha_[t]) for t in range(72)], axis=0
    )
    np.testing.assert_allclose(
        found["dirichlet"] - found["dirichlet"][0], want - want[0], rtol=1e-8
    )
    right = [np.log([image[t, t] for t in range(72)]).mean() for image in outputs]
    np.testing.assert_allclose(found["simple"], right)


def test_the_72_transformations():
    places = transformations(8, 8)
    image = torch.arange(64.0).view(1, 1, 8, 8)
    assert len({tuple(each) for each in places.tolist()}) == 72
    assert torch.equal(transformed(image, places[:1]), image)
    assert torch.equal(transformed(image, places[1:2]), torch.rot90(image, 1, (2, 3)))
    shifted = transformed(image, places[4:5])[0, 0]  # by a quarter of the side to the right
    assert torch.equal(shifted[:, 2:], image[0, 0, :, :-2])
    with pytest.raises(InputError, match="square"):
        transformations(8, 9)


def test_the_dirichlet_distribution_is_found_again():
    alpha = np.array([0.5, 2.0, 7.0, 1.0])
    drawn = dirichlet(alpha).rvs(20_000, random_state=0)
    np.testing.assert_allclose(fit_dirichlet(np.log(drawn)), alpha, rtol=0.05)


def test_anogan_learns(digits):
    """One normal class. The other digits are anomalous."""
    train, test = digits.train, digits.test
    settings = SETTINGS | {"epochs": 40, "learning_rate": 1e-3, "batch_size": 16}
    detector = AnoGANDetector(search_steps=20, **settings)
    detector.fit(train.images[train.labels == 4])
    assert_moved(detector)
    untrained = with_network(detector, freshly_drawn(detector, 123))
    normal, anomalous = test.images[test.labels == 4][:30], test.images[test.labels != 4][:40]
    assert_separates(detector, untrained, normal, anomalous, {"search": 0.35})


def test_each_loss_of_anogan_trains_its_own_network():
    """Goodfellow et al. (2014), with the generator's loss −log D(G(z))."""
    torch.manual_seed(0)
    network, pixels = DCGAN(1, 8, 8), torch.rand(6, 1, 8, 8)
    z = torch.randn(6, 100, generator=torch.Generator().manual_seed(5))
    real, fake = (
        torch.sigmoid(network.discriminator(x)[1]) for x in (pixels, network.generator(z))
    )
    judging, fooling = -(real.log() + (1 - fake).log()).mean(), -fake.log().mean()
    wanted = []
    for part, loss in ((network.generator, fooling), (network.discriminator, judging)):
        wanted += torch.autograd.grad(loss, list(part.parameters()), retain_graph=True)
    found = gan_loss(network, torch.Generator().manual_seed(5))(pixels, None)
    torch.testing.assert_close(found, judging + fooling)
    gradients = torch.autograd.grad(found, list(network.parameters()))
    for gradient, want in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, want, rtol=1e-4, atol=1e-6)


def test_the_search_of_anogan_is_that_of_one_image_in_numpy_s_adam(cell):
    """Residual and feature loss by hand, and Adam written out, for one image."""
    images = cell[0]
    detector = AnoGANDetector(epochs=1, search_steps=4, **SETTINGS).fit(images[:64])
    network = copy.deepcopy(detector.network_).double()
    x = torch.from_numpy(images[:1] / 255).float().double()[:, None]
    z = torch.randn(100, generator=torch.Generator().manual_seed(0)).double().numpy()
    first, second = np.zeros(100), np.zeros(100)

    def loss(z):
        made = network.generator(z[None])
        ours, theirs = (network.discriminator(each)[0] for each in (made, x))
        return 0.9 * (made - x).abs().sum() + 0.1 * (ours - theirs).abs().sum()

    for step in range(1, 5):
        at = torch.from_numpy(z).requires_grad_()
        (gradient,) = torch.autograd.grad(loss(at), [at])
        gradient = gradient.numpy()
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        step_size = 0.02 * (first / (1 - 0.9**step))
        z = z - step_size / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    want = -float(loss(torch.from_numpy(z)).detach())
    assert detector.score_samples(images[:1])[0] == pytest.approx(want, rel=1e-6)
