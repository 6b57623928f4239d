"""A finished cell is one file: the summary as JSON and the raw scores, in one compressed .npz.

Scores are stored by byte (all first bytes, all second bytes, …), which compresses better. Metrics
were taken of exactly the stored scores, so that they can be taken again without training.
"""

import json
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import DataError
from anocaps.base.files import replacing
from anocaps.judging.metrics import Metrics
from anocaps.study.cell import CellResult

SUFFIX = ".npz"


def write_result(path: Path, result: CellResult, fingerprint: str = "") -> None:
    """`fingerprint` tells settings apart: see the runner."""
    arrays: dict[str, NDArray[Any]] = {
        "summary": np.asarray(json.dumps(result.summary() | {"fingerprint": fingerprint})),
        # sorted, so the steps are small numbers
        "index_steps": np.diff(result.index, prepend=0).astype(np.uint32),
        "labels": _small(result.labels),
        **{f"score.{name}": _by_byte(values) for name, values in result.scores.items()},
    }
    if result.predicted is not None:
        arrays["predicted"] = _small(result.predicted)
    if result.pictures is not None:
        arrays["pictures"] = result.pictures
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def read_result(path: Path) -> CellResult:
    summary, arrays = _read(path, everything=True)
    try:
        known = {field.name for field in fields(CellResult)}
        given = {k: v for k, v in summary.items() if k in known}
        given["metrics"] = {k: Metrics(**v) for k, v in summary["metrics"].items()}
        for name in ("class_names", "held_out"):
            given[name] = tuple(summary[name])
        predicted = arrays.get("predicted")
        return CellResult(
            **given,
            index=np.cumsum(arrays["index_steps"].astype(np.int64)),
            labels=arrays["labels"].astype(np.int64),
            scores={
                name.removeprefix("score."): _from_bytes(array)
                for name, array in arrays.items()
                if name.startswith("score.")
            },
            predicted=None if predicted is None else predicted.astype(np.int64),
            pictures=arrays.get("pictures"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: not a result of this version ({error}); run its cell again"
        ) from error


def read_fingerprint(path: Path) -> str | None:
    """Of a finished cell; None where there is no file."""
    try:
        summary, _ = _read(path, everything=False)
    except FileNotFoundError:
        return None
    found: str = summary.get("fingerprint", "")
    return found


def _read(path: Path, everything: bool) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            names = stored.files if everything else []
            summary: dict[str, Any] = json.loads(str(stored["summary"]))
            return summary, {name: stored[name] for name in names if name != "summary"}
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(
            f"{path}: cannot be read as a result ({error}); delete it and run the study again"
        ) from error


def _small(values: NDArray[np.int64]) -> NDArray[Any]:
    return values.astype(np.uint8 if values.max(initial=0) < 256 else np.uint16)


def _by_byte(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """[n] → [4, n]"""
    return np.ascontiguousarray(values.astype("<f4").view(np.uint8).reshape(-1, 4).T)


def _from_bytes(planes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """[4, n] → [n]"""
    return np.ascontiguousarray(planes.T).view("<f4")[:, 0].astype(np.float32)
