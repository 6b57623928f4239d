"""Finished cells in Parquet: one file per row of the study's table, to keep and to publish.

    pandas.read_parquet("results/field/capsnet.parquet")    one line per cell and test image

Columns: dataset, held_out, seed, image (its number in the test set), label, anomalous, predicted
(if the method classifies), one column per score function, and the pixels of original and
reconstruction for the images that kept them. A row group is one cell.

The metadata of the file has one line of JSON per cell: its name, its summary with the fingerprint,
and the SHA-256 of these and of the cell's raw arrays. It also has the SHA-256 of all other bytes of
the file. A file with a wrong checksum is damaged: its undamaged cells stay finished, `study run`
repeats the others, and the next `study pack` writes the file anew and keeps a copy of the old one.
A new file is read back and compared with its cells before anything is replaced or removed.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from anocaps.base.errors import AnocapsError, DataError
from anocaps.base.files import remove, replacing, sweep, sync_folder
from anocaps.study.cell import CellResult
from anocaps.study.resultfile import SUFFIX as FINISHED
from anocaps.study.resultfile import (
    check_name,
    checked,
    content_of,
    in_short,
    read_both,
    read_json,
)

SUFFIX = ".parquet"
_DAMAGED = ".damaged"  # added to the name of a copy
_KEY = b"anocaps.cells"
_WORDS = ("dataset", "held_out", "label", "predicted")  # columns of text
_SEAL_KEY = b"anocaps.checksum"
_SEAL = b"SHA-256 of all other bytes:\n"  # the checksum follows; JSON escapes the line break
_CHECKSUM_BYTES = 64  # SHA-256 as hexadecimal text
_log = logging.getLogger("anocaps")

Cells = dict[str, tuple[CellResult, str]]  # name → result, fingerprint


def pack(folder: Path) -> list[Path]:
    """Move cells from result files into one Parquet file per row; return the Parquet files."""
    new: dict[str, Cells] = {}
    paths = sorted(folder.rglob(f"*{FINISHED}"))
    for path in paths:
        name = path.relative_to(folder).with_suffix("").as_posix()
        new.setdefault(path.parent.name, {})[name] = read_both(path, name)
    written = []
    for row, cells in new.items():
        target = folder / f"{row}{SUFFIX}"
        kept = _kept(target)
        with _packing(target):
            _write(target, kept | cells)
        written.append(target)
    for path in paths:  # only after all of them are kept
        remove(path)
    _tidy(folder)
    return written


def _kept(path: Path) -> Cells:
    """The cells of a Parquet file. Of a damaged file, a copy is made, and undamaged cells stay."""
    if not path.exists():
        return {}
    try:
        return {name: (result, fingerprint) for name, result, fingerprint in read_packed(path)}
    except DataError:
        copy = path.with_name(f"{path.name}{_DAMAGED}")
        with replacing(copy) as temporary:
            temporary.write_bytes(content_of(path))
        found = _undamaged(path)
        _log.warning(
            f"{path}: the file was damaged; {len(found)} undamaged cells are kept, 'study run' "
            f"repeats the others; the old file is {copy.name}"
        )
        return found


@contextmanager
def _packing(path: Path) -> Iterator[None]:
    try:
        yield
    except (AnocapsError, OSError, MemoryError):
        raise
    except Exception as error:  # Arrow has errors of its own for what no column can hold
        raise DataError(
            f"{path}: not packed ({in_short(error)}); its cells stay in their {FINISHED} files, "
            "which remain valid"
        ) from error


def _tidy(folder: Path) -> None:
    """Remove empty folders, and files that a killed process left."""
    for path in folder.glob(f"*{SUFFIX}"):
        sweep(path)
    inner = [path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink()]
    for path in sorted(inner, reverse=True):  # the deepest first
        if not any(path.iterdir()):
            path.rmdir()
            sync_folder(path.parent)


def read_packed(path: Path) -> Iterator[tuple[str, CellResult, str]]:
    """The cells of a Parquet file: name, result, fingerprint. DataError if it is damaged."""
    content = content_of(path)
    with _reading(path):
        yield from _cells(content)


def packed_fingerprint(folder: Path, name: str) -> str | DataError | None:
    """The fingerprint of a packed cell, or the error of its damaged file; None if not packed."""
    damage = None
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        found, error = _fingerprints(path, path.stat().st_mtime_ns)
        if name in found:
            return found[name]
        if path.stem == Path(name).parent.name:
            damage = error
    return damage


@cache
def _fingerprints(path: Path, changed: int) -> tuple[dict[str, str], DataError | None]:
    """Cell name → fingerprint. Of a damaged file, the undamaged cells and the error."""
    try:
        return {name: fingerprint for name, _, fingerprint in read_packed(path)}, None
    except DataError as error:
        found = {name: fingerprint for name, (_, fingerprint) in _undamaged(path).items()}
        return found, DataError(str(error))  # without the traceback, which holds the content


def _undamaged(path: Path) -> Cells:
    """The cells of a damaged file whose own checksums are right."""
    found: Cells = {}
    with suppress(Exception):  # a damaged file can raise anything
        file = _opened(content_of(path))
        for number, line in enumerate(_lines(file)):
            with suppress(Exception):
                name, result, fingerprint = _cell(file, number, line)
                found[name] = result, fingerprint
    return found


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a damaged or forged file can raise anything
        raise DataError(
            f"{path}: the file is damaged ({in_short(error)}); fetch it again, or make it anew "
            "with 'study run' and 'study pack'"
        ) from error


def _cells(content: bytes) -> Iterator[tuple[str, CellResult, str]]:
    check_seal(content)
    file = _opened(content)
    for number, line in enumerate(_lines(file)):
        yield _cell(file, number, line)


def _opened(content: bytes) -> Any:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    return parquet.ParquetFile(arrow.BufferReader(content), page_checksum_verification=True)


def _lines(file: Any) -> Sequence[bytes]:
    """One line of JSON per cell."""
    lines: Sequence[bytes] = file.metadata.metadata[_KEY].split(b"\n")
    if len(lines) != file.num_row_groups:
        raise ValueError("cells and row groups differ in number")
    return lines


def _cell(file: Any, number: int, line: bytes) -> tuple[str, CellResult, str]:
    cell = read_json(line)
    name, summary = cell["name"], cell["summary"]
    result = _result(summary, file.read_row_group(number).to_pydict())
    if cell["sha256"] != _checksum(name, summary, result):
        raise ValueError(f"the checksum of {name} is wrong")
    check_name(name, result)
    return name, result, summary["fingerprint"]


# ── checksums ────────────────────────────────────────────────────────────────────────────────


def _checksum(name: str, summary: dict[str, Any], result: CellResult) -> str:
    """SHA-256 of a cell: its name, its summary as JSON with sorted keys, its raw arrays."""
    text = json.dumps([name, summary], sort_keys=True, allow_nan=False)
    found = hashlib.sha256(text.encode())
    arrays: list[Any] = [result.index, result.labels, result.predicted, result.reconstructions]
    for array in (*arrays, *(result.scores[score] for score in sorted(result.scores))):
        if array is not None:
            kind = array.dtype.newbyteorder("<")
            found.update(f"{kind.str}{array.shape}".encode())
            found.update(np.ascontiguousarray(array, kind).tobytes())
    return found.hexdigest()


def sealed(content: bytes) -> bytes:
    """A Parquet file with the checksum of its other bytes."""
    before, _, after = _around_checksum(content)
    return before + _digest(before, after) + after


def check_seal(content: bytes) -> None:
    before, checksum, after = _around_checksum(content)
    if checksum != _digest(before, after):
        raise ValueError("its checksum is wrong")


def _around_checksum(content: bytes) -> tuple[bytes, bytes, bytes]:
    """The bytes before the file's checksum, the checksum, the bytes after it."""
    start = content.rfind(_SEAL) + len(_SEAL)
    if start < len(_SEAL):
        raise ValueError("it has no checksum")
    end = start + _CHECKSUM_BYTES
    return content[:start], content[start:end], content[end:]


