"""The runner of studies, on tiny studies of the bundled digits: nothing is lost, nothing twice."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event
from unittest.mock import Mock

import pytest

from anocaps.cli.study import _show
from anocaps.study import reservations, runner
from anocaps.study.cell import measure_cell
from anocaps.study.reservations import STALE_SECONDS, Reservations
from anocaps.study.resultfile import read_result
from anocaps.study.runner import Standing, Work, planned, run_study, standings
from anocaps.study.studies import UNCHANGED, WHOLE, Options

# A method that notes every fit and fails where it is told to: what the runner does can be counted.
NOTING = """
import os
import numpy as np
from anocaps.detectors import Detector
from anocaps.training.preprocessing import Preprocessing

class Noting(Detector):
    method = "noting"
    score_names = ("mean",)

    def __init__(self, score_function="mean", calibration=0.0, seed=0, device="cpu",
                 scoring_precision="fp32", epochs=1):
        self.score_function, self.calibration, self.seed = score_function, calibration, seed
        self.device, self.scoring_precision, self.epochs = device, scoring_precision, epochs

    def _training(self, images, labels):
        with open(os.environ["NOTES"], "a") as file:
            file.write(" ".join(self.classes_) + "\\n")
        if os.environ.get("FAIL_WITHOUT") not in (None, *self.classes_):
            raise RuntimeError("told to fail")
        self.preprocessing_ = Preprocessing(*images.shape[1:])
        self.record_ = {"training_seconds": 0.0}
        yield from ()

    def _raw_scores(self, images, names):
        return {"mean": images.mean((1, 2, 3)).astype(np.float64)}

    def _learned(self):
        return {}, {}

    def _relearn(self, arrays, header):
        pass
"""


def study(*words: object, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "anocaps", "study", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def logged(folder: Path) -> list[int]:
    """How many cells each run says it finished."""
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["finished"] for line in lines]


@pytest.fixture
def noting(tmp_path):
    """Words that run the noting method on ten cells, and its notes."""
    (tmp_path / "noting.py").write_text(NOTING)
    words = ("run", "paper", "--dataset", "digits", "--method", tmp_path / "noting.py", "--seeds",
             1, "--device", "cpu", "--folder", tmp_path / "study")  # fmt: skip
    notes = tmp_path / "notes"
    notes.touch()
    return words, notes


def test_killed_in_the_middle_it_loses_and_repeats_no_finished_cell(tmp_path):
    folder = tmp_path / "study"
    words = ("run", "paper", "--dataset", "digits", "--method", "capsnet", "--method", "dbn",
             "--epochs", 2, "--limit", 20, "--seeds", 1, "--device", "cpu",
             "--folder", folder)  # fmt: skip
    process = study(*words)
    while process.poll() is None and len(list(folder.rglob("*.npz"))) < 3:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    finish(process)
    finished = {path: path.stat().st_mtime_ns for path in folder.rglob("*.npz")}
    assert 3 <= len(finished) < 20

    code, out, err = finish(study(*words, "--jobs", 2, "--json"))
    assert code == 0, err
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert logged(folder) == [20 - len(finished)]  # by both processes; the killed run wrote no line
    rows = json.loads(out)
    assert [(row["method"], row["done"], row["left"]) for row in rows] == [
        ("capsnet", 10, 0),
        ("dbn", 10, 0),
    ]
    assert not list(folder.rglob("*.running")) and not list(folder.rglob("*.tmp"))
    results = [read_result(path) for path in folder.rglob("*.npz")]
    assert {r.held_out for r in results} == {(str(digit),) for digit in range(10)}
    assert all(r.settings["epochs"] == 2 and r.limit == 20 for r in results)


def test_two_runners_on_one_folder_do_no_cell_twice(noting):
    words, notes = noting
    both = [study(*words, NOTES=str(notes)) for _ in range(2)]
    for process in both:
        code, _, err = finish(process)
        assert code == 0, err
    lines = notes.read_text().splitlines()
    assert len(lines) == len(set(lines)) == 10
    code, out, _ = finish(study(*words, "--json", NOTES=str(notes)))
    assert code == 0 and json.loads(out)[0]["done"] == 10
    assert len(notes.read_text().splitlines()) == 10  # all skipped
    *first, last = logged(words[-1])
    assert sum(first) == 10 and last == 0


@pytest.fixture(scope="module")
def methods(tmp_path_factory):
    """Files of two noting methods; a name is a method's for as long as the process lives."""
    files = [tmp_path_factory.mktemp("methods") / f"{name}.py" for name in ("mine", "others")]
    for file in files:
        file.write_text(NOTING.replace('"noting"', f'"{file.stem}"'))
    return files


