"""benchmarks/growth.py on tiny networks: its rows are whole, and they measure what they say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
CPU = torch.device("cpu")


@pytest.fixture
def growth(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import growth

    return growth


def test_every_row_is_measured(tmp_path):
    out = tmp_path / "growth.json"
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "growth.py", "--quick", "--device", "cpu", "--out", out],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text("utf-8"))
    assert [row["images"] for row in found["images"]] == [100, 300]
    assert [row["classes"] for row in found["classes"]] == [2]
    assert [row["side"] for row in found["side"]] == [12]
    assert found["fleet"] == [] and "in turn" in done.stdout
    for row in found["images"] + found["classes"] + found["side"]:
        assert all(value > 0 for value in row.values() if not isinstance(value, str)), row
    assert found["threads"] >= 1 and found["versions"]["torch"]


def test_networks_of_a_fleet_are_added_and_trained(growth, monkeypatch):
    made = []
    make = growth.make_run
    monkeypatch.setattr(growth, "make_run", lambda *given: made.append(make(*given)) or made[-1])
    rows = growth.by_fleet(growth.QUICK, CPU)
    assert [row["networks"] for row in rows] == [1, 2]
    assert [run.config.seed for run in made] == [0, 1]
    assert all(int(run.cursor) > 0 for run in made)
    assert {run.steps for run in made} == {growth.QUICK.batches}


def test_an_epoch_on_a_gpu_is_long_enough_for_its_start_not_to_count(growth):
    assert growth.PLANS["cuda"].batches >= 10 * growth.PLANS["cuda"].steps


def test_a_full_device_ends_the_fleet(growth, monkeypatch, capsys):
    make = growth.make_run

    def second_fails(kind, seed, *given):
        if seed == 1:
            raise torch.OutOfMemoryError
        return make(kind, seed, *given)

    monkeypatch.setattr(growth, "make_run", second_fails)
    assert [row["networks"] for row in growth.by_fleet(growth.QUICK, CPU)] == [1]
    assert "2 networks do not fit" in capsys.readouterr().out


def test_the_claim_is_told_from_the_rows(growth):
    rows = [{"images": 10**k, "seconds": 10.0 ** (k - 3), "peak MiB": 50 + k} for k in (3, 4, 5, 6)]
    assert growth.proportion(rows) == "100 × the images: 100 × the time, +2 MiB"


def test_the_network_of_anocaps_train_is_measured_with_its_shifts(growth):
    sides = {(kind.preset, kind.side, kind.classes) for kind in growth.SIDES}
    assert {("deep", side, 9) for side in (28, 64, 128)} <= sides
    run = growth.make_run(growth.Kind("deep", 64, 2), 0, CPU, 4)
    assert type(run.network).__name__ == "DeepCapsNet"
    assert (run.preprocessing.shift, run.preprocessing.padding) == (2, "edge")
    assert run.network.config.classes == 2
    run.begin_epoch()
    run.step()
    assert run.mean_loss(1) > 0
