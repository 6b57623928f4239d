"""Preset `photo` as an ONNX graph: pretrained stem, capsules and memory of patches."""

from collections.abc import Mapping
from math import ceil

import numpy as np
from numpy.typing import NDArray
from torch import nn

from anocaps.detectors.photo.model import ONE_CLASS_SHARES, PATCH_SHARES, PhotoModel
from anocaps.detectors.photo.patches import most_distant
from anocaps.export.graph import DOUBLE, Graph, Value, array, capsules_of_maps, real, route, whole
from anocaps.export.scoring_graph import bonferroni, feature_nearness, fisher, nearness
from anocaps.images.resampling import STRIDE, resampling
from anocaps.networks.photo import GRID, CapsuleHead, PhotoConfig
from anocaps.networks.pretrained import CHANNELS, Bottleneck, Stem


def photo_scores(graph: Graph, pixels: str, model: PhotoModel) -> tuple[dict[str, str], str, str]:
    """Pixels [N, C, H, W] → every score [N], the class [N] and the raw heat [N, h, w]."""
    network = model.network
    rows, columns = (side // STRIDE for side in network.config.size)
    channels, size = model.preprocessing.channels, network.config.size
    maps = stem_maps(graph, _resized(graph, pixels, network.config), network.stem, channels, size)
    squared = _squared_distances(graph, maps, model, rows * columns)  # [N, places]
    distances = graph.add("Sqrt", squared)
    largest = graph.largest(distances, most_distant(rows * columns))
    found = {
        "largest": _double(graph, graph.add("Neg", _mean(graph, largest))),
        "mean": _double(graph, graph.add("Neg", _mean(graph, distances))),
        "stem-knn": feature_nearness(
            graph,
            graph.add("ReduceMean", maps, axes=[2, 3], keepdims=0),
            model.stem_neighbours,
        ),
    }
    found["patch"] = bonferroni(graph, model.references, PATCH_SHARES, found)
    heat = graph.add("Reshape", squared, whole(0, rows, columns))
    if network.head is None or model.neighbours is None:
        found["combined"] = combined(graph, model, found, "")
        single = graph.add("Unsqueeze", found["mean"], whole(1))  # [N, 1]
        return found, graph.add("ArgMax", single, axis=1, keepdims=0), heat
    capsules = _class_capsules(graph, maps, network.head, rows, columns)  # [N, J, E]
    lengths = graph.add("ReduceL2", capsules, axes=[2], keepdims=0)
    chosen = graph.add("ArgMax", lengths, axis=1, keepdims=0)
    found["pp"] = _double(graph, graph.add("ReduceMax", lengths, axes=[1], keepdims=0))
    found["knn"] = nearness(graph, capsules, model.neighbours)
    found["combined"] = combined(graph, model, found, chosen)
    return found, chosen, heat


def combined(graph: Graph, model: PhotoModel, found: Mapping[str, Value], chosen: Value) -> str:
    """The score `combined`, as in `PhotoModel.combined`. One class needs no `chosen`."""
    if model.network.head is None or model.neighbours is None:
        return bonferroni(graph, model.references, ONE_CLASS_SHARES, found)
    joined = {name: model.references[name] for name in model.score_names[1:]}
    return fisher(graph, joined, found, chosen)


def _resized(graph: Graph, pixels: str, config: PhotoConfig) -> str:
    """[N, C, H, W] → the size that the stem sees."""
    (height, width), (rows, columns) = config.before, config.size
    if height != rows:
        pixels = graph.add("MatMul", resampling(height, rows), pixels)
    if width != columns:
        pixels = graph.add("MatMul", pixels, resampling(width, columns).T)
    return pixels


def stem_maps(graph: Graph, pixels: str, stem: Stem, channels: int, size: tuple[int, int]) -> str:
    """Pixels [N, channels, H, W] in [0, 1] → [N, 112, h, w]. Grey becomes three equal channels."""
    if channels == 1:
        pixels = graph.add("Concat", pixels, pixels, pixels, axis=1)
    centred = graph.add("Sub", graph.add("Mul", pixels, real(255)), real(127))
    maps, size = _convolution(graph, graph.add("Div", centred, real(128)), stem.first, size)
    maps = _relu6(graph, maps)
    for block in stem.blocks:
        assert isinstance(block, Bottleneck)
        inside = maps
        if block.expand is not None:
            inside = _relu6(graph, _convolution(graph, maps, block.expand, size)[0])
        inside, size = _convolution(graph, inside, block.depthwise, size)
        inside, size = _convolution(graph, _relu6(graph, inside), block.project, size)
        maps = graph.add("Add", maps, inside) if block.adds else inside
    return maps


def _convolution(
    graph: Graph, x: str, layer: nn.Conv2d, size: tuple[int, int]
) -> tuple[str, tuple[int, int]]:
    """A convolution with padding "same", and the size of its map."""
    kernel, stride = layer.kernel_size[0], layer.stride[0]
    after = tuple(ceil(side / stride) for side in size)
    spare = [max((b - 1) * stride + kernel - a, 0) for a, b in zip(size, after)]
    pads = [side // 2 for side in spare] + [side - side // 2 for side in spare]
    weight, bias = array(layer.weight), array(layer.bias)
    strides = [stride, stride]
    found = graph.add("Conv", x, weight, bias, strides=strides, pads=pads, group=layer.groups)
    return found, (after[0], after[1])


def _relu6(graph: Graph, x: str) -> str:
    return graph.add("Clip", x, real(0), real(6))


def _squared_distances(graph: Graph, maps: str, model: PhotoModel, places: int) -> str:
    """Maps [N, C, h, w] → squared distance to the nearest kept patch [N, places]."""
    memory = model.memory
    around = graph.add(
        "AveragePool", maps, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1],
        count_include_pad=1,
    )  # fmt: skip
    flat = graph.add("Transpose", around, perm=[0, 2, 3, 1])
    flat = graph.add("Reshape", flat, whole(-1, CHANNELS))  # [N·places, C]
    patches = graph.add("Div", graph.add("Sub", flat, array(memory.mean)), array(memory.spread))
    kept = array(memory.kept)
    lengths = np.square(kept).sum(1)  # |p − k|² = |p|² + |k|² − 2 p·k
    apart = graph.add("Gemm", patches, kept, lengths, alpha=-2.0, transB=1)  # [N·places, M]
    nearest = graph.add("ReduceMin", apart, axes=[1], keepdims=0)
    own = graph.add("ReduceSumSquare", patches, axes=[1], keepdims=0)
    squared = graph.add("Max", graph.add("Add", nearest, own), real(0))
    return graph.add("Reshape", squared, whole(-1, places))


def _class_capsules(graph: Graph, maps: str, head: CapsuleHead, rows: int, columns: int) -> str:
    """Maps [N, C, h, w] → class capsules [N, J, E]."""
    small = graph.add("MatMul", _pooling(rows), maps)
    small = graph.add("MatMul", small, _pooling(columns).T)  # [N, C, 4, 4]
    mean, spread = (array(each).reshape(-1, 1, 1) for each in (head.mean, head.spread))
    standard = graph.add("Div", graph.add("Sub", small, mean), spread)
    weight, bias = array(head.primary.weight), array(head.primary.bias)
    u = capsules_of_maps(graph, graph.add("Conv", standard, weight, bias), head.config.primary_size)
    return route(graph, u, head.weight, None, head.config.iterations)


def _pooling(side: int) -> NDArray[np.float32]:
    """The means of torch's adaptive pooling as a matrix [4, side]."""
    found = np.zeros((GRID, side), np.float32)
    for k in range(GRID):
        start, end = k * side // GRID, ceil((k + 1) * side / GRID)
        found[k, start:end] = 1 / (end - start)
    return found


def _double(graph: Graph, value: str) -> str:
    return graph.add("Cast", value, to=DOUBLE)


def _mean(graph: Graph, values: str) -> str:
    return graph.add("ReduceMean", values, axes=[1], keepdims=0)
