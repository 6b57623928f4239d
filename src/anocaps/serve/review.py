"""Scored folders: the job that scores them, audits, drift, and what can be taken away."""

import hashlib
import json
import os
import random
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from anocaps.base.errors import DataError, InputError
from anocaps.images.walk import list_images
from anocaps.inspect.scoring import COLUMNS, Scored, file_text, score_batches
from anocaps.inspect.tables import UnfinishedTable
from anocaps.judging.judgement import Judge
from anocaps.serve.database import Database, Record
from anocaps.serve.jobs import Job, Stopped
from anocaps.serve.scoring import Models, scores_of, verdict

MARKS = ("anomalous", "normal", "unsure", "none")
_PART = 64  # files scored between two looks at the wish to stop
_LOOK_EVERY = 1.0  # seconds between two looks into a watched folder


class Scoring:
    """The work of jobs that score a folder, once or again and again."""

    def __init__(
        self, database: Database, models: Models, counted: Callable[[str, str | None], None]
    ) -> None:
        self.database, self.models = database, models
        self._counted = counted  # is called with the model and each verdict

    def __call__(self, job: Job) -> Record:
        name, batcher = self.models.batcher(job.spec["model"])
        folder, watched = Path(job.spec["folder"]), job.spec.get("watch", False)
        done = {row["file"] for row in self.database.rows(job.id)}
        settling: dict[Path, int] = {}  # size of new files: one that still grows is left alone
        while True:
            files = list(list_images([folder], follow_links=False))
            new = [file for file in files if os.fsencode(file) not in done]
            if watched:
                new = [file for file in new if settling.get(file) == _size(file)]
                settling = {f: _size(f) for f in files if os.fsencode(f) not in done}
            elif not files:
                raise DataError(f"{file_text(folder)}: there is no image here")
            for rows in self._scored(batcher.judge, name, job, new):
                self.database.add_rows(rows)
                done |= {row["file"] for row in rows}
                for row in rows:
                    self._counted(name, verdict(row["p_value"], batcher.alpha))
                job.tell(now=True, done=len(done), total=max(len(done), len(files)))
            if not watched:
                return {"done": len(done), "total": len(done)}
            until = time.monotonic() + _LOOK_EVERY
            while time.monotonic() < until:
                if job.stopping:
                    raise Stopped
                time.sleep(0.05)

    def _scored(
        self, judge: Judge, name: str, job: Job, files: list[Path]
    ) -> Iterator[list[Record]]:
        for start in range(0, len(files), _PART):
            part = files[start : start + _PART]
            for batch in score_batches(judge, part, self.models.batcher(name)[1].alpha):
                yield [_row(judge, name, job.id, scored) for scored in batch]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


def _row(judge: Judge, model: str, job: int, scored: Scored) -> Record:
    row = scored.row
    details = {
        "scores": scores_of(judge, scored),
        "p_value_class": row["p_value_class"],
        "sentence": scored.sentence,
    }
    return {
        "job": job, "file": os.fsencode(scored.file), "file_sha256": sha256_of(scored.file),
        "model": model, "model_checksum": judge.checksum, "score": row["score"],
        "p_value": row["p_value"], "class": row["class"], "details": json.dumps(details),
        "error": row["error"], "time": time.time(),
    }  # fmt: skip


def sha256_of(file: Path) -> str | None:
    try:
        with open(file, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError:
        return None


def for_page(row: Record) -> Record:
    """A row without what the page does not show."""
    details = json.loads(row["details"])
    return {
        "id": row["id"], "file": file_text(path_of(row)), "score": row["score"],
        "p_value": row["p_value"], "class": row["class"], "error": row["error"],
        "mark": None if row.get("mark") == "none" else row.get("mark"), "time": row["time"],
        "sentence": details["sentence"], "scores": details["scores"],
    }  # fmt: skip


def path_of(row: Record) -> Path:
    return Path(os.fsdecode(row["file"]))


# ── audits and drift ─────────────────────────────────────────────────────────────────────────


def draw_audit(database: Database, job: int, alpha: float, among: str, count: int) -> int:
    """Draw photos at random: of those not flagged, to estimate what is missed, or of all."""
    rows = [row for row in database.rows(job) if row["p_value"] is not None]
    if among == "unflagged":
        rows = [row for row in rows if row["p_value"] > alpha]
    if not rows:
        raise InputError("there is no such photo to draw from")
    drawn = random.SystemRandom().sample(rows, min(count, len(rows)))
    return database.write(
        "INSERT INTO audits (job, time, alpha, among, drawn_from, rows) VALUES (?, ?, ?, ?, ?, ?)",
        job, time.time(), alpha, among, len(rows), json.dumps([row["id"] for row in drawn]),
    )  # fmt: skip


def audits(database: Database, job: int) -> list[Record]:
    found = database.read("SELECT * FROM audits WHERE job = ? ORDER BY id", job)
    return [each | {"rows": json.loads(each["rows"])} for each in found]


def days(database: Database, model: str, alpha: float) -> list[Record]:
    """How many photos a model scored and flagged, day by day."""
    return database.read(
        "SELECT date(time, 'unixepoch', 'localtime') AS day, COUNT(*) AS photos,"
        " SUM(p_value <= ?) AS flagged FROM rows WHERE model = ? AND p_value IS NOT NULL"
        " GROUP BY day ORDER BY day",
        alpha, model,
    )  # fmt: skip


# ── taking away ──────────────────────────────────────────────────────────────────────────────


def write_table(database: Database, job: int, alpha: float, out: Path) -> None:
    """Rows, marks and verdicts as CSV, safe to open in a spreadsheet."""
    rows = database.rows(job)
    with UnfinishedTable(out, (*COLUMNS, "mark"), {}, resume=False) as table:
        table.append(
            (
                {
                    "file": file_text(path_of(row)), "score": row["score"],
                    "p_value": row["p_value"], "verdict": verdict(row["p_value"], alpha),
                    "class": row["class"], "error": row["error"],
                    "mark": None if row["mark"] == "none" else row["mark"],
                },
                {},
            )
            for row in rows
        )  # fmt: skip
        table.finish()


def write_zip(database: Database, job: int, alpha: float, out: Path) -> None:
    """The flagged photos, the most anomalous first. Names in it are plain and unique."""
    rows = [row for row in database.rows(job) if verdict(row["p_value"], alpha) == "anomalous"]
    rows.sort(key=lambda row: row["p_value"])
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for rank, row in enumerate(rows, 1):
            file = path_of(row)
            if file.is_file():  # it may be gone
                archive.write(file, f"{rank:05}-{_plain(file.name)}")


def _plain(name: str) -> str:
    """A file name that every system takes, and that cannot lead out of a folder."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)
    return kept.lstrip(".")[-100:] or "photo"
