"""Score image files: one row per file, in order.

Threads read the next files while the network scores a batch, so only a few batches are in memory.
If a file cannot be read, its row holds the error and the run goes on.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import DataError
from anocaps.base.text import shown
from anocaps.images.decode import ImageError, Pixels
from anocaps.images.reading import read_images
from anocaps.inspect.judge import as_judge
from anocaps.inspect.listing import Listing
from anocaps.inspect.tables import Row, UnfinishedTable
from anocaps.judging.calibration import USUAL_ALPHA, check_alpha, rounded_up, smallest_alpha
from anocaps.judging.judgement import Judge, Judgement
from anocaps.judging.sentences import ANOMALOUS, sentence_of

if TYPE_CHECKING:
    from anocaps.detectors import Detector

COLUMNS = ("file", "score", "p_value", "verdict", "class", "error")
_BATCH = 256  # images


@dataclass
class Scored:
    file: Path
    row: Row  # of columns_of(judge)
    sentence: str = ""  # what was found, in words, without the file's name
    image: Pixels | None = None  # H×W×C, the model's input; None for rows of a stopped run
    # on request: the reconstruction h×w×C, or coarse raw heat h×w
    heat_source: NDArray[Any] | None = None
    heatmap: str = ""  # its file, if this run or the stopped one wrote it
    nearest: str = ""  # the most similar training file, if it is known


@dataclass
class Tally:
    """Counts of the files so far."""

    scored: int = 0
    anomalous: int = 0
    failed: int = 0
    error: str = ""  # the first

    @property
    def files(self) -> int:
        return self.scored + self.failed

    def add(self, batch: Iterable[Scored]) -> None:
        for row in (scored.row for scored in batch):
            self.failed += row["error"] is not None
            self.scored += row["error"] is None
            self.anomalous += row["verdict"] == "anomalous"
            self.error = self.error or row["error"] or ""


Also = Callable[[Sequence[Scored]], None]  # takes a batch


def columns_of(judge: Judge) -> tuple[str, ...]:
    further = (name for name in judge.score_names if name != judge.score_function)
    return (*COLUMNS, *further, "p_value_class")


# ── for Python ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class ScoredFile:
    """The result for one image file: a row of the command `score`.

    Attributes
    ----------
    file : Path
        The image file.
    score : float or None
        By the model's score function: higher = more normal.
    p_value : float or None
        None if the model has no calibration set.
    verdict : str or None
        "normal" or "anomalous".
    predicted : str or None
        The normal class that the image looks most like.
    error : str or None
        Why the file could not be scored.
    scores : dict of str to float or None
        By every score function.
    p_value_class : float or None
        Among normal images of the predicted class.
    """

    file: Path
    score: float | None
    p_value: float | None
    verdict: str | None
    predicted: str | None
    error: str | None
    scores: dict[str, float | None]
    p_value_class: float | None


def score_files(
    model: "str | os.PathLike[str] | Detector | Judge",
    paths: "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]",
    alpha: float | None = None,
    device: str = "auto",
) -> list[ScoredFile]:
    """Score image files, as the command `score` does.

    Parameters
    ----------
    model : path, Detector or Judge
        A model file, .safetensors or .onnx, or a fitted detector.
    paths : path or iterable of paths
        Image files, and folders that are searched for them.
    alpha : float, default=None
        The false-alarm rate. None: 0.05, or more if the calibration set is too small for 0.05.
    device : str, default="auto"
        The device of scoring: "auto", "cpu" or "cuda".

    Returns
    -------
    rows : list of ScoredFile
        One per file, in order. A file that cannot be read has an error in its row.

    Examples
    --------
    >>> import anocaps
    >>> for row in anocaps.score_files("model.safetensors", "new/"):  # doctest: +SKIP
    ...     print(row.file, row.verdict, row.p_value)
    """
    judge = as_judge(model, device)
    if alpha is None:
        alpha = default_alpha(judge)
    named = [paths] if isinstance(paths, str | os.PathLike) else paths
    listing = Listing(Path(path) for path in named)
    batches = score_batches(judge, listing, alpha)
    return [_as_row(judge, scored) for batch in batches for scored in batch]


def default_alpha(judge: Judge) -> float:
    """The usual false-alarm rate, or the smallest that the calibration set allows."""
    size = judge.calibration_size
    return max(USUAL_ALPHA, rounded_up(smallest_alpha(size))) if size else USUAL_ALPHA


def _as_row(judge: Judge, scored: Scored) -> ScoredFile:
    row = scored.row
    scores = {k: row["score" if k == judge.score_function else k] for k in judge.score_names}
    return ScoredFile(
        scored.file,
        row["score"],
        row["p_value"],
        row["verdict"],
        row["class"],
        row["error"],
        scores,
        row["p_value_class"],
    )


# ── from files to rows ───────────────────────────────────────────────────────────────────────


def score_batches(
    judge: Judge, files: Iterable[Path], alpha: float, with_heat: bool = False
) -> Iterator[list[Scored]]:
    """Batches of scored files, in order. Each image passes through the network once.

    If alpha needs more calibration images than the model has, this raises an error at once.
    """
    check_alpha(alpha, judge.calibration_size)
    images = read_images(files, judge.fit, ahead=_BATCH)  # reads ahead during scoring
    return score_images(judge, images, alpha, with_heat)


def score_images(
    judge: Judge,
    images: Iterator[tuple[str | Path, Pixels | ImageError]],
    alpha: float,
    with_heat: bool = False,
) -> Iterator[list[Scored]]:
    """Batches of scored images. Each image comes with its name, and its pixels or its error."""
    batches = iter(lambda: list(islice(images, _BATCH)), [])
    return (_scored(judge, batch, alpha, with_heat) for batch in batches)


def _scored(
    judge: Judge,
    batch: list[tuple[str | Path, Pixels | ImageError]],
    alpha: float,
    with_heat: bool,
) -> list[Scored]:
    images = [found for _, found in batch if isinstance(found, np.ndarray)]
    judgement = judge.judge(np.stack(images), with_heat) if images else None
    judged = iter(()) if judgement is None else _each(judge, judgement, alpha)
    columns = dict.fromkeys(columns_of(judge))
    results = []
    for file, found in batch:
        row = columns | {"file": file_text(file)}
        if isinstance(found, ImageError):
            results.append(Scored(Path(file), row | {"error": str(found)}))
        else:
            values, sentence, source, nearest = next(judged)
            told = row | values
            results.append(Scored(Path(file), told, sentence, found, source, nearest=nearest))
    return results


def _each(
    judge: Judge, found: Judgement, alpha: float
) -> Iterator[tuple[Row, str, NDArray[Any] | None, str]]:
    """For each image: its row, its sentence, its source of heat and the most similar training
    file."""
    sources, nearest = found.heat_source, found.nearest
    for k, name in enumerate(found.predicted):
        p = _number(found.p_value[k])
        values: Row = {score: _number(found.scores[score][k]) for score in judge.score_names}
        values |= {
            "score": values.pop(judge.score_function),
            "p_value": p,
            "class": _text(name) or None,
        }
        values |= {"p_value_class": _number(found.p_value_class[k])}
        if p is not None:
            values["verdict"] = "anomalous" if p <= alpha else "normal"
        by_score = {score: float(each[k]) for score, each in found.p_values.items()}
        telling = _telling(judge.score_function, by_score)
        sentence = sentence_of(shown(name), found.p_value[k], telling, judge.calibration_size)
        source = None if sources is None else sources[k]
        yield values, sentence, source, "" if nearest is None else nearest[k]


def _telling(score: str, p_values: dict[str, float]) -> dict[str, float]:
    """The p-values for the sentence: PP and RE, unless only another score function is low."""
    parts = [p_values.get(name, 1.0) for name in ("pp", "re")]
    if score in ("pp", "re", "pp+re") or min(parts) <= 1 - ANOMALOUS:
        return p_values
    return {name: p for name, p in p_values.items() if name == score}


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def file_text(file: str | Path) -> str:
    """A file name as text. Bytes that are not text appear as \\x…"""
    return os.fsencode(file).decode("utf-8", "backslashreplace")


def _text(name: str) -> str:
    """The same for the name of a class, which may be that of a folder."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


