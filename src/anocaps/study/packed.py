"""Finished cells in Parquet: one file per row of the study's table, to keep and to publish.

    pandas.read_parquet("results/field/capsnet.parquet")    one line per cell and test image

Columns: dataset, held_out, seed, image (its number in the test set), label, anomalous, predicted
(if the method classifies), one column per score function, and the pixels of original and
reconstruction for the images that kept them. A row group is one cell. The metadata of the file has
the summaries of the cells as JSON, with their fingerprints. Every page of a Parquet file has a
checksum.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from anocaps.base.errors import DataError
from anocaps.base.files import remove, replacing, sweep, sync_folder
from anocaps.study.cell import CellResult
from anocaps.study.resultfile import SUFFIX as FINISHED
from anocaps.study.resultfile import checked, read_both

SUFFIX = ".parquet"
_KEY = b"anocaps.cells"
_WORDS = ("dataset", "held_out", "label", "predicted")  # columns of text


def pack(folder: Path) -> list[Path]:
    """Move cells from result files into one Parquet file per row; return the Parquet files."""
    new: dict[str, dict[str, tuple[CellResult, str]]] = {}
    paths = sorted(folder.rglob(f"*{FINISHED}"))
    for path in paths:
        name = path.relative_to(folder).with_suffix("").as_posix()
        new.setdefault(path.parent.name, {})[name] = read_both(path)
    written = []
    for row, cells in new.items():
        target = folder / f"{row}{SUFFIX}"
        known = {name: (r, f) for name, r, f in read_packed(target)} if target.exists() else {}
        _write(target, known | cells)
        written.append(target)
    for path in paths:  # only after all of them are kept
        remove(path)
    _tidy(folder)
    return written


def _tidy(folder: Path) -> None:
    """Remove empty folders, and files that a killed process left."""
    for path in folder.glob(f"*{SUFFIX}"):
        sweep(path)
    inner = [path for path in folder.rglob("*") if path.is_dir()]
    for path in sorted(inner, reverse=True):  # the deepest first
        if not any(path.iterdir()):
            path.rmdir()
            sync_folder(path.parent)


def read_packed(path: Path) -> Iterator[tuple[str, CellResult, str]]:
    """The cells of a Parquet file: name, result, fingerprint."""
    import pyarrow.parquet as parquet

    with _reading(path):
        file = parquet.ParquetFile(path, page_checksum_verification=True)
        cells = _cells(file)
    for number, cell in enumerate(cells):
        with _reading(path):
            columns = file.read_row_group(number).to_pydict()
            found = cell["name"], _result(cell["summary"], columns), cell["summary"]["fingerprint"]
        yield found


def packed_fingerprints(folder: Path) -> dict[str, str]:
    """Cell name → fingerprint, of all Parquet files in a folder."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        found |= _fingerprints(path, path.stat().st_mtime_ns)
    return found


@cache
def _fingerprints(path: Path, changed: int) -> dict[str, str]:
    import pyarrow.parquet as parquet

    with _reading(path):
        file = parquet.ParquetFile(path)
        return {cell["name"]: cell["summary"]["fingerprint"] for cell in _cells(file)}


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a damaged or forged file can raise anything
        reason = " ".join(f"{error or type(error).__name__}".split())[:80]
        raise DataError(f"{path}: the file is damaged ({reason}); fetch it again") from error


def _cells(file: Any) -> Sequence[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(file.schema_arrow.metadata[_KEY])
    if len(cells) != file.num_row_groups:
        raise ValueError("cells and row groups differ in number")
    return cells


def _write(path: Path, cells: dict[str, tuple[CellResult, str]]) -> None:
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
        ],
        metadata={_KEY: json.dumps([_described(name, *ordered[name]) for name in ordered])},
    )
    with (
        replacing(path) as temporary,
        parquet.ParquetWriter(
            temporary, schema, compression="zstd", compression_level=15,
            use_dictionary=list(_WORDS), write_page_checksum=True,
            column_encoding=dict.fromkeys(scores, "BYTE_STREAM_SPLIT")
            | dict.fromkeys(("image", "seed"), "DELTA_BINARY_PACKED"),
        ) as writer,
    ):  # fmt: skip
        for result, _ in ordered.values():
            writer.write_table(arrow.table(_columns(result, scores), schema))


def _described(name: str, result: CellResult, fingerprint: str) -> dict[str, Any]:
    shown = result.reconstructions
    shape = None if shown is None else list(shown.shape[2:])
    summary = result.summary() | {"fingerprint": fingerprint, "shape": shape}
    return {"name": name, "summary": summary}


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
