"""The Ray engine on one local cluster: results equal the local engine's, whatever is killed."""

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from socket import create_connection
from threading import Event, Thread

import pytest
from imitated_s3 import imitated_s3
from nodes import first_node_busy, second_node
from processes import SMALL_PARTS, holding, wait_for
from small_model import agree, write_model, write_noise
from test_local import (
    content_of,
    die,
    die_once,
    die_with_file,
    double,
    fail,
    kill_node,
    overlap,
    overlap_on,
    threads,
)

from anocaps.base.errors import InputError
from anocaps.base.files import temporary_folder
from anocaps.engines.base import Lost, collect
from anocaps.engines.choose import open_engine
from anocaps.inspect.parts import scoring, sources

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'anocaps[ray]'")
parquet = pytest.importorskip("pyarrow.parquet", reason="parts need pyarrow")


@pytest.fixture(scope="module", autouse=True)
def address(tmp_path_factory):
    """A cluster of two CPUs for all tests of this file, which this process is connected to."""
    with pytest.MonkeyPatch.context() as patch:
        # workers import the tasks from this folder
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("AWS_CONFIG_FILE", str(tmp_path_factory.mktemp("aws") / "config"))
        # another process finds the cluster at 127.0.0.1 only with this
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        with open_engine("ray", workers=2):
            yield ray.get_runtime_context().gcs_address


@pytest.fixture
def engine():
    with open_engine("ray", workers=2) as engine:
        yield engine


def test_tasks_errors_and_killed_workers(engine, tmp_path, monkeypatch):
    assert dict(collect(engine, double, range(20))) == {n: 2 * n for n in range(20)}
    with pytest.raises(InputError, match="no 1"):
        list(collect(engine, fail, [1]))
    paths = [tmp_path / str(n) for n in range(3)]
    assert dict(collect(engine, die_once, paths)) == {path: path.name for path in paths}
    assert {found[1] for _, found in collect(engine, threads, range(4))} == {"1"}
    with open_engine("ray", workers=1) as one:
        assert {found[0] for _, found in collect(one, overlap, [tmp_path / "busy"] * 4)} == {False}
    monkeypatch.setattr("anocaps.engines.base.RETRIES", 0)
    ((_, found),) = collect(engine, die, [0])
    assert isinstance(found, Lost)


def test_what_a_killed_worker_left_of_a_shared_file_is_removed(engine, tmp_path):
    (tmp_path / "model.bin").write_bytes(b"weights")
    given = (engine.share(tmp_path / "model.bin"), tmp_path / "note")
    ((_, stays),) = collect(engine, die_with_file, [given])
    assert stays is False


def test_only_this_computer_reaches_a_local_cluster(address):
    """Linux answers at 127.0.0.2 for a server that listens at every address."""
    port = int(address.rpartition(":")[2])
    create_connection(("127.0.0.1", port)).close()
    with pytest.raises(ConnectionRefusedError):
        create_connection(("127.0.0.2", port))


def test_a_local_cluster_starts_only_what_runs_tasks(engine):
    """Each further process delays the start; tasks are as urgent as those of the local engine."""
    node = ray._private.worker._global_node
    assert set(node.all_processes) - {"reaper"} == {"gcs_server", "raylet"}
    assert {found for _, found in collect(engine, lambda step: os.nice(step), [0])} == {os.nice(0)}


OWN = """
import sys
import ray
from anocaps.engines.choose import open_engine
with open_engine("ray", workers=1):
    print("started", ray._private.worker._global_node.get_session_dir_path(), sep="\\n", flush=True)
    sys.stdin.readline()
"""


def test_a_local_cluster_leaves_no_file_behind(tmp_path, monkeypatch):
    """Its folder is this user's alone. The next run removes what a killed one left."""
    deep = tmp_path / "a folder whose name is too long for the names of sockets in it"
    deep.mkdir()
    monkeypatch.setenv("TMPDIR", str(deep))
    with holding(OWN) as killed:
        first = _folder_of(killed)
    wait_for(lambda: not _names(first))  # its processes notice that they are alone
    with holding(OWN) as running:
        second = _folder_of(running)
        assert second.stat().st_mode & 0o777 == 0o700
        assert not first.exists()
        running.communicate("end\n", timeout=120)
        assert running.returncode == 0
    wait_for(lambda: not _names(second))
    with temporary_folder(second.parent):  # removes what late processes wrote
        assert not list(second.parent.glob(f"{second.name}*"))
    assert list(deep.iterdir()) == []


def _names(folder: Path) -> bool:
    """Whether the command of any process names this folder."""
    name = os.fsencode(folder)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if name in path.read_bytes():
                return True
    return False


def _folder_of(process) -> Path:
    """The folder for temporary files that holds the session of a cluster."""
    session = Path(process.stdout.readline().strip())
    return next(folder for folder in session.parents if folder.parent == Path("/tmp"))