@pytest.fixture
def works(methods, tmp_path, monkeypatch):
    """The work of ten cells for each of them, in one folder."""
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    options = [Options(("digits",), (str(file),), seeds=1) for file in methods]
    return [Work("paper", each, tmp_path / "study", None, "cpu") for each in options]


@pytest.mark.parametrize(("which", "counts"), [(0, [9, 1]), (1, [10, 10])])
def test_the_log_counts_what_the_run_wrote_itself(which, counts, works, monkeypatch):
    """Another run, of the same cells or of others, begins and ends while one cell is trained."""
    mine, another = works[0], works[which]
    fit = runner.fit_together

    def fit_beside_another(*args):
        monkeypatch.setattr(runner, "fit_together", fit)  # once
        run_study(another)
        fit(*args)

    monkeypatch.setattr(runner, "fit_together", fit_beside_another)
    run_study(mine)
    assert logged(mine.folder) == counts


def test_a_run_tells_of_its_own_cells_only(works, monkeypatch, capsys):
    mine, others = works
    run_all = runner._run_all
    monkeypatch.setattr(runner, "_run_all", lambda work, plan: 0)
    run_study(others)  # planned, and nothing done
    failed = others.folder / "digits/others/4-seed0.failed"
    failed.parent.mkdir(parents=True)
    failed.write_text("told to fail")

    told, looked = [], Event()

    def watch(rows):
        told.append(rows)
        looked.set()

    def run_when_looked_at(work, plan):
        assert looked.wait(60)
        return run_all(work, plan)

    monkeypatch.setattr(runner, "_run_all", run_when_looked_at)
    monkeypatch.setattr(runner, "_LOOK_SECONDS", 0.01)
    rows = run_study(mine, watch=watch)
    assert told[0] == [Standing("digits", "mine", done=0, running=0, failed=0, left=10)]
    assert rows == [Standing("digits", "mine", done=10, running=0, failed=0, left=0)]
    everything = [Standing("digits", "others", done=0, running=0, failed=1, left=9), *rows]
    assert standings(mine.folder) == everything

    _show(rows, mine.folder, as_json=False)
    assert "others" not in capsys.readouterr().out
    _show(everything, mine.folder, as_json=False)
    assert "4-seed0.failed: told to fail" in capsys.readouterr().out


def test_a_failing_cell_is_recorded_and_the_rest_goes_on(noting, tmp_path):
    words, notes = noting
    code, out, err = finish(study(*words, NOTES=str(notes), FAIL_WITHOUT="4"))
    assert code == 1
    assert "told to fail" in out and "Traceback" not in err
    assert "told to fail" in (tmp_path / "study/digits/noting/4-seed0.failed").read_text()
    code, out, _ = finish(study("status", "--folder", tmp_path / "study", "--json"))
    row = json.loads(out)[0]
    assert code == 0 and (row["done"], row["failed"], row["left"]) == (9, 1, 0)
    code, *_ = finish(study(*words, NOTES=str(notes)))
    assert code == 0 and not list((tmp_path / "study").rglob("*.failed"))


