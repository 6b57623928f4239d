"""Scores, p-values and combined scores as parts of an ONNX graph, in double precision."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anocaps.detectors import scores
from anocaps.detectors.capsnet import CapsNetDetector
from anocaps.detectors.neighbours import (
    _SMALLEST_NORM,
    NEAREST,
    FeatureNeighbours,
    Neighbours,
)
from anocaps.export.graph import DOUBLE, FLOAT, Graph, Value, array, real, whole
from anocaps.judging.calibration import FEWEST_OF_CLASS
from anocaps.judging.combining import ClassReferences, Reference


def normality(
    graph: Graph,
    detector: CapsNetDetector,
    pixels: str,
    decoded: str,
    features: str,
    capsules: str,
    lengths: str,
    chosen: str,
) -> dict[str, str]:
    """Every score by name, float64 [N].

    Shapes: pixels and decoded [N, C, h, w], features [N, C], capsules [N, J, E], lengths [N, J],
    chosen [N].
    """
    mse = graph.add("Neg", _squared(graph, graph.add("Sub", pixels, decoded)))
    norm = graph.add("Sqrt", _squared(graph, pixels))
    found = {
        "pp": graph.add("ReduceMax", lengths, axes=[1], keepdims=0),
        "re": graph.add("Div", mse, graph.add("Max", norm, real(scores._SMALLEST_NORM))),
        "mse": mse,
    }
    found = {name: graph.add("Cast", value, to=DOUBLE) for name, value in found.items()}
    found["knn"] = nearness(graph, capsules, detector.neighbours_)
    found["stem-knn"] = feature_nearness(graph, features, detector.stem_neighbours_)
    return found | joined(graph, detector, found, chosen)


def joined(
    graph: Graph, detector: CapsNetDetector, found: Mapping[str, Value], chosen: Value
) -> dict[str, str]:
    """The scores that follow from other scores and the class, as in `CapsNetScoring._joined`."""
    results: dict[str, str] = {}
    for name, (mean, spread) in detector.standard_.items():
        standard = graph.add("Div", graph.add("Sub", found[name], np.array(mean)), np.array(spread))
        results["pp+re"] = (
            graph.add("Add", results["pp+re"], standard) if "pp+re" in results else standard
        )
    results["combined"] = fisher(graph, detector.references_, found, chosen)
    return results


def _squared(graph: Graph, pixels: str) -> str:
    """Sum of squares, [N, C, h, w] → [N]. Summing rows first rounds less."""
    rows = graph.add("ReduceSumSquare", pixels, axes=[3], keepdims=0)
    return graph.add("ReduceSum", rows, whole(1, 2), keepdims=0)


def feature_nearness(graph: Graph, features: str, neighbours: FeatureNeighbours) -> str:
    """The score `stem-knn` of features [N, C]."""
    centred = graph.add("Sub", features, array(neighbours.mean))
    standard = graph.add("Div", centred, array(neighbours.spread))
    if neighbours.basis is not None:
        standard = graph.add("MatMul", standard, array(neighbours.basis))
    return nearness(graph, standard, neighbours.neighbours)


def nearness(graph: Graph, capsules: str, neighbours: Neighbours) -> str:
    """The score `knn` of capsules [N, J, E], as in `neighbours.py`."""
    kept = neighbours.kept
    flat = graph.add("Cast", graph.add("Reshape", capsules, whole(0, kept.shape[1])), to=DOUBLE)
    norm = graph.add("Sqrt", graph.sum(graph.add("Mul", flat, flat), axis=1, keep=True))
    norm = graph.add("Max", norm, np.array(_SMALLEST_NORM))
    # stored in fp32, as in the model file; cast when the graph is loaded
    columns = graph.add("Cast", array(kept).T, to=DOUBLE)
    cosines = graph.add("MatMul", graph.add("Div", flat, norm), columns)  # [N, M]
    nearest = graph.largest(cosines, min(NEAREST, len(kept)))
    mean = graph.add("ReduceMean", nearest, axes=[1], keepdims=0)
    return graph.add("Sub", mean, np.array(1.0))


def p_value(graph: Graph, score: str, calibration: NDArray[np.float64]) -> str:
    """(1 + number of calibration scores ≤ the score) / (n + 1), float64 [N].

    Double precision does not round a p-value of 0.05 to above an alpha of 0.05.
    """
    not_above = _not_above(graph, score, calibration)
    return graph.add("Div", _one_more(graph, not_above), np.array(len(calibration) + 1.0))


def class_p_value(
    graph: Graph,
    score: str,
    chosen: str,
    calibration: NDArray[np.float64],
    classes: NDArray[np.int64],
) -> str:
    """The p-value among the calibration scores of the chosen class; NaN if there are too few."""
    alike = graph.add("Equal", classes, graph.add("Unsqueeze", chosen, whole(1)))  # [N, n]
    not_above = graph.add("And", _not_above(graph, score, calibration), alike)
    ranks = _one_more(graph, alike)
    few = graph.add("Less", ranks, np.array(FEWEST_OF_CLASS + 1.0))
    # 0 / 0 is NaN, which no constant of a file may be
    parts = [
        graph.add("Where", few, np.array(0.0), part)
        for part in (_one_more(graph, not_above), ranks)
    ]
    return graph.add("Div", *parts)


def _not_above(graph: Graph, score: str, calibration: NDArray[np.float64]) -> str:
    """Whether each calibration score is at most the score, [N, n]: none if the score is NaN."""
    return graph.add("LessOrEqual", calibration, graph.add("Unsqueeze", score, whole(1)))


def _one_more(graph: Graph, holds: str) -> str:
    """1 + the number of true values: bool [N, n] → float64 [N]."""
    count = graph.sum(graph.add("Cast", holds, to=FLOAT), axis=1)
    return graph.add("Add", graph.add("Cast", count, to=DOUBLE), np.array(1.0))


# ── combining ────────────────────────────────────────────────────────────────────────────────


def fisher(
    graph: Graph,
    references: Mapping[str, ClassReferences],
    found: Mapping[str, Value],
    chosen: Value,
) -> str:
    """Minus the sum of all surprises. `chosen` [N] is the class of each image."""
    parts = [
        class_surprise(graph, references[name], found[name], chosen) for name in sorted(references)
    ]
    return graph.add("Neg", graph.add("Sum", *parts))


def bonferroni(
    graph: Graph,
    references: Mapping[str, ClassReferences],
    shares: Mapping[str, float],
    found: Mapping[str, Value],
) -> str:
    """Minus the largest of surprise + log(share), as in `judging.combining`."""
    parts = [
        graph.add("Add", surprise(graph, references[k].everything, found[k]), np.log(share))
        for k, share in shares.items()
    ]
    return graph.add("Neg", graph.add("Max", *parts))


def surprise(graph: Graph, reference: Reference, score: Value) -> str:
    """Surprise of scores, float64 [N] → [N]."""
    start, lengths, slopes, first = _segments(reference)
    return _interpolated(graph, score, start, lengths, slopes, np.array(first))


def class_surprise(graph: Graph, references: ClassReferences, score: Value, chosen: Value) -> str:
    """The surprise among all normal images plus the surprise within the chosen class."""
    usual = surprise(graph, references.everything, score)
    if not references.of_class:
        return graph.add("Add", usual, usual)
    classes = max(references.of_class) + 1
    most = max(one.points.shape[1] for one in references.of_class.values()) - 1
    # padded with segments of length 0, which add nothing
    start, lengths, slopes = (np.zeros((classes + 1, most)) for _ in range(3))
    first, known = np.zeros(classes + 1), np.zeros(classes + 1, bool)
    for c, one in references.of_class.items():
        count = one.points.shape[1] - 1
        start[c, :count], lengths[c, :count], slopes[c, :count], first[c] = _segments(one)
        known[c] = True
    row = graph.add("Min", chosen, whole(classes))  # the last row is for all other classes
    rows = [graph.add("Gather", table, row) for table in (start, lengths, slopes, first)]
    within = _interpolated(graph, score, *rows)
    within = graph.add("Where", graph.add("Gather", known, row), within, usual)
    return graph.add("Add", usual, within)


def _segments(
    reference: Reference,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], float]:
    """Start, length and slope of every segment between points, and the first surprise."""
    x, y = reference.points
    return x[:-1], np.diff(x), np.diff(y) / np.diff(x), float(y[0])


def _interpolated(
    graph: Graph,
    score: Value,
    start: str | NDArray[Any],
    lengths: str | NDArray[Any],
    slopes: str | NDArray[Any],
    first: str | NDArray[Any],
) -> str:
    """Segments [K] or [N, K] → surprises [N]: the sum over segments of slope × length covered."""
    beyond = graph.add("Sub", graph.add("Unsqueeze", score, whole(1)), start)  # [N, K]
    inside = graph.add("Min", graph.add("Max", beyond, np.array(0.0)), lengths)
    return graph.add("Add", graph.sum(graph.add("Mul", inside, slopes), axis=1), first)
