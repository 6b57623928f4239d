"""Reports are made of a folder's results, and only written to where they are asked for."""

import json
import re
from dataclasses import replace
from urllib.parse import unquote

import pytest
from html_page import Page
from study_results import make_result

from anocaps.base.errors import DataError
from anocaps.study import reports
from anocaps.study.packed import pack
from anocaps.study.report import figures
from anocaps.study.report.runlog import RunLog
from anocaps.study.reports import read_choices, read_results, write_study
from anocaps.study.resultfile import write_result


@pytest.mark.parametrize(
    ("changed", "judged"),
    [
        ({}, True),
        ({"variant": "deep"}, False),
        ({"limit": 100}, False),
        ({"settings": {"epochs": 3}}, False),
        ({"method": "matrix-capsnet", "settings": {"epochs": 3}}, True),  # as budgets.py says
        ({"method": "matrix-capsnet"}, False),
    ],
)
def test_claims_are_judged_on_methods_as_described(tmp_path, monkeypatch, changed, judged):
    result = replace(make_result(held_out=("2",), seed=0), settings={"epochs": 20})
    result = replace(result, **changed)
    seen = []
    monkeypatch.setattr(reports, "read_results", lambda folder: [result])
    monkeypatch.setattr(reports, "judge", lambda results: seen.extend(results) or [])
    monkeypatch.setattr(reports, "write_study_report", lambda *_: [])
    write_study("paper", tmp_path, tmp_path / "out")
    assert seen == ([result] if judged else [])


def test_the_variant_of_a_result_is_that_of_its_folder(tmp_path):
    for row in ("capsnet", "capsnet-paper-tuned"):
        write_result(tmp_path / "mnist" / row / "2-seed0.npz", make_result(("2",), 0))
    assert [r.variant for r in read_results(tmp_path)] == ["", "paper-tuned"]


def test_a_result_under_the_name_of_another_is_refused(tmp_path):
    path = tmp_path / "mnist" / "capsnet" / "3-seed0.npz"
    write_result(path, make_result(("2",), 0))
    with pytest.raises(DataError) as caught:
        read_results(tmp_path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"chosen":[1]}', '{"chosen":{"mnist":[]}}', '{"chosen":{"mnist":{"vae":"x"}}}',
     '{"chosen":{"mnist":{"vae":{"2":"no such choice"}}}}', '{"chosen":{"mnist":{"vae":{"2":[]}}}}',
     '{"chosen":{"mnist":{"no such method":{"2":"as described"}}}}', "[" * 100_000],
)  # fmt: skip
def test_choices_of_another_shape_are_refused(tmp_path, text):
    path = tmp_path / "choices.json"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_choices(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_report_changes_nothing_in_the_folder_of_results(tmp_path, monkeypatch):
    folder, out = tmp_path / "results", tmp_path / "out"
    write_result(folder / "mnist" / "capsnet" / "2-seed0.npz", make_result(("2",), 0))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    monkeypatch.setattr(figures, "FORMATS", ("svg",))
    written = write_study("paper", folder, out)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert sorted(path for path in out.rglob("*") if path.is_file()) == sorted(written)


def run(methods, datasets, finished, seconds, study="field", device="A"):
    return {"study": study, "methods": methods, "datasets": datasets, "finished": finished,
            "seconds": seconds, "device": device}  # fmt: skip


def test_the_cost_of_a_cell_comes_from_runs_of_one_method(tmp_path):
    log = tmp_path / "log.jsonl"
    assert RunLog.read(log).seconds_per_cell("vae", "mnist") is None
    runs = [
        run(["vae"], ["mnist", "cifar10"], 20, 60.0),
        run(["vae"], ["mnist"], 10, 60.0, study="paper"),
        run(["vae"], ["mnist"], 0, 99.0),  # stopped
        run(["vae", "dbn"], ["mnist"], 10, 99.0),
        run(["capsnet"], ["mnist"], 10, 50.0, study="paper"),  # of any preset
        run(["capsnet"], ["cifar10"], 10, 50.0),
    ]
    log.write_text("".join(json.dumps(each) + "\n" for each in runs))
    cost = RunLog.read(log).seconds_per_cell
    assert cost("vae", "mnist") == 4.0 and cost("vae", "cifar10") == 3.0
    assert cost("dbn", "mnist") is None and cost("capsnet", "mnist") is None
    assert cost("capsnet", "cifar10") == 5.0 and cost("capsnet-deep", "cifar10") is None


DAMAGED_LINES = [
    b"{", b"5", b"\xff\xfe", b'{"device": 1}', b"", b"[" * 100_000,
    json.dumps(run(["vae"], ["mnist"], 1, float("nan"))).encode(),
    json.dumps(run(["vae"], ["mnist"], 1, 10**400)).encode(),
]  # fmt: skip


def test_damaged_lines_of_the_log_are_skipped(tmp_path):
    log, whole = tmp_path / "log.jsonl", run(["vae"], ["mnist"], 5, 90.0)
    log.write_bytes(b"\n".join([*DAMAGED_LINES, json.dumps(whole).encode()]))
    assert RunLog.read(log).runs == [whole]


def test_the_log_counts_cells_and_minutes_by_device():
    log = RunLog([run(["vae"], ["mnist"], 5, 90.0), run(["vae"], ["mnist"], 6, 90.0),
                  run(["dbn"], ["mnist"], 1, 60.0, device="B")])  # fmt: skip
    numbers = [int(n) for n in re.findall(r"\d+", log.total(kept=9))]
    assert numbers == [11, 3, 1, 1, 9] and RunLog().total(kept=9) == ""


def test_the_page_links_the_raw_scores(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "FORMATS", ())
    folder, out = tmp_path / "my results", tmp_path / "out" / "page"
    write_result(folder / "mnist" / "capsnet-a%2Fb c" / "2-seed0.npz", make_result(("2",), 0))
    pack(folder)
    write_study("paper", folder, out)
    links = [unquote(link) for link in Page(out / "index.html").attributes("a", "href")]
    (raw,) = (link for link in links if link.endswith(".parquet"))
    assert (out / raw).resolve() == folder / "capsnet-a%2Fb c.parquet"
    assert (out / "tables" / "mnist.csv").is_file() and "tables/mnist.csv" in links
