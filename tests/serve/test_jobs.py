"""Jobs outlive the server: what was running runs again."""

import threading
import time

import pytest

from anocaps.base.errors import InputError
from anocaps.serve.database import Database
from anocaps.serve.jobs import Jobs


@pytest.fixture
def database(tmp_path):
    made = Database(tmp_path / "project.sqlite")
    yield made
    made.close()


def wait(database, job, state):
    until = time.monotonic() + 10
    while database.job(job)["state"] != state:
        assert time.monotonic() < until, database.job(job)
        time.sleep(0.01)


def started(database, work):
    jobs = Jobs(database, {"score": work, "check": lambda job: {"checked": True}})
    jobs.start()
    return jobs


def test_a_failure_says_why(database):
    def fail(job):
        raise InputError("no photos")

    jobs = started(database, fail)
    number = jobs.add("score")
    wait(database, number, "failed")
    assert database.job(number)["error"] == "no photos"
    jobs.close()


def test_what_ends_with_the_server_runs_again(database):
    """Also a job that fails because the server ends, as when both get a signal."""
    begun = threading.Event()

    def work(job):
        begun.set()
        while not job.stopping:
            time.sleep(0.01)
        raise InputError("the process was killed")

    jobs = started(database, work)
    number = jobs.add("score")
    assert begun.wait(5)
    jobs.close()
    assert database.job(number)["state"] == "running"
    jobs = started(database, lambda job: {"again": True})
    wait(database, number, "done")
    assert database.job(number)["progress"]["again"]
    jobs.close()


def test_stop_and_go_on(database):
    turns = []

    def work(job):
        turns.append(job.progress.get("step", 0))
        for step in range(turns[-1], 1000):
            job.tell(now=True, step=step)
            if step == 5 and len(turns) > 1:
                return {}
            time.sleep(0.005)

    jobs = started(database, work)
    number = jobs.add("score")
    while database.job(number)["progress"].get("step", 0) < 3:
        time.sleep(0.005)
    jobs.stop(number)
    wait(database, number, "stopped")
    kept = database.job(number)["progress"]["step"]
    database.change_job(number, progress={"step": 3})
    jobs.go_on(number)
    wait(database, number, "done")
    assert kept >= 3 and turns == [0, 3]
    jobs.close()


def test_a_queued_job_is_stopped_at_once(database):
    release = threading.Event()
    jobs = started(database, lambda job: {"waited": release.wait(5)})
    first, second = jobs.add("score"), jobs.add("score")
    wait(database, first, "running")
    jobs.stop(second)
    assert database.job(second)["state"] == "stopped"
    release.set()
    wait(database, first, "done")
    assert database.job(second)["state"] == "stopped"
    jobs.close()
