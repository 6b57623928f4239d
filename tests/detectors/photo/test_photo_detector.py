"""Preset `photo`: fit, score, save, export; and that it finds what is anomalous."""

import copy
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from host import host_state
from PIL import Image, ImageDraw

from anocaps import CapsNetDetector, load
from anocaps.base.errors import AnocapsError, DataError, InputError, ModelFileError
from anocaps.base.extras import PRETRAINED, WEIGHTS, pretrained_available
from anocaps.detectors.photo import weights
from anocaps.detectors.photo.copies import near_copies
from anocaps.export.runtime import OnnxModel
from anocaps.export.writer import export
from anocaps.images import ImageFolder
from anocaps.judging.metrics import auroc
from anocaps.networks.photo import PhotoNetwork

pytestmark = pytest.mark.skipif(
    not pretrained_available(), reason="the extra photo is not installed"
)


def drawn(kind: str, count: int, seed: int, size: int = 64, scratched: bool = False) -> np.ndarray:
    """Colour images of one shape on noise; a scratch is two pixels wide."""
    generator = np.random.default_rng([seed, len(kind)])
    found = []
    for _ in range(count):
        image = Image.fromarray(generator.integers(90, 120, (size, size, 3), dtype=np.uint8))
        pen = ImageDraw.Draw(image)
        x, y = generator.integers(size // 8, size // 4, 2).tolist()
        box = (x, y, x + size // 2, y + size // 2)
        colour = tuple(generator.integers(150, 170, 3).tolist())
        {"circle": pen.ellipse, "square": pen.rectangle, "cake": pen.pieslice}[kind](
            box, fill=colour, **({"start": 0, "end": 220} if kind == "cake" else {})
        )
        if scratched:
            pen.line((x, y, x + size // 2, y + size // 3), fill=(20, 20, 20), width=2)
        found.append(np.asarray(image))
    return np.stack(found)


@pytest.fixture(scope="module")
def two():
    """Fitted on circles and squares."""
    images = np.concatenate([drawn("circle", 40, 0), drawn("square", 40, 0)])
    labels = np.repeat(["circle", "square"], 40)
    return CapsNetDetector("photo", calibration=0.3, size=64, device="cpu").fit(images, labels)


def test_fit_and_scores_change_nothing_in_the_host_process():
    images, before = drawn("circle", 30, 0), host_state()
    CapsNetDetector("photo", size=64, device="cpu").fit(images).score_samples(images)
    assert host_state() == before


@pytest.fixture(scope="module")
def one():
    return CapsNetDetector(calibration=0.3, size=128, device="cpu").fit(drawn("circle", 60, 0))


def test_features_on_disk_give_the_same_scores(two, monkeypatch):
    monkeypatch.setattr("anocaps.detectors.photo.features._MOST_IN_MEMORY", 1)
    images = np.concatenate([drawn("circle", 40, 0), drawn("square", 40, 0)])
    labels = np.repeat(["circle", "square"], 40)
    again = CapsNetDetector("photo", calibration=0.3, size=64, device="cpu").fit(images, labels)
    new = drawn("cake", 6, 1)
    expected, found = (each.outputs(new, ("combined", "pp", "knn")) for each in (two, again))
    for name, scores in expected.items():
        np.testing.assert_array_equal(found[name], scores)


@pytest.fixture(params=["one", "two"])
def fitted(request):
    return request.getfixturevalue(request.param)


def test_one_class_is_auto_and_finds_scratches_and_other_shapes(one):
    assert one.record_["preset"] == "photo" and one.score_function_ == "combined"
    assert set(one.calibration_scores_) == {"combined", "patch", "stem-knn"}
    normal = one.score_samples(drawn("circle", 40, 1))
    assert auroc(normal, one.score_samples(drawn("circle", 40, 2, scratched=True))) > 0.95
    assert auroc(normal, one.score_samples(drawn("cake", 40, 2))) > 0.9
    with pytest.raises(InputError, match="two classes"):
        one.score_samples(drawn("circle", 2, 1), "pp")


def test_several_classes_are_told_apart_and_others_found(two):
    new = np.concatenate([drawn("circle", 20, 1), drawn("square", 20, 1)])
    assert (two.classify(new) == np.repeat(["circle", "square"], 20)).mean() > 0.95
    assert auroc(two.score_samples(new), two.score_samples(drawn("cake", 40, 1))) > 0.9
    assert set(two.outputs(new)) == {"combined", "patch", "stem-knn", "pp", "knn"}
    with pytest.raises(InputError, match="preset lacks it"):
        two.score_samples(new, "re")


def test_its_capsules_learn(two):
    """The stem is pretrained; this is about the capsules on its maps."""
    losses, head = two.record_["losses"], two.photo_.network.head
    assert losses[-1] < 0.5 * losses[0]

    def with_drawn(seed):
        other = copy.deepcopy(two)
        torch.manual_seed(seed)
        other.photo_.network.head = fresh = PhotoNetwork(two.photo_.network.config).head.eval()
        fresh.mean, fresh.spread = head.mean, head.spread
        return other

    began = with_drawn(two.seed).photo_.network.head.named_parameters()
    for (name, before), after in zip(began, head.parameters(), strict=True):
        assert not torch.equal(before, after), name
    new = np.concatenate([drawn("circle", 20, 1), drawn("square", 20, 1)])
    odd = drawn("cake", 40, 1)
    each = [two, *(with_drawn(seed) for seed in range(1, 6))]
    found, *others = (auroc(d.score_samples(new, "pp"), d.score_samples(odd, "pp")) for d in each)
    assert found > max(0.5, np.median(others)) + 0.2, (found, others)


@pytest.mark.parametrize("kinds", [("circle",), ("circle", "square")])
def test_the_verdict_may_come_from_any_score_of_the_preset(kinds, tmp_path):
    images = np.concatenate([drawn(kind, 12, 0) for kind in kinds])
    labels = np.repeat(kinds, 12)
    fixed = {"calibration": 0.3, "size": 64, "epochs": 1, "device": "cpu"}
    detector = CapsNetDetector("photo", score_function="patch", **fixed).fit(images, labels)
    detector.save(tmp_path / "m.safetensors")
    assert load(tmp_path / "m.safetensors").score_function_ == "patch"
    refused = ("re", "pp+re") if len(kinds) > 1 else ("re", "pp", "knn")
    for name in refused:
        with pytest.raises(InputError, match="'patch'"):
            CapsNetDetector("photo", score_function=name, **fixed).fit(images, labels)


def test_new_normal_images_surprise_no_more_than_those_of_training(one):
    """Training images are compared without their own patches."""
    surprises = -one.score_samples(drawn("circle", 40, 1), "patch")
    assert np.median(surprises) < 2  # −log p: 0.7 is usual


def test_a_score_does_not_depend_on_the_batch(fitted):
    images = drawn("circle", 9, 3)
    whole = fitted.outputs(images)
    for name, values in whole.items():
        alone = np.concatenate([fitted.outputs(images[k : k + 1])[name] for k in range(9)])
        np.testing.assert_allclose(alone, values, rtol=1e-4, atol=1e-4)


def test_the_hottest_place_is_the_scratch(one):
    images = drawn("circle", 10, 4)
    damaged = images.copy()
    damaged[:, 20:28, 40:48] = 0
    hottest = [np.unravel_index(each.argmax(), each.shape) for each in one.heatmaps(damaged)]
    apart = np.abs(np.array(hottest) - (24, 44)).max(1)  # pixels of 64
    assert np.median(apart) <= 12
    assert (one.heatmaps(drawn("circle", 40, 5)).max((1, 2)) < 0.5).mean() > 0.7


WITHOUT_THE_PACKAGE = f"""
import json, sys
sys.modules[{PRETRAINED!r}] = None  # importing it fails
import anocaps
from anocaps.base.extras import pretrained_available
assert not pretrained_available()
model, *files = sys.argv[1:]
print(json.dumps([row.score for row in anocaps.score_files(model, files, device="cpu")]))
"""


def test_a_model_file_needs_no_package_with_weights(two, tmp_path):
    """The file holds the stem."""
    files = [tmp_path / f"{k}.png" for k in range(3)]
    for file, image in zip(files, drawn("circle", 3, 9)):
        Image.fromarray(image).save(file)
    two.save(tmp_path / "m.safetensors")
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, tmp_path / "m.safetensors", *files]
    environment = {name: value for name, value in os.environ.items() if name != WEIGHTS}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout), two.score_samples(files), rtol=1e-5)


def test_save_load_and_export_give_the_same(fitted, tmp_path):
    images = np.concatenate([drawn("circle", 10, 6), drawn("cake", 10, 6, scratched=True)])
    fitted.save(tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors", "cpu")
    wanted = fitted.judge(images, with_heat=True)
    for name, values in again.judge(images).scores.items():
        np.testing.assert_allclose(values, wanted.scores[name], rtol=1e-6)
    assert "Apache" in again.record_["notice"] and again.record_["pretrained"] == "ImageNet"
    done = export(again, tmp_path / "m.onnx", images)
    assert done.bytes < 60e6
    found = OnnxModel(tmp_path / "m.onnx").judge(images, with_heat=True)
    np.testing.assert_array_equal(found.p_value <= 0.1, wanted.p_value <= 0.1)
    assert found.predicted == wanted.predicted
    np.testing.assert_allclose(found.heat, wanted.heat, rtol=1e-2, atol=1e-2)


def test_an_interrupted_fit_resumes_to_the_same_scores(two, tmp_path):
    images = np.concatenate([drawn("circle", 40, 0), drawn("square", 40, 0)])
    labels = np.repeat(["circle", "square"], 40)
    settings = {"calibration": 0.3, "size": 64, "device": "cpu", "epochs": 4}
    whole = CapsNetDetector("photo", **settings).fit(images, labels)
    told = []

    def stop(step, *_):
        told.append(step)
        if len(told) > 3:
            raise KeyboardInterrupt

    stopped = CapsNetDetector("photo", **settings)
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(images, labels, checkpoint=tmp_path / "c", progress=stop)
    stopped.fit(images, labels, checkpoint=tmp_path / "c", resume=True)
    np.testing.assert_array_equal(stopped.score_samples(images), whole.score_samples(images))


@pytest.mark.parametrize(
    ("settings", "shape"),
    [({"crop": 20}, (64, 64, 3)), ({"size": 8}, (64, 64, 3)), ({}, (64, 64, 2))],
)
def test_what_does_not_fit_is_refused(settings, shape):
    images = np.zeros((20, *shape), np.uint8)
    with pytest.raises(InputError):
        CapsNetDetector("photo", device="cpu", **settings).fit(images, [0, 1] * 10)


def test_altered_arrays_are_refused(two, tmp_path, monkeypatch):
    for wrong in ("memory.kept", "stem_neighbours.spread", "reference.pp", "neighbours"):
        arrays, header = two._learned()
        arrays[wrong] = -arrays[wrong][:, :1] if arrays[wrong].ndim > 1 else -arrays[wrong]
        monkeypatch.setattr(two, "_learned", lambda a=arrays, h=header: (a, h))
        two.save(tmp_path / "m.safetensors")
        monkeypatch.undo()
        with pytest.raises(ModelFileError):
            load(tmp_path / "m.safetensors", "cpu")


def test_a_file_of_weights_is_compared_with_its_checksum(tmp_path, monkeypatch):
    monkeypatch.setenv("ANOCAPS_WEIGHTS", str(tmp_path / "none.pth"))
    with pytest.raises(InputError, match=r"none\.pth"):
        weights.weights_path()
    (tmp_path / "none.pth").write_bytes(b"other")
    with pytest.raises(DataError, match="not the published weights"):
        weights.weights_path()


def test_without_the_extra_one_line_says_how_to_install_it(monkeypatch, caplog):
    for place in ("anocaps.images.fitting", "anocaps.detectors.presets"):
        monkeypatch.setattr(f"{place}.pretrained_available", lambda: False)
    detector = CapsNetDetector(epochs=1, device="cpu", calibration=0.5)
    detector.fit(np.random.default_rng(0).integers(0, 255, (20, 8, 8), dtype=np.uint8))
    assert detector.record_["preset"] == "quick"
    assert sum("anocaps[photo]" in line and "poor" in line for line in caplog.messages) == 1


def test_near_copies_stay_together():
    """Frames of one video are on one side of the split."""
    scenes = drawn("circle", 30, 7)
    frames = np.repeat(scenes, 3, axis=0)
    frames[1::3, :2] += 5  # not the same bytes
    frames[2::3, :, :2] += 5
    detector = CapsNetDetector(calibration=0.3, size=64, device="cpu")
    features = detector.prepare(frames)
    groups = [features.copies[k : k + 3] for k in range(0, 90, 3)]
    assert np.mean([len(set(each.tolist())) == 1 for each in groups]) > 0.9
    detector.fit(features)
    assert detector.record_["near_copies"] > 0
    alone = near_copies(np.random.default_rng(0).normal(size=(50, 112)), np.zeros(50, int))
    assert len(np.unique(alone)) == 50


def test_folders_keep_their_aspect_ratio(tmp_path):
    (tmp_path / "ok").mkdir()
    for k, image in enumerate(drawn("circle", 8, 8, size=320)):
        Image.fromarray(image[:, :240]).save(tmp_path / "ok" / f"{k}.png")
    assert ImageFolder(tmp_path).images.shape[1:] == (256, 192, 3)
    assert ImageFolder(tmp_path, size=96).images.shape[1:] == (128, 96, 3)
    assert ImageFolder(tmp_path, photo=False).images.shape[1:] == (128, 96, 3)


def test_every_error_is_one_of_ours(two):
    with pytest.raises(AnocapsError):
        two.predict(np.zeros((2, 10, 10, 3), np.uint8))
