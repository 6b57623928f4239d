import json
from dataclasses import replace

import pytest
from study_results import make_result

from anocaps.errors import DataError
from anocaps.metrics import Metrics
from anocaps.study.ablation_summary import BASE, summarise, write_summary


def result(choice: str, held_out: str, seed: int, auroc: float):
    made = make_result(held_out=(held_out,), seed=seed)
    metrics = {k: Metrics(auroc, auroc, auroc, 0.5, 0.5) for k in ("pp", "re", "pp+re")}
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
