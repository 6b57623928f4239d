"""A finished cell is one file: a summary as JSON and the raw scores, in one compressed .npz.

The last 64 bytes, the comment of the zip archive, are the SHA-256 of all bytes before them. The
checksum is compared before the file is unpacked. Afterwards the content is checked: what reports
and `study pack` use must be possible. Scores are stored byte by byte (all first bytes, all second
bytes, …), which compresses better.
"""

import hashlib
import io
import json
import math
import stat
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from anocaps.base.errors import DataError
from anocaps.base.files import replacing
from anocaps.judging.metrics import Metrics
from anocaps.study.cell import LENGTH_BINS, CellResult
from anocaps.study.studies import as_file_name

SUFFIX = ".npz"
_CHECKSUM_BYTES = 64  # SHA-256 as hexadecimal text
_MOST_BYTES = 1 << 28  # of a file, packed or unpacked; the largest committed one has 274 kB
_MOST = 1e15  # of a number of the summary that reports compute with
_LARGEST = np.iinfo(np.int32).max  # of a column in Parquet
_TYPES: dict[str, Any] = {  # of the summary
    **dict.fromkeys(("dataset", "method", "variant", "fingerprint"), str),
    **dict.fromkeys(("hashes", "metrics", "auroc_all", "settings", "record"), dict),
    **dict.fromkeys(("seed", "test_images"), int),
    **dict.fromkeys(("class_names", "held_out"), list),
    "official": bool,
    "limit": int | None,
    "accuracy": float | int | None,
    "lengths": dict | None,
}
_RECORD_TYPES: dict[str, Any] = {  # of what may be in the record
    **dict.fromkeys(("training", "versions", "svm"), dict),
    **dict.fromkeys(("model_bytes", "training_seconds"), float | int),
}


def write_result(path: Path, result: CellResult, fingerprint: str = "") -> None:
    summary = result.summary() | {"fingerprint": fingerprint}
    arrays: dict[str, NDArray[Any]] = {
        "summary": np.asarray(json.dumps(summary, allow_nan=False)),
        # sorted, so the steps are small numbers
        "index_steps": np.diff(result.index, prepend=0).astype(np.uint32),
        "labels": _small(result.labels),
        **{f"score.{name}": _by_byte(values) for name, values in result.scores.items()},
    }
    if result.predicted is not None:
        arrays["predicted"] = _small(result.predicted)
    if result.reconstructions is not None:
        arrays["pictures"] = result.reconstructions  # the name in committed results
    content = _packed(arrays)
    _parsed(content)  # what could not be read back is not written
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def read_result(path: Path, name: str | None = None) -> CellResult:
    return read_both(path, name)[0]


def read_fingerprint(path: Path, name: str | None = None) -> str:
    return read_both(path, name)[1]


def read_both(path: Path, name: str | None = None) -> tuple[CellResult, str]:
    """The checked result and its fingerprint. With a name, it must be that of the cell."""
    content = content_of(path, _MOST_BYTES + 1)
    try:
        result, fingerprint = _parsed(content)
        if name is not None:
            check_name(name, result)
        return result, fingerprint
    except Exception as error:  # a damaged or forged file can raise anything
        raise DataError(
            f"{path}: the file is damaged ({in_short(error)}); 'anocaps study run' repeats its cell"
        ) from error


