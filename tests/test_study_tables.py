"""What the tables of the study make of its results, beside its time: see test_speed_tables.py."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


def test_ties_by_chance_are_as_many_as_chance_makes(monkeypatch):
    import study_tables

    def cell(scores, precision="bf16"):
        return SimpleNamespace(
            dataset="mnist", method="capsnet", variant="", scores={"pp": scores.astype(np.float32)},
            record={"training": {"precision": precision}},
        )  # fmt: skip

    random = np.random.default_rng(0).uniform(0.9, 0.91, 10_000)
    rounded = np.round(random * 2**20) / 2**20
    monkeypatch.setattr(
        study_tables, "results", lambda: [cell(random), cell(rounded), cell(random, "fp32")]
    )
    seen = study_tables.ties("mnist")
    assert (seen.networks, seen.images) == (1, 10_000)
    # 5e7 pairs, and 0.01 · 2²⁴ = 168,000 numbers of fp32 to fall on
    assert seen.expected == pytest.approx(298, rel=0.05)
    assert seen.found == pytest.approx(298, abs=60)
    crowded = np.r_[random, random[:200]]
    monkeypatch.setattr(study_tables, "results", lambda: [cell(crowded)])
    seen = study_tables.ties("mnist")
    assert seen.found > 430 and seen.expected < 330
    assert study_tables.ties("small-norb").networks == 0


@pytest.mark.parametrize(
    ("seeds", "shown"), [({0: True}, "**holds** (1 seed)"), ({0: True, 1: True}, "**holds**")]
)
def test_a_verdict_of_one_seed_says_so(seeds, shown):
    import study_tables

    from anocaps.study.claims import CLAIMS, Judged

    assert study_tables.verdict(Judged(CLAIMS[0], "holds", "", seeds)) == shown
