"""The runner of studies, on tiny studies of the bundled digits: nothing is lost, nothing twice."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anocaps.base.errors import AnocapsError, DataError, InputError
from anocaps.engines import base
from anocaps.engines.local import Processes
from anocaps.study import runner
from anocaps.study.cell import measure_cell
from anocaps.study.packed import pack
from anocaps.study.plan import Work, standings
from anocaps.study.report.runlog import RunLog
from anocaps.study.reports import read_results
from anocaps.study.resultfile import read_result
from anocaps.study.runner import run_study
from anocaps.study.studies import Options

# A method that notes every fit and does what it is told: what the runner does can be counted.
NOTING = """
import os, time
import numpy as np
from anocaps.detectors import Detector

class Noting(Detector):
    method = "{name}"
    score_names = ("mean",)

    def __init__(self, score_function="auto", calibration=None, seed=0, device="auto",
                 scoring_precision="fp32"):
        super().__init__(score_function, calibration, seed, device, scoring_precision)

    def _training(self, images, labels):
        with open(os.environ["NOTES"], "a") as file:
            file.write(" ".join(self.classes_) + "\\n")
        time.sleep(float(os.environ.get("SLOW", 0)))
        if os.environ.get("FAIL_WITHOUT") not in (None, *self.classes_):
            raise RuntimeError("told to fail")
        if os.environ.get("DIE_WITHOUT") not in (None, *self.classes_):
            os.kill(os.getpid(), 9)
        self.record_["training_seconds"] = 0.0
        return ()

    def _forward(self, images, wanted):
        return {{"mean": images.mean((1, 2, 3)).astype(np.float64)}}
