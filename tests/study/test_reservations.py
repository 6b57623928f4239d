"""One runner per cell, on every system; what a killed runner left is free at once."""

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import holding

from anocaps.study.reservations import Reservations, is_running

HOLD = """
import sys
from pathlib import Path
from anocaps.study.reservations import Reservations
with Reservations(Path(sys.argv[1])) as mine:
    assert mine.take("a/b")
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that runs the cell a/b until it is told to end."""
    with holding(HOLD, tmp_path) as running:
        yield running


def test_a_cell_is_one_runners_until_it_is_given_back(tmp_path):
    with Reservations(tmp_path) as mine, Reservations(tmp_path) as other:
        assert mine.take("a/b") and not other.take("a/b")
        assert is_running(tmp_path / "a/b.running")
        mine.give_back("a/b")
        assert other.take("a/b")
    assert [path.name for path in tmp_path.rglob("*")] == ["a"]


def test_a_cell_of_another_process_is_left_alone(holder, tmp_path):
    with Reservations(tmp_path) as mine:
        assert is_running(tmp_path / "a/b.running") and not mine.take("a/b")
        holder.communicate("end\n", timeout=60)
        assert not is_running(tmp_path / "a/b.running") and mine.take("a/b")


def test_the_cell_of_a_killed_runner_is_free_at_once(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "a/b.running").exists()
    assert not is_running(tmp_path / "a/b.running")
    with Reservations(tmp_path) as mine:
        assert mine.take("a/b")


def test_a_disk_without_locks(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with Reservations(tmp_path) as mine:
        assert mine.take("a") and not Reservations(tmp_path).take("a")
        assert is_running(tmp_path / "a.running")
    assert not is_running(tmp_path / "a.running")
    assert list(tmp_path.iterdir()) == []


STATUS_WITHOUT_POSIX = """
import os, sys
sys.modules["fcntl"] = None  # and what else Windows lacks
for name in ("fchmod", "getuid", "geteuid", "sched_getaffinity", "mkfifo", "killpg"):
    delattr(os, name)
from pathlib import Path
from anocaps.study.reservations import Reservations
folder = Path(sys.argv[1])
with Reservations(folder) as mine:
    assert mine.take("digits/dbn/1") and not Reservations(folder).take("digits/dbn/1")
    from anocaps.cli.main import main
    sys.argv = ["anocaps", "study", "status", "--folder", str(folder), "--json"]
    main()
"""


def test_status_needs_nothing_that_only_posix_has(tmp_path: Path):
    cell = {"dataset": "digits", "method": "dbn", "fingerprint": "f"}
    (tmp_path / "plan.json").write_text(json.dumps({f"digits/dbn/{n}": cell for n in (1, 2)}))
    command = [sys.executable, "-W", "ignore", "-c", STATUS_WITHOUT_POSIX, tmp_path]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (row,) = json.loads(told)["rows"]
    assert (row["running"], row["left"]) == (1, 1)
