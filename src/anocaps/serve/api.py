"""The API for programs: score images, list models, follow jobs, health and metrics."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from anocaps.base.errors import AnocapsError, InputError
from anocaps.base.text import printable, shown
from anocaps.inspect.scoring import Scored
from anocaps.judging.calibration import check_alpha
from anocaps.judging.judgement import Judge
from anocaps.serve.database import Record
from anocaps.serve.jobs import OVER
from anocaps.serve.project import Project
from anocaps.serve.receiving import Parts, check_room
from anocaps.serve.scoring import Batcher, error_of, heat_image, scores_of, verdict
from anocaps.serve.training import card_lines

_SMALL = 1_000_000  # bytes of a body for which the disk surely has room
_MOST_JOBS = 200  # listed at once, so that memory does not grow with every job
_NEWS_EVERY = 0.2  # seconds between two looks for changed jobs
_STILL_HERE = 15.0  # seconds of silence after which a stream sends a comment


class Json(JSONResponse):
    """ASCII, because a file name may contain bytes that UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class ImageScore(BaseModel):
    """What the model says of one image."""

    file: str
    score: float | None = Field(description="normality score: higher = more normal")
    scores: dict[str, float | None] = Field(description="by every score function")
    p_value: float | None = Field(description="small = anomalous")
    p_value_class: float | None
    verdict: str | None = Field(description="'normal' or 'anomalous'")
    class_: str | None = Field(alias="class")
    sentence: str
    error: str | None
    heatmap: str | None = Field(description="a transparent PNG in base64, on request")


class Wanted(BaseModel):
    """The query of a request for scores."""

    model: str | None = Field(None, description="by default the newest")
    alpha: float | None = Field(None, description="the false-alarm rate")
    heatmap: bool = False


class Scores(BaseModel):
    model: str
    checksum: str
    alpha: float
    images: list[ImageScore]


class FolderToScore(BaseModel):
    folder: str = Field(description="a folder on the server, inside its roots")
    watch: bool = Field(False, description="go on with files that are added later")


_MULTIPART = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {
                        "images": {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                        }
                    },
                }
            }
        },
    }
}


Scorer = Callable[[Request, Wanted], Awaitable[Json]]


def scorer(project: Project) -> Scorer:
    """The function behind `POST /api/score`."""

    async def score(request: Request, wanted: Annotated[Wanted, Query()]) -> Json:
        """Score one image or many, sent as files of a multipart form."""
        if (known := project.models.recent(wanted.model)) is None:
            known = await run_in_threadpool(batcher_of, project, wanted.model)
        name, batcher = known
        heat = wanted.heatmap
        rate = batcher.alpha if wanted.alpha is None else wanted.alpha
        check_alpha(rate, batcher.judge.calibration_size)
        content_type = request.headers.get("content-type", "")
        length = int(request.headers.get("content-length", project.limits.body))
        if length > _SMALL:
            check_room(project.incoming, length)
        parts = Parts(content_type, project.incoming_stem(), project.limits.image, project.room)
        try:
            await parts.receive(request.stream())
            if not parts.names:
                raise HTTPException(400, "The form holds no image file.")
            found = await batcher.score(parts.files, heat)
        finally:
            parts.discard()

        def told() -> list[Record]:
            pairs = zip(found, parts.names)
            return [_image_score(batcher.judge, each, name, rate, heat) for each, name in pairs]

        images = await run_in_threadpool(told) if heat else told()
        for image in images:
            project.metrics.image(name, image["verdict"])
        about = {"model": name, "checksum": batcher.judge.checksum, "alpha": rate}
        return Json(about | {"images": images})

    return score


