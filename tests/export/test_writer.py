"""The exported graph gives the detector's numbers, on every network and image shape; what does not
is never written."""

import copy
import json
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from anocaps.base.errors import InputError, ModelFileError
from anocaps.detectors import CapsNetDetector
from anocaps.detectors.baselines.vae import VAEDetector
from anocaps.export import graph as export_graph
from anocaps.export import scoring_graph
from anocaps.export import writer as exporting
from anocaps.export.runtime import OnnxModel
from anocaps.export.writer import export
from anocaps.judging.calibration import class_p_values, p_values
from anocaps.networks.capsnet import CapsNetConfig

# name → height, width, channels, classes and what the detector is asked for
KINDS = {
    "quick": (8, 8, 1, 3, {"preset": "quick"}),
    "paper": (17, 18, 1, 2, {"preset": "paper", "class_bias": True, "score_function": "pp+re"}),
    "standardized crop": (20, 16, 2, 3, {"preset": "quick", "crop": 14, "standardize": True}),
    "deep": (12, 14, 1, 3, {"preset": "deep", "score_function": "knn"}),
    "deep, colour, convolutional decoder": (
        52,
        16,
        3,
        2,
        {"preset": "deep", "score_function": "re"},
    ),
    "one class": (8, 8, 1, 1, {"preset": "quick", "score_function": "knn"}),
    "uncalibrated": (8, 8, 1, 2, {"preset": "quick", "calibration": 0.0}),
}


