"""Model files, exported models and checkpoints; their checksums are made right again."""

import json
import struct
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import torch
from mutation import as_text, damaged, damaged_json
from safetensors.numpy import load, save
from targets import Target

from anocaps import CapsNetDetector
from anocaps.base import arrayfile
from anocaps.detectors.saving import load_scoring
from anocaps.export.runtime import OnnxModel
from anocaps.export.seal import KEY, sealed
from anocaps.export.writer import export
from anocaps.training import checkpoint
from anocaps.training.loop import Run, TrainingConfig, train
from anocaps.training.preprocessing import Preprocessing
from anocaps.training.validation import Validation

_IMAGES = np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8)
_IMAGES[::2, :, :4] //= 4
_LABELS = np.arange(60) % 2
_SEAL_BYTES = len(sealed(b""))


def _detector() -> CapsNetDetector:
    return CapsNetDetector("quick", epochs=1, device="cpu").fit(_IMAGES, _LABELS)


class _Arrayfiles(Target):
    """safetensors with a JSON header: both JSON headers, the arrays and plain bytes are damaged."""

    def damage(self, random: Random, content: bytes) -> bytes:
        way = random.random()
        if way < 0.15:
            return super().damage(random, content)
        if way < 0.35:
            return _other_layout(random, content)
        return _forged(random, content)


def _outer(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of safetensors, and the bytes of the arrays."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _other_layout(random: Random, content: bytes) -> bytes:
    """Names, types, shapes and offsets of arrays that safetensors must check."""
    header, data = _outer(content)
    text = as_text(random, damaged_json(random, header)).encode()
    return struct.pack("<Q", len(text)) + text + data


def _forged(random: Random, content: bytes) -> bytes:
    """A file with a right checksum, whose header or arrays are not what anocaps writes."""
    header, _ = _outer(content)
    body = json.loads(header["__metadata__"]["anocaps"])
    arrays = load(content)
    if random.random() < 0.7:
        body["header"] = damaged_json(random, body["header"])
    if random.random() < 0.4:
        name = random.choice(sorted(arrays))
        arrays = _changed(random, arrays, name)
    body.pop("checksum", None)
    body["checksum"] = arrayfile._checksum(body, arrays)
    return save(arrays, {"anocaps": as_text(random, body)})


def _changed(
    random: Random, arrays: dict[str, np.ndarray[Any, Any]], name: str
) -> dict[str, np.ndarray[Any, Any]]:
    array = np.array(arrays[name])
    match random.randrange(7):
        case 0:
            return {key: value for key, value in arrays.items() if key != name}
        case 1:
            return arrays | {"network.more": array}
        case 2:
            array = array.astype(random.choice(("f4", "f8", "i8", "u1", "?")))
        case 3:
            array = array[: random.randrange(len(array) + 1)]
        case 4:
            array = np.ascontiguousarray(array.reshape(-1)[None])
        case _ if array.size:
            number = random.choice((np.nan, np.inf, -1, 0, 1e30, -1e30))
            with np.errstate(invalid="ignore", over="ignore"):
                array.flat[random.randrange(array.size)] = np.array(number).astype(array.dtype)
    return arrays | {name: array}


class ModelFiles(_Arrayfiles):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        _detector().save(path := folder / "seed.safetensors")
        self.seeds = (path.read_bytes(),)

    def accept(self, content: bytes) -> None:
        load_scoring(self.file(content, "input.safetensors"), "cpu").score_samples(_IMAGES[:1])


class Checkpoints(_Arrayfiles):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.run = _run()
        train([_run()], [path := folder / "seed"])
        self.seeds = (path.read_bytes(),)

    def accept(self, content: bytes) -> None:
        checkpoint.restore(self.run, self.file(content))


def _run() -> Run:
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 2)
    )
    images = _IMAGES[..., None]
    return Run(
        network, lambda x, y: torch.nn.functional.cross_entropy(network(x), y), images[:32],
        _LABELS[:32], Preprocessing(8, 8, 1), TrainingConfig(2, 8), torch.device("cpu"),
        validation=Validation(images[32:], _LABELS[32:], 3),
    )  # fmt: skip


class OnnxFiles(Target):
    """The description inside the file, its constants and plain bytes are damaged.

    Damage to the graph itself is not sealed again: to check graphs is onnxruntime's work.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        export(_detector(), path := folder / "seed.onnx")
        self.seeds = (path.read_bytes(),)

    def damage(self, random: Random, content: bytes) -> bytes:
        way = random.random()
        if way < 0.2:
            return super().damage(random, content)
        model = onnx.load_from_string(content[:-_SEAL_BYTES])
        if way < 0.65 or not model.graph.initializer:
            for entry in model.metadata_props:
                if entry.key == KEY:
                    entry.value = _described(random, entry.value)
        elif way < 0.8:
            reals = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
            scalars = [c for c in model.graph.initializer if c.data_type in reals and not c.dims]
            constant = random.choice(scalars)
            kind = onnx.numpy_helper.to_array(constant).dtype
            number = np.array(random.choice((np.nan, np.inf, -np.inf, -1, 0, 5, 1e30)), kind)
            constant.CopyFrom(onnx.numpy_helper.from_array(number, constant.name))
        else:
            constant = random.choice(list(model.graph.initializer))
            constant.raw_data = damaged(random, constant.raw_data)[: len(constant.raw_data)].ljust(
                len(constant.raw_data), b"\xff"
            )
        return sealed(model.SerializeToString())

    def accept(self, content: bytes) -> None:
        model = OnnxModel(self.file(content, "input.onnx"))
        found = model.judge(_IMAGES[:1, ..., None])
        assert not model.calibration_size or 0 < found.p_value[0] <= 1


def _described(random: Random, text: str | bytes) -> str:
    text = text if isinstance(text, str) else text.decode("utf-8", "replace")  # no UTF-8: bytes
    try:
        return as_text(random, damaged_json(random, json.loads(text)))
    except (ValueError, RecursionError):
        return damaged(random, text.encode()).decode("utf-8", "replace")
