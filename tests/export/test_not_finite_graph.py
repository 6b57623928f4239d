"""ONNX files with numbers that the export cannot have written: refused though sealed anew."""

import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from anocaps.base.errors import ModelFileError
from anocaps.detectors import CapsNetDetector
from anocaps.export.runtime import OnnxModel
from anocaps.export.seal import _field, sealed
from anocaps.export.writer import export

NOT_FINITE = (np.nan, np.inf)


@pytest.fixture(scope="module")
def detector(digits):
    few = np.flatnonzero(digits.train.labels < 2)[:120]
    detector = CapsNetDetector(
        "quick", score_function="re", epochs=1, calibration=0.3, device="cpu"
    )
    return detector.fit(digits.train.images[few], digits.train.labels[few])


@pytest.fixture(scope="module")
def exported(detector, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    export(detector, path)
    return path


def place_of(model, array):
    """The constant of the graph that holds these numbers."""
    wanted = np.asarray(array)
    for place, constant in enumerate(model.graph.initializer):
        found = numpy_helper.to_array(constant)
        if found.shape == wanted.shape and np.array_equal(found, wanted):
            return place
    raise AssertionError("no such constant")


def refused(model, tmp_path, why=""):
    path = tmp_path / "edited.onnx"
    path.write_bytes(sealed(model.SerializeToString()))
    with pytest.raises(ModelFileError, match=rf"edited\.onnx: .*{why}") as refusal:
        OnnxModel(path)
    assert "\n" not in str(refusal.value)


def with_first(exported, array, value):
    """The exported model with another first number in one constant."""
    model = onnx.load(exported)
    del model.metadata_props[-1:]  # the seal
    place = place_of(model, array)
    name = model.graph.initializer[place].name
    changed = np.array(array)
    changed.flat[0] = value
    model.graph.initializer[place].CopyFrom(numpy_helper.from_array(changed, name))
    return model


PARTS = {
    "the first layer": lambda d: d.network_.conv1.bias.detach().numpy(),
    "the decoder": lambda d: d.network_.decoder[0].bias.detach().numpy(),
    "the neighbours": lambda d: d.neighbours_.kept.numpy().T,
    "a mean": lambda d: np.array(d.standard_["pp"][0]),
    "a spread": lambda d: np.array(d.standard_["re"][1]),
    **{f"calibration {n}": lambda d, n=n: d.calibration_scores(n) for n in ("pp", "re", "pp+re")},
}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", PARTS)
def test_a_number_that_is_not_finite(detector, exported, tmp_path, part, value):
    refused(with_first(exported, PARTS[part](detector), value), tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pp", 1.5), ("pp", -0.5), ("knn", -2.5), ("knn", 0.5), ("re", 0.5), ("re", -1e300),
        ("mse", 0.5), ("mse", -65.0),
        # finite, but not what follows from the other scores
        ("combined", -1e300), ("combined", 1e300), ("combined", -50.0), ("pp+re", 40.0),
    ],
)  # fmt: skip
def test_calibration_scores_out_of_their_range(detector, exported, tmp_path, name, value):
    refused(with_first(exported, detector.calibration_scores(name), value), tmp_path)


def test_numbers_in_another_file(exported, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = onnx.load(exported)
    del model.metadata_props[-1:]
    onnx.external_data_helper.convert_model_to_external_data(
        model, location="numbers.bin", size_threshold=0
    )
    onnx.external_data_helper.write_external_data_tensors(model, str(tmp_path))
    refused(model, tmp_path, "another file")  # not by the engine, which may load it


def test_calibration_classes_that_are_none(detector, exported, tmp_path):
    refused(with_first(exported, detector.calibration_classes_, 2), tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in ("heat_scale", "calibration_images") for value in NOT_FINITE),
        ("calibration_images", 7), ("heat_scale", 5e-324), ("heat_scale", 1e308),
        ("card", {"self_check": np.nan}), ("card", {"calibration_images": 10**12}),
        ("record", {"loss": [1.0, np.inf]}),
    ],
)  # fmt: skip
def test_the_metadata(exported, tmp_path, key, value):
    model = onnx.load(exported)
    about = json.loads(model.metadata_props[0].value) | {key: value}
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {"anocaps": json.dumps(about)})
    refused(model, tmp_path)


def without_seal(exported):
    model = onnx.load(exported)
    del model.metadata_props[-1:]
    return model


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_scalar_that_is_not_finite(exported, tmp_path, value):
    model = without_seal(exported)
    arrays = [numpy_helper.to_array(constant) for constant in model.graph.initializer]
    scalars = [place for place, a in enumerate(arrays) if a.shape == () and a.dtype.kind == "f"]
    assert len(scalars) > 10
    for place in scalars:
        refused(with_scalar(exported, place, value), tmp_path, "not finite")


def with_scalar(exported, place, value):
    model = without_seal(exported)
    constant = model.graph.initializer[place]
    kind = numpy_helper.to_array(constant).dtype
    constant.CopyFrom(numpy_helper.from_array(np.array(value, kind), constant.name))
    return model


@pytest.mark.parametrize("value", [-37.0, 0.0, 1e-300, 5.0, 36.0, 37.0 + 1e-6, 38.0, 1e300])
def test_p_values_of_another_number_of_calibration_scores(exported, tmp_path, value):
    place = place_of(onnx.load(exported), 37.0)
    refused(with_scalar(exported, place, value), tmp_path, "p-values do not follow")


