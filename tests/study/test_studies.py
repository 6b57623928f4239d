"""The cells of the studies and the settings that they are trained with."""

import numpy as np
import pytest

from anocaps.data.dataset import Dataset, Split
from anocaps.study.budgets import FIELD
from anocaps.study.studies import (
    PAPER_METHODS,
    Options,
    paper,
    settings_for,
    tuning,
    whole_field,
)
from anocaps.study.tuning import DESCRIBED, TUNED
from anocaps.study.tuning import METHODS as TUNED_METHODS

SHAPES = {"mnist": (28, 28), "small-norb": (48, 48, 2), "digits": (8, 8), "cifar10": (32, 32, 3)}


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


@pytest.mark.parametrize("name", SHAPES)
def test_the_paper_s_cells_are_part_of_the_field(name):
    every = {cell.name: cell for cell in whole_field(black(name), Options())}
    for cell in paper(black(name), Options()):
        assert every[cell.name] == cell


def test_budgets_are_kept():
    cells = list(whole_field(black("mnist"), Options()))
    for row in FIELD:
        own = [cell for cell in cells if cell.label == row.label]
        if row.datasets in ((), ("mnist",)):
            assert {cell.seed for cell in own} == set(range(row.seeds)), row
            wanted = row.epochs.get("mnist", 20)
            assert {cell.settings.get("epochs", wanted) for cell in own} == {wanted}
            assert row.note or not (row.seeds < 3 or row.epochs or row.limit)  # said in the table
        assert {cell.limit for cell in own} == {row.limit.get("mnist")}, row
    assert {cell.seed for cell in whole_field(black("cifar10"), Options())} == {0}
    assert len({cell.name for cell in cells}) == len(cells)
    assert len({row.label for row in FIELD}) == len(FIELD)
    assert {row.method for row in FIELD} >= set(PAPER_METHODS)
    fewer = list(whole_field(black("mnist"), Options(seeds=1, methods=("kde", "capsnet-deep"))))
    assert {cell.label for cell in fewer} == {"kde", "capsnet-deep"}
    assert {cell.seed for cell in fewer} == {0}


@pytest.mark.parametrize("method", TUNED_METHODS)
def test_tuning_compares_as_many_choices_for_every_method(method):
    cells = list(tuning(black("mnist"), Options(methods=(method,))))
    described = next(whole_field(black("mnist"), Options(methods=(method,)))).settings
    assert len(cells) == 4 * 10
    for cell in cells:
        assert cell.mock and len(cell.held_out) == 2 and cell.seed == 0
        changed = set(cell.settings.items()) ^ set(described.items())
        assert len({name for name, _ in changed}) == (cell.variant != DESCRIBED)
    for class_name in "abcdefghij":
        assert sum(class_name in cell.held_out for cell in cells) == 2 * 4


def test_a_tuned_cell_has_the_choice_of_its_class():
    taken = {name: "1 epoch" if name < "e" else DESCRIBED for name in "abcdefghij"}
    options = Options(choices={"mnist": {"vae": taken}})
    cells = [c for c in whole_field(black("mnist"), options) if c.variant == TUNED]
    assert len(cells) == 30 and {cell.method for cell in cells} == {"vae"}
    for cell in cells:
        assert cell.settings["epochs"] == (1 if cell.held_out[0] < "e" else 20)
    assert not [c for c in whole_field(black("digits"), options) if c.variant == TUNED]
