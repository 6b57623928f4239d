"""What the CapsNet detector does beyond the contract, and that it truly learns."""

import copy

import numpy as np
import pytest
import torch
from learning import digit_cell

from anocaps import CapsNetDetector
from anocaps.base.errors import InputError, ModelFileError
from anocaps.capsules.textbook import lengths
from anocaps.detectors.capsnet_scoring import built
from anocaps.detectors.presets import PRESETS
from anocaps.detectors.saving import load
from anocaps.judging.calibration import split
from anocaps.judging.metrics import auroc
from anocaps.networks.capsnet import CapsNet


def quick(**options):
    return CapsNetDetector(**({"preset": "quick", "device": "cpu", "calibration": 0.0} | options))


def drawn(detector: CapsNetDetector, seed: int) -> CapsNetDetector:
    """The same detector with the weights that training with this seed would begin with."""
    other = copy.deepcopy(detector)
    torch.manual_seed(seed)
    other.network_ = built(detector.network_.config).eval()
    return other


# paper and paper-tuned need larger images than the digits' 8×8
@pytest.mark.parametrize(
    ("preset", "side", "epochs"),
    [("quick", 8, 8), ("paper", 17, 2), ("paper-tuned", 17, 2), ("deep", 8, 2)],
)
def test_every_preset_learns(digits, preset, side, epochs):
    nearest = np.arange(side) * 8 // side
    images, labels, normal, anomalous = digit_cell(digits, 4)
    images, normal, anomalous = (x[:, nearest][:, :, nearest] for x in (images, normal, anomalous))
    options = {"epochs": epochs, "batch_size": 50, "calibration": 0.0, "device": "cpu"}
    detector = CapsNetDetector(preset, **options).fit(images, labels)
    losses = detector.record_["losses"]
    assert losses[-1] < 0.5 * losses[0]
    began = drawn(detector, detector.seed).network_.named_parameters()
    for (name, before), after in zip(began, detector.network_.parameters(), strict=True):
        assert not torch.equal(before, after), name
    found, *random = (
        [each.outputs(x[::2], ("pp", "re")) for x in (normal, anomalous)]
        for each in (detector, *(drawn(detector, seed) for seed in (1, 2, 3)))
    )
    for score in ("pp", "re"):
        chance = np.median([auroc(n[score], a[score]) for n, a in random])
        assert auroc(*(part[score] for part in found)) > max(0.5, chance) + 0.2, score
    accuracy = np.mean(detector.classify(normal) == digits.test.labels[digits.test.labels != 4])
    assert accuracy > 0.85


def test_the_papers_network_scores_alike_in_any_batch(mnist):
    """More images than are routed together, through the spectral form of the convolution."""
    images, labels = mnist.train.images[:60], mnist.train.labels[:60] % 2
    detector = CapsNetDetector("paper", epochs=1, batch_size=20, calibration=0.0, device="cpu")
    detector.fit(images, labels)
    together = detector.outputs(images)
    alone = detector.outputs(images[37:38])
    apart = {name: abs(together[name][37] - alone[name][0]) for name in ("pp", "re", "pp+re")}
    assert apart["pp"] < 1e-6 and apart["re"] < 1e-6
    # each divided by its spread over normal images, which after three steps is small
    assert apart["pp+re"] < sum(1e-6 / together[name].std() for name in ("pp", "re"))


def test_scores_are_fp32_unless_asked(two_classes):
    """Against the same network in double precision: fp32 agrees to 1e-5, bf16 cannot."""
    images, labels = two_classes
    detector = quick(epochs=5).fit(images, labels)
    double = copy.deepcopy(detector.network_).double()
    with torch.inference_mode():
        want = lengths(double(torch.from_numpy(images).double().unsqueeze(1) / 255)).numpy()
    np.testing.assert_allclose(detector.class_lengths(images), want, atol=1e-5)
    detector.scoring_precision = "bf16"
    assert np.abs(detector.class_lengths(images) - want).max() > 1e-5


