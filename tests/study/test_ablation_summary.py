import json
from dataclasses import replace

import pytest
from study_results import make_result

from anocaps.errors import DataError
from anocaps.metrics import Metrics
from anocaps.study.ablation_rule import taken, verdicts
from anocaps.study.ablation_summary import summarise, write_summary
from anocaps.study.studies import AS_IT_IS as BASE
from anocaps.study.studies import WHOLE


def result(choice: str, held_out: str, seed: int, auroc: float, re: float | None = None):
    made = make_result(held_out=(held_out,), seed=seed)
    of = {"pp": auroc, "re": auroc if re is None else re, "pp+re": auroc}
    metrics = {name: Metrics(value, value, value, 0.5, 0.5) for name, value in of.items()}
    return replace(
        made,
        variant=choice,
        metrics=metrics,
        accuracy=0.9,
        record=made.record | {"losses": [0.5, 0.1]},
    )


def test_differences_are_paired_and_their_spread_is_over_seeds():
    rows = summarise(
        [
            result(BASE, "1", 0, 0.9),
            result(BASE, "2", 0, 0.7),
            result(BASE, "1", 1, 0.8),
            result(BASE, "2", 1, 0.6),
            result("other", "1", 0, 0.95),
            result("other", "2", 0, 0.75),
            result("other", "1", 1, 0.83),
            result("other", "2", 1, 0.63),
        ]
    )
    assert [row.choice for row in rows] == [BASE, "other"]
    assert rows[0].difference["pp"] == rows[0].spread["pp"] == 0
    assert rows[1].auroc["pp"] == pytest.approx(0.79)
    assert rows[1].difference["pp"] == pytest.approx(0.04)  # 0.05 and 0.03
    assert rows[1].spread["pp"] == pytest.approx(0.0141, abs=1e-4)
    assert (rows[1].seeds, rows[1].classes) == (2, 2)


def test_without_the_base_there_is_nothing_to_compare_with():
    with pytest.raises(DataError, match="as it is"):
        summarise([result("other", "1", 0, 0.9)])


def test_the_file_holds_every_cell(tmp_path):
    write_summary(tmp_path / "a.json", [result(BASE, "1", 0, 0.9), result("b", "1", 0, 0.8)])
    found = json.loads((tmp_path / "a.json").read_text())
    assert len(found["cells"]) == len(found["rows"]) == 2
    assert found["rows"][1]["difference"]["re"] == pytest.approx(-0.1)


def test_one_seed_has_no_spread():
    rows = summarise([result(BASE, "1", 0, 0.9), result("b", "1", 0, 0.8)])
    assert [row.seeds for row in rows] == [1, 1]
    assert all(row.spread == dict.fromkeys(("pp", "re", "pp+re")) for row in rows)


def test_the_file_names_all_that_the_cells_were_made_with(tmp_path):
    def made(choice: str, **record: object):
        one = result(choice, "1", 0, 0.9)
        return replace(one, record=one.record | record)

    newer = {"python": "3.11.0", "torch": "2.9.1", "numpy": "2.4.0"}
    cells = [made(BASE), made("b", commit="00ff", device="A GPU"), made("c", commit=None)]
    write_summary(tmp_path / "a.json", [*cells, made("d", versions=newer)])
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["commits"] == ["00ff", "0123456789ab"]
    assert found["devices"] == ["A GPU", "a GPU"]
    assert found["versions"] == {
        "python": ["3.11.0"], "torch": ["2.10.0", "2.9.1"], "numpy": ["2.4.0"],
    }  # fmt: skip


def choice(name: str, *by_seed: tuple[float, float]) -> list:
    """One class, PP and RE of every seed, beside a network of .8 and .6."""
    base = name.endswith(WHOLE) * WHOLE
    return [
        made
        for seed, (pp, re) in enumerate(by_seed)
        for made in (result(name, "1", seed, pp, re), result(BASE + base, "1", seed, 0.8, 0.6))
    ]


@pytest.mark.parametrize(
    ("by_seed", "gains"),
    [
        ([(0.80, 0.64), (0.80, 0.66)], True),
        ([(0.80, 0.56), (0.80, 0.70)], False),  # .01 ± .05 on the whole
        ([(0.79, 0.64), (0.78, 0.66)], False),  # PP falls by .015 ± .007
        ([(0.79, 0.64), (0.80, 0.66)], True),  # by .005 ± .007
        ([(0.79, 0.60), (0.78, 0.60)], False),
        ([(0.90, 0.90)], False),  # one seed says nothing
    ],
)
def test_a_choice_gains_where_both_scores_do_and_pp_does_not_fall(by_seed, gains):
    (verdict,) = verdicts(choice("other", *by_seed))
    assert verdict.gains == gains
    assert verdict.gain == pytest.approx(
        sum(pp + re - 1.4 for pp, re in by_seed) / 2 / len(by_seed), abs=1e-4
    )


def test_every_dataset_has_one_vote():
    few = choice("other", (0.82, 0.62), (0.82, 0.62))
    same = choice("other", (0.8, 0.6), (0.8, 0.6))
    many = [replace(made, dataset="z", held_out=(name,)) for made in same for name in "abc"]
    (verdict,) = verdicts([*few, *many])
    assert (verdict.gain, verdict.pp) == (0.01, 0.01)


def test_whole_trainings_decide_and_the_best_of_them_is_taken():
    short = choice("short", (0.9, 0.9), (0.9, 0.9))
    good = choice("good" + WHOLE, (0.8, 0.62), (0.8, 0.62))
    better = choice("better" + WHOLE, (0.8, 0.63), (0.8, 0.63))
    judged = verdicts([*short, *good, *better])
    assert [(each.choice, each.whole) for each in judged] == [
        ("short", False), ("good", True), ("better", True),
    ]  # fmt: skip
    assert taken(judged) == "better"
    assert taken(judged[:1]) == BASE


def test_whole_trainings_are_compared_with_whole_ones():
    rows = summarise([*choice("b", (0.9, 0.9)), *choice("b" + WHOLE, (0.7, 0.7))])
    assert [(row.choice, row.whole, row.difference["pp"]) for row in rows] == [
        (BASE, False, 0), ("b", False, pytest.approx(0.1)),
        (BASE, True, 0), ("b", True, pytest.approx(-0.1)),
    ]  # fmt: skip