def without_fastapi(score: Scorer) -> ASGIApp:
    """`score` as an application: the layers of FastAPI would slow down small requests."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            wanted = Wanted.model_validate(dict(request.query_params))
        except ValidationError as error:
            wrong = [each | {"loc": ("query", *each["loc"])} for each in error.errors()]
            raise RequestValidationError(wrong) from error
        answer = await score(request, wanted)
        await answer(scope, receive, send)

    return app


def batcher_of(project: Project, name: str | None) -> tuple[str, Batcher]:
    try:
        return project.models.batcher(name)
    except KeyError:
        raise HTTPException(404, f"There is no model {shown(str(name))}.") from None
    except (AnocapsError, OSError) as error:
        if not (known := project.models.paths()):
            raise HTTPException(404, "There is no model yet; train one first.") from None
        broken = shown(name or next(iter(known)))
        detail = f"The model {broken} cannot be loaded; GET /api/models says why."
        raise HTTPException(500, detail) from error


def routes(project: Project, score: Scorer) -> APIRouter:
    router = APIRouter(default_response_class=Json)

    def job_of(number: int) -> Record:
        if (job := project.database.job(number)) is None:
            raise HTTPException(404, f"There is no job {number}.")
        return job

    router.post(
        "/api/score",
        tags=["programs"],
        openapi_extra=_MULTIPART,
        responses={200: {"model": Scores}},
    )(score)

    @router.get("/api/models", tags=["programs"])
    def models() -> list[Record]:
        """All models, the newest first."""
        found: list[Record] = []
        for name, path in project.models.paths().items():
            try:
                near = project.models.normal_photos(name).exists()
                about = described(*project.models.batcher(name))
                found.append(about | {"nearest": near, "onnx": path.suffix == ".onnx"})
            except AnocapsError as error:
                found.append({"name": name, "error": error_of(str(error), path, name)})
            except OSError as error:
                found.append({"name": name, "error": f"{name}: {error.strerror}"})
        return found

    @router.get("/api/models/{name}/file", tags=["programs"])
    def model_file(name: str) -> FileResponse:
        """The model as a file: ONNX if it was exported."""
        path = project.models.paths().get(name)
        if path is None:
            raise HTTPException(404, f"There is no model {shown(name)}.")
        kind = "application/octet-stream"
        return FileResponse(path, filename=printable(path.name), media_type=kind)

    @router.post("/api/models/{name}/score-folder", tags=["programs"], status_code=202)
    def score_folder(name: str, wanted: FolderToScore) -> Record:
        """Score all images of a folder on the server, as a job."""
        batcher_of(project, name)
        folder = project.roots.inside(wanted.folder)
        if not folder.is_dir():
            raise InputError(f"{shown(folder)}: there is no such folder")
        kind = "watch" if wanted.watch else "score"
        spec = {"model": name, "folder": str(folder), "watch": wanted.watch}
        return {"job": project.jobs.add(kind, **spec)}

    @router.get("/api/jobs", tags=["programs"])
    def jobs(
        kind: str | None = None, limit: Annotated[int, Query(ge=1, le=1000)] = _MOST_JOBS
    ) -> list[Record]:
        """The newest jobs first; older ones only if they are not over."""
        return [_public(job) for job in project.database.jobs(kind, limit=limit)]

    @router.get("/api/jobs/{number}", tags=["programs"])
    def job(number: int) -> Record:
        return _public(job_of(number))

    @router.post("/api/jobs/{number}/stop", tags=["programs"])
    def stop(number: int) -> Record:
        """Stop a job; what it has finished is kept."""
        project.jobs.stop(job_of(number)["id"])
        return {"job": number}

    @router.post("/api/jobs/{number}/resume", tags=["programs"])
    def resume(number: int) -> Record:
        """Continue a job that was stopped or failed."""
        project.jobs.go_on(job_of(number)["id"])
        return {"job": number}

    @router.get("/api/jobs/{number}/events", tags=["programs"])
    async def events(number: int) -> StreamingResponse:
        """The job as server-sent events, until it is over."""
        job_of(number)
        return _stream(_news(project, number))

    @router.get("/api/events", tags=["page"])
    async def all_events() -> StreamingResponse:
        """Every job that changes, as server-sent events."""
        return _stream(_news(project, None))

    @router.get("/health", tags=["programs"])
    def health() -> Record:
        """Whether the server answers; needs no token."""
        return {"status": "ok"}

    @router.get("/metrics", tags=["programs"], response_class=PlainTextResponse)
    def metrics() -> PlainTextResponse:
        """Counts in the text format of Prometheus."""
        text = project.metrics.text(project.models.waiting())
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    return router


def _image_score(judge: Judge, scored: Scored, name: str, alpha: float, heat: bool) -> Record:
    row = scored.row
    png = heat_image(judge, scored) if heat else None
    return {
        "file": name, "score": row["score"], "scores": scores_of(judge, scored),
        "p_value": row["p_value"], "p_value_class": row["p_value_class"],
        "verdict": verdict(row["p_value"], alpha), "class": row["class"],
        "sentence": scored.sentence, "error": error_of(row["error"], scored.file, name),
        "heatmap": None if png is None else base64.b64encode(png).decode(),
    }  # fmt: skip


def described(name: str, batcher: Batcher) -> Record:
    judge = batcher.judge
    card = getattr(judge, "about", {}).get("card")  # only an exported model has `about`
    return {
        "name": name, "checksum": judge.checksum, "score_function": judge.score_function,
        "score_functions": list(judge.score_names), "classes": list(judge.classes),
        "calibration_images": judge.calibration_size, "alpha": batcher.alpha,
        "heatmaps": judge.heat_scale is not None, "card": card_lines(card) if card else None,
    }  # fmt: skip


def _public(job: Record) -> Record:
    """A job as programs and the page see it."""
    progress = {k: v for k, v in job["progress"].items() if k not in ("classes", "card")}
    if card := job["progress"].get("card"):
        progress["card"] = card_lines(card)
    folder = job["spec"].get("folder") or job["spec"].get("photos")
    spec = {k: v for k, v in job["spec"].items() if k in ("model", "mode", "name", "watch")}
    return {
        "id": job["id"], "kind": job["kind"], "state": job["state"], "error": job["error"],
        "created": job["created"], "folder": None if folder is None else shown(folder),
        "dropped": job["spec"].get("dropped", False),
        "spec": spec, "progress": progress,
    }  # fmt: skip


async def _news(project: Project, number: int | None) -> AsyncIterator[str]:
    """An event for the job, or for each new job: at the start and whenever it changes."""
    loop = asyncio.get_running_loop()
    version, changed, said = -1, -1.0, loop.time()
    while not project.jobs.closing:
        if project.jobs.version != version:
            version = project.jobs.version
            if number is None:
                found = project.database.jobs(changed_after=changed, limit=_MOST_JOBS)
            else:
                found = [job for job in [project.database.job(number)] if job is not None]
            news = [job for job in reversed(found) if job["changed"] > changed]
            changed = max((job["changed"] for job in news), default=changed)
            if news:  # in one write: asyncio logs each write to a client that has gone
                said = loop.time()
                yield "".join(f"event: job\ndata: {json.dumps(_public(job))}\n\n" for job in news)
            if number is not None and any(job["state"] in OVER for job in news):
                return
        if loop.time() - said > _STILL_HERE:
            said = loop.time()
            yield ": still here\n\n"
        await asyncio.sleep(_NEWS_EVERY)


def _stream(events: AsyncIterator[str]) -> StreamingResponse:
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)