def content_of(path: Path, most: int = -1) -> bytes:
    """At most so many bytes of a file. DataError if it is a folder, or a pipe that may block."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        replaced = path.suffix == SUFFIX and not stat.S_ISDIR(mode)
        mend = "'anocaps study run' replaces it"
        mend = mend if replaced else "remove it, then run 'anocaps study run'"
        raise DataError(f"{path}: this is no regular file; {mend}")
    with open(path, "rb") as file:
        return file.read(most)


def in_short(error: Exception) -> str:
    """Its message in one line, or its name."""
    return " ".join(f"{error or type(error).__name__}".split())[:80]


def _parsed(content: bytes) -> tuple[CellResult, str]:
    arrays = _unpacked(content)
    summary = read_json(str(arrays["summary"]))
    predicted = arrays.get("predicted")
    result = checked(
        summary,
        index=np.cumsum(arrays["index_steps"].astype(np.int64)),
        labels=arrays["labels"].astype(np.int64),
        scores={
            name.removeprefix("score."): _from_bytes(array)
            for name, array in arrays.items()
            if name.startswith("score.")
        },
        predicted=None if predicted is None else predicted.astype(np.int64),
        reconstructions=arrays.get("pictures"),
    )
    return result, summary["fingerprint"]


def checked(summary: dict[str, Any], **arrays: Any) -> CellResult:
    """Make a result from its summary and arrays. ValueError if they do not fit together."""
    json.dumps(summary, ensure_ascii=False).encode()  # no file can hold half a character
    for name, kind in _TYPES.items():
        _require(_is(summary[name], kind), f"{name} has the wrong type")
    known = {field.name for field in fields(CellResult)}
    given = {name: value for name, value in summary.items() if name in known}
    given["metrics"] = {name: Metrics(**each) for name, each in summary["metrics"].items()}
    given |= {name: tuple(summary[name]) for name in ("class_names", "held_out")}
    result = CellResult(**given | arrays)
    _check(result)
    return result


def check_name(name: str, result: CellResult) -> None:
    """ValueError if a cell's name (Cell.name) is not that of its result.

    The variant is not compared: a result may have got it from the name.
    """
    dataset, row, cell = (["", "", *name.split("/")])[-3:]
    method = as_file_name(result.method)
    wanted = f"{'+'.join(result.held_out)}-seed{result.seed}"
    same = (dataset, cell) == (as_file_name(result.dataset), as_file_name(wanted))
    _require(
        same and (row == method or row.startswith(f"{method}-")),
        f"it is {wanted} of {result.method} on {result.dataset}",
    )


def _check(result: CellResult) -> None:
    """Raise ValueError if the parts of a result do not fit together."""
    images, names = (result.test_images,), set(result.scores)
    _require(names and names == set(result.metrics) == set(result.auroc_all), "scores are missing")
    metrics = [result.auroc_all, *(vars(each) for each in result.metrics.values())]
    shares = [value for each in metrics for value in each.values()]
    shares += [] if result.accuracy is None else [result.accuracy]
    _require(all(_is_number(value, 1) for value in shares), "a metric is not from 0 to 1")
    words = (*result.class_names, *result.held_out, *result.hashes.values())
    _require(all(isinstance(word, str) for word in words), "a name or checksum is no text")
    _require(len(set(result.class_names)) == len(result.class_names), "a class is named twice")
    known = bool(result.held_out) and set(result.held_out) <= set(result.class_names)
    _require(known, "a held-out class is unknown")
    _require(0 <= result.seed <= _LARGEST, "the seed is impossible")
    _require(result.limit is None or result.limit > 0, "the limit is impossible")
    score = [result.settings.get(name) for name in ("score", "score_function")]
    _require(all(_is(name, str | None) for name in score), "the score function is no text")
    _check_record(result.record)
    if result.lengths is not None:
        _check_lengths(result.lengths)
    for classes in (result.labels, result.predicted):
        if classes is not None:
            _require(classes.shape == images, "classes and images differ in number")
            fits = (classes >= 0) & (classes < len(result.class_names))
            _require(fits.all(), "a class is unknown")
    anomalies = np.count_nonzero(result.anomalous)
    _require(0 < anomalies < len(result.labels), "there are no normal or no anomalous images")
    _require(result.index.shape == images, "test_images is wrong")
    _require(0 <= result.index.min() <= result.index.max() <= _LARGEST, "an image is unknown")
    for values in result.scores.values():
        _require(values.shape == images, "scores and images differ in number")
        _require(np.isfinite(values).all(), "a score is not finite")
    if (shown := result.reconstructions) is not None:
        pairs = shown.dtype == np.uint8 and shown.ndim == 5 and shown.shape[1] == 2
        _require(pairs and min(shown.shape) > 0, "reconstructions have the wrong shape")
        _require(len(shown) <= anomalies, "there are more reconstructions than anomalous images")


def _check_record(record: dict[str, Any]) -> None:
    for name, kind in _RECORD_TYPES.items():
        _require(name not in record or _is(record[name], kind), f"{name} has the wrong type")
    numbers = [record[name] for name in ("model_bytes", "training_seconds") if name in record]
    if "svm" in record:
        numbers += [record["svm"][name] for name in ("nu", "gamma", "seconds")]
        _require(record["training_seconds"] > 0, "training took no time")
    _require(all(_is_number(value, _MOST) for value in numbers), "a record is impossible")


def _check_lengths(lengths: dict[str, Any]) -> None:
    """ValueError if these are not the counts of CellResult.lengths."""
    _require(lengths.keys() == {"normal", "anomalous"}, "lengths of capsules are missing")
    for counts in lengths.values():
        sizes = {part: len(counts[part]) for part in counts}
        wanted = {"longest": LENGTH_BINS, "others": LENGTH_BINS, "long": max(2, sizes["long"])}
        _require(sizes == wanted, "counts of capsules are missing")
        every = [count for part in counts.values() for count in part]
        _require(all(_is(c, int) and 0 <= c <= _LARGEST for c in every), "a count is impossible")
        _require(sum(counts["longest"]) and sum(counts["long"]), "no capsule was counted")


def _require(condition: object, reason: str) -> None:
    if not condition:
        raise ValueError(reason)


def _is(value: Any, kind: Any) -> bool:
    """`isinstance`, but a bool is no number."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _is_number(value: Any, most: float) -> bool:
    return _is(value, float | int) and 0 <= value <= most