def test_in_a_fleet_one_failing_cell_costs_no_other(tmp_path, monkeypatch):
    """Three networks at once: one cannot be measured, one cannot be trained."""
    fitted, together = [], runner.fit_together

    def fit(detectors, data):
        fitted.append(len(detectors))
        if any("5" not in d[1] for d in data):
            raise RuntimeError("cannot train")
        together(detectors, data)

    def measure(detector, dataset, data, held_out, *rest):
        if held_out == (1,):
            raise RuntimeError("cannot measure")
        return measure_cell(detector, dataset, data, held_out, *rest)

    monkeypatch.setattr(runner, "fit_together", fit)
    monkeypatch.setattr(runner, "measure_cell", measure)
    monkeypatch.setitem(runner._FLEET, "cpu", 5)
    options = Options(("digits",), ("dbn",), seeds=1, epochs=1, limit=10)
    rows = run_study(Work("paper", options, tmp_path, None, "cpu"))
    assert (rows[0].done, rows[0].failed) == (8, 2)
    assert fitted == [5, 5, 1, 1, 1, 1, 1]  # only the fleet that failed was trained one by one
    assert "cannot measure" in (tmp_path / "digits/dbn/1-seed0.failed").read_text()
    assert "cannot train" in (tmp_path / "digits/dbn/5-seed0.failed").read_text()


def test_an_edited_method_is_run_again(noting, tmp_path):
    words, notes = noting
    finish(study(*words, NOTES=str(notes)))
    (tmp_path / "noting.py").write_text(NOTING.replace("mean((1, 2, 3))", "max((1, 2, 3))"))
    code, out, _ = finish(study("status", "--folder", tmp_path / "study", "--json"))
    assert code == 0 and json.loads(out)[0]["done"] == 10
    code, _, err = finish(study(*words, NOTES=str(notes)))
    assert code == 2 and "--replace" in err and len(notes.read_text().splitlines()) == 10
    finish(study(*words, "--replace", NOTES=str(notes)))
    assert len(notes.read_text().splitlines()) == 20


def test_a_killed_worker_is_told(noting, tmp_path):
    words, notes = noting
    text = NOTING.replace('raise RuntimeError("told to fail")', "os.kill(os.getpid(), 9)")
    (tmp_path / "noting.py").write_text(text)
    code, _, err = finish(study(*words, "--jobs", 2, NOTES=str(notes), FAIL_WITHOUT="4"))
    assert code == 2 and "run the same command again" in err and "Traceback" not in err


def test_a_folder_of_pictures_is_a_dataset(noting, digits, tmp_path):
    from PIL import Image

    words, notes = noting
    for index in range(60):
        path = tmp_path / f"pictures/kind {digits.train.labels[index] % 2}/{index:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.train.images[index]).save(path)
    words = [f"folder:{tmp_path}/pictures" if word == "digits" else word for word in words]
    code, _, err = finish(study(*words, NOTES=str(notes)))
    assert code == 0, err
    (one, other) = (read_result(path) for path in (tmp_path / "study").rglob("*.npz"))
    assert {one.held_out, other.held_out} == {("kind 0",), ("kind 1",)}
    assert one.dataset.startswith("folder:pictures-")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "nonsense"), "study 'nonsense' is unknown"),
        (("run", "paper", "--dataset", "nonsense"), "nonsense"),
        (("run", "paper", "--dataset", "digits", "--method", "nonsense"), "method 'nonsense'"),
        (("run", "paper", "--dataset", "digits", "--method", "none.py"), "none.py"),
        (("run", "paper", "--dataset", "digits", "--preset", "nonsense"), "preset 'nonsense'"),
        (("run", "ablation", "--dataset", "digits", "--method", "vae"), "--method"),
        (("status", "--folder", "nowhere"), "nowhere"),
        (("report", "paper", "--folder", "nowhere"), "nowhere"),
    ],
)
def test_bad_words_get_one_line(words, says, tmp_path):
    if words[0] == "run":
        words = (*words, "--folder", tmp_path / "study")
    code, _, err = finish(study(*words))
    assert code == 2 and says in err and "Traceback" not in err


def test_a_reservation_is_exclusive_until_its_runner_is_gone(tmp_path):
    with Reservations(tmp_path) as mine, Reservations(tmp_path) as other:
        assert mine.take("a/b") and not other.take("a/b")
        mine.give_back("a/b")
        assert other.take("a/b")
    assert not list(tmp_path.rglob("*.running"))


