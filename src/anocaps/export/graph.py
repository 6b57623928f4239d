"""Capsule networks as an ONNX graph, node by node.

The graph uses operators that every ONNX runtime has. `writer.py` checks on images that graph and
network give the same numbers. Batch normalisation is folded into the convolution before it. Routing
builds no votes. Its variables have the names of `capsules/`.
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from torch import Tensor, nn

from anocaps.capsules.textbook import EPS
from anocaps.networks.capsnet import CapsNet
from anocaps.networks.deep import DeepCapsNet
from anocaps.training.preprocessing import Preprocessing

FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE

Value = str | NDArray[Any]  # the name of a node's output, or a constant


class Graph:
    """Nodes and constants, in the order in which they are added."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.outputs: list[ValueInfoProto] = []
        self._names: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def add(self, operator: str, *inputs: Value, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        result = f"value_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [result], **attributes))
        return result

    def constant(self, array: NDArray[Any]) -> str:
        """Store a constant, unless an equal one exists, and return its name."""
        array = np.asarray(array, order="C")
        key = array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest()
        if key not in self._names:
            self._names[key] = name = f"constant_{len(self.constants)}"
            self.constants.append(numpy_helper.from_array(array, name))
        return self._names[key]

    def give(self, name: str, value: str, kind: int = DOUBLE, shape: tuple[int, ...] = ()) -> None:
        """Make a value [N, …] an output of the graph."""
        self._give(name, value, kind, ("N", *shape))

    def give_fixed(self, name: str, value: str, shape: tuple[int, ...]) -> None:
        """Make a float64 value that does not depend on the images an output."""
        self._give(name, value, DOUBLE, shape)

    def give_constant(self, name: str, array: NDArray[Any]) -> None:
        """Make a constant an output, so that the runtime can check it."""
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        self._give(name, self.constant(array), kind, array.shape)

    def _give(self, name: str, value: str, kind: int, shape: tuple[int | str, ...]) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def largest(self, x: str, count: int) -> str:
        """The `count` largest numbers along the last axis."""
        values, places = self.add("TopK", x, whole(count)), f"places_{len(self.nodes)}"
        self.nodes[-1].output.append(places)
        return values

    def sum(self, x: str, axis: int, keep: bool = False) -> str:
        return self.add("ReduceSum", x, whole(axis), keepdims=int(keep))


# ── from images to class capsules ────────────────────────────────────────────────────────────


def window(graph: Graph, images: str, preprocessing: Preprocessing) -> str:
    """uint8 [N, H, W, C] → the central window as pixels in [0, 1], [N, C, h, w]."""
    height, width = preprocessing.window
    if (height, width) != (preprocessing.height, preprocessing.width):
        top, left = (preprocessing.height - height) // 2, (preprocessing.width - width) // 2
        ends = whole(top + height, left + width)
        images = graph.add("Slice", images, whole(top, left), ends, whole(1, 2))
    pixels = graph.add("Cast", images, to=FLOAT)
    pixels = graph.add("Transpose", pixels, perm=[0, 3, 1, 2])
    return graph.add("Div", pixels, real(255))


def encoder_input(graph: Graph, pixels: str, preprocessing: Preprocessing) -> str:
    if not preprocessing.standardize:
        return pixels
    height, width = preprocessing.window
    count = preprocessing.channels * height * width
    centred = graph.add("Sub", pixels, graph.add("ReduceMean", pixels, axes=[1, 2, 3]))
    squares = graph.add("Mul", centred, centred)
    spread = graph.add("Sqrt", graph.add("ReduceMean", squares, axes=[1, 2, 3]))
    return graph.add("Div", centred, graph.add("Max", spread, real(count**-0.5)))


def features(graph: Graph, x: str, network: CapsNet | DeepCapsNet) -> tuple[str, str]:
    """Encoder input [N, C, h, w] → features [N, C] and primary capsules [N, I, D]."""
    size = network.config.primary_size
    if isinstance(network, DeepCapsNet):
        maps = _convolution(graph, _layers(graph, x, network.stem), network.primary)
        return graph.add("Flatten", maps, axis=1), capsules_of_maps(graph, maps, size)
    maps = graph.add("Relu", _convolution(graph, x, network.conv1))
    primary = capsules_of_maps(graph, _convolution(graph, maps, network.primary), size)
    places = graph.add("Reshape", primary, whole(0, -1, network.feature_size))
    return graph.add("ReduceMean", places, axes=[1], keepdims=0), primary


def capsules_of_maps(graph: Graph, maps: str, size: int) -> str:
    """Maps [N, types·D, h, w] → squashed capsules [N, I, D], ordered by row, column, type."""
    maps = graph.add("Transpose", maps, perm=[0, 2, 3, 1])
    return squash(graph, graph.add("Reshape", maps, whole(0, -1, size)))


def squash(graph: Graph, s: str) -> str:
    squares = graph.sum(graph.add("Mul", s, s), axis=-1, keep=True)
    n = graph.add("Sqrt", graph.add("Add", squares, real(EPS)))
    return graph.add("Div", s, graph.add("Add", n, graph.add("Reciprocal", n)))


def route(graph: Graph, u: str, weight: Tensor, bias: Tensor | None, iterations: int) -> str:
    """u [N, I, D], weight [I, J, E, D] → class capsules [N, J, E]."""
    inputs, classes, _, size = weight.shape
    # one matrix [E, I·D] per class; the runtime transposes it when it loads the graph
    w = graph.constant(array(weight).transpose(1, 2, 0, 3).reshape(classes, -1, inputs * size))
    w_transposed = graph.add("Transpose", w, perm=[0, 2, 1])
    flat = whole(classes, -1, inputs * size)
    # the couplings of the first iteration are all 1/J
    first = graph.add("Reshape", u, whole(0, inputs * size))
    s = graph.add("Div", graph.add("MatMul", first, w_transposed), real(classes))  # [J, N, E]
    total = v = ""
    for iteration in range(iterations):
        if iteration > 0:
            total = v if iteration == 1 else graph.add("Add", total, v)
            pulled = graph.add("MatMul", total, w)  # W_ijᵀ v_j
            pulled = graph.add("Reshape", pulled, whole(classes, -1, inputs, size))
            agreement = graph.sum(graph.add("Mul", pulled, u), axis=-1)  # [J, N, I]
            couplings = graph.add("Softmax", agreement, axis=0)
            coupled = graph.add("Mul", graph.add("Unsqueeze", couplings, whole(-1)), u)
            s = graph.add("MatMul", graph.add("Reshape", coupled, flat), w_transposed)
        if bias is not None:
            s = graph.add("Add", s, array(bias)[:, None])
        v = squash(graph, s)
    return graph.add("Transpose", v, perm=[1, 0, 2])


# ── from class capsules to reconstructions ───────────────────────────────────────────────────


def reconstruct(graph: Graph, capsules: str, chosen: str, network: CapsNet | DeepCapsNet) -> str:
    """Class capsules [N, J, E] and class index [N] → pixels [N, C, h, w]."""
    config = network.config
    places = graph.add("Unsqueeze", chosen, whole(1))
    mask = graph.add("Cast", graph.add("Equal", places, np.arange(config.classes)), to=FLOAT)
    masked = graph.add("Mul", capsules, graph.add("Unsqueeze", mask, whole(-1)))
    x = graph.add("Reshape", masked, whole(0, config.classes * config.class_size))
    pixels = _layers(graph, x, network.decoder)
    if isinstance(network, CapsNet):
        return graph.add("Reshape", pixels, whole(0, config.channels, config.height, config.width))
    ends = whole(config.height, config.width)
    return graph.add("Slice", pixels, whole(0, 0), ends, whole(2, 3))


def _layers(graph: Graph, x: str, layers: nn.Sequential) -> str:
    found = list(layers)
    for layer, following in zip(found, [*found[1:], None]):
        match layer:
            case nn.Conv2d():
                norm = following if isinstance(following, nn.BatchNorm2d) else None
                x = _convolution(graph, x, layer, norm)
            case nn.BatchNorm2d():
                pass  # folded into the convolution before it
            case nn.Linear():
                x = graph.add("Gemm", x, array(layer.weight), array(layer.bias), transB=1)
            case nn.ReLU():
                x = graph.add("Relu", x)
            case nn.Sigmoid():
                x = graph.add("Sigmoid", x)
            case nn.MaxPool2d():
                x = graph.add("MaxPool", x, kernel_shape=layer.kernel_size, strides=layer.stride)
            case nn.Unflatten():
                x = graph.add("Reshape", x, whole(0, *layer.unflattened_size))
            case nn.Upsample():
                scales = np.array([1, 1, layer.scale_factor, layer.scale_factor], np.float32)
                x = graph.add(
                    "Resize", x, "", scales, mode="nearest",
                    coordinate_transformation_mode="asymmetric", nearest_mode="floor",
                )  # fmt: skip
            case _:
                raise TypeError(f"{type(layer).__name__} cannot be exported to ONNX")
    return x


def _convolution(graph: Graph, x: str, layer: nn.Conv2d, norm: nn.BatchNorm2d | None = None) -> str:
    weight, bias = array(layer.weight), array(layer.bias)
    if norm is not None:
        assert norm.running_mean is not None and norm.running_var is not None
        variance = array(norm.running_var).astype(np.float64)
        scale = array(norm.weight) / np.sqrt(variance + norm.eps)  # [maps]
        weight = weight * scale[:, None, None, None]
        bias = (bias - array(norm.running_mean)) * scale + array(norm.bias)
    weight = weight.astype(np.float32)
    bias = np.broadcast_to(bias, len(weight)).astype(np.float32)
    assert isinstance(layer.padding, tuple)
    return graph.add("Conv", x, weight, bias, strides=layer.stride, pads=2 * layer.padding)


# ── numbers ──────────────────────────────────────────────────────────────────────────────────


def array(tensor: Tensor | None) -> NDArray[Any]:
    return np.zeros(1, np.float32) if tensor is None else tensor.detach().cpu().numpy()


def whole(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


def real(number: float) -> NDArray[np.float32]:
    return np.array(number, np.float32)
