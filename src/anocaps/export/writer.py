"""Write a trained model as one ONNX file that gives the same scores without torch.

The graph takes uint8 images and gives every score, its p-value, the class, and the reconstruction
or heat. The rest of the model is JSON in the file's metadata. Before the file gets its name, its
outputs on images are compared with the detector's. docs/export.md states the tolerances.
"""

import json
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper
from sklearn.utils.validation import check_is_fitted

from anocaps.base.errors import InputError, ModelFileError
from anocaps.base.files import replacing
from anocaps.data import load_dataset
from anocaps.detectors import CapsNetDetector
from anocaps.detectors.base import Detector
from anocaps.detectors.judge import DetectorJudge
from anocaps.detectors.photo.model import PATCH_SHARES
from anocaps.export import graph as graphs
from anocaps.export import scoring_graph as scoring
from anocaps.export.photo_graph import combined, photo_scores
from anocaps.export.runtime import OnnxModel
from anocaps.export.seal import FORMAT_VERSION, KEY, sealed
from anocaps.images.resampling import STRIDE
from anocaps.judging.calibration import (
    USUAL_ALPHA,
    class_p_values,
    p_values,
    rounded_up,
    smallest_alpha,
)
from anocaps.judging.combining import ClassReferences
from anocaps.judging.judgement import Judgement, Values
from anocaps.networks.capsnet import CapsNet

TOLERANCE = 1e-4  # relative to a score, or to its spread over normal images if that is larger

_ROUNDING = 3e-6  # fp32 rounding of capsules and pixels if the order of sums changes
_OPSET, _IR_VERSION = 13, 7  # from 2020, so that older runtimes can read the file
_FAR_PATCH = 30  # few distances of patches are larger
_DIGITS = 100  # bundled images that every export is checked on
_ALONE = 8  # images that are also scored one by one


@dataclass(frozen=True)
class Agreement:
    """How well the outputs of a file and of its detector agree."""

    images: int  # number of compared images
    differences: dict[str, float]  # largest difference of each score, relative like TOLERANCE
    alpha: float | None  # of the compared verdicts; None without a calibration set
    same_verdicts: int  # number of images with the same verdict


@dataclass(frozen=True)
class Exported:
    path: Path
    bytes: int
    check: Agreement


def export(
    detector: Detector, path: str | Path, images: NDArray[np.uint8] | None = None
) -> Exported:
    """Write the detector to `path`.

    The file is checked on bundled digits and on `images` [N, H, W, C]. If an output differs from
    the detector's by more than the tolerance, no file is written.
    """
    if not isinstance(detector, CapsNetDetector):
        raise InputError(f"method {detector.method!r} cannot be exported; only capsnet can")
    if detector.scoring_precision != "fp32":
        raise InputError("exports score in fp32: fit the detector with scoring_precision='fp32'")
    check_is_fitted(detector)
    path = Path(path)
    tested = _digits(detector)
    if images is not None:
        if images.dtype != np.uint8:
            raise InputError(f"images must be uint8, not {images.dtype}")
        tested = np.concatenate([detector._gate(images), tested])
    content = sealed(_model(detector).SerializeToString())
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(content)
            agreement = check(detector, OnnxModel(temporary), tested)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be written ({error.strerror or error})") from error
    except ModelFileError as error:
        raise ModelFileError(f"{path}: not written. {error}") from error
    return Exported(path, len(content), agreement)


# ── the file ─────────────────────────────────────────────────────────────────────────────────


def _model(detector: CapsNetDetector) -> ModelProto:
    size = detector.preprocessing_
    shape = (size.height, size.width, size.channels)
    scores = {name: name.replace("+", "_") for name in detector._usable_scores()}  # → output
    graph = _graph(detector, scores)
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", *shape])
    model = helper.make_model(
        helper.make_graph(graph.nodes, "anocaps", [images], graph.outputs, graph.constants),
        producer_name="anocaps",
        producer_version=version("anocaps"),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
    )
    calibration = detector.calibration_scores() if detector.calibrated else ()
    about = {
        "format": FORMAT_VERSION,
        "images": shape,
        "fit": _fit(detector),
        "classes": [str(name) for name in detector.classes_],
        "score_function": detector.score_function_,
        "scores": scores,
        "calibration_images": len(calibration),
        "smallest_alpha": smallest_alpha(len(calibration)) if detector.calibrated else None,
        "heat_scale": detector.heat_scale_,
        "heat_source": detector._heat_from(),
        "card": detector.card_,
        "record": detector.record_,
        "exported_with": {"anocaps": version("anocaps"), "onnx": version("onnx")},
    }
    helper.set_model_props(model, {KEY: json.dumps(about, default=np.generic.item)})
    return model


