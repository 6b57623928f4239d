"""benchmarks/many_files.py: links, a run that is stopped and continued, its memory and its rows."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
BENCHMARKS = TESTS.parent / "benchmarks"
PICTURES = 898  # digits of the test half

# `model.onnx` is the judge by brightness, which waits once it has scored 1,280 images: of 2,400
# files it waits to be stopped, and of half of them, or of the pictures themselves, it never does.
PROCESS = """
import sys, time, types
from brightness import Brightness

class Waiting(Brightness):
    def judge(self, images):
        for _ in range(600 * (self.judged >= 1280)):
            time.sleep(0.1)
        return super().judge(images)

sys.modules["anocaps.runtime"] = types.SimpleNamespace(OnnxModel=lambda path, device: Waiting())
from anocaps.cli import main
main()
"""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="memory is read from /proc, which is not here"
)


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import many_files

    monkeypatch.setattr(many_files, "SECONDS", 0.05)
    return many_files


@pytest.fixture
def run(benchmark, monkeypatch, tmp_path):
    """Runs it without a network: the file of results."""
    (tmp_path / "model.onnx").write_bytes(b"a graph")
    monkeypatch.setattr(benchmark, "ANOCAPS", (sys.executable, "-c", PROCESS))
    monkeypatch.setenv("PYTHONPATH", str(TESTS))

    def main(*files):
        words = ["--model", tmp_path / "model.onnx", "--device", "cpu", "--folder", tmp_path]
        words += ["--out", tmp_path / "found.json", "--files", *files]
        monkeypatch.setattr(sys, "argv", ["many_files.py", *map(str, words)])
        benchmark.main()
        return json.loads((tmp_path / "found.json").read_text("utf-8"))

    return main


def test_the_largest_run_is_stopped_and_continued(run, tmp_path, capsys):
    found = run(2400, 1000)
    small, large = found["rows"]
    assert [row["files"] for row in found["rows"]] == [1000, 2400]
    assert small["stopped after rows"] is None and len(small["seconds of the parts"]) == 1
    assert large["stopped after rows"] == 1280 and len(large["seconds of the parts"]) == 2
    for row in found["rows"]:
        assert row["rows"] == row["files"]
        assert {row[name] for name in ("lost", "doubled", "unlike the original")} == {0}
        assert row["largest difference of numbers"] == 0
        assert 0 < row["seconds before the first row"] <= row["seconds"]
        assert row["files/s"] == pytest.approx(row["files"] / row["seconds"], rel=0.5)
        assert 20 < row["peak MiB"] == max(row["MiB by tenths of the time"])
        assert row["cores busy"] > 0
    assert found["pictures"] == PICTURES and found["versions"]["numpy"] and found["threads"]
    assert "2.4 × the files" in capsys.readouterr().out
    assert {file.name for file in tmp_path.iterdir()} == {"model.onnx", "found.json"}


def test_a_wrong_row_is_an_error_and_in_the_results(run, benchmark, monkeypatch, tmp_path):
    right = {"files": 4, "rows": 4, "lost": 0, "doubled": 0, "unlike the original": 0}
    measured = {"rows": [right | {"lost": 1, "rows": 3}]}
    monkeypatch.setattr(benchmark, "measured", lambda *_: measured)
    with pytest.raises(SystemExit, match=r"lost, doubled or unlike .* \[4\] files"):
        run(4)
    assert json.loads((tmp_path / "found.json").read_text("utf-8"))["rows"] == measured["rows"]
    measured["rows"] = [right]
    run(4)


def test_a_command_that_fails_or_ends_too_soon_is_told(benchmark, monkeypatch, tmp_path):
    scoring = benchmark.Scoring(tmp_path, tmp_path, tmp_path / "t.csv", "cpu")
    for script, says in (("exit('no room')", "^anocaps score: exit code 1\nno room"),
                         ("", "ended before it could be stopped")):  # fmt: skip
        monkeypatch.setattr(benchmark, "ANOCAPS", (sys.executable, "-c", script))
        with pytest.raises(SystemExit, match=says):
            scoring.run(stop_at=1)


# ── its parts ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("links", [True, False])
def test_files_are_the_pictures_in_turn(benchmark, monkeypatch, tmp_path, links):
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError))
    monkeypatch.setattr(benchmark, "IN_A_FOLDER", 4)
    pictures = [tmp_path / f"{k}.png" for k in range(3)]
    for k, picture in enumerate(pictures):
        picture.write_text(f"picture {k}")
    benchmark.link(pictures, tmp_path / "many", range(5))
    benchmark.link(pictures, tmp_path / "many", range(5, 10))
    files = sorted((tmp_path / "many").rglob("*.png"))
    assert [file.read_text()[-1] for file in files] == list("0120120120")
    assert [file.parent.name for file in files] == [f"000{k // 4}" for k in range(10)]
    assert {file.samefile(pictures[k % 3]) for k, file in enumerate(files)} == {links}


def test_rows_are_compared_one_by_one(benchmark, tmp_path):
    pictures = [
        {"file": "a.png", "score": "0.5", "class": "1"},
        {"file": "b.png", "score": "-200", "class": ""},
    ]

    def row(number, **other):
        return pictures[number % 2] | {"file": f"many/0000/{number:07}.png"} | other

    table = tmp_path / "t.csv"

    def found(*rows):
        with open(table, "w", newline="") as file:
            writer = csv.DictWriter(file, pictures[0])
            writer.writeheader()
            writer.writerows(rows)
        result = benchmark.compared(benchmark.read_rows(table), pictures, 4)
        counts = [result[n] for n in ("rows", "lost", "doubled", "unlike the original")]
        assert benchmark.sound(result | {"files": 4}) is (counts == [4, 0, 0, 0])
        return counts

    whole = [row(k) for k in range(4)]
    assert found(*whole) == [4, 0, 0, 0]
    assert found(*whole[:3]) == [3, 1, 0, 0]
    assert found(*whole, row(2)) == [5, 0, 1, 0]
    assert found(*whole[:3], row(2)) == [4, 1, 1, 0]
    assert found(*whole[:3], row(3, score="-200.0001")) == [4, 0, 0, 0]
    assert found(*whole[:3], row(3, score="-200.01")) == [4, 0, 0, 1]
    assert found(*whole[:2], row(2, score=""), row(3, **{"class": "1"})) == [4, 0, 0, 2]


def test_memory_is_that_of_the_whole_family(benchmark):
    child = "held = b'x' * (80 * 2**20); print('ready', flush=True); input()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        held = benchmark.resident(process.pid)
        process.stdin.close()
    assert 85 * 1024 < held < 160 * 1024
    assert benchmark.resident(process.pid) == 0


def test_lines_of_a_growing_file(benchmark, tmp_path):
    lines = benchmark.Lines(tmp_path / "grows")
    assert lines.count() == 0
    with open(tmp_path / "grows", "w", buffering=1) as file:
        for count, text in ((1, "one\n"), (2, "two\nthr"), (3, "ee\n"), (3, "")):
            file.write(text)
            file.flush()
            assert lines.count() == count
    (tmp_path / "grows").unlink()
    assert lines.count() == 3


def test_progress_with_rate_and_time_left_is_kept(benchmark, tmp_path):
    scoring = benchmark.Scoring(tmp_path, tmp_path, tmp_path / "t.csv", "cpu")
    told = "scoring: {} of 1,000,000, 870 files/s, {} min left"
    scoring._check(130, f"{told.format('20,000', 19)}\n{told.format('40,000', 18)}\nStopped.", True)
    scoring._check(0, "", False)
    assert scoring.progress == told.format("40,000", 18)


def test_growth_is_told_from_the_rows(benchmark):
    rows = [
        {"files": 10**4, "seconds": 10.0, "peak MiB": 500.0},
        {"files": 10**6, "seconds": 800.0, "peak MiB": 510.0},
    ]
    assert benchmark.bytes_a_file(rows) == round(10 * 2**20 / 990_000, 1)
    result = {"rows": rows, "bytes a file": 10.6, "bytes of a name": 95}
    assert benchmark.proportion(result) == (
        "100 × the files: 80 × the time, +10 MiB, which is 10.6 bytes a file; a name alone has 95"
    )


def test_the_model_is_trained_by_the_command_line(benchmark, tmp_path):
    from anocaps import load

    pictures = benchmark.write_digits(tmp_path)
    assert len(pictures) == PICTURES
    detector = load(benchmark.trained(tmp_path, 1, "cpu"), device="cpu")
    assert detector.calibrated and len(detector.classes_) == 10
    assert detector.record_["fit"]["height"] == 8
    assert detector.record_["training"]["epochs"] == 1


def test_the_table_is_made_from_the_results(benchmark, monkeypatch, tmp_path):
    import resultfiles
    import tables

    monkeypatch.setattr(resultfiles, "RESULTS", tmp_path)
    assert tables.many_files() == ""
    row = {"files": 10**6, "seconds": 1234.5, "files/s": 810.0, "peak MiB": 489.4, "rows": 10**6}
    row |= {"lost": 0, "doubled": 1, "unlike the original": 2, "stopped after rows": 500_224}
    found = {
        "device": "a CPU",
        "model": "quick, 8×8",
        "pictures": 898,
        "bytes a file": 3.2,
        "bytes of a name": 95,
    }
    (tmp_path / "many-files.json").write_text(json.dumps(found | {"rows": [row]}), "utf-8")
    made = tables.many_files()
    assert "| 1,000,000 | 1,234 | 810 | 489 | 1,000,000 | 0 | 1 | 2 |" in made.splitlines()
    assert "stopped after 500,224 rows" in made and "3.2 bytes" in made and "quick, 8×8" in made
    # the document that it stands in has times in its last table alone, and one table of files
    assert not re.findall(r"\d+ (?:s|seconds|minutes|hours)\b", made) and "| file |" not in made
