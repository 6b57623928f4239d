import json

import numpy as np
import pytest

from anocaps.detectors import CapsNetDetector
from anocaps.metrics import auroc
from anocaps.study.cell import run_cell
from anocaps.study.settings import settings_for


@pytest.fixture(scope="module")
def cell(digits):
    detector = CapsNetDetector(preset="quick", epochs=3, calibration=0.0, device="cpu")
    return run_cell(detector, digits, (3, 5), seed=1)


def test_metrics_are_of_the_balanced_set_and_of_all_normals(cell):
    result, data = cell
    for name, scores in result.scores.items():
        normal = data.balanced[~data.anomalous[data.balanced]]
        odd = data.balanced[data.anomalous[data.balanced]]
        assert result.metrics[name].auroc == auroc(scores[normal], scores[odd])
        whole = auroc(scores[~data.anomalous], scores[data.anomalous])
        assert result.auroc_all[name] == whole
        m = result.metrics[name]
        assert m.auroc_low <= m.auroc <= m.auroc_high


def test_the_summary_is_json_and_says_how_it_was_made(cell):
    summary = json.loads(json.dumps(cell[0].summary()))
    assert summary["held_out"] == ["3", "5"]
    assert summary["settings"]["preset"] == "quick" and summary["seed"] == 1
    assert summary["record"]["versions"]["torch"]
    assert len(summary["hashes"]) >= 1 and summary["official"] is True
    assert "scores" not in summary


def test_raw_scores_can_be_measured_again(cell, tmp_path):
    result, _ = cell
    result.save_scores(tmp_path / "raw.npz")
    with np.load(tmp_path / "raw.npz", allow_pickle=False) as raw:
        chosen = raw["balanced"]
        scores, odd = raw["score.pp"][chosen], raw["anomalous"][chosen]
        assert auroc(scores[~odd], scores[odd]) == result.metrics["pp"].auroc
        assert json.loads(str(raw["summary"]))["dataset"] == "digits"


def test_the_paper_settings():
    assert settings_for("mnist", "paper") == {"epochs": 20, "batch_size": 100}
    assert settings_for("fashion-mnist", "paper") == {"epochs": 50, "batch_size": 100}
    norb = settings_for("small-norb", "paper")
    assert (norb["epochs"], norb["batch_size"], norb["crop"]) == (50, 64, 32)
    assert settings_for("digits", "quick") == {}
