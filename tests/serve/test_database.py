"""The project's database keeps what the user said, across versions and crashes."""

import sqlite3

import pytest

from anocaps.base.errors import DataError
from anocaps.serve.database import Database


def add_row(database, job, file=b"/a.png", p_value=0.01):
    row = {
        "job": job, "file": file, "file_sha256": "f" * 64, "model": "m", "model_checksum": "c",
        "score": -1.0, "p_value": p_value, "class": "cup", "details": "{}", "error": None,
        "time": 1.0,
    }  # fmt: skip
    database.add_rows([row])
    return database.rows(job)[-1]


@pytest.fixture
def database(tmp_path):
    made = Database(tmp_path / "project.sqlite")
    yield made
    made.close()


def test_marks_are_kept_with_their_circumstances(database):
    row = add_row(database, database.add_job("score", {}))
    database.add_mark(row, "anomalous")
    database.add_mark(row, "normal")
    assert [mark["mark"] for mark in database.read("SELECT * FROM marks")] == [
        "anomalous",
        "normal",
    ]
    (newest,) = database.newest_marks()
    assert newest["mark"] == "normal" and newest["time"] > 0
    assert (newest["file_sha256"], newest["model_checksum"]) == ("f" * 64, "c")
    assert newest["p_value"] == 0.01
    assert database.rows(row["job"])[0]["mark"] == "normal"


def test_a_file_has_one_row_in_a_job(database):
    job = database.add_job("score", {})
    add_row(database, job, p_value=0.01)
    add_row(database, job, p_value=0.5)
    assert [row["p_value"] for row in database.rows(job)] == [0.01]


def test_it_is_written_ahead_and_opened_again(tmp_path):
    path = tmp_path / "project.sqlite"
    first = Database(path)
    first.set("key", {"deep": [1, 2]})
    assert first.read("PRAGMA journal_mode")[0]["journal_mode"] == "wal"
    again = Database(path)  # while the first is open, as after a crash
    assert again.setting("key") == {"deep": [1, 2]}
    first.close()
    again.close()


def test_an_older_file_is_brought_up_to_date(tmp_path, monkeypatch):
    from anocaps.serve import database as module

    path = tmp_path / "project.sqlite"
    older = Database(path)
    older.add_mark(add_row(older, older.add_job("score", {})), "normal")
    older.close()
    monkeypatch.setattr(
        module, "_MIGRATIONS", (*module._MIGRATIONS, "ALTER TABLE marks ADD COLUMN who TEXT;")
    )
    for _ in range(2):  # once for all
        newer = Database(path)
        newer.write("UPDATE marks SET who = 'me'")
        (kept,) = newer.newest_marks()
        assert (kept["mark"], kept["who"]) == ("normal", "me")
        newer.close()
    monkeypatch.undo()
    with pytest.raises(DataError, match="newer"):
        Database(path)


def test_a_migration_is_whole_or_nothing(tmp_path, monkeypatch):
    from anocaps.serve import database as module

    path = tmp_path / "project.sqlite"
    Database(path).close()
    broken = "CREATE TABLE half (id INTEGER); CREATE TABLE jobs (id INTEGER);"
    monkeypatch.setattr(module, "_MIGRATIONS", (*module._MIGRATIONS, broken))
    with pytest.raises(DataError):
        Database(path)
    monkeypatch.undo()
    Database(path).close()
    tables = sqlite3.connect(path).execute("SELECT name FROM sqlite_master").fetchall()
    assert ("half",) not in tables


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "project.sqlite"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(DataError, match="not a database"):
        Database(path)


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "project.sqlite"
    Database(path).close()
    content = bytearray(path.read_bytes())
    content[-4096:-3996] = b"\xff" * 100  # the head of the last page
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        Database(path)
