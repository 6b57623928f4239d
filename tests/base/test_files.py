"""Files are written whole or not at all, through links, by one run at a time."""

import errno
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest
from processes import holding

from anocaps.base import files
from anocaps.base.errors import InputError
from anocaps.base.files import (
    check_writable,
    lock,
    one_run,
    replacing,
    temporary_folder,
    unlock,
    write_text,
)


def test_a_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "real").mkdir()
    link, target = tmp_path / "link.csv", tmp_path / "real" / "target.csv"
    link.symlink_to(target)
    for text in ("first", "second"):  # the target is new, then exists
        check_writable(link)
        write_text(link, text)
        assert link.is_symlink() and target.read_text() == text
    assert [path.name for path in target.parent.iterdir()] == ["target.csv"]


def test_a_folder_that_cannot_be_written_is_refused_also_through_a_link(tmp_path, monkeypatch):
    shut = tmp_path / "shut"
    shut.mkdir()
    (tmp_path / "link.csv").symlink_to(shut / "s.csv")
    monkeypatch.setattr(os, "access", lambda path, _: path != shut)  # root can write everywhere
    for path in (shut / "s.csv", tmp_path / "link.csv"):
        with pytest.raises(PermissionError, match="shut"):
            check_writable(path)


def test_a_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "link.csv").symlink_to(tmp_path / "pipe.csv")
    for name in ("pipe.csv", "link.csv"):
        with pytest.raises(OSError, match="pipe") as error:
            check_writable(tmp_path / name)
        assert error.value.filename == str(tmp_path / name)


# ── whole or not at all ──────────────────────────────────────────────────────────────────────


def test_file_and_folder_are_synced_around_the_rename(tmp_path, monkeypatch):
    seen = []
    fsync, replace = os.fsync, os.replace

    def note_sync(handle):
        seen.append("folder" if os.path.samestat(os.fstat(handle), tmp_path.stat()) else "file")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", lambda *a: (seen.append("rename"), replace(*a)))
    write_text(tmp_path / "a.txt", "new")
    assert seen == ["file", "rename", "folder"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    with suppress(KeyboardInterrupt), replacing(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


WRITE_SLOWLY = """
import sys, time
from pathlib import Path
from anocaps.base.files import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("theirs")
    print("writing", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def writer(tmp_path):
    """Another process that is writing a.txt until it is told to end."""
    with holding(WRITE_SLOWLY, tmp_path / "a.txt") as running:
        yield running


def test_temporary_files_of_a_killed_run_are_swept_by_the_next(writer, tmp_path):
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert len(list(tmp_path.iterdir())) > 0
    write_text(tmp_path / "a.txt", "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "ours"


def test_the_file_of_a_live_writer_is_not_swept(writer, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_PATIENCE", 0.2)
    with pytest.raises(InputError, match=r"a\.txt"):
        write_text(tmp_path / "a.txt", "ours")
    monkeypatch.undo()
    waiting = Thread(target=write_text, args=(tmp_path / "a.txt", "ours"))
    waiting.start()
    time.sleep(0.2)
    assert waiting.is_alive()
    writer.communicate("end\n", timeout=60)
    waiting.join(60)
    assert (tmp_path / "a.txt").read_text() == "ours"  # the last to write
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


HOLD_A_FOLDER = """
from anocaps.base.files import temporary_folder
with temporary_folder() as folder:
    (folder / "model").write_text("weights")
    print(folder, flush=True)
    input()
"""


def test_temporary_folders_of_killed_processes_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with holding(HOLD_A_FOLDER) as running:
        (theirs,) = (path for path in tmp_path.iterdir() if path.is_dir())
        with temporary_folder() as ours:
            assert (theirs / "model").exists() and ours != theirs  # its process lives
        running.kill()
        running.wait()
        assert (theirs / "model").exists()
        with temporary_folder() as ours:
            assert [path for path in tmp_path.iterdir() if path.is_dir()] == [ours]
    assert list(tmp_path.iterdir()) == []


def test_what_late_processes_wrote_again_is_removed_and_nothing_else(tmp_path):
    left, other = tmp_path / f"anocaps-{'0a' * 8}", tmp_path / "anocaps-photos"
    for folder in (left, other):
        (folder / "logs").mkdir(parents=True)
    with temporary_folder(tmp_path) as ours:
        assert {path for path in tmp_path.iterdir() if path.is_dir()} == {ours, other}
    assert list(tmp_path.iterdir()) == [other]


def test_a_link_among_the_temporary_folders_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "shared"))
    (tmp_path / "shared").mkdir()
    (tmp_path / "mine").write_text("content")
    names = [f"anocaps-{letter * 16}" for letter in "0a"]
    (tmp_path / "shared" / f"{names[0]}.lock").symlink_to(tmp_path / "mine")
    (tmp_path / "shared" / names[0]).mkdir()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "shared" / names[1]).symlink_to(tmp_path / "theirs")
    with temporary_folder():
        pass
    assert (tmp_path / "mine").read_text() == "content" and (tmp_path / "theirs").is_dir()
    assert all((tmp_path / "shared" / name).is_dir() for name in names)


# ── locks ────────────────────────────────────────────────────────────────────────────────────


def test_one_run_at_a_time_also_through_a_link(tmp_path):
    path, link = tmp_path / "new" / "model.safetensors", tmp_path / "link.safetensors"
    link.symlink_to(path)
    for first, second in ((path, link), (link, path)):
        with (
            one_run(first),
            pytest.raises(InputError, match=second.name),
            one_run(second),
        ):
            pass
    with one_run(path):
        write_text(path, "inside")
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_disk_without_locks_uses_marker_files(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    path = tmp_path / "a.lock"
    held = lock(path, 0)
    assert held is not None and lock(path, 0) is None
    unlock(held)
    write_text(tmp_path / "a.txt", "new")
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_nobody_holds_a_lock_twice(tmp_path):
    """Lock files are removed and created all the time; a wrong order would let two in."""
    threads = [Thread(target=_count, args=(tmp_path,)) for _ in range(4)]
    (tmp_path / "count").write_text("0")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "count").read_text() == "200"
    assert [file.name for file in tmp_path.iterdir()] == ["count"]


def _count(folder: Path) -> None:
    for _ in range(50):
        held = lock(folder / "a.lock", 60)
        value = int((folder / "count").read_text())
        (folder / "count").write_text(str(value + 1))
        unlock(held)
