"""onnxruntime writes nothing to the file descriptors of standard output and error."""

import onnx
import pytest
from onnx import TensorProto, helper

from anocaps.base.errors import ModelFileError
from anocaps.detectors import CapsNetDetector
from anocaps.export.runtime import OnnxModel
from anocaps.export.seal import sealed
from anocaps.export.writer import export


def test_a_good_model(two_classes, tmp_path, capfd):
    images, labels = two_classes
    detector = CapsNetDetector("quick", epochs=1, calibration=0.3, device="cpu")
    detector.fit(images, labels)
    capfd.readouterr()
    export(detector, tmp_path / "model.onnx")
    OnnxModel(tmp_path / "model.onnx").judge(images[..., None], with_heat=True)
    assert capfd.readouterr() == ("", "")


def test_graphs_that_make_it_warn_or_fail(tmp_path, capfd):
    """A constant that nobody uses is a warning, a missing shape and bytes are errors."""
    info = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", 2])
    unused = helper.make_tensor("unused", TensorProto.FLOAT, [1], [0.0])
    sums = helper.make_node("Add", ["images", "three"], ["result"])
    three = helper.make_tensor("three", TensorProto.FLOAT, [3], [0.0] * 3)
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, ["N", 2])
    graph = helper.make_graph([sums], "g", [info], [result], [unused, three])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    path = tmp_path / "bad.onnx"
    for content in (model.SerializeToString(), onnx.ModelProto().SerializeToString(), b"?"):
        path.write_bytes(sealed(content))
        with pytest.raises(ModelFileError, match=r"bad\.onnx: "):
            OnnxModel(path)
    assert capfd.readouterr() == ("", "")
