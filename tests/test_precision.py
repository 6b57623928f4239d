"""benchmarks/precision.py on two cells of the bundled digits, one epoch each."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def precision(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import precision

    return precision


@pytest.fixture
def run(precision, monkeypatch):
    """Runs the script with these options."""

    def main(*options: object) -> None:
        monkeypatch.setattr(sys, "argv", ["precision.py", *map(str, options)])
        precision.main()

    return main


def test_cells_are_trained_in_both_precisions_and_not_again(
    run, precision, monkeypatch, tmp_path, capsys
):
    out = tmp_path / "precision.json"
    options = ("--dataset", "digits", "--epochs", 1, "--seeds", 1, "--out", out)
    trained = []
    fit_together = precision.fit_together

    def counted(detectors, data):
        trained.extend((d.precision, d.device, len(set(labels))) for d, (_, labels) in
                       zip(detectors, data))  # fmt: skip
        fit_together(detectors, data)

    monkeypatch.setattr(precision, "fit_together", counted)
    run(*options, "--held-out", "0")
    assert trained == [("bf16", "auto", 9), ("fp32", "auto", 9)]
    run(*options, "--held-out", "0,1")
    assert len(trained) == 4  # class 0 was there

    found = json.loads(out.read_text("utf-8"))
    cells = {(row["held_out"], row["precision"], row["trained_in"]) for row in found["rows"]}
    assert cells == {(c, p, p) for c in "01" for p in ("bf16", "fp32")}
    losses = {row["last_loss"] for row in found["rows"]}
    assert len(losses) == 4  # the precisions differ, and so do the cells
    for row in found["rows"]:
        assert 0 < row["auroc"]["pp"] <= 1
        assert 0 <= row["ties"] < row["test_images"]
        assert row["versions"]["torch"]
    assert found["summary"]["cells"] == {"in both precisions": 2, "seeds": 1}
    assert found["settings"]["epochs"] == 1
    said = capsys.readouterr().out
    assert "AUROC PP" in said and "within 0.003" in said

    with pytest.raises(SystemExit) as stopped:
        run("--dataset", "digits", "--epochs", 2, "--seeds", 1, "--out", out)
    assert stopped.value.code == 2
    assert "another --out" in capsys.readouterr().err


def test_the_summary_says_whether_precisions_agree(precision):
    def row(held_out, seed, kind, pp, ties=0):
        return {"held_out": held_out, "seed": seed, "precision": kind, "ties": ties,
                "auroc": {"pp": pp, "re": 0.9}}  # fmt: skip

    rows = [
        row("0", 0, "bf16", 0.98, ties=3), row("0", 0, "fp32", 0.97), row("1", 0, "bf16", 0.96),
        row("1", 0, "fp32", 0.97), row("0", 1, "bf16", 0.5),
    ]  # fmt: skip
    found = precision.summary(rows)  # the cell without its partner does not count
    assert found["AUROC PP"] == {"bf16": 0.97, "fp32": 0.97, "difference": 0, "within 0.003": True}
    assert found["ties in PP"] == {"bf16": 3, "fp32": 0}
    rows[0]["auroc"]["pp"] = 0.99
    found = precision.summary(rows)
    assert found["AUROC PP"]["difference"] == 0.005
    assert found["AUROC PP"]["within 0.003"] is False
    assert found["AUROC RE"]["within 0.003"] is True


def test_ties(precision):
    assert precision.ties(np.array([0.1, 0.2, 0.1, 0.3, 0.1])) == 2


def test_the_table_of_the_docs(precision, monkeypatch, tmp_path):
    import resultfiles
    import tables

    monkeypatch.setattr(resultfiles, "RESULTS", tmp_path)
    assert tables.precision() == ""  # nothing was measured
    rows = [
        {"held_out": "0", "seed": 2, "precision": kind, "ties": ties, "device": "a device",
         "auroc": {"pp": pp, "re": 0.9}}
        for kind, pp, ties in (("bf16", 0.98, 4), ("fp32", 0.97, 1))
    ]  # fmt: skip
    precision.write(tmp_path / "precision-mnist.json", {"settings": {"epochs": 20}}, rows)
    shown = tables.precision()
    assert "| mean AUROC PP | 0.9800 | 0.9700 | +0.0100 | no |" in shown
    assert "| mean AUROC RE | 0.9000 | 0.9000 | +0.0000 | yes |" in shown
    assert "| ties in PP | 4 | 1 |" in shown
    assert "1 MNIST cells of CapsNet, 1 seeds, on one a device" in shown
    (tmp_path / "paper").mkdir()
    seen = tables.study_tables.Ties(networks=2, images=900, found=2, expected=1.0)
    monkeypatch.setattr(tables.study_tables, "ties", lambda dataset: seen)
    shown = tables.precision()  # 1 − 2/e = 0.264
    assert "have 2 among 900 images; by chance alone 1 are expected" in shown
    assert "so many ties or more have a probability of 0.26 (Poisson)." in shown