# ── from rows to a table ─────────────────────────────────────────────────────────────────────


def run_of(judge: Judge, alpha: float) -> Row:
    """The description of a run. Only a run with the same description can be resumed."""
    return {"model": judge.checksum, "alpha": alpha}


def score_into(
    table: UnfinishedTable,
    judge: Judge,
    listing: Listing,
    alpha: float,
    also: Also | None = None,
    progress: Callable[[int, int], None] | None = None,
    with_heat: bool = False,
) -> Tally:
    """Score the files that have no row in the table yet. The caller finishes the table.

    `also` is called with every batch before its rows are written. When a stopped run is resumed, it
    is first called with the finished rows, without images. `progress` is called with the number of
    files done, and the number done since this call.
    """
    files, gone = _without_rows(table, listing)
    tally = recall(table, also)
    before = tally.files
    for batch in score_batches(judge, files, alpha, with_heat):
        add_rows(table, batch, tally, also)
        if progress is not None:
            progress(tally.files - gone, tally.files - before)
    return tally


def recall(table: UnfinishedTable, also: Also | None = None) -> Tally:
    """Call `also` with the rows that a stopped run has finished, and count them."""
    tally = Tally()
    finished = finished_rows(table)
    while batch := list(islice(finished, _BATCH)):
        tally.add(batch)
        if also is not None:
            also(batch)
    return tally


def add_rows(
    table: UnfinishedTable, batch: Sequence[Scored], tally: Tally, also: Also | None = None
) -> None:
    """Write the rows of a batch, after `also` was called with it."""
    if also is not None:
        also(batch)
    table.append((scored.row, _notes(scored)) for scored in batch)
    tally.add(batch)


def _notes(scored: Scored) -> Row:
    """The facts that resuming needs besides the row."""
    notes = {
        "sentence": scored.sentence, "heatmap": scored.heatmap, "nearest": scored.nearest,
    }  # fmt: skip
    as_text = scored.row["file"] == str(scored.file)
    return notes if as_text else notes | {"path": str(scored.file)}


def finished_rows(table: UnfinishedTable) -> Iterator[Scored]:
    for row, notes in table.finished():
        file = Path(str(notes.get("path", row["file"])))
        also = {name: notes.get(name, "") for name in ("sentence", "heatmap", "nearest")}
        yield Scored(file, row, **also)


def _without_rows(table: UnfinishedTable, listing: Listing) -> tuple[Iterator[Path], int]:
    """The files without a row in the table, and the number of rows whose files are gone.

    Usually the files with rows come first, in the same order. Otherwise a hash of 16 bytes of each
    such file is held in memory.
    """
    files = iter(listing)
    if all(scored.file == next(files, None) for scored in finished_rows(table)):
        return files, 0
    finished = {fingerprint(scored.file) for scored in finished_rows(table)}
    there = sum(fingerprint(file) in finished for file in listing)
    if not there:
        raise DataError(
            f"{shown(table.path)} has no row of these files: name them as its run did, or delete "
            "that file to start again"
        )
    files = (file for file in listing if fingerprint(file) not in finished)
    return files, len(finished) - there


def fingerprint(file: Path) -> bytes:
    return hashlib.blake2b(os.fsencode(file), digest_size=16).digest()
