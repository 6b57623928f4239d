"""benchmarks/deep_choices.py on a few images; networks are stood in for."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from anocaps.data.dataset import Dataset, Split
from anocaps.detectors import presets

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


class Odd:
    """Stands in for a detector: bright images are normal."""

    def __init__(self, **settings):
        self.settings = settings

    def all_scores(self, images, names):
        return dict.fromkeys(names, images.mean(axis=(1, 2)).astype(np.float64))


@pytest.fixture
def choices(monkeypatch):
    """The script, with three classes of 12 images, 0 the darkest; the test images are not there."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import deep_choices

    labels = np.arange(36) // 12
    images = np.broadcast_to((labels * 100)[:, None, None], (36, 4, 4)).astype(np.uint8)
    dataset = Dataset("three", Split(images, labels), None, ("a", "b", "c"), {}, True)
    monkeypatch.setattr(deep_choices, "load_dataset", lambda *_, **__: dataset)
    monkeypatch.setattr(deep_choices, "CapsNetDetector", Odd)
    return deep_choices


def run(choices, monkeypatch, *options):
    monkeypatch.setattr(sys, "argv", ["deep_choices.py", "three", *map(str, options)])
    choices.main()


def test_each_choice_is_in_force_while_it_is_trained_and_no_longer(choices, monkeypatch, tmp_path):
    before = presets.PRESETS["deep"]
    trained = []

    def fit_together(detectors, data):
        preset = presets.PRESETS["deep"]
        trained.append((preset.shift, preset.padding))
        assert [len(set(labels)) for _, labels in data] == [2, 2, 2]  # one class held out in turn
        assert all(len(images) == 20 for images, _ in data)  # the sixth ones are not learned from

    monkeypatch.setattr(choices, "fit_together", fit_together)
    out = tmp_path / "choices.json"
    run(choices, monkeypatch, "--seeds", 2, "--out", out)
    assert trained == 2 * [(1 / 16, "edge"), (1 / 16, "black"), (1 / 32, "edge"), (0, "edge")]
    assert presets.PRESETS["deep"] == before

    rows = json.loads(out.read_text("utf-8"))["three"]["rows"]
    assert len(rows) == 2 * 4 * 3
    found = {row["held_out"]: row["auroc"]["pp"] for row in rows}
    assert found == {"a": 1.0, "b": 0.5, "c": 0.0}  # the dark class is the odd one, the bright not


def test_what_is_there_is_not_trained_again(choices, monkeypatch, tmp_path):
    trained = []
    monkeypatch.setattr(choices, "fit_together", lambda *_: trained.append(1))
    out = tmp_path / "choices.json"
    run(choices, monkeypatch, "--seeds", 1, "--out", out)
    run(choices, monkeypatch, "--seeds", 2, "--out", out)
    assert len(trained) == 8
    with pytest.raises(SystemExit):
        run(choices, monkeypatch, "--limit", 5, "--out", out)


def test_a_failure_leaves_the_preset_as_it_was(choices, monkeypatch, tmp_path):
    before = presets.PRESETS["deep"]

    def fail(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr(choices, "fit_together", fail)
    with pytest.raises(RuntimeError):
        run(choices, monkeypatch, "--out", tmp_path / "choices.json")
    assert presets.PRESETS["deep"] == before
