"""benchmarks/ocsvm.py on the bundled digits: two solvers, one machine, or it says so."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.svm import OneClassSVM as Reference

from anocaps import one_class_svm
from anocaps.one_class_svm import NU, OneClassSVM

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def ocsvm():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        import ocsvm

        yield ocsvm


@pytest.fixture(scope="module")
def cell(ocsvm, digits):
    return ocsvm.trained(digits, "2", epochs=2, limit=None, device="cpu")


def test_the_claim_on_digits(ocsvm, monkeypatch, tmp_path, capsys):
    out = tmp_path / "ocsvm.json"
    words = ("--cells", "digits:2", "--epochs", "2", "--exact", "300", "--few", "100",
             "--device", "cpu", "--out", str(out))  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["ocsvm.py", *words])
    ocsvm.main()
    whole = json.loads(out.read_text())
    (found,) = whole["cells"]
    assert json.loads(capsys.readouterr().out) == found
    assert whole["versions"]["scikit-learn"] and whole["nu"] == NU
    assert (found["dataset"], found["held_out"], found["epochs"]) == ("digits", "2", 2)
    assert found["alike"] and found["largest_difference"] < 0.01
    points = [found[name]["points"] for name in ("scikit-learn", "ours", "ours_on_all", "few")]
    assert points == [300, 300, found["normal_images"], 100]
    assert found["ours_on_all"]["gap"] < 1e-3
    assert found["nu_points"] == found["normal_images"]
    assert found["ours_on_all"]["auroc"] > found["few"]["auroc"] > found["few"]["auroc_usual_width"]


def test_a_machine_is_scikit_learn_s_by_its_own_word(ocsvm, cell):
    points = ocsvm.drawn(cell.normal, 300, seed=1)
    told, scores, machine = ocsvm.row(cell, points, 3.0, ocsvm.by_scikit_learn)
    reference = Reference(gamma=3.0, nu=NU).fit(points.double().numpy())
    values = reference.decision_function(cell.test.double().numpy())
    np.testing.assert_array_equal(np.sign(values), np.sign(scores.numpy()))
    assert told["support_vectors"] == len(reference.support_) == len(machine.support)


def test_solvers_that_differ_are_told(ocsvm, cell, monkeypatch):
    monkeypatch.setattr(one_class_svm, "_STEPS", 2)
    found = ocsvm.compared(cell, 300, 100)
    assert not found["alike"] and found["largest_difference"] > 0.01
    assert found["ours"]["gap"] > 0.01 > found["scikit-learn"]["gap"]


@pytest.mark.parametrize("exact", [300, 10_000])
def test_nu_is_said_to_change_nothing_of_the_machine_of_all_points(ocsvm, cell, monkeypatch, exact):
    found = ocsvm.compared(cell, exact, 100)
    points, gamma = cell.normal, 1 / one_class_svm._neighbour_distance(cell.normal, ocsvm.SEED)
    below = found["nu_without_effect_below"]
    assert found["nu_points"] == len(points) and below > NU

    def weights(nu: float) -> torch.Tensor:
        monkeypatch.setattr(one_class_svm, "NU", nu)
        return ocsvm.by_scikit_learn(points, gamma)[0]

    as_it_is, less, more = weights(NU), weights(0.9 * below), weights(1.5 * below)
    near = 0.02 * as_it_is.max()
    assert (less - as_it_is).abs().max() < near < (more - as_it_is).abs().max()


def test_where_a_weight_is_at_its_ceiling_nothing_is_said_of_nu(ocsvm):
    def below(largest: float) -> float | None:
        rest = torch.full((99,), (1 - largest) / 99, dtype=torch.float64)
        weights = torch.cat([torch.tensor([largest], dtype=torch.float64), rest])
        machine = OneClassSVM(torch.zeros(100, 1), weights, gamma=1.0, level=0.5)
        return ocsvm.nu_without_effect_below(machine, 100)

    assert below(0.05) == 0.2
    assert below(1 / (NU * 100)) is None


def test_the_gap_is_what_is_left_to_gain(ocsvm):
    """Two points too far apart to know of each other; one alone may have all the weight."""
    points = torch.tensor([[0.0], [100.0]])

    def gap(*weights: float) -> float:
        alpha = torch.tensor(weights, dtype=torch.float64)
        return ocsvm.gap(OneClassSVM(points, alpha, gamma=1.0, level=0.5), points)

    assert gap(0.5, 0.5) == pytest.approx(0, abs=1e-12)
    # αᵀKα = 0.68 and Kα = (0.8, 0.2), of which β on the second takes 0.2
    assert gap(0.8, 0.2) == pytest.approx((0.68 - 0.2) / 0.34)
