"""Which results of a folder the claims of the paper are judged on."""

from dataclasses import replace

import pytest
from study_results import make_result

from anocaps.detectors.presets import find_preset
from anocaps.study import reports
from anocaps.study.reports import write_study

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
    write_study("paper", tmp_path, tmp_path / "out")
    assert seen == ([result] if judged else [])