def test_a_task_gets_no_more_cpus_than_a_node_has():
    """Ray would wait for ever for a node with more."""
    with open_engine("ray", threads=64) as engine:
        assert engine._cpus == engine.workers + 1 == 2
        assert dict(collect(engine, double, range(2))) == {0: 0, 1: 2}


def test_a_gpu_that_is_not_there_is_told():
    with pytest.raises(InputError, match="no GPU"):
        open_engine("ray", gpu=True)


def test_a_shared_file_travels_once_to_each_node_and_a_node_may_end(tmp_path, address, monkeypatch):
    (tmp_path / "model.bin").write_bytes(b"weights")
    (tmp_path / "nodes").mkdir()
    puts, put = [], ray.put
    monkeypatch.setattr(ray, "put", lambda content: puts.append(put(content)) or puts[-1])
    with second_node(address) as node, open_engine("ray", workers=3) as engine:
        shared = engine.share(tmp_path / "model.bin")
        found = [
            found for _, found in collect(engine, content_of, [(shared, tmp_path / "nodes")] * 9)
        ]
        assert {each[:2] for each in found} == {("model.bin", b"weights")}
        nodes = {each[2] for each in found}
        assert len(nodes) == 2
        (reference,) = puts
        copies = ray.experimental.get_object_locations(puts)[reference]["node_ids"]
        assert sorted(copies) == sorted(nodes)
        (second,) = nodes - {ray.get_runtime_context().get_node_id()}
        given = (second, tmp_path / "killed")
        found = [found for _, found in collect(engine, kill_node, [given] * 9)]
        assert len(found) == 9 and set(found) == nodes - {second}
        assert node.dead_processes()


def test_tasks_with_a_gpu_run_where_it_is_one_after_the_other(tmp_path, address):
    """Ray counts GPUs without looking for them, so this needs none."""
    with second_node(address, num_cpus=2, num_gpus=1) as node:
        with open_engine("ray", workers=3, gpu=True) as engine:
            assert engine.workers == 1
            found = [found for _, found in collect(engine, overlap_on, [tmp_path / "busy"] * 4)]
        assert found == [(False, node.node_id)] * 4
        with open_engine("ray", workers=3, gpu=False) as engine:
            assert engine.workers == 3


# ── a study ──────────────────────────────────────────────────────────────────────────────────

STUDY = (
    *("study", "run", "paper", "--dataset", "digits", "--method", "capsnet", "--seeds", 1),
    *("--epochs", 1, "--limit", 4, "--preset", "quick", "--device", "cpu", "--jobs", 1, "--json"),
    "--folder",
)