def read_json(text: str | bytes) -> Any:
    """JSON whose numbers are finite, and not too large for a float."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=_whole)


def _finite(text: str) -> float:
    number = float(text)
    _require(math.isfinite(number), "a number is not finite")
    return number


def _whole(text: str) -> int:
    _finite(text)
    return int(text)


# ── arrays and bytes ─────────────────────────────────────────────────────────────────────────


def _packed(arrays: dict[str, NDArray[Any]]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = bytes(_CHECKSUM_BYTES)  # room for the checksum
    body = buffer.getvalue()[:-_CHECKSUM_BYTES]
    return body + _checksum(body)


def _unpacked(content: bytes) -> dict[str, NDArray[Any]]:
    _require(len(content) <= _MOST_BYTES, "it is too large")
    body, checksum = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
    _require(checksum == _checksum(body), "its checksum is wrong")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        _require(sum(m.file_size for m in members) <= _MOST_BYTES, "it unpacks to too many bytes")
        return {m.filename.removesuffix(".npy"): _array(archive.read(m)) for m in members}


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


def _array(content: bytes) -> NDArray[Any]:
    """An array in NumPy's format; its size is checked before memory is allocated."""
    file = io.BytesIO(content)
    _require(npy.read_magic(file) == (1, 0), "an array has an unknown version")
    shape, _, dtype = npy.read_array_header_1_0(file)
    size = math.prod(shape) * dtype.itemsize
    _require(size == len(content) - file.tell(), "an array has the wrong size")
    file.seek(0)
    array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    return array


def _small(values: NDArray[np.int64]) -> NDArray[Any]:
    return values.astype(np.uint8 if values.max(initial=0) < 256 else np.uint16)


def _by_byte(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """[n] → [4, n]"""
    return np.ascontiguousarray(values.astype("<f4").view(np.uint8).reshape(-1, 4).T)


def _from_bytes(planes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """[4, n] → [n]"""
    _require(planes.dtype == np.uint8 and planes.shape[:-1] == (4,), "scores have the wrong shape")
    return np.ascontiguousarray(planes.T).view("<f4")[:, 0].astype(np.float32)
