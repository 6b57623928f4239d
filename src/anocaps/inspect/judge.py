"""Turn a model into a `Judge`: an exported graph, which needs no torch, or a detector."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

from anocaps.base.errors import InputError, ModelFileError
from anocaps.base.text import shown
from anocaps.judging.judgement import Judge

if TYPE_CHECKING:
    from anocaps.detectors import Detector


def as_judge(model: "str | os.PathLike[str] | Detector | Judge", device: str = "auto") -> Judge:
    """The `Judge` of a model file, of a fitted detector, or the given judge itself."""
    if isinstance(model, str | os.PathLike):
        return load_judge(Path(model), device)
    if not hasattr(model, "score_samples"):
        return cast(Judge, model)
    from anocaps.detectors.judge import DetectorJudge

    return DetectorJudge(cast("Detector", model))


def load_judge(path: Path, device: str = "auto") -> Judge:
    """The `Judge` of a model file."""
    if path.suffix.lower() == ".onnx":
        from anocaps.export.runtime import OnnxModel

        return OnnxModel(path, device)
    from anocaps.detectors.judge import DetectorJudge
    from anocaps.detectors.saving import load_scoring

    detector = load_scoring(path, device)
    try:
        return DetectorJudge(detector)
    except InputError as error:
        raise ModelFileError(f"{shown(path)}: {error}") from error
