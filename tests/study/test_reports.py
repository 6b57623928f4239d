"""Reports are made of a folder's results, and only written to where they are asked for."""

from dataclasses import replace

import pytest
from study_results import make_result

from anocaps.detectors.presets import find_preset
from anocaps.study import reports
from anocaps.study.report import figures
from anocaps.study.reports import write_study
from anocaps.study.resultfile import write_result

TODAY = {
    "preset": "paper",
    "epochs": 20,
    "final_share": find_preset("paper").final_share,
    "reconstruction_weight": find_preset("paper").reconstruction_weight,
}


@pytest.mark.parametrize(
    ("changed", "judged"),
    [
        ({}, True),
        ({"epochs": 3}, False),
        ({"preset": "deep"}, False),
        ({"final_share": 0.1}, False),  # an older version of the preset
        ({"reconstruction_weight": 0.0005}, False),
    ],
)
def test_claims_are_judged_on_the_preset_as_it_is_today(tmp_path, monkeypatch, changed, judged):
    result = replace(make_result(held_out=("2",), seed=0), settings=TODAY | changed)
    seen = []
    monkeypatch.setattr(reports, "read_results", lambda folder: [result])
    monkeypatch.setattr(reports, "judge", lambda results: seen.extend(results) or [])
    monkeypatch.setattr(reports, "write_study_report", lambda *_: [])
    write_study("paper", tmp_path, tmp_path / "out")
    assert seen == ([result] if judged else [])


@pytest.mark.parametrize("name", ["paper", "ablation"])
def test_a_report_changes_nothing_in_the_folder_of_results(name, tmp_path, monkeypatch):
    folder, out = tmp_path / "results", tmp_path / "out"
    variants = [""] if name == "paper" else ["unchanged", "other"]
    for variant in variants:
        made = make_result(("2",), 0, variant=variant)
        record = made.record | {"losses": [0.1]}
        write_result(folder / f"{variant}-seed0.npz", replace(made, record=record))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    monkeypatch.setattr(figures, "FORMATS", ("svg",))
    written = write_study(name, folder, out)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert sorted(path for path in out.rglob("*") if path.is_file()) == sorted(written)
