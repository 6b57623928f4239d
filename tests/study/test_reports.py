"""Reports are made of a folder's results, and only written to where they are asked for."""

from dataclasses import replace

import pytest
from study_results import make_result

from anocaps.study import reports
from anocaps.study.report import figures
from anocaps.study.reports import read_results, write_study
from anocaps.study.resultfile import write_result


@pytest.mark.parametrize(
    ("changed", "judged"),
    [
        ({}, True),
        ({"variant": "deep"}, False),
        ({"limit": 100}, False),
        ({"settings": {"epochs": 3}}, False),
        ({"method": "matrix-capsnet", "settings": {"epochs": 2}}, True),  # as budgets.py says
        ({"method": "matrix-capsnet"}, False),
    ],
)
def test_claims_are_judged_on_methods_as_described(tmp_path, monkeypatch, changed, judged):
    result = replace(make_result(held_out=("2",), seed=0), settings={"epochs": 20})
    result = replace(result, **changed)
    seen = []
    monkeypatch.setattr(reports, "read_results", lambda folder: [result])
    monkeypatch.setattr(reports, "judge", lambda results: seen.extend(results) or [])
    monkeypatch.setattr(reports, "write_study_report", lambda *_: [])
    write_study("paper", tmp_path, tmp_path / "out")
    assert seen == ([result] if judged else [])


def test_the_variant_of_a_result_is_that_of_its_folder(tmp_path):
    for row in ("capsnet", "capsnet-paper-tuned"):
        write_result(tmp_path / "mnist" / row / "2-seed0.npz", make_result(("2",), 0))
    assert [r.variant for r in read_results(tmp_path)] == ["", "paper-tuned"]


def test_a_report_changes_nothing_in_the_folder_of_results(tmp_path, monkeypatch):
    folder, out = tmp_path / "results", tmp_path / "out"
    write_result(folder / "capsnet" / "2-seed0.npz", make_result(("2",), 0))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    monkeypatch.setattr(figures, "FORMATS", ("svg",))
    written = write_study("paper", folder, out)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert sorted(path for path in out.rglob("*") if path.is_file()) == sorted(written)


def test_the_time_of_all_runs_is_added_up_by_device(tmp_path):
    log = tmp_path / "log.jsonl"
    assert reports.time_of_runs(log) == {}
    lines = ('{"device": "A", "seconds": 60.5}', '{"device": "B", "seconds": 1}')
    log.write_text("\n".join([*lines, lines[0], ""]))
    assert reports.time_of_runs(log) == {"A": 121.0, "B": 1.0}