@pytest.mark.parametrize("output", ["p_value", "p_value_pp", "p_value_combined", "p_value_class"])
def test_an_output_that_is_not_the_p_value(exported, tmp_path, output):
    model = without_seal(exported)
    other = onnx.helper.make_node("Identity", ["pp"], [output])
    refused(replaced(model, output, other), tmp_path, "p-values do not follow")


def test_a_score_out_of_its_range(exported, tmp_path):
    white = place_of(onnx.load(exported), np.float32(255))
    refused(with_scalar(exported, white, 1.0), tmp_path, "out of range")


TENSOR = b"\x08\x02\x10\x01" + _field(8, b"unused")  # 2 float32 numbers
NANS = _field(9, b"\xff" * 8)
ODD_TENSORS = {
    "cut short": _field(5, TENSOR + _field(9, bytes(7))),
    "no numbers": _field(5, TENSOR),
    "numbers twice": _field(5, TENSOR + 2 * _field(9, bytes(8))),
    # onnxruntime takes the numbers before a field 9 of a wrong kind
    "a wrong kind": _field(5, TENSOR + NANS + b"\x4d" + bytes(4)),
    # onnxruntime ignores high bits, so that this is field 5
    "high bits": b"\xaa\x80\x80\x80\x10" + _field(5, TENSOR + NANS)[1:],
}


@pytest.mark.parametrize("odd", ODD_TENSORS)
def test_a_tensor_that_is_odd(exported, tmp_path, odd):
    content = without_seal(exported).SerializeToString()
    path = tmp_path / "edited.onnx"
    path.write_bytes(sealed(content + _field(7, ODD_TENSORS[odd])))
    with pytest.raises(ModelFileError, match=r"edited\.onnx: its fields are damaged"):
        OnnxModel(path)


@pytest.mark.parametrize("place", ["nowhere", "attribute", "inner graph", "float list"])
def test_a_number_that_no_output_depends_on(exported, tmp_path, place):
    model = without_seal(exported)
    tensor = numpy_helper.from_array(np.array([1.0, np.nan], np.float32), "unused")
    node = onnx.helper.make_node("Constant", [], ["unused"], value=tensor)
    if place == "nowhere":
        model.graph.initializer.append(tensor)
    elif place == "attribute":
        model.graph.node.append(node)
    elif place == "inner graph":
        always = numpy_helper.from_array(np.array(True), "always")
        inner = onnx.helper.make_graph([node], "inner", [], [])
        branches = {"then_branch": inner, "else_branch": inner}
        model.graph.initializer.append(always)
        model.graph.node.append(onnx.helper.make_node("If", ["always"], [], **branches))
    else:
        named = onnx.helper.make_node("Constant", [], ["unused"], value_floats=[np.inf])
        model.graph.node.append(named)
    why = "does not write" if place in ("attribute", "inner graph") else "not finite"
    refused(model, tmp_path, why)


def test_a_number_that_is_not_stored_as_bytes(exported, tmp_path):
    model = without_seal(exported)
    model.graph.initializer.append(onnx.helper.make_tensor("unused", 1, [2], [1.0, np.nan]))
    refused(model, tmp_path, "bytes")


def replaced(model, output, *nodes):
    """The model, in which these nodes make an output from what made it before, now `before`."""
    graph = model.graph
    for names in [names for node in graph.node for names in (node.input, node.output)]:
        names[:] = ["before" if name == output else name for name in names]
    graph.node.extend(nodes)
    return model


@pytest.mark.parametrize("broken", ["several images", "class", "one result", "p-value"])
def test_a_graph_that_fails_after_loading(exported, digits, tmp_path, broken):
    model, make = without_seal(exported), onnx.helper.make_node
    constants = {"minus": np.array(-100), "sizes": np.array([1, 64]), "axes": np.array([0])}
    constants["half"] = np.array(0.5)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    if broken == "class":
        model = replaced(model, "class", make("Add", ["before", "minus"], ["class"]))
    elif broken == "p-value":  # right for the anomalous image that loading tries
        model = replaced(model, "p_value", make("Min", ["before", "half"], ["p_value"]))
    elif broken == "one result":
        mean = make("ReduceMean", ["before", "axes"], ["pp"], keepdims=1)
        model = replaced(model, "pp", mean)
    else:
        flat = make("Reshape", ["images", "sizes"], ["flat"])
        real = make("Cast", ["flat"], ["real"], to=onnx.TensorProto.DOUBLE)
        none = make("Sub", ["real", "real"], ["none"])
        both = make("ReduceSum", ["none"], ["zero"], keepdims=0)
        model = replaced(
            model, "pp", flat, real, none, both, make("Add", ["before", "zero"], ["pp"])
        )
    path = tmp_path / "edited.onnx"
    path.write_bytes(sealed(model.SerializeToString()))
    with pytest.raises(ModelFileError, match=r"edited\.onnx: ") as refusal:
        OnnxModel(path).judge(digits.test.images[:30, ..., None])
    assert "\n" not in str(refusal.value)


def test_the_same_graph_sealed_anew_is_accepted(detector, exported, tmp_path):
    value = detector.calibration_scores("re")[0]
    model = with_first(exported, detector.calibration_scores("re"), value)
    (tmp_path / "same.onnx").write_bytes(sealed(model.SerializeToString()))
    assert OnnxModel(tmp_path / "same.onnx").calibration_size == 36
