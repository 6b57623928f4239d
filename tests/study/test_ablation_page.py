"""The page of an ablation, as `anocaps study report ablation` writes it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from study_results import make_result

from anocaps.judging.metrics import Metrics
from anocaps.study import reports
from anocaps.study.reports import write_study
from anocaps.study.studies import UNCHANGED, WHOLE

EVIL = "<script>alert(1)</script>"


def cell(variant: str, held_out: str, dataset: str, pp: float, re: float):
    made = make_result(held_out=(held_out,), seed=0)
    of = {"pp": pp, "re": re, "pp+re": pp}
    return replace(
        made,
        dataset=dataset,
        variant=variant,
        metrics={name: Metrics(value, value, value, 0.5, 0.5) for name, value in of.items()},
        settings=made.settings | {"epochs": 7},
        accuracy=0.9,
        record=made.record | {"losses": [0.5, 0.1]},
    )


@pytest.fixture
def page(tmp_path: Path, monkeypatch):
    """Of two datasets; a choice that gains, one that does not, and one of a single dataset."""
    results = [
        cell(variant, held_out, dataset, pp + 0.001 * int(held_out), re)
        for dataset in ("mnist", "fashion-mnist")
        for held_out in "12"
        for variant, pp, re in (
            (UNCHANGED, 0.8, 0.6), (EVIL, 0.8, 0.5),
            (UNCHANGED + WHOLE, 0.8, 0.6), ("better" + WHOLE, 0.8, 0.65),
        )
    ]  # fmt: skip
    results += [cell("here" + WHOLE, held_out, "mnist", 0.9, 0.9) for held_out in "12"]
    results.append(make_result(held_out=("1",), seed=0))  # of another study in the same folder
    monkeypatch.setattr(reports, "read_results", lambda folder: results)
    paths = write_study("ablation", tmp_path, tmp_path / "out")
    assert [path.name for path in paths] == ["index.html", "ablation.json"]
    return tmp_path / "out"


def test_it_says_what_to_take_and_why(page: Path):
    text = (page / "index.html").read_text("utf-8")
    assert "What to take: better" in text
    rows = {line.split("</th>")[0]: line for line in text.split('<tr><th scope="row">')[1:]}
    assert "<b>yes</b></td><td>all</td>" in text  # better
    assert "<b>yes</b></td><td>MNIST</td>" in text  # here: gains, but was not tried everywhere
    assert '0.801<span class="sd"> +0.000</span>' in rows["better"]  # the last: of Fashion-MNIST
    assert "Short trainings, 7 epochs" in text and "Whole trainings, 7 epochs" in text
    assert json.loads((page / "ablation.json").read_text("utf-8"))["taken"] == "better"


def test_hostile_names_are_only_text(page: Path):
    assert "<script" not in (page / "index.html").read_text("utf-8")
