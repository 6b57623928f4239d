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
from anocaps.study.report.circumstances import circumstances_of
from anocaps.study.report.costs import Cost, Costs
from anocaps.study.report.field import field_rows
from anocaps.study.report.numbers import Numbers
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
        ({"method": "matrix-capsnet", "settings": {"epochs": 5}}, True),  # as budgets.py says
        ({"method": "matrix-capsnet"}, False),
    ],
)
def test_claims_are_judged_on_methods_as_described(tmp_path, monkeypatch, changed, judged):
    result = replace(make_result(held_out=("2",), seed=0), settings={"epochs": 20})
    result = replace(result, **changed)
    seen = []
    monkeypatch.setattr(reports, "read_results", lambda folder: [result])
    monkeypatch.setattr(reports, "judge", lambda results, **_: seen.extend(results) or [])
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


NOW, EARLIER = "0123456789ab", "another commit"  # the first is that of `make_result`


def run(methods, datasets, finished, seconds, commit=NOW, study="field"):
    return {"study": study, "methods": methods, "datasets": datasets, "finished": finished,
            "seconds": seconds, "device": "a GPU", "commit": commit}  # fmt: skip


def cells(method, dataset="mnist", digits="0123456789", seeds=3, variant="", **record):
    made = [
        make_result((d,), seed, method, dataset, variant=variant, scores=("re",))
        for d in digits
        for seed in range(seeds)
    ]
    return [replace(each, record=each.record | record) for each in made]


def costs(results, *runs):
    return Costs(Numbers(results), RunLog(runs))


def test_the_cost_of_a_cell_comes_from_the_runs_of_its_row():
    found = costs(
        cells("vae") + cells("dbn"),
        run(["vae"], ["mnist"], 20, 60.0),
        run(["vae"], ["mnist"], 10, 60.0),
        run(["vae"], ["mnist"], 0, 99.0),  # stopped
        run(["vae"], ["mnist"], 30, 30.0, EARLIER),  # of cells that were discarded
        run(["vae", "dbn"], ["mnist"], 60, 990.0),
    )
    assert found.on("vae", "mnist") == Cost(4.0, ("mnist",))
    assert found.on("dbn", "mnist").at_least and found.on("vae", "cifar10") is None


def test_runs_that_counted_other_cells_are_no_cost():
    """45 cells in the log, 30 kept: some were discarded, or another run was beside."""
    runs = [run(["vae"], ["mnist"], count, 70.0) for count in (10, 10, 25)]
    assert costs(cells("vae"), *runs).on("vae", "mnist").at_least


def test_a_cost_over_two_datasets_names_both():
    results = cells("vae") + cells("vae", "fashion-mnist")
    both = run(["vae"], ["fashion-mnist", "mnist"], 60, 90.0)
    found = costs(results, both)
    for dataset in ("mnist", "fashion-mnist"):
        assert found.on("vae", dataset) == Cost(1.5, ("mnist", "fashion-mnist"))
    lines = field_rows(Numbers(results), found)[0]["cells"][0]["lines"]
    assert any("Fashion-MNIST" in line for line in lines)  # in the column of MNIST
    *_, seconds, _ = circumstances_of(Numbers(results), found).training.rows[0].cells
    assert seconds.text == "1.5" and "Fashion-MNIST" in seconds.aside

    most = cells("vae", digits="3456789", commit=EARLIER) + cells("vae", digits="012")
    runs = [run(["vae"], ["mnist"], 21, 42.0, EARLIER), both | {"finished": 39}]
    found = costs(most + cells("vae", "fashion-mnist"), *runs)
    assert found.on("vae", "mnist") == Cost(2.0, ("mnist",))  # its own line, of most of its cells
    assert found.on("vae", "fashion-mnist").at_least
    few = costs(most + cells("vae", "fashion-mnist"), both | {"finished": 39})
    assert few.on("vae", "mnist").at_least  # the line has three of its ten classes


def test_a_line_of_one_dataset_precedes_a_line_of_two():
    half = cells("vae", digits="01234", commit=EARLIER) + cells("vae", digits="56789")
    found = costs(
        half + cells("vae", "fashion-mnist"),
        run(["vae"], ["mnist", "fashion-mnist"], 45, 90.0),
        run(["vae"], ["mnist"], 15, 45.0, EARLIER),
    )
    assert found.on("vae", "mnist") == Cost(3.0, ("mnist",))
    assert found.on("vae", "fashion-mnist").at_least


