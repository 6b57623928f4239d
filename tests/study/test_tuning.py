"""The rule of tuning, on results with known scores."""

from dataclasses import replace

import numpy as np
from study_results import make_result

from anocaps.study.reports import read_choices, write_study
from anocaps.study.resultfile import write_result
from anocaps.study.studies import Cell, accepted
from anocaps.study.tuning import DESCRIBED, METHODS, changes, chosen, pairs


def mock_cell(held_out, choice, good):
    """A cell whose scores tell its first, second or both held-out classes from normal images."""
    base = make_result(held_out, 0)
    normal = next(name for name in base.class_names if name not in held_out)
    labels = np.repeat([base.class_names.index(n) for n in (*held_out, normal)], 10)
    right = np.isin(labels, [base.class_names.index(name) for name in good & {*held_out}])
    scores = np.where(right, 0.0, 1.0).astype(np.float32)
    return replace(
        base, method="vae", variant=choice, labels=labels, index=np.arange(30), test_images=30,
        scores={"re": scores},
    )  # fmt: skip


def test_every_choice_changes_a_setting_of_its_method():
    """A cell leaves out settings that its method does not have."""
    for method in METHODS:
        described, *others = changes(method).values()
        assert described == {} and len(others) == 3
        assert [accepted(method, changed) for changed in others] == others
    widths = {"width ×0.5": {"widen": 0.5}, "width ×2": {"widen": 2.0}, "width ×4": {"widen": 4.0}}
    for method in ("kde", "svm"):
        assert changes(method) == {DESCRIBED: {}} | widths


def test_a_cell_s_own_class_takes_no_part_in_its_choice():
    """The choice for 2 is made on 1 and 3 alone, whatever a choice does to 2 itself."""
    results = []
    for choice in changes("vae"):
        for pair in pairs(tuple("0123456789")):
            good = {"1", "3"} if choice == "5 epochs" else {"2"} if choice == "1 epoch" else set()
            results.append(mock_cell(pair, choice, good))
    taken = chosen(results)["mnist"]["vae"]
    assert taken["2"] == "5 epochs"
    assert taken["1"] == taken["3"] == "1 epoch"
    assert taken["7"] == DESCRIBED  # all equal: the first


def test_an_unfinished_tuning_chooses_nothing():
    results = [mock_cell(pair, DESCRIBED, {"1"}) for pair in pairs(tuple("0123456789"))]
    assert chosen(results) == {}


def test_the_report_of_tuning_is_what_a_study_reads(tmp_path):
    results = tmp_path / "results"
    for choice in changes("vae"):
        for pair in pairs(tuple("0123456789")):
            made = mock_cell(pair, choice, {"3"} if choice == "shifts of 2 pixels" else set())
            metrics = {"re": next(iter(made.metrics.values()))}
            made = replace(
                made, metrics=metrics, auroc_all={"re": 0.5}, predicted=None, lengths=None
            )
            name = Cell("mnist", "vae", pair, 0, variant=choice).name
            write_result(results / f"{name}.npz", made)
    (written,) = write_study("tuning", results, tmp_path / "out")
    taken = read_choices(written)["mnist"]["vae"]
    assert {name for name, choice in taken.items() if choice != DESCRIBED} == {"2", "4"}
    assert set(taken.values()) == {DESCRIBED, "shifts of 2 pixels"}
