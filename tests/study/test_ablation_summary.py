import json
from dataclasses import replace

import pytest
from study_results import make_result

from anocaps.base.errors import DataError
from anocaps.judging.metrics import Metrics
from anocaps.study.ablation import summarise, summary_text, taken, verdicts
from anocaps.study.studies import UNCHANGED, WHOLE

MADE = make_result()


def result(choice: str, held_out: str, seed: int, auroc: float, re: float | None = None):
    of = {"pp": auroc, "re": auroc if re is None else re, "pp+re": auroc}
    metrics = {name: Metrics(value, value, value, 0.5, 0.5) for name, value in of.items()}
    record = MADE.record | {"losses": [0.5, 0.1]}
    return replace(
        MADE, held_out=(held_out,), seed=seed, variant=choice, metrics=metrics, record=record
    )


def summary(results: list) -> dict:
    return json.loads(summary_text(results, summarise(results), verdicts(results)))


def test_differences_are_paired_and_their_spread_is_over_seeds():
    rows = summarise(
        [
            result(UNCHANGED, "1", 0, 0.9),
            result(UNCHANGED, "2", 0, 0.7),
            result(UNCHANGED, "1", 1, 0.8),
            result(UNCHANGED, "2", 1, 0.6),
            result("other", "1", 0, 0.95),
            result("other", "2", 0, 0.75),
            result("other", "1", 1, 0.83),
            result("other", "2", 1, 0.63),
        ]
    )
    assert [row.choice for row in rows] == [UNCHANGED, "other"]
    assert rows[0].difference["pp"] == rows[0].spread["pp"] == 0
    assert rows[1].auroc["pp"] == pytest.approx(0.79)
    assert rows[1].difference["pp"] == pytest.approx(0.04)  # 0.05 and 0.03
    assert rows[1].spread["pp"] == pytest.approx(0.0141, abs=1e-4)
    assert (rows[1].seeds, rows[1].classes) == (2, 2)


def test_without_the_base_there_is_nothing_to_compare_with():
    with pytest.raises(DataError, match="unchanged"):
        summarise([result("other", "1", 0, 0.9)])


def choice(name: str, *by_class: tuple[float, float], seed: int = 0) -> list:
    """PP and RE of every class held out, beside a network of .8 and .6."""
    base = UNCHANGED + (WHOLE if name.endswith(WHOLE) else "")
    return [
        made
        for number, (pp, re) in enumerate(by_class)
        for made in (
            result(name, str(number), seed, pp, re), result(base, str(number), seed, 0.8, 0.6),
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("by_class", "gains"),
    [
        ([(0.80, 0.64), (0.80, 0.66)], True),  # .025 ± .005
        ([(0.80, 0.61), (0.80, 0.69)], False),  # .025 ± .02
        ([(0.78, 0.64), (0.78, 0.66)], False),  # PP falls
        ([(0.77, 0.64), (0.81, 0.66)], False),  # by .01 ± .02, so that both gain .02 ± .015
        ([(0.77, 0.67), (0.81, 0.66)], True),  # PP alike, both .0275 ± .0075
        ([(0.79, 0.60), (0.78, 0.60)], False),
        ([(0.90, 0.90)], False),  # one class says nothing
    ],
)
def test_a_choice_gains_where_both_scores_do_and_pp_does_not_fall(by_class, gains):
    (verdict,) = verdicts(choice("other", *by_class))
    assert verdict.gains == gains
    assert verdict.both.mean == pytest.approx(
        sum(pp + re - 1.4 for pp, re in by_class) / 2 / len(by_class), abs=1e-4
    )


def test_the_error_is_of_classes_whose_seeds_are_one_mean():
    first = choice("other", (0.82, 0.6), (0.8, 0.6))
    second = choice("other", (0.84, 0.6), (0.8, 0.6), seed=1)
    (verdict,) = verdicts([*first, *second])
    assert (verdict.pp.mean, verdict.pp.error) == pytest.approx((0.015, 0.015))  # .03 and 0
    assert (verdict.both.mean, verdict.both.error) == pytest.approx((0.0075, 0.0075))


def test_every_dataset_has_one_vote():
    few = choice("other", (0.82, 0.62), (0.84, 0.64))
    same = choice("other", *3 * [(0.8, 0.6)])
    (verdict,) = verdicts([*few, *(replace(made, dataset="z") for made in same)])
    assert (verdict.both.mean, verdict.pp.mean) == pytest.approx((0.015, 0.015))
    assert verdict.pp.error == pytest.approx(0.005)  # .01 of the one and none of the other
    assert verdict.datasets == ("mnist", "z")


def test_whole_trainings_decide_and_the_best_of_them_is_taken():
    short = choice("short", (0.9, 0.9), (0.9, 0.9))
    good = choice("good" + WHOLE, (0.8, 0.62), (0.8, 0.62))
    better = choice("better" + WHOLE, (0.8, 0.63), (0.8, 0.63))
    judged = verdicts([*short, *good, *better])
    assert [(each.choice, each.whole) for each in judged] == [
        ("short", False), ("good", True), ("better", True),
    ]  # fmt: skip
    assert taken(judged) == "better"
    assert taken(judged[:1]) == UNCHANGED


def test_a_choice_that_was_not_tried_on_every_dataset_is_not_taken():
    gaining = choice("better" + WHOLE, (0.8, 0.63), (0.8, 0.63))
    elsewhere = [replace(made, dataset="z") for made in choice("b" + WHOLE, *2 * [(0.8, 0.6)])]
    judged = verdicts([*gaining, *elsewhere])
    assert [each.gains for each in judged] == [True, False]
    assert taken(judged) == UNCHANGED


def test_the_file_tells_the_verdicts_and_what_is_taken():
    found = summary(choice("other" + WHOLE, (0.8, 0.63), (0.8, 0.64)))
    assert found["taken"] == "other" and found["rows"][1]["spread"]["pp"] is None  # one seed
    assert found["verdicts"] == [
        {"choice": "other", "whole": True, "datasets": ["mnist"], "gains": True,
         "both": {"mean": 0.0175, "error": 0.0025}, "pp": {"mean": 0.0, "error": 0.0}}
    ]  # fmt: skip
