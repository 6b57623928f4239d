"""What the page needs beside the API for programs: photos, uploads, training, rows and marks."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, Field
from starlette.background import BackgroundTask

from anocaps.base.errors import InputError
from anocaps.base.files import temporary_folder
from anocaps.base.text import shown
from anocaps.serve import photos, review, training
from anocaps.serve.api import Json, batcher_of
from anocaps.serve.database import Record
from anocaps.serve.project import Project
from anocaps.serve.receiving import receive_part, received, safe_name
from anocaps.serve.scoring import heat_over_photo

_MOST_ROWS = 5_000  # of one answer
_KEEP = {"cache-control": "private, max-age=3600"}


class Folder(BaseModel):
    folder: str | None = Field(None, description="on the server; None: the photos dropped here")


class ClassName(BaseModel):
    source: str
    name: str = Field(min_length=1, max_length=100)
    excluded: bool


class Announced(BaseModel):
    target: str = Field(description="'photos', or 'new/NAME' for photos to review")
    files: list[tuple[str, int]] = Field(max_length=20_000, description="path and size of each")


class ToTrain(BaseModel):
    mode: Literal["quick", "full"]
    false_alarms: bool = Field(False, description="also learn from photos marked normal")
    audit: int | None = Field(None, description="calibrate on the normal photos of this audit")


class Mark(BaseModel):
    mark: Literal["anomalous", "normal", "unsure", "none"]


class AuditWanted(BaseModel):
    alpha: float = Field(gt=0, lt=1)
    among: Literal["unflagged", "all"]
    count: int = Field(50, ge=1, le=1000)


def routes(project: Project) -> APIRouter:
    router = APIRouter(default_response_class=Json, tags=["page"])
    database = project.database

    def target_of(name: str) -> Path:
        """The folder of an upload."""
        if name == "photos":
            return project.photos
        kind, _, own = name.partition("/")
        if kind != "new":
            raise InputError("the target of an upload is photos or new/NAME")
        return project.new / safe_name(own)

    def row_of(number: int) -> Record:
        if (row := database.row(number)) is None:
            raise HTTPException(404, f"There is no row {number}.")
        return row

    def score_job(number: int) -> int:
        job = database.job(number)
        if job is None or job["kind"] not in ("score", "watch"):
            raise HTTPException(404, f"There is no scored folder {number}.")
        return number

    # ── photos ───────────────────────────────────────────────────────────────────────────────

    @router.get("/api/state")
    def state() -> Record:
        """The project at a glance."""
        return {
            "project": shown(project.folder.name),
            "can_train": training.available(),
            "roots": [shown(root) for root in project.roots.folders],
            "part": project.limits.part,
            "most_image": project.limits.image,
        }

    @router.get("/api/folders")
    def folders(path: str | None = None) -> Record:
        """The folders inside a folder of the server, to choose one."""
        if path is None:
            return {"path": None, "folders": [str(root) for root in project.roots.folders]}
        here = project.roots.inside(path)
        if not here.is_dir():
            raise InputError(f"{shown(here)}: there is no such folder")
        inner = (each for each in here.iterdir() if not each.name.startswith("."))
        found = sorted(str(each) for each in inner if each.is_dir() and not each.is_symlink())
        parent = here.parent if here not in project.roots.folders else None
        return {"path": str(here), "parent": parent and str(parent), "folders": found[:1000]}

    @router.post("/api/photos", status_code=202)
    def choose_photos(wanted: Folder) -> Record:
        """Take a folder as the normal photos, and check it."""
        folder = project.photos if wanted.folder is None else project.roots.inside(wanted.folder)
        return {"job": project.jobs.add("check", folder=str(folder))}

    @router.get("/api/photos")
    def described_photos() -> Record:
        """The classes of normal photos, and how long training would take where it is known."""
        found = photos.described(database) or {"classes": []}
        used = sum(each["count"] for each in found["classes"] if not each["excluded"])
        seconds = {
            mode: training.expected_seconds(database, found.get("job", 0), mode, used)
            for mode in training.MODES
        }
        marked = len(training.marked_normal(database))
        return found | {"images": used, "seconds": seconds, "marked_normal": marked}

    @router.patch("/api/photos/classes")
    def change_class(wanted: ClassName) -> Record:
        """Rename or exclude a class; two classes of one name are merged."""
        safe_name(wanted.name)  # it becomes the name of a folder
        known = photos.described(database)
        if known is None or wanted.source not in [each["source"] for each in known["classes"]]:
            raise HTTPException(404, "There is no such class.")
        values = (wanted.source, wanted.name, wanted.excluded)
        database.write("INSERT OR REPLACE INTO classes VALUES (?, ?, ?)", *values)
        return {"source": wanted.source}

    @router.get("/api/photos/{check}/{place}/{number}")
    def sample(check: int, place: int, number: int, seen: bool = False) -> Response:
        """A thumbnail of a class; `check` is the number of the check, for the browser's cache."""
        try:
            file, fit = photos.sample(database, check, place, number)
        except LookupError:
            raise HTTPException(404, "There is no such photo.") from None
        inside = project.roots.inside(file)
        return _image(photos.fitted(inside, fit) if seen else photos.photo(inside, large=False))

    # ── uploads ──────────────────────────────────────────────────────────────────────────────

    @router.post("/api/uploads")
    def announce(wanted: Announced) -> list[Record]:
        """How much of each file has arrived, or why it is not accepted."""
        folder = target_of(wanted.target)
        return [_arrived(folder, name, size, project.limits.image) for name, size in wanted.files]

    @router.put("/api/uploads")
    async def part(request: Request, target: str, path: str, offset: int, size: int) -> Record:
        """The bytes of a file from an offset on."""
        if not 0 <= offset <= size <= project.limits.image:
            raise HTTPException(413, "The file is too large.")
        folder = target_of(target)
        return {"received": await receive_part(folder, path, offset, size, request.stream())}

    @router.post("/api/uploads/{target:path}/score", status_code=202)
    def score_upload(target: str, model: str) -> Record:
        """Score the photos that were uploaded to a target; those with a row are left out."""
        spec = {"model": model, "folder": str(target_of(target)), "dropped": True}
        known = [job["id"] for job in database.jobs("score") if job["spec"] == spec]
        if known:
            project.jobs.again(known[0])
        return {"job": known[0] if known else project.jobs.add("score", **spec)}

    # ── training ─────────────────────────────────────────────────────────────────────────────

    @router.post("/api/train", status_code=202)
    def train(wanted: ToTrain) -> Record:
        """Train a model on the photos, as a job."""
        if any(job["state"] in ("queued", "running") for job in database.jobs("train")):
            raise HTTPException(409, "A training is under way; wait for it or stop it.")
        known = photos.described(database)
        if known is None or known["state"] != "done":
            raise InputError("choose photos first")
        source = next(iter(database.jobs("check", limit=1)))["spec"]["folder"]
        extra = training.collect(database, wanted.false_alarms, wanted.audit)
        number = 1 + max((job["id"] for job in database.jobs()), default=0)
        used = sum(each["count"] for each in known["classes"] if not each["excluded"])
        expected = training.expected_seconds(database, known["job"], wanted.mode, used)
        spec = {"mode": wanted.mode, "photos": source, "name": f"model-{number}", **extra}
        spec |= {"check": known["job"], "photo": known["photo"], "expected": expected}
        return {"job": project.jobs.add("train", **spec)}

    # ── review ───────────────────────────────────────────────────────────────────────────────

    @router.get("/api/jobs/{number}/rows")
    def rows(
        number: int, after: int = 0, limit: Annotated[int, Query(ge=1, le=_MOST_ROWS)] = _MOST_ROWS
    ) -> list[Record]:
        """Scored photos in the order of scoring, from a row on."""
        return [review.for_page(row) for row in database.rows(score_job(number), after, limit)]

    @router.get("/api/rows/{number}/photo")
    def row_photo(number: int, large: bool = False) -> Response:
        row = row_of(number)
        return _image(photos.photo(project.roots.inside(review.path_of(row)), large))

    @router.get("/api/rows/{number}/heat")
    def row_heat(number: int) -> Response:
        """Where the photo is anomalous, as a transparent image."""
        row = row_of(number)
        _, batcher = batcher_of(project, row["model"])
        content = heat_over_photo(batcher.judge, project.roots.inside(review.path_of(row)))
        if content is None:
            raise HTTPException(404, "This model has no heatmaps.")
        return _image(content)

    @router.get("/api/rows/{number}/nearest")
    def row_nearest(number: int) -> Response:
        """The most similar normal photo, if training kept the normal photos."""
        row = row_of(number)
        kept = project.models.normal_photos(row["model"])
        if not kept.exists():
            raise HTTPException(404, "The normal photos of this model were not kept.")
        file = photos.most_similar(project.roots.inside(review.path_of(row)), kept)
        return _image(photos.photo(project.roots.inside(file), large=True))

    @router.post("/api/rows/{number}/mark")
    def mark(number: int, wanted: Mark) -> Record:
        """Store the user's mark of a photo; older marks stay in the database."""
        return {"mark": database.add_mark(row_of(number), wanted.mark)}

    # ── results ──────────────────────────────────────────────────────────────────────────────

    @router.post("/api/jobs/{number}/audits")
    def audit(number: int, wanted: AuditWanted) -> Record:
        """Draw photos at random for the user to look at."""
        score_job(number)
        drawn = review.draw_audit(database, number, wanted.alpha, wanted.among, wanted.count)
        return {"audit": drawn}

    @router.get("/api/jobs/{number}/audits")
    def audits(number: int) -> list[Record]:
        return review.audits(database, score_job(number))

    @router.get("/api/models/{name}/days")
    def days(name: str, alpha: float) -> list[Record]:
        """Photos scored and flagged, day by day."""
        return review.days(database, name, alpha)

    @router.get("/api/jobs/{number}/table.csv")
    def table(number: int, alpha: float) -> FileResponse:
        score_job(number)
        return _made("scores.csv", lambda out: review.write_table(database, number, alpha, out))

    @router.get("/api/jobs/{number}/flagged.zip")
    def flagged(number: int, alpha: float) -> FileResponse:
        score_job(number)
        return _made(
            "flagged.zip",
            lambda out: review.write_zip(database, project.roots, number, alpha, out),
        )

    return router


def _arrived(folder: Path, name: str, size: int, most: int) -> Record:
    if not 0 < size <= most:
        return {"error": "it is empty or too large"}
    try:
        return {"received": received(folder, name, size)}
    except InputError as error:
        return {"error": str(error)}


def _image(content: bytes) -> Response:
    return Response(content, media_type=photos.media_type(content), headers=_KEEP)


def _made(name: str, write: Callable[[Path], Any]) -> FileResponse:
    """A file that is made for this answer and removed after it."""
    with ExitStack() as opened:
        out = opened.enter_context(temporary_folder()) / name
        write(out)
        kept = opened.pop_all()
    return FileResponse(out, filename=name, background=BackgroundTask(kept.close))