class Small(CapsNetDetector):
    """The preset's network with a fraction of its maps, so that it trains in a second."""

    def _network_config(self, config):
        config = super()._network_config(config)
        if isinstance(config, CapsNetConfig):
            return replace(config, conv_maps=16, primary_types=4, decoder=(32, 48))
        maps, drawn = (tuple(m // 8 for m in ms) for ms in (config.maps, config.decoder_maps))
        return replace(config, maps=maps, primary_types=4, decoder=(32,), decoder_maps=drawn)


def shaped(images, height, width, channels):
    """Digits N×8×8 at another size, with channels that differ."""
    rows, columns = np.arange(height) * 8 // height, np.arange(width) * 8 // width
    images = images[:, rows][:, :, columns]
    return np.stack([images // (1 + channel) for channel in range(channels)], axis=3)


@pytest.fixture(scope="module")
def made(digits):
    """By kind: a detector that has seen a few digits, and test images of all ten."""
    done = {}

    def make(kind):
        if kind not in done:
            height, width, channels, classes, options = KINDS[kind]
            few = np.flatnonzero(digits.train.labels < classes)
            settings = {"epochs": 6, "batch_size": 16, "calibration": 0.3, "device": "cpu"}
            detector = Small(**(settings | options))
            images = shaped(digits.train.images[few], height, width, channels)
            detector.fit(images, digits.train.labels[few])
            done[kind] = detector, shaped(digits.test.images[:70], height, width, channels)
        return done[kind]

    return make


def assert_same(detector, wanted, found):
    """Two judgements, within rounding; p-values may cross the calibration scores next to theirs."""
    assert wanted.scores.keys() == found.scores.keys()
    for name, scores in wanted.scores.items():
        spread = np.std(detector.calibration_scores_.get(name, scores))
        allowed = 1e-4 * np.maximum(np.abs(scores), spread)
        if name == "knn":  # half the square of a distance between rounded vectors
            allowed = np.maximum(allowed, 3e-6 * np.sqrt(2 * np.abs(scores)))
        assert found.scores[name].dtype == np.float64
        assert np.all(np.abs(found.scores[name] - scores) <= allowed), name
    assert wanted.p_values.keys() == found.p_values.keys()
    step = 1.01 / (len(next(iter(detector.calibration_scores_.values()), ())) + 1)
    for name, values in wanted.p_values.items():
        assert np.all(np.abs(found.p_values[name] - values) <= step), name
        assert np.mean(found.p_values[name] == values) > 0.9
    np.testing.assert_array_equal(
        found.p_value, found.p_values.get(detector.score_function, found.p_value)
    )
    np.testing.assert_array_equal(np.isnan(found.p_value), np.isnan(wanted.p_value))
    assert found.predicted == wanted.predicted
    np.testing.assert_array_equal(np.isnan(found.p_value_class), np.isnan(wanted.p_value_class))
    np.testing.assert_allclose(found.p_value_class, wanted.p_value_class, atol=1.01 / 21)


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_gives_the_numbers_of_the_detector(made, tmp_path, kind):
    detector, images = made(kind)
    done = export(detector, tmp_path / "model.onnx", images)
    found = done.check
    assert found.images == len(images) + 100
    assert found.differences.keys() == detector.judge(images[:1]).scores.keys()
    assert all(0 < off <= 1e-4 for off in found.differences.values())
    assert found.alpha is None if kind == "uncalibrated" else found.alpha >= 0.05
    assert found.same_verdicts >= (0 if kind == "uncalibrated" else found.images - 1)
    model = OnnxModel(tmp_path / "model.onnx")
    assert_same(detector, detector.judge(images), model.judge(images))
    reconstructed = model.judge(images, with_heat=True).reconstructions
    np.testing.assert_allclose(reconstructed, detector.reconstruct(images), atol=1e-5)
    for index in range(3):
        alone = images[index : index + 1]
        assert_same(detector, detector.judge(alone), model.judge(alone))


def test_the_file_is_plain_onnx(made, tmp_path):
    """One file, checked against the standard, no larger than the model file, its JSON whole."""
    detector, _ = made("deep")
    done = export(detector, tmp_path / "model.onnx")
    detector.save(tmp_path / "model.safetensors")
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["model.onnx", "model.safetensors"]
    assert done.bytes == (tmp_path / "model.onnx").stat().st_size
    assert done.bytes < 1.02 * (tmp_path / "model.safetensors").stat().st_size + 50_000
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 13)]
    assert all(tensor.data_location == tensor.DEFAULT for tensor in model.graph.initializer)
    assert [node.op_type for node in model.graph.node if node.domain] == []
    about = json.loads(next(p.value for p in model.metadata_props if p.key == "anocaps"))
    assert about["classes"] == ["0", "1", "2"] and about["score_function"] == "knn"
    assert about["images"] == [12, 14, 1] and about["fit"]["how"] == "resize"
    assert about["calibration_images"] == len(detector.calibration_scores())
    assert about["smallest_alpha"] == 1 / (about["calibration_images"] + 1)
    assert about["card"] == json.loads(json.dumps(detector.card_))
    assert about["record"]["versions"]["torch"] and about["exported_with"]["onnx"]


def test_an_older_file_is_replaced_only_by_a_good_one(made, tmp_path, monkeypatch):
    detector, _ = made("quick")
    path = tmp_path / "model.onnx"
    path.write_bytes(b"older")
    monkeypatch.setattr(exporting, "sealed", lambda content: content)
    with pytest.raises(ModelFileError, match=r"model\.onnx: not written"):
        export(detector, path)
    assert path.read_bytes() == b"older" and list(tmp_path.iterdir()) == [path]


SABOTAGE = {
    "score": (
        export_graph,
        "squash",
        lambda true: lambda graph, s: graph.add("Mul", true(graph, s), ONE),
    ),
    "p-value": (
        scoring_graph,
        "p_value",
        lambda true: lambda graph, s, c: true(graph, s, np.roll(c, 1)[1:]),
    ),
    "p-value within its class": (
        scoring_graph,
        "class_p_value",
        lambda true: lambda graph, s, chosen, c, k: true(graph, s, chosen, c, k[::-1]),
    ),
}
ONE = np.array(1.001, np.float32)


@pytest.mark.parametrize("what", SABOTAGE)
def test_a_graph_that_differs_is_not_written(made, tmp_path, monkeypatch, what):
    detector, images = made("quick")
    module, name, wrong = SABOTAGE[what]
    monkeypatch.setattr(module, name, wrong(getattr(module, name)))
    with pytest.raises(ModelFileError, match=r"not written\. "):
        export(detector, tmp_path / "model.onnx", images)
    assert list(tmp_path.iterdir()) == []


def _other_classes(judged):
    return replace(judged, predicted=judged.predicted[::-1])


def _other_reconstructions(judged):
    return replace(judged, reconstructions=judged.reconstructions + np.float32(2e-4))


@pytest.mark.parametrize("changed", [_other_classes, _other_reconstructions])
def test_a_graph_with_other_classes_or_reconstructions_is_not_written(
    made, tmp_path, monkeypatch, changed
):
    detector, images = made("quick")
    judge = exporting.OnnxModel.judge

    def other(model, x, with_heat=False):
        found = judge(model, x, with_heat)
        return changed(found) if found.reconstructions is not None else found

    monkeypatch.setattr(exporting.OnnxModel, "judge", other)
    with pytest.raises(ModelFileError, match="not written"):
        export(detector, tmp_path / "model.onnx", images)
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_gives_no_numbers_is_not_written(made, tmp_path):
    detector = copy.deepcopy(made("quick")[0])
    with torch.no_grad():
        detector.network_.conv1.bias[0] = float("nan")
    with pytest.raises(ModelFileError, match="not written"):
        export(detector, tmp_path / "model.onnx")


def test_what_has_no_graph_is_refused(made, tmp_path, two_classes):
    detector = VAEDetector(epochs=1, device="cpu").fit(*two_classes)
    with pytest.raises(InputError, match="cannot be exported"):
        export(detector, tmp_path / "model.onnx")
    rounded = CapsNetDetector(preset="quick", epochs=1, device="cpu", scoring_precision="bf16")
    with pytest.raises(InputError, match="fp32"):
        export(rounded.fit(*two_classes), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


# ── parts of the graph, each against what it stands for ──────────────────────────────────────


def run(graph, value, **inputs):
    """What a graph of float64 and int64 inputs [N] gives."""
    kinds = {"f": onnx.TensorProto.DOUBLE, "i": onnx.TensorProto.INT64}
    infos = [
        onnx.helper.make_tensor_value_info(name, kinds[array.dtype.kind], ["N"])
        for name, array in inputs.items()
    ]
    graph.give("result", value)
    whole = onnx.helper.make_graph(graph.nodes, "part", infos, graph.outputs, graph.constants)
    model = onnx.helper.make_model(whole, opset_imports=[onnx.helper.make_opsetid("", 13)])
    model.ir_version = 7
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)[0]


def test_p_values_are_those_of_calibration_to_the_bit():
    generator = np.random.default_rng(0)
    calibration = np.round(generator.normal(size=19), 1)  # with ties; never NaN or infinite
    scores = np.concatenate([calibration, generator.normal(size=50), [np.inf, -np.inf, np.nan]])
    graph = export_graph.Graph()
    found = run(graph, scoring_graph.p_value(graph, "score", calibration), score=scores)
    np.testing.assert_array_equal(found, p_values(scores, calibration))


def test_p_values_within_a_class_are_those_of_calibration():
    generator = np.random.default_rng(1)
    calibration, known = generator.normal(size=90), np.repeat([0, 1, 3], [50, 25, 15])
    scores, chosen = generator.normal(size=200), generator.integers(0, 4, size=200)
    scores[:20:5] = np.nan
    graph = export_graph.Graph()
    value = scoring_graph.class_p_value(graph, "score", "chosen", calibration, known)
    found = run(graph, value, score=scores, chosen=chosen)
    wanted = class_p_values(scores, chosen, calibration, known)
    np.testing.assert_array_equal(found, wanted)
    assert np.isnan(wanted[chosen >= 2]).all() and np.isfinite(wanted[chosen < 2]).all()
