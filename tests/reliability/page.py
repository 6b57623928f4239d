"""What the page's server writes: uploads, jobs, rows, marks, settings and trained models.

The work is a list of steps. After a crash the same list is gone through again, and a step that is
finished is left out. A step that was reported as finished must not be lost.
"""

import asyncio
import json
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from brightness import Brightness

from anocaps.base.errors import AnocapsError, DataError
from anocaps.serve import jobs, scoring, training, worker
from anocaps.serve.jobs import Job
from anocaps.serve.project import Project
from anocaps.serve.receiving import receive_part, received
from anocaps.serve.training import Training

Row = dict[str, object]


def page(place: Path) -> None:
    scoring.load_judge = lambda path, device: Brightness()
    with _project(place) as project:
        for name, step in _steps(place, project).items():
            step()
            _report(place, name)


@contextmanager
def _project(place: Path) -> Iterator[Project]:
    """A project; errors that the server answers or reports are exit code 2."""
    jobs.Jobs._change_surely = jobs.Jobs.change  # else it waits
    try:
        project = Project(place / "work" / "project", models=place.glob("given/*.onnx"))
        with closing(project):
            yield project
    except (AnocapsError, OSError, sqlite3.OperationalError) as error:
        print(f"Error: {error}")
        raise SystemExit(2) from error


def _steps(place: Path, project: Project) -> dict[str, Callable[[], object]]:
    database = project.database

    def job_of(kind: str, **spec: object) -> None:
        if not database.jobs(kind):
            project.jobs.add(kind, **spec)

    def mark() -> None:
        row = database.read("SELECT * FROM rows ORDER BY id")[0]
        if not database.newest_marks():
            database.add_mark(row, "normal")

    return {
        "upload": lambda: asyncio.run(_upload(place, project.photos)),
        "job": lambda: job_of("score", model="m", folder=str(place / "given" / "new")),
        "rows": lambda: _run(project, "score"),
        "mark": mark,
        "setting": lambda: database.set("alpha", 0.01),
    }


def _run(project: Project, kind: str) -> None:
    for job in project.database.jobs(kind):
        if job["state"] != "done":
            project.jobs.go_on(job["id"])  # as the user does if it failed
            project.jobs._run_one(job)
            found = project.database.job(job["id"])
            if found is None or found["state"] != "done":
                raise DataError(f"the job failed: {found}")


async def _upload(place: Path, folder: Path) -> None:
    """In two parts, from where an earlier upload ended."""
    content, name = (place / "given" / "photo.png").read_bytes(), "cup/photo.png"

    async def stream(some: bytes) -> AsyncIterator[bytes]:
        yield some

    while (start := received(folder, name, len(content))) < len(content):
        some = content[start : start + 2000]
        await receive_part(folder, name, start, len(content), stream(some))


def _report(place: Path, name: str) -> None:
    """As an answer to the browser: from now on the step counts."""
    with open(place / "reported", "a") as file:
        file.write(f"{name}\n")


def check_page(place: Path) -> None:
    """What was reported is there."""
    if not (place / "reported").exists():
        return
    reported = (place / "reported").read_text().split()
    found = dump(place / "work" / "project" / "project.sqlite")
    content = (place / "given" / "photo.png").read_bytes()
    photo = place / "work" / "project" / "photos" / "cup" / "photo.png"
    there = {
        "upload": lambda: photo.read_bytes() == content,
        "job": lambda: len(found["jobs"]) == 1,
        "rows": lambda: len(found["rows"]) == 12 and found["jobs"][0]["state"] == "done",
        "mark": lambda: len(found["marks"]) == 1,
        "setting": lambda: len(found["settings"]) == 1,
    }
    for name in reported:
        assert there[name](), f"{name} was reported as finished, and is lost"


def dump(path: Path) -> dict[str, list[Row]]:
    """The tables of a database without times, from a copy: opening one changes its files."""
    with tempfile.TemporaryDirectory() as folder:
        for file in path.parent.glob(f"{path.name}*"):
            if not file.name.endswith("-shm"):
                shutil.copyfile(file, Path(folder) / file.name)
        connection = sqlite3.connect(Path(folder) / path.name)
        connection.row_factory = sqlite3.Row
        assert [row[0] for row in connection.execute("PRAGMA integrity_check")] == ["ok"]
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall()
        found = {
            name: [_lasting(dict(row)) for row in connection.execute(f"SELECT * FROM {name}")]
            for (name,) in tables
        }
        connection.close()
    return found


def _lasting(row: Row) -> Row:
    row = {name: value for name, value in row.items() if name not in ("time", "created", "changed")}
    if str(row.get("key", "")).startswith("seconds"):
        row["value"] = None
    if "progress" in row:
        told = json.loads(str(row["progress"]))
        row["progress"] = {k: told[k] for k in ("phase", "done", "total", "model") if k in told}
    return row


# ── training ─────────────────────────────────────────────────────────────────────────────────


def training_job(place: Path) -> None:
    """A training job, with its work in this process, so that the layer is under it too."""
    import anocaps.detectors
    import anocaps.export.writer  # which compares with the class itself
    import anocaps.inspect.selfcheck

    anocaps.detectors.CapsNetDetector = partial(anocaps.detectors.CapsNetDetector, epochs=1)
    anocaps.inspect.selfcheck.self_check = lambda *_: {"skipped": "not asked for"}
    worker._say = lambda **_: None
    training.settings = lambda *_: {"preset": "quick", "size": 8, "epochs": None}
    training.Training._run = _train_here
    with _project(place) as project:
        if not project.database.jobs("train"):
            source = str(place / "given" / "photos")
            project.jobs.add(
                "train", mode="quick", photo=False, photos=source, name="m", false_alarms=[],
                audit=[], expected=1.0,
            )  # fmt: skip
        _run(project, "train")


def _train_here(training: Training, job: Job, spec_file: Path, *_: object) -> dict[str, object]:
    return worker._train(json.loads(spec_file.read_text()))
