"""Scored folders: the job that scores them, audits, drift and downloads."""

import hashlib
import json
import os
import random
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path

from anocaps.base.errors import DataError, InputError
from anocaps.images.walk import list_images
from anocaps.inspect.arrivals import Arrivals, score_arrivals
from anocaps.inspect.scoring import COLUMNS, Scored, file_text, score_batches
from anocaps.inspect.tables import UnfinishedTable
from anocaps.judging.judgement import Judge
from anocaps.serve.database import Database, Record
from anocaps.serve.jobs import Job, Stopped
from anocaps.serve.scoring import Models, scores_of, verdict
from anocaps.serve.security import Roots

_PART = 64  # files scored before the job looks again whether to stop


class Scoring:
    """The work of jobs that score a folder, once or whenever files are added."""

    def __init__(
        self, database: Database, models: Models, counted: Callable[[str, str | None], None]
    ) -> None:
        self.database, self.models = database, models
        self._counted = counted  # is called with the model and each verdict

    def __call__(self, job: Job) -> Record:
        name, batcher = self.models.batcher(job.spec["model"])
        known = [path_of(row) for row in self.database.rows(job.id)]  # of a run that was stopped
        done = total = len(known)
        if job.spec.get("watch"):
            arrivals = Arrivals([Path(job.spec["folder"])], follow_links=False)
            arrivals.know(known)
            batches = score_arrivals(batcher.judge, arrivals, batcher.alpha, lambda: job.stopping)
        else:
            left = self._left(job, set(known))
            total += len(left)
            parts = (left[start : start + _PART] for start in range(0, len(left), _PART))
            scored = (score_batches(batcher.judge, part, batcher.alpha) for part in parts)
            batches = chain.from_iterable(scored)
        for batch in batches:
            rows = [_row(batcher.judge, name, job.id, each) for each in batch]
            self.database.add_rows(rows)
            for row in rows:
                self._counted(name, verdict(row["p_value"], batcher.alpha))
            done += len(rows)
            job.tell(now=True, done=done, total=max(done, total))
        if job.spec.get("watch"):
            raise Stopped
        return {"done": done, "total": done}

    def _left(self, job: Job, known: set[Path]) -> list[Path]:
        files = list(list_images([Path(job.spec["folder"])], follow_links=False))
        if not files:
            raise DataError(f"{file_text(Path(job.spec['folder']))}: there is no image here")
        return [file for file in files if file not in known]


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
    """The fields of a row that the page shows."""
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
        raise InputError("there are no photos to draw from")
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


# ── downloads ────────────────────────────────────────────────────────────────────────────────


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


def write_zip(database: Database, roots: Roots, job: int, alpha: float, out: Path) -> None:
    """The flagged photos, the most anomalous first. Names in it are plain and unique."""
    rows = [row for row in database.rows(job) if verdict(row["p_value"], alpha) == "anomalous"]
    rows.sort(key=lambda row: row["p_value"])
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for rank, row in enumerate(rows, 1):
            file = path_of(row)
            with suppress(InputError, FileNotFoundError):  # it may be gone, or a link by now
                archive.write(roots.inside(file), f"{rank:05}-{_plain(file.name)}")


def _plain(name: str) -> str:
    """A file name that every system takes, and that cannot lead out of a folder."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)
    return kept.lstrip(".")[-100:] or "photo"
