"""Faults that the crash points found, each with a test that needs no layer."""

import errno
import os
import sqlite3
import time
from types import SimpleNamespace

import pytest
from brightness import Brightness
from running_server import running

from anocaps.base.errors import DataError
from anocaps.base.files import remove, sweep
from anocaps.inspect.parts.folder import Part, PartsFolder, sha256
from anocaps.inspect.tables import UnfinishedTable
from anocaps.serve import jobs as jobs_module
from anocaps.serve import scoring
from anocaps.serve.database import Database
from anocaps.serve.jobs import Jobs
from anocaps.serve.project import Project
from anocaps.serve.receiving import received
from anocaps.study.packed import pack
from anocaps.study.runner import _sweep


def test_what_a_killed_writer_left_is_swept_also_if_nobody_writes_again(tmp_path):
    """The rename was done and the lock file was not removed."""
    for clean in (sweep, remove):
        left = [tmp_path / name for name in (".m.tmp", ".m.tmp.lock")]
        for path in left:
            path.touch()
        clean(tmp_path / "m")
        assert not list(tmp_path.iterdir())


def test_an_upload_that_arrived_without_its_name_is_sent_again(tmp_path):
    """The server was killed between the last byte and the rename."""
    (tmp_path / ".1.png.part").write_bytes(b"0123456789")
    assert received(tmp_path, "1.png", 10) == 0
    assert received(tmp_path, "1.png", 12) == 10


def test_a_disk_error_does_not_call_a_database_foreign(tmp_path):
    with pytest.raises(DataError) as error:
        Database(tmp_path / "missing" / "project.sqlite")
    assert "move it away" not in str(error.value)
    (tmp_path / "project.sqlite").write_bytes(b"something else" * 100)
    with pytest.raises(DataError, match="move it away"):
        Database(tmp_path / "project.sqlite")


@pytest.mark.parametrize("state", ["running", "done"])
def test_jobs_go_on_after_the_disk_was_full(tmp_path, monkeypatch, state):
    monkeypatch.setattr(jobs_module, "_PATIENCE", 0.01)
    database = Database(tmp_path / "project.sqlite")
    change, full = database.change_job, iter([True, True])

    def failing(number, **fields):
        if fields.get("state") == state and next(full, False):
            raise sqlite3.OperationalError("database or disk is full")
        change(number, **fields)

    monkeypatch.setattr(database, "change_job", failing)
    jobs = Jobs(database, {"score": lambda job: {}})
    jobs.start()
    numbers = [jobs.add("score"), jobs.add("score")]
    until = time.monotonic() + 10
    while any(database.job(number)["state"] != "done" for number in numbers):
        assert time.monotonic() < until, database.jobs()
        time.sleep(0.01)
    jobs.close()
    database.close()


def test_the_folder_of_a_finished_training_is_swept(tmp_path, monkeypatch):
    """The disk failed while the folder was removed."""
    monkeypatch.setattr(scoring, "load_judge", lambda path, device: Brightness())
    project = Project(tmp_path)
    done, stopped = (project.database.add_job("train", {}) for _ in range(2))
    project.database.change_job(done, state="done")
    project.database.change_job(stopped, state="stopped")
    for number in (done, stopped):
        (tmp_path / "training" / str(number) / "photos").mkdir(parents=True)
    project.close()
    Project(tmp_path).close()
    assert [path.name for path in (tmp_path / "training").iterdir()] == [str(stopped)]


@pytest.mark.parametrize(
    "error", [sqlite3.OperationalError("disk is full"), OSError(errno.ENOSPC, "no space")]
)
def test_a_failing_disk_is_told_to_clients(tmp_path, monkeypatch, error):
    def fail(*_, **__):
        raise error

    with running(tmp_path) as server:
        monkeypatch.setattr(server.project.database, "jobs", fail)
        status, _, content = server.send("GET", "/api/jobs")
        monkeypatch.undo()
    assert status == 507 and b"disk" in content


@pytest.mark.parametrize("done", [True, False])
def test_leftovers_of_a_killed_study_are_swept(tmp_path, done):
    """Locks of a killed runner, and a failure that came after the result was written."""
    left = [".cell.npz.tmp", ".cell.npz.tmp.lock", ".cell.failed.tmp.lock", "cell.running"]
    for name in (*left, "cell.failed", "other.failed"):
        (tmp_path / name).touch()
    _sweep(tmp_path, [SimpleNamespace(cell=SimpleNamespace(name="cell"), is_done=lambda _: done)])
    kept = {"other.failed"} if done else {"cell.failed", "other.failed"}
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_part_whose_line_could_not_be_written_does_not_block_its_folder(tmp_path, monkeypatch):
    part = Part(0, "shard", 1, 0, 0, "", 3, sha256(b"abc"))
    append = PartsFolder._append

    def full(folder, line):
        if b"shard" in line:
            raise OSError(errno.ENOSPC, "no space")
        append(folder, line)

    monkeypatch.setattr(PartsFolder, "_append", full)
    with pytest.raises(OSError, match="no space"), PartsFolder(tmp_path, {}, True) as folder:
        folder.add(part, b"abc")
    monkeypatch.undo()
    with PartsFolder(tmp_path, {}, resume=True) as folder:
        assert not folder.has(0, "shard")
        folder.add(part, b"abc")
    (tmp_path / ".part-000000.parquet.tmp.lock").touch()  # of a killed process
    with PartsFolder(tmp_path, {}, resume=True) as folder:
        assert folder.has(0, "shard")
    assert {path.name for path in tmp_path.iterdir()} == {"_manifest.jsonl", "part-000000.parquet"}


def test_the_table_of_a_watch_is_synced_at_its_end(tmp_path, monkeypatch):
    fsync, synced = os.fsync, set()
    monkeypatch.setattr(os, "fsync", lambda n: (synced.add(os.fstat(n).st_ino), fsync(n)))
    with UnfinishedTable(tmp_path / "s.csv", ("file",), {}, resume=False, live=True) as table:
        table.append([({"file": "a.png"}, {})])
        synced.clear()
    assert {path.stat().st_ino for path in (tmp_path, *tmp_path.iterdir())} <= synced


def test_what_a_killed_pack_left_is_tidied(tmp_path):
    """It was killed after the results were removed, before their folders were."""
    (tmp_path / "mnist" / "kde").mkdir(parents=True)
    for name in ("kde.parquet", ".kde.parquet.tmp.lock"):
        (tmp_path / name).touch()
    assert pack(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["kde.parquet"]
