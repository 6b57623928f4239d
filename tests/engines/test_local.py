"""The local engine: every task is done once, whatever happens to processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import wait_for

from anocaps.base.errors import InputError
from anocaps.engines import choose
from anocaps.engines.base import Lost, collect
from anocaps.engines.choose import open_engine, threads_of
from anocaps.engines.local import Processes, ThisProcess


def double(number):
    return 2 * number


def die_once(path):
    """Kill this process, unless the file says that it was done before."""
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return path.name


def die(_):
    os.kill(os.getpid(), signal.SIGKILL)


def fail(number):
    raise InputError(f"no {number}")


def threads(_):
    return os.getpid(), os.environ["OMP_NUM_THREADS"]


def content_of(given):
    """What a task on Ray sees of a shared file, and on which node. It waits for a second node."""
    import ray

    shared, nodes = given
    here = ray.get_runtime_context().get_node_id()
    (nodes / here).touch()
    wait_for(lambda: len(list(nodes.iterdir())) == 2)
    with shared.opened() as path:
        return path.name, path.read_bytes(), here


def die_with_file(given):
    """Kill this process while it reads a shared file. The next one tells whether the copy stays."""
    shared, note = given
    with shared.opened() as path:
        if not note.exists():
            note.write_text(str(path.parent))
            os.kill(os.getpid(), signal.SIGKILL)
        return Path(note.read_text()).exists()


def kill_node(given):
    """Kill the node, if this task runs there. Else wait until it is killed."""
    import ray

    node, killed = given
    here = ray.get_runtime_context().get_node_id()
    if here == node:
        killed.touch()
        os.kill(os.getppid(), signal.SIGKILL)  # the raylet
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for(killed.exists)
    return here


def overlap(path):
    """Whether another task runs."""
    there = path.exists()
    path.touch()
    time.sleep(0.1)
    path.unlink()
    return there, os.getpid()


def overlap_on(path):
    """The same, and the node of a Ray cluster."""
    import ray

    return overlap(path)[0], ray.get_runtime_context().get_node_id()


def sleep_after(path):
    path.write_text(str(os.getpid()))
    time.sleep(60)


@pytest.fixture(params=["this process", "processes"])
def engine(request):
    with ThisProcess() if request.param == "this process" else Processes(2, 1) as engine:
        yield engine


def test_each_description_gets_its_result(engine):
    found = dict(collect(engine, double, range(20)))
    assert found == {n: 2 * n for n in range(20)}


def test_an_error_of_a_task_is_raised_here(engine):
    with pytest.raises(InputError, match="no 1"):
        list(collect(engine, fail, [1]))


def test_descriptions_are_drawn_as_workers_get_free(engine):
    drawn = []
    results = collect(engine, double, (drawn.append(n) or n for n in range(100)))
    next(results)
    assert len(drawn) <= 2 * engine.workers + 1


def test_killed_processes_are_replaced_and_their_tasks_run_again(tmp_path):
    paths = [tmp_path / str(n) for n in range(4)]
    with Processes(2, 3) as engine:
        assert dict(collect(engine, die_once, paths)) == {path: path.name for path in paths}
        pids, counts = zip(*(found for _, found in collect(engine, threads, range(6))))
    assert set(counts) == {"3"} and os.getpid() not in pids


def test_a_task_that_always_kills_its_process_is_given_up(monkeypatch):
    monkeypatch.setattr("anocaps.engines.base.RETRIES", 1)
    with Processes(2, 1) as engine:
        ((_, found),) = collect(engine, die, [0])
        assert found == Lost("exit code -9")
        assert list(collect(engine, double, [4])) == [(4, 8)]


def _ended(pid: int) -> bool:
    for _ in range(100):
        status = Path(f"/proc/{pid}/stat")
        if not status.exists() or status.read_text().split()[2] == "Z":
            return True
        time.sleep(0.1)
    return False


def _pid_in(path: Path) -> int:
    wait_for(lambda: path.exists() and path.read_text())
    return int(path.read_text())


def test_leaving_the_engine_ends_what_runs(tmp_path):
    with Processes(2, 1) as engine:
        engine.submit(0, sleep_after, tmp_path / "pid")
        pid = _pid_in(tmp_path / "pid")
    assert _ended(pid)


ORPHAN = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]).parent / "helpers")]
from test_local import sleep_after
from anocaps.engines.local import Processes
if __name__ == "__main__":
    with Processes(2, 1) as engine:
        engine.submit(0, sleep_after, Path(sys.argv[2]))
        engine.wait()
"""


def test_processes_end_with_a_killed_parent(tmp_path):
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    words = [sys.executable, script, Path(__file__).parent, tmp_path / "pid"]
    with subprocess.Popen(words) as parent:
        pid = _pid_in(tmp_path / "pid")
        parent.kill()
    assert _ended(pid)


@pytest.mark.parametrize(
    ("given", "ray", "local"),
    [
        ("4", 4, 2),
        (" 4 ", 4, 2),
        ("4,2", 4, 2),
        ("1", 1, 1),
        *((bad, 1, 3) for bad in ("", "abc", "0", "-1", "1.5", "9" * 5000, "²", ",4")),
    ],
)
def test_threads_are_those_of_openmp_if_it_names_a_number(given, ray, local, monkeypatch):
    monkeypatch.setattr(choose, "usable_cores", lambda: 6)
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert (threads_of("ray", None), threads_of("local", 2)) == (ray, local)


def test_engines_by_name():
    assert isinstance(open_engine("local"), ThisProcess)
    assert open_engine("local", workers=3).workers == 3
    for name, address, says in [("x", None, "engine 'x'"), ("local", "a:1", "--engine ray")]:
        with pytest.raises(InputError, match=says):
            open_engine(name, address)


def test_ray_that_is_not_installed_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'anocaps\[ray\]'"):
        open_engine("ray")


def test_a_cluster_that_does_not_answer_is_told():
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'anocaps[ray]'")
    with pytest.raises(InputError, match=r"127\.0\.0\.1:1"):
        open_engine("ray", "127.0.0.1:1")
