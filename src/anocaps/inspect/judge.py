"""The model in a file as a `Judge`: an exported graph, which needs no torch, or a detector."""

from pathlib import Path

from anocaps.base.errors import InputError, ModelFileError
from anocaps.base.text import shown
from anocaps.judging.judgement import Judge


def load_judge(path: Path, device: str = "auto") -> Judge:
    """The model in a file: an ONNX graph, which needs no torch, or a detector."""
    if path.suffix.lower() == ".onnx":
        from anocaps.export.runtime import OnnxModel

        return OnnxModel(path, device)
    from anocaps.detectors import load
    from anocaps.detectors.judge import DetectorJudge

    detector = load(path, device)
    try:
        return DetectorJudge(detector)
    except InputError as error:
        raise ModelFileError(f"{shown(path)}: {error}") from error