def _digest(before: bytes, after: bytes) -> bytes:
    found = hashlib.sha256(before)
    found.update(after)
    return found.hexdigest().encode()


# ── cells and columns ────────────────────────────────────────────────────────────────────────


def _write(path: Path, cells: Cells) -> None:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    ordered = dict(sorted(cells.items()))
    scores = list(dict.fromkeys(name for result, _ in ordered.values() for name in result.scores))
    schema = arrow.schema(
        [
            *((name, arrow.string()) for name in ("dataset", "held_out")),
            ("seed", arrow.int32()),
            ("image", arrow.int32()),
            ("label", arrow.string()),
            ("anomalous", arrow.bool_()),
            ("predicted", arrow.string()),
            *((name, arrow.float32()) for name in scores),
            ("original", arrow.binary()),
            ("reconstruction", arrow.binary()),
        ]
    )
    described = [_described(name, *ordered[name]) for name in ordered]
    out = arrow.BufferOutputStream()
    with parquet.ParquetWriter(
        out, schema, compression="zstd", compression_level=15, use_dictionary=list(_WORDS),
        write_page_checksum=True,
        column_encoding=dict.fromkeys(scores, "BYTE_STREAM_SPLIT")
        | dict.fromkeys(("image", "seed"), "DELTA_BINARY_PACKED"),
    ) as writer:  # fmt: skip
        for result, _ in ordered.values():
            writer.write_table(arrow.table(_columns(result, scores), schema))
        seal = _SEAL + bytes(_CHECKSUM_BYTES)
        lines = "\n".join(map(json.dumps, described))
        writer.add_key_value_metadata({_KEY: lines, _SEAL_KEY: seal})
    with replacing(path) as temporary:
        temporary.write_bytes(sealed(out.getvalue().to_pybytes()))
        if [_described(*cell) for cell in _cells(temporary.read_bytes())] != described:
            raise ValueError("its cells are not the same")


