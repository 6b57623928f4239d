"""benchmarks/second_look.py: the study before and after a choice."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from anocaps.study.reports import read_results

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import second_look

    return second_look


def better(result, score: str, by: float):
    metrics = result.metrics[score]
    auroc = {score: replace(metrics, auroc=metrics.auroc + by)}
    return replace(result, metrics=result.metrics | auroc)


def test_it_tells_what_changed_and_nothing_else(script):
    before = read_results(ROOT / "results" / "paper")
    same = script.compared(before, before)
    assert {value for each in same["means"].values() for value in each.values()} == {0}
    assert same["verdicts"] == [] and same["rule"]["both"] == {"mean": 0, "error": 0}
    after = [
        better(r, "pp", -0.3) if (r.dataset, r.method) == ("mnist", "capsnet") else r
        for r in before
    ]
    found = script.compared(before, after)
    assert found["means"]["mnist"] == {"pp": -0.3, "re": 0, "pp+re": 0, "knn": 0}
    assert found["means"]["small-norb"]["pp"] == 0
    assert found["rule"]["pp"] == {"mean": -0.1, "error": 0}
    fallen = {each["says"]: (each["before"], each["after"]) for each in found["verdicts"]}
    assert fallen["PP is the best on MNIST altogether."] == ("holds", "does not hold")


def test_the_command_writes_its_file(script, monkeypatch, tmp_path):
    paper = str(ROOT / "results" / "paper")
    out = tmp_path / "look.json"
    monkeypatch.setattr(
        sys, "argv", ["second_look.py", paper, "--commit", "abc", "--out", str(out)]
    )
    script.main()
    found = json.loads(out.read_text("utf-8"))
    assert found["before"] == "abc" and found["claims"] > 40
