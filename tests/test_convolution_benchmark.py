"""The stored measurement of both forms of the convolution, and the rule that it speaks of."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STORED = json.loads((ROOT / "results" / "convolution-cpu.json").read_text("utf-8"))


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import convolution_cpu

    return convolution_cpu


def test_the_stored_choices_are_those_of_the_rule(benchmark):
    for row in STORED["shapes"]:
        assert benchmark.chosen(row) == row["chosen"], row
    assert benchmark.summary(STORED["shapes"]) == STORED["summary"]


def test_the_claim():
    scoring, training = STORED["summary"]["scoring"], STORED["summary"]["training"]
    cases = scoring["shapes"] + training["shapes"]
    assert scoring["slower chosen"] + training["slower chosen"] < cases / 10
    assert training["by more than a tenth"] < training["shapes"] / 10
    assert scoring["times slower, worst"] < 1.2
    assert training["times slower, worst"] < 2.5


def test_what_the_rule_says_of_itself():
    from anocaps.spectral_plan import wins

    said = " ".join(wins.__doc__.split())
    scoring, training = STORED["summary"]["scoring"], STORED["summary"]["training"]
    for words in (
        f"of {scoring['shapes']} shapes",
        f"of {scoring['slower chosen']} in scoring, at most {scoring['times slower, worst']} times",
        f"of {training['slower chosen']} in training, "
        f"{training['by more than a tenth']} of them by more than a tenth",
        f"up to {training['times slower, worst']:.1f} times",
    ):
        assert words in said


def test_the_papers_layer_is_measured_and_wins(benchmark):
    stored = {tuple(row[name] for name in benchmark.Shape._fields): row for row in STORED["shapes"]}
    for side in (20, 24):
        row = stored[side, 9, 2, 256]
        assert row["chosen"] == "spectral"
        assert min(row["scoring"]["ratio"], row["training"]["ratio"]) > 1.5
    assert list(stored) == [tuple(shape) for shape in benchmark.shapes()]


def test_a_summary_counts_losses(benchmark):
    def row(form, scoring, training):
        return {"chosen": form, "scoring": {"ratio": scoring}, "training": {"ratio": training}}

    rows = [row("direct", 0.5, 1.05), row("spectral", 0.5, 3.0), row("spectral", 1.0, 0.8)]
    found = benchmark.summary(rows)
    assert found["scoring"] == {
        "shapes": 3,
        "slower chosen": 1,
        "by more than a tenth": 1,
        "times slower, median": 2.0,
        "times slower, worst": 2.0,
    }
    assert found["training"]["slower chosen"] == 2
    assert found["training"]["by more than a tenth"] == 1
    assert found["training"]["times slower, worst"] == 1.25


def test_both_forms_are_measured(benchmark, monkeypatch):
    from anocaps.networks.convolution import Convolution

    seen = []
    monkeypatch.setattr(benchmark, "MOST_SECONDS", float("inf"))

    def forward(layer, x):
        seen.append((layer.form, layer.training, len(x)))
        return original(layer, x)

    original = Convolution.forward
    monkeypatch.setattr(Convolution, "forward", forward)
    row = benchmark.measured(benchmark.Shape(6, 5, 2, 16))
    turn = ["direct", "spectral"]
    turns = 1 + benchmark.TURNS
    assert seen == [(form, mode, 32) for mode in (False, True) for form in turn * turns]
    assert row["images"] == 32
    assert row["scoring"].keys() == {"direct", "spectral", "ratio"}