def test_a_study_whose_node_and_driver_are_killed_equals_the_local_engines_bit_for_bit(
    command, tmp_path, address
):
    local, there = tmp_path / "local", tmp_path / "ray"
    assert command(*STUDY, local)[0] == 0
    words = [*STUDY, there, "--engine", "ray"]

    def finished(cells: int) -> list[Path]:
        """Wait for so many result files."""
        wait_for(lambda: len(_results(there)) >= cells or driver.poll() is not None)
        return _results(there)

    with second_node(address) as node, ExitStack() as busy:
        busy.enter_context(first_node_busy())
        driver = subprocess.Popen(
            [sys.executable, "-m", "anocaps", *map(str, words), "--address", address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            finished(1)
            workers = []  # none is seen between two tasks
            wait_for(
                lambda: (
                    workers.extend(_workers(b"ray::run_fleet", node))
                    or workers
                    or driver.poll() is not None
                )
            )
            node.all_processes["raylet"][0].process.kill()
            os.kill(workers[0], signal.SIGKILL)
            busy.close()
            finished(len(finished(1)) + 1)  # by a worker of the first node
        finally:
            driver.kill()
        _, err = driver.communicate()
    assert driver.returncode == -signal.SIGKILL, err
    kept = {path: (path.stat().st_mtime_ns, scores(path)) for path in finished(0)}
    assert 2 <= len(kept) < 10
    wait_for(lambda: not _workers(b"ray::run_fleet"))  # Ray ends those of the killed driver

    code, out, err = command(*words)
    assert code == 0, err
    assert [row["done"] for row in json.loads(out)["rows"]] == [10]
    results = {path.relative_to(local) for path in local.rglob("*.npz")}
    assert len(results) == 10
    for path in results:
        assert scores(local / path) == scores(there / path)
    for path, before in kept.items():  # none is run again
        assert (path.stat().st_mtime_ns, scores(path)) == before


def _results(folder: Path) -> list[Path]:
    return list(folder.rglob("*.npz"))


def scores(path):
    from anocaps.study.resultfile import read_result

    return {name: values.tobytes() for name, values in read_result(path).scores.items()}


# ── scoring ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "model.onnx")


def test_scores_with_killed_workers_equal_the_local_table(command, model, tmp_path, monkeypatch):
    photos = write_noise(tmp_path / "photos", 120)
    assert command("score", model, photos, "-o", tmp_path / "table.parquet")[0] == 0
    monkeypatch.setattr(sources, "SHARD", 4)
    loads, killed = tmp_path / "loads", tmp_path / "killed"
    _watch_tasks(loads, killed, monkeypatch)
    chance, ended, kills = random.Random(5), Event(), []

    def kill() -> None:
        while not ended.wait(chance.uniform(0.05, 0.2)) and len(kills) < 3:
            if workers := _workers(b"ray::score_shard"):
                kills.append(chance.choice(workers))
                os.kill(kills[-1], signal.SIGKILL)
                killed.touch()

    killer = Thread(target=kill, daemon=True)
    killer.start()
    words = ("score", model, photos, "-o", tmp_path / "parts", "--engine", "ray", "--jobs", 2)
    code, out, err = command(*words, "--json")
    ended.set()
    killer.join()
    assert code == 0 and kills, err
    assert json.loads(out)["scored"] == 119
    agree(parquet.read_table(tmp_path / "parts"), parquet.read_table(tmp_path / "table.parquet"))
    processes = loads.read_text().split()
    assert len(processes) == len(set(processes)) < 30  # shards


def test_scores_of_a_bucket_equal_those_of_the_folder(command, model, tmp_path, monkeypatch):
    photos = write_noise(tmp_path / "photos", 10)
    monkeypatch.setattr(sources, "SHARD", 4)
    with imitated_s3(Path(os.environ["AWS_CONFIG_FILE"])) as s3:
        s3.makedirs("photos", exist_ok=True)
        s3.put(f"{photos}/", "photos/new/", recursive=True)
        for source, out, engine in ((photos, "here", "local"), ("s3://photos/new", "there", "ray")):
            code, _, err = command("score", model, source, "-o", tmp_path / out, "--engine", engine)
            assert code == 0, err
    here, there = (parquet.read_table(tmp_path / name) for name in ("here", "there"))
    names = [f"s3://photos/new/{path.name}" for path in sorted(photos.iterdir())]
    assert there.column("file").to_pylist() == names
    assert there.column("error").is_null().equals(here.column("error").is_null())
    agree(*(table.drop_columns(["file", "error"]) for table in (there, here)))


def _watch_tasks(log, killed, monkeypatch):
    """Each time a process loads the model, `log` gets a line. Tasks wait until one was killed."""
    task, load = scoring.score_shard, scoring.load_judge

    def score_shard(given):
        def logged(*words):
            with open(log, "a") as file:
                file.write(f"{os.getpid()}\n")
            return load(*words)

        scoring.load_judge = logged
        wait_for(killed.exists)
        return task(given)

    monkeypatch.setattr(scoring, "score_shard", score_shard)


def _workers(task: bytes, node=None) -> list[int]:
    """The processes of a node that run this task, now. Without `node`, those of the first one."""
    node = node or ray._private.worker._global_node
    raylet = f"PPid:\t{node.all_processes['raylet'][0].process.pid}\n"
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words, owner = path.read_bytes(), path.with_name("status").read_text()
        except OSError:
            continue
        if words.startswith(task) and raylet in owner:
            found.append(int(path.parent.name))
    return found


def test_a_killed_command_is_resumed(command, model, tmp_path, address, monkeypatch):
    photos = write_noise(tmp_path / "photos", 400)
    words = ["score", model, photos, "-o", tmp_path / "parts", "--engine", "ray"]
    driver = subprocess.Popen(
        [sys.executable, "-c", SMALL_PARTS, *map(str, words)],
        stderr=subprocess.PIPE,
        env=os.environ | {"RAY_ADDRESS": address},
    )
    manifest = tmp_path / "parts" / "_manifest.jsonl"

    def a_few_parts():
        return driver.poll() is not None or (manifest.exists() and manifest.stat().st_size > 1000)

    wait_for(a_few_parts)
    driver.kill()
    _, err = driver.communicate()
    assert driver.returncode == -signal.SIGKILL, err
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").glob("*.parquet")}
    assert kept

    monkeypatch.setattr(sources, "SHARD", 4)
    code, _, err = command(*words, "--resume")
    assert code == 0, err
    listed = [json.loads(line)["part"] for line in manifest.read_text().splitlines()[1:-1]]
    assert sorted(listed) == list(range(100))
    names = parquet.read_table(tmp_path / "parts").column("file").to_pylist()
    assert names == sorted(map(str, photos.iterdir()))
    again = [path for path, time in kept.items() if path.stat().st_mtime_ns != time]
    assert len(again) <= 1  # one part may have been written, but not listed yet
