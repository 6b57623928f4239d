"""What is in the files of a folder, without what differs between two equal runs."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from anocaps.base import arrayfile
from anocaps.export.seal import check_seal

Tree = dict[str, Any]  # relative path → what is in it


def tree(folder: Path) -> Tree:
    """All names, with a hash of each file's bytes."""
    return {str(path.relative_to(folder)): _bytes(path) for path in sorted(folder.rglob("*"))}


def views(folder: Path, names: list[str]) -> Tree:
    return {name: view(folder / name) for name in names if (folder / name).is_file()}


def view(path: Path) -> Any:
    """What counts in a file. A damaged file is an error."""
    kind = path.suffix
    if kind in (".safetensors", ".checkpoint"):
        arrays, header = arrayfile.read(path, "model" if kind == ".safetensors" else "checkpoint")
        return _hash(arrays), _lasting({k: v for k, v in header.items() if k != "checksum"})
    if path.parent.parent.parent.name == "study" and kind == ".npz":
        from anocaps.study.resultfile import read_both

        result, fingerprint = read_both(path)
        return fingerprint, _hash(result.scores), result.labels.tolist()
    if path.parent.name == "study" and kind == ".parquet":
        from anocaps.study.packed import read_packed

        return [(name, f, _hash(result.scores)) for name, result, f in read_packed(path)]
    if path.name.endswith(".normal.npz"):  # with names of photos, or of copies without links
        return _hash({"pixels": np.load(path)["pixels"]})
    if kind == ".onnx" and path.stat().st_size:
        import onnx

        check_seal(path.read_bytes(), path.name)
        return hashlib.sha256(onnx.load(path).graph.SerializeToString()).hexdigest()
    if kind == ".sqlite":
        from page import dump

        return dump(path)
    if path.name == "log.jsonl":  # each run adds a line
        return sorted({json.loads(line)["study"] for line in path.read_text().splitlines()})
    return _bytes(path)


def _bytes(path: Path) -> str:
    return "" if not path.is_file() else hashlib.sha256(path.read_bytes()).hexdigest()


def _hash(arrays: Any) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name}:{arrays[name].shape}".encode() + np.asarray(arrays[name]).tobytes())
    return digest.hexdigest()


def _lasting(value: Any) -> Any:
    """Without times, which differ from run to run."""
    if isinstance(value, dict):
        return {k: _lasting(v) for k, v in value.items() if "seconds" not in k and k != "commit"}
    return [_lasting(each) for each in value] if isinstance(value, list) else value
