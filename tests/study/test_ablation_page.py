"""The page of an ablation, as `anocaps study report ablation` writes it."""

import json
import re
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
    rows = [re.sub(r"<[^>]*>", "|", line) for line in text.split('<tr><th scope="row">')[1:]]
    cells = {row.split("|")[0]: list(filter(None, row.split("\n")[0].split("|"))) for row in rows}
    gains = [row for row in rows if "|yes|" in row]
    assert [row.split("|")[0] for row in gains] == ["better", "here"]
    assert "|all|" in gains[0] and "|MNIST|" in gains[1]  # not tried everywhere
    assert cells["better"][1:3] == ["0.801", " +0.000"]  # the last: of Fashion-MNIST
    assert text.count("7 epochs") == 4  # short and whole trainings of two datasets
    assert json.loads((page / "ablation.json").read_text("utf-8"))["taken"] == "better"


def test_hostile_names_are_only_text(page: Path):
    assert "<script" not in (page / "index.html").read_text("utf-8")
