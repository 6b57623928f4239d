"""CSV tables of a study: numbers stay numbers, and no name becomes a formula."""

import csv

import pytest
from study_results import make_result

from anocaps.study.report.numbers import Numbers
from anocaps.study.report.tables import as_csv, dataset_csv, metrics_csv


@pytest.mark.parametrize("name", ["=1+1", "@x", "+1+1", "-1+1", "\t=1", " =1", "＝1", "-inf"])
def test_a_class_named_like_a_formula_is_marked_as_text(name):
    classes = (name, "other")
    results = [make_result((held,), dataset="folder:x", class_names=classes) for held in classes]
    numbers = Numbers(results)
    for text in (metrics_csv(numbers), dataset_csv(numbers, "folder:x")):
        cells = [cell for row in csv.reader(text.splitlines()) for cell in row]
        assert not [cell for cell in cells if cell.lstrip().startswith(tuple("=+-@＝"))]
        assert any(cell.startswith("'") and cell.endswith(name.lstrip()[1:]) for cell in cells)


def test_a_method_named_like_a_formula_is_marked_in_a_title():
    own = make_result(("2",), method="=cmd", scores=("re",))
    titles = next(csv.reader(dataset_csv(Numbers([own]), "mnist").splitlines()))
    assert titles[:2] == ["held_out", "'=cmd (RE) mean"]


def test_numbers_and_other_texts_are_unchanged():
    row = ["-0.05", "-1.5e-05", "+3", "12", 7, -0.25, "", "a, b", "0"]
    text = as_csv(["a"] * len(row), row)
    assert next(csv.reader([text.splitlines()[1]])) == list(map(str, row))