def test_old_runs_of_the_paper_name_every_preset_capsnet():
    results = cells("capsnet", variant="paper-tuned") + cells("capsnet", commit=EARLIER)
    old = [
        run(["capsnet"], ["mnist"], 30, seconds, commit, "paper")
        for seconds, commit in ((60.0, NOW), (90.0, EARLIER))
    ]
    found = costs(results, *old)
    assert found.on("capsnet-paper-tuned", "mnist") == Cost(2.0, ("mnist",))
    assert found.on("capsnet", "mnist") == Cost(3.0, ("mnist",))


def test_without_a_log_the_cost_is_a_share_of_the_training_of_a_fleet():
    results = [
        *cells("vae", training_seconds=32.0),
        *cells("kde", training_seconds=3.0),
        *cells("dbn", digits="01", seeds=1, training_seconds=20.0),
        *cells("geom", seeds=1, training_seconds="a while"),
    ]
    found = costs(results)
    assert found.on("vae", "mnist") == Cost(2.0, ("mnist",), at_least=True)  # 16 of 30 together
    assert found.on("kde", "mnist").seconds == 1.0  # one training for three seeds
    assert found.on("dbn", "mnist").seconds == 2.0  # eight more classes may have been beside
    assert found.on("geom", "mnist") is None
    assert found.mean("geom", ["mnist"]) is None


def test_the_mean_cost_is_over_the_datasets_where_it_is_known():
    results = cells("vae") + cells("vae", "cifar10", training_seconds=None)
    results += cells("vae", "small-norb", training_seconds=32.0)
    found = costs(results, run(["vae"], ["mnist"], 30, 120.0))
    assert found.mean("vae", ["mnist", "cifar10"]) == Cost(4.0, ("mnist",))
    both = found.mean("vae", ["mnist", "cifar10", "small-norb"])
    assert both == Cost(3.0, ("mnist", "small-norb"), at_least=True)
    (row,) = field_rows(Numbers(results), found)
    assert row["costs"][0] | {"text": ""} == {"text": "", "value": "3.000", "part": "2/3"}


def test_the_size_of_a_model_is_that_of_its_network():
    results = cells("capsnet", model_bytes=40e6) + cells("capsnet", variant="paper-tuned")
    results += cells("capsnet", variant="deep") + cells("vae", model_bytes=5e6)
    found = costs(results)
    sizes = {each: found.megabytes(each, "mnist") for each in ("capsnet", "capsnet-deep", "vae")}
    assert sizes == {"capsnet": 40.0, "capsnet-deep": None, "vae": 5.0}
    assert found.megabytes("capsnet-paper-tuned", "mnist") == 40.0


def test_the_time_of_the_study_is_that_of_the_cells_that_are_kept():
    results = [
        *cells("vae"),
        *cells("dbn", training_seconds=32.0),
        *cells("geom", digits="01", seeds=1, training_seconds=None),
        *cells("svm", seeds=1, device="B"),
    ]
    log = [
        run(["vae"], ["mnist"], 30, 600.0),
        run(["vae"], ["mnist"], 90, 9000.0, EARLIER),
        run(["svm"], ["mnist"], 10, 180.0),
    ]
    numbers = [int(n) for n in re.findall(r"\d+", costs(results, *log).total())]
    assert numbers == [60, 11, 30, 10, 3, 2]  # cells, minutes, training only; of B; unknown


DAMAGED_LINES = [
    b"{", b"5", b"\xff\xfe", b'{"device": 1}', b"", b"[" * 100_000,
    json.dumps(run(["vae"], ["mnist"], 1, float("nan"))).encode(),
    json.dumps(run(["vae"], ["mnist"], 1, 10**400)).encode(),
    json.dumps(run(["vae"], [["mnist"]], 1, 1.0)).encode(),
]  # fmt: skip


def test_damaged_lines_of_the_log_are_skipped(tmp_path):
    log, whole = tmp_path / "log.jsonl", run(["vae"], ["mnist"], 5, 90.0)
    log.write_bytes(b"\n".join([*DAMAGED_LINES, json.dumps(whole).encode()]))
    assert RunLog.read(log).runs == [whole]


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