def test_a_surrounding_autocast_changes_nothing(two_classes):
    images, labels = two_classes
    detector = quick(epochs=1).fit(images, labels)
    want = detector.score_samples(images)
    with torch.autocast("cpu", torch.bfloat16):
        np.testing.assert_array_equal(detector.score_samples(images), want)


def test_calibration_images_do_not_set_the_spread(digits):
    """A score that depended on them would void what their p-values promise."""
    images, labels = digits.train.images[:300].copy(), digits.train.labels[:300]
    detector = quick(epochs=1, calibration=0.2).fit(images, labels)
    images[split(labels, 0.2, detector.seed)[1]] = 0
    other = quick(epochs=1, calibration=0.2).fit(images, labels)
    assert other.standard_ == detector.standard_
    assert not np.array_equal(other.calibration_scores(), detector.calibration_scores())


def test_pp_plus_re_is_the_sum_of_standardised_scores(two_classes):
    images, labels = two_classes
    detector = quick(epochs=1).fit(images, labels)
    found = detector.outputs(images)
    parts = [found[name] for name in ("pp", "re")]
    want = sum((part - part.mean()) / part.std() for part in parts)
    np.testing.assert_allclose(found["pp+re"], want, rtol=1e-9)


def test_one_class_has_no_pp(two_classes):
    """Refused before any training; without verdicts, scores are asked for by name."""
    images, _ = two_classes
    detector = quick(calibration=0.2, score_function="pp")
    with pytest.raises(InputError, match=r"score_function 'pp' cannot be used.* 'knn'"):
        detector.fit(images, progress=lambda *_: pytest.fail("it was trained"))
    detector = quick(epochs=1, calibration=0.0, score_function="pp").fit(images)
    with pytest.raises(InputError, match="or 're' or"):
        detector.score_samples(images)
    assert detector.score_samples(images, score_function="re").shape == (len(images),)
    assert list(detector.outputs(images)) == ["combined", "re", "mse", "knn", "stem-knn"]


def test_reconstructions_look_like_what_came_in(two_classes):
    images, labels = two_classes
    detector = quick(epochs=40, reconstruction_weight=0.05).fit(images, labels)
    reconstructed = detector.reconstruct(images)
    assert reconstructed.shape == images.shape
    own = np.square(reconstructed - images / 255).mean()
    other = np.square(reconstructed - images[::-1] / 255).mean()  # the other class, mostly
    assert own < 0.3 * other
    assert detector.reconstruct(images[..., None]).shape == (*images.shape, 1)


def test_presets_refuse_what_they_are_not_made_for(two_classes):
    with pytest.raises(InputError, match="quick"):
        CapsNetDetector(preset="paper", device="cpu").fit(*two_classes)
    with pytest.raises(InputError, match="--size"):
        quick().fit(np.zeros((4, 200, 200), np.uint8), [0, 0, 1, 1])
    with pytest.raises(InputError, match="48×48"):
        CapsNetDetector("paper", calibration=0.0, device="cpu").fit(
            np.zeros((4, 64, 64), np.uint8), [0, 0, 1, 1]
        )
    with pytest.raises(InputError, match="unknown"):
        CapsNetDetector(preset="enormous", device="cpu").fit(*two_classes)


@pytest.mark.parametrize("side", [5, 8, 14, 28, 32, 48, 96, 125])
def test_quick_fits_any_size(side):
    config = PRESETS["quick"].network(side, side + 3, 3, 4)
    assert min(config.primary_grid) >= 1
    assert max(config.primary_grid) <= 7
    assert CapsNet(config)(torch.rand(1, 3, side, side + 3)).shape == (1, 4, 8)


def test_a_model_whose_parts_do_not_fit_is_refused(two_classes, tmp_path, monkeypatch):
    detector = quick(epochs=1).fit(*two_classes)
    detector.classes_ = np.array([0, 1, 2])
    detector.save(tmp_path / "m.safetensors")
    with pytest.raises(ModelFileError, match=r"m\.safetensors"):
        load(tmp_path / "m.safetensors")