def test_what_a_killed_runner_left_is_free_at_once_only_where_it_is_known_to_be_gone(tmp_path):
    file = tmp_path / "a/b.running"
    words = f"with Reservations(Path({str(tmp_path)!r})) as mine: mine.take('a/b'); os._exit(9)"
    names = "import os; from pathlib import Path; from anocaps.study.reservations import *"
    subprocess.run([sys.executable, "-c", f"{names}\n{words}"])
    gone = json.loads(file.read_text())
    old = {name: gone[name] for name in ("host", "process", "since")}  # of an older version
    here = {"process": os.getpid()}
    for note, age, free in (
        (gone, 0, True),
        (gone | here, 0, False),
        (gone | {"host": "another"}, 0, False),
        (gone | {"host": "another"}, STALE_SECONDS + 5, True),
        (gone | {"space": "another container"}, 0, False),
        (gone | {"space": "another container"}, STALE_SECONDS + 5, True),
        (gone | {"space": None}, 0, False),
        (old, 0, False),
        (old, STALE_SECONDS + 5, True),
        ("", 0, True),  # what a full disk left
    ):
        file.write_text(json.dumps(note) if note else "")
        os.utime(file, (time.time() - age,) * 2)
        with Reservations(tmp_path) as mine:
            assert mine.take("a/b") is free, (note, age)
        file.unlink(missing_ok=True)


@pytest.mark.skipif(sys.platform != "linux", reason="process spaces are Linux's")
def test_a_process_space_that_cannot_be_told_is_no_proof(tmp_path, monkeypatch):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with monkeypatch.context() as context:
        context.setattr(os, "readlink", Mock(side_effect=OSError))
        assert reservations._process_space.__wrapped__() is None
    monkeypatch.setattr(reservations, "_process_space", lambda: None)
    (tmp_path / "a.running").write_text(json.dumps(reservations._who() | {"process": gone.pid}))
    with Reservations(tmp_path) as mine:
        assert not mine.take("a")


def test_a_reservation_of_the_same_number_in_another_space_is_not_ours(tmp_path):
    with Reservations(tmp_path) as mine:
        assert mine.take("a")
        file = tmp_path / "a.running"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"space": "another container"}))
        mine.give_back("a")
        assert file.exists()


def test_a_fingerprint_tells_settings_apart_but_not_places(tmp_path):
    def of(device: str = "cpu", folder: Path = tmp_path, **changed: object) -> str:
        options = Options(**({"datasets": ("digits",), "methods": ("capsnet",)} | changed))
        _, cells = next(planned(Work("paper", options, folder, None, device)))
        return cells[0].fingerprint

    assert of() == of(device="auto") == of(folder=tmp_path / "elsewhere")
    assert len({of(), of(epochs=2), of(limit=5), of(methods=("vae",)), of(preset="quick")}) == 4
    # "quick" is what digits take by themselves


def test_an_ablation_changes_one_thing_at_a_time(tmp_path):
    work = Work("ablation", Options(datasets=("digits",), seeds=1), tmp_path, None, "cpu")
    _, cells = next(planned(work))
    base = {each.cell.variant: each.cell.settings for each in cells}
    for each in cells:
        name, whole = each.cell.variant.removesuffix(WHOLE), each.cell.variant.endswith(WHOLE)
        like = base[UNCHANGED + WHOLE * whole]
        changed = {name for name, _ in set(each.cell.settings.items()) ^ set(like.items())}
        assert len(changed) == (0 if name == UNCHANGED else 1 + name.count(","))
        assert each.cell.mock
    assert base[UNCHANGED]["epochs"] == 5 and "epochs" not in base[UNCHANGED + WHOLE]
    assert len({each.cell.name for each in cells}) == len(cells)


def test_standings_need_a_study(tmp_path):
    from anocaps.base.errors import DataError

    with pytest.raises(DataError, match="study run"):
        standings(tmp_path)
