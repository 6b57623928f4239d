"""Score image files: one row per file, in their order, however many there are.

Files are read in threads while the network is at work on those before them, and a few batches are
in memory at a time. A file that cannot be read has its error in its row, and the run goes on.
"""

import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from anocaps.base.errors import DataError, InputError
from anocaps.base.text import shown
from anocaps.images.decode import ImageError, Pixels, read_images
from anocaps.images.walk import PassedOver, list_images
from anocaps.inspect.tables import Row, UnfinishedTable
from anocaps.judging.calibration import check_alpha
from anocaps.judging.judgement import Judge, Judgement
from anocaps.judging.sentences import ODD, sentence_of

COLUMNS = ("file", "score", "p_value", "verdict", "class", "error")
_BATCH = 256  # images


@dataclass
class Scored:
    file: Path
    row: Row  # of columns_of(judge)
    sentence: str = ""  # what was found, in words, without the file's name
    image: Pixels | None = None  # H×W×C, as the model takes it; not of a run that was stopped
    heatmap: str = ""  # the file that shows it, where this run or the stopped one wrote it


@dataclass
class Tally:
    """What became of the files so far."""

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


def columns_of(judge: Judge) -> tuple[str, ...]:
    further = (name for name in judge.score_names if name != judge.score_function)
    return (*COLUMNS, *further, "p_value_class")


# ── which files ──────────────────────────────────────────────────────────────────────────────


def list_files(paths: Iterable[Path]) -> Iterator[Path]:
    """The files to score: each once, however often it is named, or lies in a folder that is."""
    return (file for file, again in _listed(paths) if not again)


def count_files(paths: Iterable[Path], passed: PassedOver | None = None) -> tuple[int, int]:
    """How many there are, which are not none, and how often one of them is named again; `passed`
    gets what was met beside them."""
    paths, passed = list(paths), PassedOver() if passed is None else passed
    counts = Counter(again for _, again in _listed(paths, passed))
    if not counts:
        nothing = f"{shown(paths[0])}: there is no image here."
        raise DataError(" ".join([nothing, *passed.sentences()]))
    return counts[False], counts[True]


def _listed(paths: Iterable[Path], passed: PassedOver | None = None) -> Iterator[tuple[Path, bool]]:
    """Each file, and whether it came before under this name or another.

    Folders are entered once, so only files that are named are to be remembered.
    """
    paths = list(paths)
    named = {os.path.realpath(path) for path in paths if not os.path.isdir(path)}
    met: set[str] = set()

    def came_before(file: Path) -> bool:
        real = os.path.realpath(file)
        if real in met:
            return True
        met.update({real} & named)
        return False

    return ((file, bool(named) and came_before(file)) for file in list_images(paths, passed))


# ── from files to rows ───────────────────────────────────────────────────────────────────────


def check_rate(alpha: float) -> None:
    """Refuse an alpha that is none, whatever the model is."""
    if not 0 < alpha < 1:
        raise InputError(f"alpha is a false-alarm rate between 0 and 1, not {alpha}")


def score_files(judge: Judge, files: Iterable[Path], alpha: float) -> Iterator[list[Scored]]:
    """Batches of scored files, in order.

    An alpha that is none, or that needs more calibration images, is an error at once.
    """
    check_rate(alpha)
    if judge.calibration_size:
        check_alpha(alpha, judge.calibration_size)
    pictures = read_images(files, judge.fit, ahead=_BATCH)  # the next one is read meanwhile
    batches = iter(lambda: list(islice(pictures, _BATCH)), [])
    return (_scored(judge, batch, alpha) for batch in batches)


def _scored(
    judge: Judge, batch: list[tuple[Path, Pixels | ImageError]], alpha: float
) -> list[Scored]:
    images = [found for _, found in batch if isinstance(found, np.ndarray)]
    judged = _each(judge, judge.judge(np.stack(images)), alpha) if images else iter(())
    columns = dict.fromkeys(columns_of(judge))
    results = []
    for file, found in batch:
        row = columns | {"file": file_text(file)}
        if isinstance(found, ImageError):
            results.append(Scored(file, row | {"error": str(found)}))
        else:
            values, sentence = next(judged)
            results.append(Scored(file, row | values, sentence, found))
    return results


