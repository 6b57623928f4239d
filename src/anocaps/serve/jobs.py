"""Long work in the background, with one thread for each kind of work.

The state of a job is in the database. When the server starts again, a job that was running starts
again too; each kind of job skips what it has finished.
"""

import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from anocaps.base.errors import AnocapsError
from anocaps.serve.database import Database, Record

OVER = ("done", "failed", "stopped")
LANES = {
    "check": "scoring", "score": "scoring", "train": "training", "watch": "watching",
    "forecast": "forecasting",
}  # fmt: skip
_PROGRESS_EVERY = 0.2  # seconds
_PATIENCE = 2.0  # seconds until a full disk is tried again


class Stopped(Exception):
    """A job was stopped, by the user or because the server ends."""


class Job:
    """A running job, as the function that does its work sees it."""

    def __init__(self, runner: "Jobs", record: Record) -> None:
        self.runner, self.id, self.spec = runner, record["id"], record["spec"]
        self.progress: Record = record["progress"]
        self._told = 0.0

    @property
    def stopping(self) -> bool:
        return self.runner.closing or self.id in self.runner.stop_asked

    def tell(self, now: bool = False, **progress: Any) -> None:
        """Store the progress, at most a few times a second; raise Stopped if the job must end."""
        if self.stopping:
            raise Stopped
        self.progress = self.progress | progress
        if now or time.monotonic() - self._told >= _PROGRESS_EVERY:
            self._told = time.monotonic()
            self.runner.change(self.id, progress=self.progress)


class Jobs:
    """Runs jobs in the order in which they were added."""

    def __init__(self, database: Database, work: dict[str, Callable[[Job], Record]]) -> None:
        self.database, self._work = database, work
        self.closing = False
        self.version = 0  # grows with every change, for those who wait for news
        self.stop_asked: set[int] = set()
        self._again: set[int] = set()
        self._wake = {lane: threading.Event() for lane in LANES.values()}
        for job in database.jobs(state="running"):
            database.change_job(job["id"], state="queued")
        self._threads = [
            threading.Thread(target=self._run, args=(lane,), daemon=True) for lane in self._wake
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def add(self, kind: str, **spec: Any) -> int:
        number = self.database.add_job(kind, spec)
        self._notify()
        return number

    def change(self, number: int, **fields: Any) -> None:
        self.database.change_job(number, **fields)
        self.version += 1

    def stop(self, number: int) -> None:
        """A queued job stops at once, a running one when its work next reports."""
        job = self.database.job(number)
        if job is not None and job["state"] == "queued":
            self.change(number, state="stopped")
        elif job is not None and job["state"] == "running":
            self.stop_asked.add(number)

    def go_on(self, number: int) -> None:
        """Continue a job that was stopped or failed."""
        job = self.database.job(number)
        if job is not None and job["state"] in ("stopped", "failed"):
            self.stop_asked.discard(number)
            self.change(number, state="queued", error="")
            self._notify()

    def again(self, number: int) -> None:
        """Run a job once more, after its present run if it is running."""
        job = self.database.job(number)
        if job is not None and job["state"] in OVER:
            self.change(number, state="queued", error="")
        else:
            self._again.add(number)
        self._notify()

    def close(self) -> None:
        """End soon; running jobs stay 'running', so that the next server continues them."""
        self.closing = True
        for event in self._wake.values():
            event.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=10)

    def _notify(self) -> None:
        self.version += 1
        for event in self._wake.values():
            event.set()

    def _queued(self, lane: str) -> Iterator[Record]:
        for job in reversed(self.database.jobs(state="queued")):
            if LANES[job["kind"]] == lane:
                yield job

    def _run(self, lane: str) -> None:
        while not self.closing:
            self._wake[lane].clear()
            job = next(self._queued(lane), None)
            if job is None:
                self._wake[lane].wait()
            else:
                self._run_one(job)

    def _run_one(self, record: Record) -> None:
        job = Job(self, record)
        self._change_surely(job.id, state="running")
        try:
            result = self._work[record["kind"]](job)
            state = "queued" if job.id in self._again else "done"
            self._again.discard(job.id)
            self._change_surely(job.id, state=state, progress=job.progress | result)
        except Stopped:
            if not self.closing:
                self._change_surely(job.id, state="stopped", progress=job.progress)
        except Exception as error:
            if self.closing:  # any failure now is due to the end of the server
                return
            if not isinstance(error, AnocapsError | OSError | sqlite3.OperationalError):
                traceback.print_exc()
            known = isinstance(error, AnocapsError)
            said = str(error) if known else f"{type(error).__name__}: {error}"
            self._change_surely(job.id, state="failed", error=said, progress=job.progress)
        finally:
            self.stop_asked.discard(job.id)

    def _change_surely(self, number: int, **fields: Any) -> None:
        """Wait while the disk is full: a state that is lost would stop all later jobs."""
        while not self.closing:
            try:
                return self.change(number, **fields)
            except sqlite3.OperationalError as error:
                print(f"{self.database.path}: {error}", file=sys.stderr, flush=True)
                time.sleep(_PATIENCE)