def _described(name: str, result: CellResult, fingerprint: str) -> dict[str, Any]:
    shown = result.reconstructions
    shape = None if shown is None else list(shown.shape[2:])
    summary = result.summary() | {"fingerprint": fingerprint, "shape": shape}
    summary = json.loads(json.dumps(summary, allow_nan=False))  # as it is read back
    return {"name": name, "summary": summary, "sha256": _checksum(name, summary, result)}


def _columns(result: CellResult, scores: Sequence[str]) -> dict[str, Any]:
    count, names = len(result.index), np.asarray(result.class_names)
    nothing = [None] * count
    shown = result.reconstructions
    pairs: list[list[bytes | None]] = [list(nothing), list(nothing)]
    if shown is not None:  # they belong to the first anomalous images
        for place, pair in zip(np.flatnonzero(result.anomalous), shown):
            for kind in (0, 1):
                pairs[kind][place] = pair[kind].tobytes()
    return {
        "dataset": [result.dataset] * count,
        "held_out": ["+".join(result.held_out)] * count,
        "seed": np.full(count, result.seed, np.int32),
        "image": result.index.astype(np.int32),
        "label": names[result.labels],
        "anomalous": result.anomalous,
        "predicted": nothing if result.predicted is None else names[result.predicted],
        **{name: result.scores.get(name, nothing) for name in scores},
        "original": pairs[0],
        "reconstruction": pairs[1],
    }


def _result(summary: dict[str, Any], columns: dict[str, list[Any]]) -> CellResult:
    number = {name: index for index, name in enumerate(summary["class_names"])}
    kept = [place for place, each in enumerate(columns["original"]) if each is not None]
    shown = None
    if kept:
        both = [b"".join(columns[kind][k] for kind in ("original", "reconstruction")) for k in kept]
        pixels = np.frombuffer(b"".join(both), np.uint8)
        shown = pixels.reshape(len(kept), 2, *summary["shape"])
    predicted = columns["predicted"]
    return checked(
        summary,
        index=np.asarray(columns["image"], np.int64),
        labels=np.asarray([number[name] for name in columns["label"]], np.int64),
        scores={k: np.asarray(columns[k], np.float32) for k in summary["metrics"]},
        predicted=None
        if predicted[0] is None
        else np.asarray([number[name] for name in predicted], np.int64),
        reconstructions=shown,
    )