def _each(judge: Judge, found: Judgement, alpha: float) -> Iterator[tuple[Row, str]]:
    """Image by image: what is known of the row, and the sentence."""
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
        yield values, sentence_of(shown(name), found.p_value[k], telling, judge.calibration_size)


def _telling(score: str, p_values: dict[str, float]) -> dict[str, float]:
    """PP and RE tell why an image is odd, unless another score says so and they do not."""
    parts = [p_values.get(name, 1.0) for name in ("pp", "re")]
    if score in ("pp", "re", "pp+re") or min(parts) <= 1 - ODD:
        return p_values
    return {name: p for name, p in p_values.items() if name == score}


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def file_text(file: Path) -> str:
    """The name as text that any format can hold: bytes that are none appear as \\x…"""
    return os.fsencode(file).decode("utf-8", "backslashreplace")


def _text(name: str) -> str:
    """Likewise the name of a class, which may be that of a folder."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


# ── from rows to a table, now and again ──────────────────────────────────────────────────────


def run_of(model: Path, alpha: float) -> Row:
    """What tells a run from another one; the files are compared one by one."""
    with open(model, "rb") as file:
        return {"model": hashlib.file_digest(file, "sha256").hexdigest(), "alpha": alpha}


def score_into(
    table: UnfinishedTable,
    judge: Judge,
    paths: Iterable[Path],
    alpha: float,
    also: Callable[[Sequence[Scored]], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tally:
    """Score the files whose rows the table does not have yet; finishing it is left to the caller.

    `also` gets every batch before its rows are written, so that it has got all rows of a run that
    is stopped; when that run goes on it gets them again, without images. `progress` is told how
    many of the files are done, and how many of them since this call.
    """
    tally = Tally()
    files, gone = _without_rows(table, list(paths))
    finished = _finished(table)
    while batch := list(islice(finished, _BATCH)):
        tally.add(batch)
        if also is not None:
            also(batch)
    before = tally.files
    for batch in score_files(judge, files, alpha):
        if also is not None:
            also(batch)
        table.append((scored.row, _notes(scored)) for scored in batch)
        tally.add(batch)
        if progress is not None:
            progress(tally.files - gone, tally.files - before)
    return tally


def _notes(scored: Scored) -> Row:
    """What a row does not say, and going on needs."""
    notes = {"sentence": scored.sentence, "heatmap": scored.heatmap}
    as_text = scored.row["file"] == str(scored.file)
    return notes if as_text else notes | {"path": str(scored.file)}


def _finished(table: UnfinishedTable) -> Iterator[Scored]:
    for row, notes in table.finished():
        file = Path(str(notes.get("path", row["file"])))
        yield Scored(file, row, notes.get("sentence", ""), heatmap=notes.get("heatmap", ""))


def _without_rows(table: UnfinishedTable, paths: Sequence[Path]) -> tuple[Iterator[Path], int]:
    """The files whose rows the table does not have, and how many rows are of files now gone.

    Most often those that have rows are still the first ones, in the same order, and none need be
    remembered. Where files came or went among them, 16 bytes of each row are.
    """
    files = list_files(paths)
    if all(scored.file == next(files, None) for scored in _finished(table)):
        return files, 0
    finished = {_fingerprint(scored.file) for scored in _finished(table)}
    there = sum(_fingerprint(file) in finished for file in list_files(paths))
    if not there:
        raise DataError(
            f"{shown(table.path)} has no row of these files: name them as its run did, or delete "
            "that file to begin anew"
        )
    files = (file for file in list_files(paths) if _fingerprint(file) not in finished)
    return files, len(finished) - there


def _fingerprint(file: Path) -> bytes:
    return hashlib.blake2b(os.fsencode(file), digest_size=16).digest()
