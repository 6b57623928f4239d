"""Figures in the README and docs come from results/, and the README's Python runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from anocaps.report.study_numbers import Numbers
from anocaps.report.study_tables import metrics_csv
from anocaps.study.reports import read_results

ROOT = Path(__file__).resolve().parents[1]


def test_tables_are_what_results_say():
    script = [sys.executable, ROOT / "benchmarks" / "tables.py", "--check"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_gradient_method_is_timed_on_a_gpu_alone(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import resultfiles
    import study_tables

    whole = json.loads((ROOT / "results" / "ocsvm.json").read_text("utf-8"))
    monkeypatch.setattr(resultfiles, "RESULTS", tmp_path)
    assert study_tables.ocsvm() == ""
    for device, timed in (("x86_64 CPU", False), ("NVIDIA H200", True)):
        (tmp_path / "ocsvm.json").write_text(json.dumps(whole | {"device": device}))
        head = study_tables.ocsvm().splitlines()[2]
        assert "largest difference" in head and ("| seconds |" in head) is timed


def test_the_table_says_of_which_points_nu_is(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import resultfiles
    import study_tables

    monkeypatch.setattr(resultfiles, "RESULTS", tmp_path)
    whole = json.loads((ROOT / "results" / "ocsvm.json").read_text("utf-8"))
    first, *_ = whole["cells"]
    older = {name: value for name, value in first.items() if name != "nu_points"}
    newer = older | {"nu_points": 54_042, "nu_without_effect_below": 0.163}
    for cell, said, shown in (
        (older | {"nu_without_effect_below": 0.219}, "of the points of both solvers", "0.22"),
        (newer, "of all points", "0.16"),
        (newer | {"nu_without_effect_below": None}, "of all points", "–"),
    ):
        (tmp_path / "ocsvm.json").write_text(json.dumps(whole | {"cells": [cell]}))
        text = study_tables.ocsvm()
        assert f"and, {said}, the ν below which ν changes nothing:" in text
        (row,) = (line for line in text.splitlines() if " ± " in line)
        assert row.split(" | ")[-1].rstrip(" |") == shown


def test_one_seed_of_an_ablation_is_told_without_a_spread(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import ablation_tables
    import resultfiles

    monkeypatch.setattr(resultfiles, "RESULTS", tmp_path)
    whole = json.loads((ROOT / "results" / "ablation.json").read_text("utf-8"))
    for row in whole["rows"]:
        row |= {"seeds": 1, "spread": dict.fromkeys(row["spread"])}
    (tmp_path / "ablation.json").write_text(json.dumps(whole))
    *tables, _ = ablation_tables.ablation().split("\n\n")
    assert not any("±" in each for each in tables) and "(+0." in tables[1]
    assert "mock anomalies, 1 seed:" in tables[0]


def test_the_report_in_the_docs_is_what_results_say():
    results = read_results(ROOT / "results" / "paper")
    assert (ROOT / "docs/paper/metrics.csv").read_text("utf-8") == metrics_csv(Numbers(results))


def test_the_readme_python_runs(tmp_path):
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code[1]], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.safetensors").exists()
    assert len(done.stdout.splitlines()) >= 3


def test_what_is_committed_stays_small():
    """The study's results under 10 MB, all of the project under 20 MB."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone: what is committed is not known")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    sizes = {
        name: (ROOT / name).stat().st_size
        for name in listed.stdout.split("\0")
        if name and (ROOT / name).is_file()
    }
    assert sum(sizes.values()) < 20e6
    assert 0 < sum(n for name, n in sizes.items() if name.startswith("results/paper/")) < 10e6
