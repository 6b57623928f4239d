"""The application: the API, the page and its files, behind the guard."""

import errno
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from anocaps import __version__
from anocaps.base.errors import AnocapsError
from anocaps.serve import api, page_api
from anocaps.serve.project import Project
from anocaps.serve.scoring import Busy
from anocaps.serve.security import Access, Guard

_STATIC = Path(str(files("anocaps.serve") / "static"))
_DISK_FAILED = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}
_SCORE = ("POST", "/api/score")
_NOT_KEPT = {"cache-control": "no-cache"}


def create_app(project: Project, access: Access) -> ASGIApp:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        project.jobs.start()
        yield
        project.close()

    app = FastAPI(
        title="anocaps",
        version=__version__,
        description="Image anomaly detection. Send the token as `Authorization: Bearer TOKEN`.",
        docs_url=None,  # the usual page of documentation loads scripts from another host
        redoc_url=None,
        redirect_slashes=False,  # a redirect fails for a query that is no UTF-8
        lifespan=lifespan,
    )

    @app.exception_handler(AnocapsError)
    async def mendable(_: Request, error: Exception) -> api.Json:
        return api.Json({"detail": str(error)}, 400)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: Exception) -> api.Json:
        """Name the wrong fields, without their values: some values cannot be JSON."""
        assert isinstance(error, RequestValidationError)
        wrong = [{key: each[key] for key in ("type", "loc", "msg")} for each in error.errors()]
        return api.Json({"detail": wrong}, 422)

    @app.exception_handler(sqlite3.OperationalError)
    @app.exception_handler(OSError)
    async def unwritable(_: Request, error: Exception) -> api.Json:
        if isinstance(error, OSError) and error.errno not in _DISK_FAILED:
            raise error
        return api.Json({"detail": "The disk of the server is full or fails."}, 507)

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, __: Exception) -> api.Json:
        return api.Json({"detail": "The client went away."}, 400)  # which nobody reads

    @app.exception_handler(Busy)
    async def busy(_: Request, __: Exception) -> api.Json:
        detail = "Too many images wait to be scored; try again."
        return api.Json({"detail": detail}, 503, headers={"retry-after": "1"})

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(_STATIC / "index.html", headers=_NOT_KEPT)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        return FileResponse(_STATIC / "docs.html", headers=_NOT_KEPT)

    score = api.scorer(project)
    app.include_router(api.routes(project, score))
    app.include_router(page_api.routes(project))
    app.mount("/static", StaticFiles(directory=_STATIC))
    handled = ExceptionMiddleware(api.without_fastapi(score), app.exception_handlers)
    scoring = ServerErrorMiddleware(handled)

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        scores = scope["type"] == "http" and (scope["method"], scope["path"]) == _SCORE
        await (scoring if scores else app)(scope, receive, send)

    limits = project.limits
    return Guard(routed, access, limits.body, limits.receiving, project.metrics.request)
