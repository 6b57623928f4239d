"""Scores in a folder equal those of a table, whatever is killed meanwhile."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from brightness import draw_twelve
from processes import SMALL_PARTS
from small_model import agree, write_model, write_noise

from anocaps.base.errors import ModelFileError
from anocaps.cli.terminal import Stopped
from anocaps.engines.base import Lost
from anocaps.engines.local import OnDisk, ThisProcess
from anocaps.inspect.parts import scoring, sources

pyarrow = pytest.importorskip("pyarrow", reason="parts need pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("onnxruntime", reason="the exported model needs onnxruntime")

IMAGES = 200


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "model.onnx")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_noise(tmp_path_factory.mktemp("many") / "photos", IMAGES)


@pytest.fixture
def table(command, model, photos, tmp_path):
    """The rows of a single table."""
    code, _, err = command("score", model, photos, "-o", tmp_path / "table.parquet")
    assert code == 0, err
    return parquet.read_table(tmp_path / "table.parquet")


def rows_of(folder):
    return parquet.read_table(folder)


def test_the_folder_equals_the_table(command, model, photos, table, tmp_path):
    code, out, err = command(
        "score", model, photos, "-o", tmp_path / "parts", "--jobs", 2, "--json"
    )
    assert code == 0, err
    told = json.loads(out)
    assert (told["scored"], told["failed"]) == (IMAGES - 1, 1)
    assert told["out"] == str(tmp_path / "parts")
    assert rows_of(tmp_path / "parts").equals(table)


def test_a_detector_scores_into_a_folder_too(command, model, photos, tmp_path):
    words = ("score", model.with_suffix(".safetensors"), photos, "--device", "cpu", "-o")
    assert command(*words, tmp_path / "table.parquet")[0] == 0
    assert command(*words, tmp_path / "parts", "--jobs", 1)[0] == 0
    assert rows_of(tmp_path / "parts").equals(rows_of(tmp_path / "table.parquet"))


def test_killed_at_random_moments_no_row_is_lost_or_doubled(model, photos, table, tmp_path):
    """The command and its processes are killed in turns, and the command is resumed."""
    words = ["score", model, photos, "-o", tmp_path / "parts", "--jobs", 2, "--resume"]
    chance, kills = random.Random(3), 0
    while True:
        run = subprocess.Popen(
            [sys.executable, "-c", SMALL_PARTS, *map(str, words)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        before = _lines(tmp_path / "parts")
        while run.poll() is None and kills < 6:
            if _lines(tmp_path / "parts") > before:  # it is at work
                time.sleep(chance.uniform(0, 0.1))
                workers = _children(run.pid)
                kills += 1
                if kills % 3 == 0 or not workers:
                    run.kill()
                    break
                os.kill(chance.choice(workers), signal.SIGKILL)
                before = _lines(tmp_path / "parts")
            time.sleep(0.01)
        _, err = run.communicate()
        if run.returncode == 0:
            break
        assert run.returncode == -signal.SIGKILL, err
    assert kills >= 3
    agree(rows_of(tmp_path / "parts"), table)


def _lines(folder) -> int:
    path = folder / "_manifest.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _children(pid: int) -> list[int]:
    """Processes that score; multiprocessing has one more, which tracks resources."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed if b"spawn_main" in _words(child)]