"""
NUMBERS = count()  # a name is one method's for as long as the process lives


@pytest.fixture
def new_work(tmp_path, monkeypatch):
    """Makes the work of ten cells of a new noting method; all in one folder."""
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))

    def new(dataset: str = "digits") -> Work:
        file = tmp_path / f"noting{next(NUMBERS)}.py"
        file.write_text(NOTING.format(name=file.stem))
        options = Options((dataset,), (str(file),), seeds=1)
        return Work("paper", options, tmp_path / "study", None, "cpu")

    return new


@pytest.fixture
def work(new_work) -> Work:
    return new_work()


def words(work: Work) -> list[str]:
    """Of the command that does it."""
    return ["study", "run", "paper", "--dataset", "digits", "--method", work.options.methods[0],
            "--seeds", "1", "--device", "cpu", "--folder", str(work.folder)]  # fmt: skip


def begin(work: Work, **environment: str) -> subprocess.Popen:
    """The same as another process."""
    return subprocess.Popen(
        [sys.executable, "-m", "anocaps", *words(work)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )


def fits(work: Work) -> list[str]:
    """The classes that each fit was trained on."""
    return (work.folder.parent / "notes").read_text().splitlines()


def logged(folder: Path) -> list[int]:
    """How many cells each run says it finished."""
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["finished"] for line in lines]


# ── several runners, and runners that die ────────────────────────────────────────────────────


def test_killed_in_the_middle_it_loses_and_repeats_no_finished_cell(work):
    process = begin(work, SLOW="0.2")
    while process.poll() is None and len(list(work.folder.rglob("*.npz"))) < 3:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finished = {path: path.stat().st_mtime_ns for path in work.folder.rglob("*.npz")}
    assert 3 <= len(finished) < 10

    (row,) = run_study(work, Processes(2, threads=1))
    assert (row.done, row.left) == (10, 0)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert logged(work.folder) == [10 - len(finished)]  # the killed run wrote no line
    assert not list(work.folder.rglob("*.running")) and not list(work.folder.rglob("*.tmp"))
    results = [read_result(path) for path in work.folder.rglob("*.npz")]
    assert {r.held_out for r in results} == {(str(digit),) for digit in range(10)}


def test_two_runners_on_one_folder_do_no_cell_twice(work):
    both = [begin(work, SLOW="0.1") for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    assert len(fits(work)) == len(set(fits(work))) == 10
    assert run_study(work)[0].done == 10
    assert len(fits(work)) == 10  # all skipped
    *first, last = logged(work.folder)
    assert sum(first) == 10 and last == 0


def test_a_killed_worker_is_told_and_costs_its_own_cell_only(work, monkeypatch):
    monkeypatch.setenv("DIE_WITHOUT", "0")
    monkeypatch.setattr(base, "RETRIES", 1)
    with pytest.raises(AnocapsError, match="run the same command again"):
        run_study(work, Processes(2, threads=1))
    assert standings(work.folder)[0].done == 9
    assert len(fits(work)) == 11  # that cell was tried twice


# ── cells that fail, are damaged or have changed ─────────────────────────────────────────────


def test_a_failing_cell_is_recorded_and_the_rest_goes_on(work, command, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("FAIL_WITHOUT", "4")
        code, out, err = command(*words(work))
    assert code == 1
    assert "told to fail" in out and "Traceback" not in err
    (failed,) = work.folder.rglob("*.failed")
    assert failed.stem == "4-seed0" and "told to fail" in failed.read_text()
    code, out, _ = command("study", "status", "--folder", work.folder, "--json")
    row = json.loads(out)["rows"][0]
    assert code == 0 and (row["done"], row["failed"], row["left"]) == (9, 1, 0)
    run_study(work)
    assert len(fits(work)) == 11 and not list(work.folder.rglob("*.failed"))


def test_in_a_fleet_one_failing_cell_costs_no_other(tmp_path, monkeypatch):
    """Five networks at once: one cannot be measured, one cannot be trained."""
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


def test_a_damaged_result_is_named_and_its_cell_is_run_again(work, command):
    run_study(work)
    path = next(work.folder.rglob("3-seed0.npz"))
    content = path.read_bytes()
    path.write_bytes(content[:200] + b"x" + content[201:])

    (row,) = standings(work.folder)
    assert (row.done, row.left, len(row.damaged)) == (9, 1, 1)
    code, out, err = command("study", "status", "--folder", work.folder)
    assert code == 0 and len([line for line in out.splitlines() if str(path) in line]) == 1
    code, out, err = command("study", "report", "paper", "--folder", work.folder)
    assert code == 2 and str(path) in err and "Traceback" not in out + err

    code, out, err = command(*words(work))  # without --replace
    assert code == 0 and len([line for line in out.splitlines() if str(path) in line]) == 1
    (row,) = standings(work.folder)
    assert (row.done, row.left, row.damaged) == (10, 0, ())
    assert fits(work)[10:] == [fits(work)[3]] and read_result(path).held_out == ("3",)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes among files")
@pytest.mark.parametrize("make", [os.mkdir, getattr(os, "mkfifo", None)])
def test_a_result_that_is_no_regular_file_is_named(work, command, make):
    run_study(work)
    path = next(work.folder.rglob("3-seed0.npz"))
    content = path.read_bytes()
    path.unlink()
    make(path)
    code, out, _ = command("study", "status", "--folder", work.folder)
    assert code == 0 and len([line for line in out.splitlines() if str(path) in line]) == 1
    for step in ("report", "pack"):
        code, out, err = command("study", step, "paper", "--folder", work.folder)
        assert code == 2 and str(path) in err and "Traceback" not in out + err
    code, out, _ = command(*words(work))
    assert str(path) in out and len(fits(work)) == 11
    assert code == (1 if path.is_dir() else 0)  # no file replaces a folder
    if path.is_dir():
        path.rmdir()
        path.write_bytes(content)
    assert standings(work.folder)[0].done == 10


def test_a_result_under_the_name_of_another_is_run_again(work):
    run_study(work)
    path = next(work.folder.rglob("3-seed0.npz"))
    path.write_bytes(path.with_name("0-seed0.npz").read_bytes())
    (row,) = standings(work.folder)
    assert (row.done, row.left, len(row.damaged)) == (9, 1, 1)
    run_study(work)
    assert read_result(path).held_out == ("3",) and len(fits(work)) == 11


def test_cells_of_a_damaged_packed_file_are_run_again(work, command):
    run_study(work)
    (path,) = pack(work.folder)
    path.write_bytes(path.read_bytes().replace(b'"held_out": ["3"]', b'"held_out": ["8"]'))
    code, out, _ = command("study", "status", "--folder", work.folder)
    assert code == 0 and len([line for line in out.splitlines() if str(path) in line]) == 1
    assert standings(work.folder)[0].done == 9
    run_study(work)
    assert fits(work)[10:] == [fits(work)[3]] and standings(work.folder)[0].done == 10
    assert pack(work.folder) == [path]
    assert standings(work.folder)[0].done == len(read_results(work.folder)) == 10


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{", b"cut"])
def test_a_run_adds_to_a_damaged_log(work, content):
    work.folder.mkdir()
    log = work.folder / "log.jsonl"
    log.write_bytes(content)
    assert run_study(work)[0].done == 10
    assert log.read_bytes().startswith(content + b"\n")
    assert [each["finished"] for each in RunLog.read(log).runs] == [10]


def test_an_edited_method_is_run_again(work):
    run_study(work)
    file = Path(work.options.methods[0])
    file.write_text(file.read_text().replace("mean((1, 2, 3))", "max((1, 2, 3))"))
    assert standings(work.folder)[0].done == 10
    with pytest.raises(InputError, match="--replace"):
        run_study(work)
    assert len(fits(work)) == 10
    run_study(work, replace=True)
    assert len(fits(work)) == 20


# ── what is asked for ────────────────────────────────────────────────────────────────────────


def test_a_method_without_randomness_is_trained_once_for_all_seeds(work):
    file = Path(work.options.methods[0])
    file.write_text(file.read_text().replace("score_names =", "needs_seed = False; score_names ="))
    (row,) = run_study(replace(work, options=replace(work.options, seeds=3)))
    assert row.done == 30 and len(fits(work)) == 10
    drawn = [read_result(path).index for path in sorted(work.folder.rglob("2-seed*.npz"))]
    assert not np.array_equal(drawn[0], drawn[1])  # the balanced draw varies with the seed
    pack(work.folder)
    assert run_study(replace(work, options=replace(work.options, seeds=3)))[0].done == 30
    assert len(fits(work)) == 10  # packed cells are finished too


def test_a_folder_of_images_is_a_dataset(new_work, digits, tmp_path):
    for index in range(60):
        path = tmp_path / f"images/kind {digits.train.labels[index] % 2}/{index:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.train.images[index]).save(path)
    run_study(new_work(f"folder:{tmp_path}/images"))
    one, other = (read_result(path) for path in (tmp_path / "study").rglob("*.npz"))
    assert {one.held_out, other.held_out} == {("kind 0",), ("kind 1",)}
    assert one.dataset.startswith("folder:images-")


CHOICES = "a file of choices"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "nonsense"), "study 'nonsense' is unknown"),
        (("run", "paper", "--dataset", "digits", "--method", "nonsense"), "method 'nonsense'"),
        (("run", "tuning", "--dataset", "digits", "--method", "geom"), "tuning has no choices"),
        (("run", "field", "--dataset", "digits", "--choices", "none.json"), "none.json"),
        (("run", "field", "--dataset", "digits", "--choices", CHOICES), "lack class 1 of vae"),
        (("status",), "study run"),
        (("report", "paper"), "study run"),
    ],
)
def test_bad_words_get_one_line(words, says, tmp_path, command):
    (tmp_path / "choices.json").write_text('{"chosen": {"digits": {"vae": {"0": "1 epoch"}}}}')
    words = [tmp_path / "choices.json" if word == CHOICES else word for word in words]
    code, _, err = command("study", *words, "--folder", tmp_path / "study")
    assert code == 2 and says in err and "Traceback" not in err


def entry(name: str, **changed: object) -> str:
    given = {"dataset": "a", "method": "b", "fingerprint": "f"} | changed
    return json.dumps({name: given})


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"a": 1}', '{"a": {"dataset": []}}', "\xff\xfe", entry("a/b/\0-seed0"),
     entry("a/c/0-seed0"), entry("a\0/b/0-seed0", dataset="a\0"), entry("a/b/../../0-seed0"),
     entry("a/\ud800/0-seed0", method="\ud800"), entry("../b/0-seed0", dataset=".."),
     entry("a/b/0-seed0", fingerprint=5), entry("a/b/0-seed0", method=["b"])],
)  # fmt: skip
def test_a_damaged_plan_is_named(text, tmp_path):
    (tmp_path / "plan.json").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=r"plan\.json"):
        standings(tmp_path)


def test_the_log_has_a_line_per_method_also_of_an_interrupted_run(work, monkeypatch):
    def interrupted(engine, task, fleets):
        for number, fleet in enumerate(fleets):
            if number == 2:
                raise KeyboardInterrupt
            yield fleet, runner.Done(1, 0.5)

    monkeypatch.setattr(runner, "collect", _after_planning(runner.collect, interrupted))
    with pytest.raises(KeyboardInterrupt):
        run_study(work)
    (line,) = map(json.loads, (work.folder / "log.jsonl").read_text().splitlines())
    assert (line["finished"], line["seconds"]) == (2, 1.0)
    assert len(line["methods"]) == len(line["datasets"]) == 1


def _after_planning(plan, rest):
    """`plan` for the first call, `rest` for the second."""
    calls = iter((plan, rest))
    return lambda *arguments: next(calls)(*arguments)