def _graph(detector: CapsNetDetector, outputs: dict[str, str]) -> graphs.Graph:
    size = detector.preprocessing_
    graph = graphs.Graph()
    pixels = graphs.window(graph, "images", size)
    if detector.photo_ is not None:
        scores, chosen, heat = photo_scores(graph, pixels, detector.photo_)
        places = tuple(side // STRIDE for side in detector.photo_.network.config.size)
        graph.give("heat", heat, TensorProto.FLOAT, places)
    else:
        network = detector.network_
        seen = graphs.encoder_input(graph, pixels, size)
        features, primary = graphs.features(graph, seen, network)
        bias = network.class_bias if isinstance(network, CapsNet) else None
        capsules = graphs.route(graph, primary, network.routing, bias, network.config.iterations)
        lengths = graph.add("ReduceL2", capsules, axes=[2], keepdims=0)
        chosen = graph.add("ArgMax", lengths, axis=1, keepdims=0)
        decoded = graphs.reconstruct(graph, capsules, chosen, network)
        scores = scoring.normality(
            graph, detector, pixels, decoded, features, capsules, lengths, chosen
        )
        shown = graph.add("Transpose", decoded, perm=[0, 2, 3, 1])
        graph.give("reconstruction", shown, TensorProto.FLOAT, (*size.window, size.channels))

    for name, output in outputs.items():
        graph.give(output, scores[name])
    if detector.calibrated:
        for name, output in outputs.items():
            normal = detector.calibration_scores(name)
            graph.give_constant(f"calibration_{output}", normal)
            p = scoring.p_value(graph, scores[name], normal)
            graph.give(f"p_value_{output}", p)
            if name == detector.score_function_:
                graph.give("p_value", p)
        decisive, known = scores[detector.score_function_], detector.calibration_classes_
        assert known is not None
        graph.give_constant("calibration_class", known)
        for name, follows in _joined(graph, detector, known).items():
            graph.give_fixed(f"joined_{outputs[name]}", follows, known.shape)
        normal = detector.calibration_scores()
        graph.give("p_value_class", scoring.class_p_value(graph, decisive, chosen, normal, known))
    graph.give("class", chosen, TensorProto.INT64)
    return graph


def _joined(
    graph: graphs.Graph, detector: CapsNetDetector, classes: NDArray[np.int64]
) -> dict[str, str]:
    """Calibration scores that follow from others. The runtime compares them with those stored."""
    found = detector.calibration_scores_
    if detector.photo_ is not None:
        return {"combined": combined(graph, detector.photo_, found, classes)}
    return scoring.joined(graph, detector, found, classes)


def _fit(detector: CapsNetDetector) -> dict[str, Any] | None:
    """How image files become arrays; None if no image file has that many channels."""
    in_files = detector.preprocessing_.channels in (1, 3)
    return asdict(DetectorJudge(detector).fit) if in_files else None


# ── the check ────────────────────────────────────────────────────────────────────────────────


def _digits(detector: CapsNetDetector) -> NDArray[np.uint8]:
    """Images of the bundled dataset, resized to the model's size."""
    size = detector.preprocessing_
    digits = load_dataset("digits").test.images[:_DIGITS]  # N×8×8
    rows = np.arange(size.height) * digits.shape[1] // size.height
    columns = np.arange(size.width) * digits.shape[2] // size.width
    return np.repeat(digits[:, rows][:, :, columns, None], size.channels, axis=3)


def check(detector: CapsNetDetector, model: OnnxModel, images: NDArray[np.uint8]) -> Agreement:
    """Compare the outputs, in batches and one image at a time.

    Raises ModelFileError if a score, p-value, class or reconstruction differs too much.
    """
    normal = detector.calibration_scores_ or detector.outputs(images)
    spread = {name: float(np.std(values)) for name, values in normal.items()}
    alpha = None
    if detector.calibrated:
        alpha = max(USUAL_ALPHA, rounded_up(smallest_alpha(len(detector.calibration_scores()))))
    largest = dict.fromkeys(detector._usable_scores(), 0.0)
    same = np.full(len(images), alpha is not None)
    for part in (slice(None), *(slice(i, i + 1) for i in range(_ALONE))):
        wanted, found = (each.judge(images[part], True) for each in (detector, model))
        for name, off in _differences(detector, images[part], wanted, found, spread).items():
            largest[name] = max(largest[name], off)
        if alpha is not None:
            same[part] &= (wanted.p_value <= alpha) == (found.p_value <= alpha)
    return Agreement(len(images), largest, alpha, int(same.sum()))


def _differences(
    detector: CapsNetDetector,
    images: NDArray[np.uint8],
    wanted: Judgement,
    found: Judgement,
    spread: dict[str, float],
) -> dict[str, float]:
    """The largest difference of each score; raises if any output differs too much."""
    names = [str(name) for name in detector.classes_]
    classes = np.array([names.index(name) for name in found.predicted])
    if len(names) > 1:
        lengths = detector.class_lengths(images)
        chosen = lengths[np.arange(len(images)), classes]
        _must(lengths.max(1) - chosen <= TOLERANCE, "longest capsule", chosen, lengths.max(1))
    # If the classes differ, two capsules are equally long. Outputs that depend on the class may
    # then differ too.
    same = np.array(found.predicted) == np.array(wanted.predicted)

    largest = {}
    for name, allowed in _allowed(detector, wanted.scores, spread).items():
        scores = wanted.scores[name]
        off = np.abs(found.scores[name] - scores) * (same | (name != "combined"))
        _must(off <= allowed, f"score {name}", found.scores[name], scores)
        largest[name] = float((off / allowed).max() * TOLERANCE)
        if detector.calibrated:
            low, high = scores - allowed, scores + allowed  # p-values must lie between these
            normal = detector.calibration_scores(name)
            between = p_values(low, normal), p_values(high, normal)
            if name != "combined" or same.all():
                _must_lie(found.p_values[name], between, f"p-value of {name}")
            if name == detector.score_function_:
                known = detector.calibration_classes_
                assert known is not None
                between = (
                    class_p_values(low, classes, normal, known),
                    class_p_values(high, classes, normal, known),
                )
                _must_lie(found.p_value_class, between, "p-value within its class")

    assert found.heat_source is not None and wanted.heat_source is not None
    off = np.abs(found.heat_source - wanted.heat_source).reshape(len(images), -1).max(1) * same
    most = TOLERANCE * max(1.0, float(np.abs(wanted.heat_source).max()))
    _must(off <= most, "difference of reconstructed pixels or heat", off, np.zeros(len(images)))
    return largest


def _allowed(
    detector: CapsNetDetector, scores: dict[str, Values], spread: dict[str, float]
) -> dict[str, Values]:
    """The largest difference that each score may have."""
    # Some scores amplify rounding if normal images are very similar: pp+re divides by a standard
    # deviation, knn is half a squared distance, and a surprise multiplies by a slope.
    rounding: dict[str, Any] = {
        name: _ROUNDING * np.sqrt(2 * np.abs(scores[name]))
        for name in ("knn", "stem-knn")
        if name in scores
    }
    photo = detector.photo_
    for name, (_, of_normal) in {} if photo is not None else detector.standard_.items():
        part = _ROUNDING * np.abs(scores[name]) / of_normal
        rounding["pp+re"] = rounding.get("pp+re", 0.0) + part
    references = detector.references_ if photo is None else photo.references
    if photo is not None:
        steepest = max(_steepest(references[name]) for name in PATCH_SHARES)
        rounding["patch"] = np.full(len(scores["patch"]), _ROUNDING * _FAR_PATCH * steepest)
    rounding["combined"] = sum(
        _steepest(each) * np.maximum(_ROUNDING, rounding.get(name, 0.0))
        for name, each in references.items()
        if name in scores
    )
    return {
        name: np.maximum(TOLERANCE * np.maximum(np.abs(v), spread[name]), rounding.get(name, 0.0))
        for name, v in scores.items()
    }


def _steepest(references: ClassReferences) -> float:
    """The largest change of surprise with a score."""
    points = [references.everything.points, *(one.points for one in references.of_class.values())]
    return 2 * max(float(np.abs(np.diff(y) / np.diff(x)).max()) for x, y in points)


def _must_lie(found: Values, between: tuple[Values, Values], what: str) -> None:
    low, high = between
    unknown = np.isnan(low) & np.isnan(found)
    _must(unknown | ((low <= found) & (found <= high)), what, found, low)


def _must(holds: NDArray[np.bool_], what: str, found: Values, wanted: Values) -> None:
    if not holds.all():
        image = int(np.argmin(holds))
        raise ModelFileError(
            f"On image {image} of the check its {what} is {found[image]:.7g}, but the model's is "
            f"{wanted[image]:.7g}. Try another version of onnxruntime."
        )
