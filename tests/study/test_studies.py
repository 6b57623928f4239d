"""The cells of the studies and the settings that they are trained with."""

import numpy as np
import pytest

from anocaps.data.dataset import Dataset, Split
from anocaps.study.studies import UNCHANGED, WHOLE, Options, ablation, settings_for

SHAPES = {"mnist": (28, 28), "small-norb": (48, 48, 2), "digits": (8, 8)}


def black(name: str) -> Dataset:
    labels = np.arange(10)
    split = Split(np.zeros((10, *SHAPES[name]), np.uint8), labels)
    return Dataset(name, split, split, tuple("abcdefghij"), {}, official=False)


def test_the_paper_settings():
    assert settings_for("mnist", "paper") == {"epochs": 20, "batch_size": 100}
    assert settings_for("fashion-mnist", "paper") == {"epochs": 50, "batch_size": 100}
    norb = settings_for("small-norb", "paper")
    assert (norb["epochs"], norb["batch_size"], norb["crop"]) == (50, 64, 32)
    assert settings_for("digits", "quick") == {}


def test_an_ablation_changes_one_thing_at_a_time():
    cells = list(ablation(black("digits"), Options(seeds=1)))
    base = {cell.variant: cell.settings for cell in cells}
    for cell in cells:
        name, whole = cell.variant.removesuffix(WHOLE), cell.variant.endswith(WHOLE)
        like = base[UNCHANGED + WHOLE * whole]
        changed = {name for name, _ in set(cell.settings.items()) ^ set(like.items())}
        assert len(changed) == (0 if name == UNCHANGED else 1 + name.count(","))
        assert cell.mock
    assert base[UNCHANGED]["epochs"] == 5 and "epochs" not in base[UNCHANGED + WHOLE]
    assert len({cell.name for cell in cells}) == len(cells)


@pytest.mark.parametrize(
    ("name", "preset", "own"),
    [
        ("mnist", "paper", 0.0005),
        ("mnist", "quick", 1.6 / 784),
        ("small-norb", "quick", 1.6 / 2048),  # seen through windows of 32×32×2
    ],
)
def test_an_ablation_s_weights_are_multiples_of_the_unchanged_one(name, preset, own):
    weights = {
        cell.variant: cell.settings.get("reconstruction_weight")
        for cell in ablation(black(name), Options(seeds=1, preset=preset))
    }
    assert weights[UNCHANGED] == (own if preset == "paper" else None)
    for times in (8, 18):
        assert weights[f"reconstruction ×{times}"] == pytest.approx(times * own)