def _words(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# ── without another process ──────────────────────────────────────────────────────────────────


def test_a_list_is_scored_and_resumed(anocaps, tmp_path, monkeypatch):
    """The judge by brightness, in this process."""
    monkeypatch.setattr(sources, "SHARD", 5)
    photos = draw_twelve(tmp_path / "photos")
    (tmp_path / "list.txt").write_text("\n".join(sorted(map(str, photos.iterdir()))))
    (tmp_path / "model.onnx").touch()
    words = ("score", tmp_path / "model.onnx", tmp_path / "list.txt", "-o", tmp_path / "parts")
    words = (*words, "--jobs", 1)
    scored, stop_after = [], 2

    def shard(task):
        if len(scored) == stop_after:
            raise Stopped
        scored.append(task.number)
        return score_shard(task)

    score_shard = scoring.score_shard
    monkeypatch.setattr(scoring, "score_shard", shard)
    code, _, err = anocaps(*words)
    assert code == 130 and "2 parts are in" in err
    code, _, err = anocaps(*words)
    assert code == 2 and "--resume" in err
    stop_after = None
    code, out, err = anocaps(*words, "--resume")
    assert code == 0 and "12 images scored by mean, 2 anomalous" in out, err
    assert scored == [0, 1, 2]
    verdicts = rows_of(tmp_path / "parts").column("verdict").to_pylist()
    assert [k for k, verdict in enumerate(verdicts) if verdict == "anomalous"] == [3, 7]

    changed = tmp_path / "parts" / "part-000001.parquet"
    whole = changed.read_bytes()
    changed.write_bytes(whole.replace(b"PAR1", b"PAR2"))
    code, _, err = anocaps(*words, "--resume")
    assert code == 0 and err.count("part-000001.parquet is missing or has changed") == 1
    assert scored == [0, 1, 2, 1] and changed.read_bytes() == whole


@pytest.mark.parametrize("source", ["photos", "list.txt", "t.parquet"])
def test_relative_sources_are_resumed_where_the_run_began(anocaps, source, tmp_path, monkeypatch):
    """In another directory, the same names are other images."""
    out = tmp_path / "parts"
    for place in ("here", "there"):
        photos = draw_twelve(tmp_path / place / "photos")
        names = sorted(path.name for path in photos.iterdir())
        (photos.parent / "list.txt").write_text("\n".join(f"photos/{name}" for name in names))
        contents = [(photos / name).read_bytes() for name in names]
        parquet.write_table(pyarrow.table({"bytes": contents}), photos.parent / "t.parquet")
    (tmp_path / "model.onnx").touch()
    words = ("score", tmp_path / "model.onnx", source, "-o", out, "--jobs", 1)
    monkeypatch.chdir(tmp_path / "here")
    assert anocaps(*words)[0] == 0
    before = (out / "_manifest.jsonl").read_bytes()

    monkeypatch.chdir(tmp_path / "there")
    code, _, err = anocaps(*words, "--resume")
    assert code == 2 and "working directory" in err and len(err.splitlines()) == 1
    assert (out / "_manifest.jsonl").read_bytes() == before
    monkeypatch.chdir(tmp_path / "here")
    assert anocaps(*words, "--resume")[0] == 0


def test_absolute_sources_are_resumed_anywhere(anocaps, tmp_path, monkeypatch):
    photos = draw_twelve(tmp_path / "photos")
    (tmp_path / "model.onnx").touch()
    words = ("score", tmp_path / "model.onnx", photos, "-o", tmp_path / "parts", "--jobs", 1)
    assert anocaps(*words)[0] == 0
    monkeypatch.chdir(photos)
    assert anocaps(*words, "--resume")[0] == 0


def test_a_lost_part_is_told_and_the_others_are_kept(anocaps, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "SHARD", 5)
    monkeypatch.setattr("anocaps.engines.base.RETRIES", 0)
    photos = draw_twelve(tmp_path / "photos")
    (tmp_path / "model.onnx").touch()
    wait = ThisProcess.wait

    def lose_one(self):
        number, result = wait(self)
        return number, Lost("gone") if number == 1 else result

    monkeypatch.setattr(ThisProcess, "wait", lose_one)
    words = ("score", tmp_path / "model.onnx", photos, "-o", tmp_path / "parts", "--jobs", 1)
    code, _, err = anocaps(*words)
    assert code == 2 and "1 parts" in err and "--resume" in err
    assert rows_of(tmp_path / "parts").num_rows == 7


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("photos", "-o", "s.csv", "--engine", "ray"), "into a folder"),
        (("photos", "--jobs", "2"), "into a folder"),
        (("list.txt", "-o", "s.csv"), "list.txt writes"),
        (("memory://x", "-o", "s.csv"), "into a folder"),
        (("photos", "-o", "parts", "--gallery", "g.html"), "single table"),
        (("photos", "-o", "parts", "--watch"), "single table"),
        (("photos", "-o", "photos"), "photos"),
        (("photos", "-o", "parts", "--engine", "slurm"), "'slurm'"),
        (("photos", "-o", "parts", "--address", "auto"), "--engine ray"),
        (("none", "-o", "parts"), "does not exist"),
        (("empty", "-o", "parts"), "no image"),
        (("photos", "-o", "file"), "is a file"),
        (("photos", "-o", "parts", "--alpha", "0.001"), "alpha"),
    ],
)
def test_what_does_not_go_together_gets_one_line(words, says, anocaps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw_twelve(tmp_path / "photos")
    (tmp_path / "list.txt").write_text("photos/00.png")
    (tmp_path / "empty").mkdir()
    for name in ("model.onnx", "file"):
        (tmp_path / name).touch()
    code, _, err = anocaps("score", "model.onnx", *words)
    assert code == 2 and says in err and "Traceback" not in err
    assert not (tmp_path / "parts" / "_manifest.jsonl").exists()


def test_a_process_loads_a_model_once(monkeypatch):
    judge, loads = SimpleNamespace(checksum="x"), []
    monkeypatch.setattr(scoring, "_loaded", {})
    monkeypatch.setattr(scoring, "load_judge", lambda *given: loads.append(given) or judge)
    model = scoring.Model(OnDisk(Path("m.onnx")), "0" * 64, "x", "cpu")
    assert scoring._judge_of(model) is scoring._judge_of(model) is judge
    assert loads == [(Path("m.onnx"), "cpu")]


@pytest.mark.parametrize("name", ["model.onnx", "model.safetensors"])
def test_a_worker_loads_no_other_file_than_the_command(name, tmp_path):
    (tmp_path / name).write_bytes(b"put there during the run")
    model = scoring.Model(OnDisk(tmp_path / name), scoring.sha256(b"checked"), "x", "cpu")
    with pytest.raises(ModelFileError, match="changed during the run"):
        scoring._judge_of(model)
