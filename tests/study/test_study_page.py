"""The report of a study: its numbers, its files, and that it is self-contained."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from browser import chromium
from html_page import HOSTILE, Page
from study_results import DIGITS, make_result

from anocaps.base.errors import InputError
from anocaps.detectors import find_method
from anocaps.study.budgets import FIELD
from anocaps.study.cell import CellResult
from anocaps.study.claims.judge import Judged
from anocaps.study.claims.paper import Claim
from anocaps.study.claims.rules import Rule
from anocaps.study.report import figures
from anocaps.study.report.chartdata import chart_data
from anocaps.study.report.costs import Costs
from anocaps.study.report.explained import explained
from anocaps.study.report.numbers import Numbers
from anocaps.study.report.page import write_study_report
from anocaps.study.report.runlog import RunLog


def judged(
    verdict: str, says: str = "PP is best.", numbers: str = "PP .985 ± .003", **revision: str
) -> Judged:
    rule = Rule("PP the highest", lambda view: view)
    claim = Claim("key", "Section 3", ("mnist",), says, rule, **revision)
    return Judged(claim, verdict, numbers, {0: True, 1: verdict == "holds"})


def mnist(seeds: int = 3, digits: str = "2459") -> list[CellResult]:
    return [
        make_result(
            (digit,), seed, method, reconstructions=4 * (digit == "2" and method == "capsnet")
        )
        for method in ("capsnet", "vae")
        for digit in digits
        for seed in range(seeds)
    ]


def values(results: list[CellResult], method: str, digit: str, score: str) -> list[float]:
    chosen = [r for r in results if (r.method, r.held_out) == (method, (digit,))]
    return [r.metrics[score].auroc for r in chosen]


@pytest.fixture
def page_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figures: they take most of the time."""
    monkeypatch.setattr(figures, "FORMATS", ())
    blank = figures.Drawn("0 0 1 1", 1, "")
    monkeypatch.setattr(figures.StudyFigure, "drawn", blank)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> tuple[Path, list[CellResult], list[Path]]:
    folder = tmp_path_factory.mktemp("study") / "report"
    results = mnist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "FORMATS", ("svg",))
        claims = [judged("holds"), judged("does not hold", "VAE is best.")]
        return folder, results, write_study_report(folder, results, claims)


def test_the_table_has_means_and_spreads(study) -> None:
    folder, results, _ = study
    page = Page(folder / "index.html")
    page.assert_fetches_nothing()
    columns = [("capsnet", "pp"), ("capsnet", "re"), ("vae", "re")]
    for digit in "2459":
        found = [values(results, method, digit, score) for method, score in columns]
        assert page.row(digit)[1:] == [f"{np.mean(v):.3f} ± {np.std(v, ddof=1):.3f}" for v in found]
    over_classes = [
        np.mean([values(results, method, digit, score) for digit in "2459"], axis=0)
        for method, score in columns
    ]
    means = [f"{m.mean():.3f} ± {m.std(ddof=1):.3f}" for m in over_classes]
    assert page.row("mean")[1:] == means
    by_class = [
        np.mean([values(results, method, digit, score) for digit in "2459"], axis=1)
        for method, score in columns
    ]
    at_a_glance = [f"{v.mean():.3f} ± {v.std(ddof=1) / 2:.3f}" for v in by_class]
    assert page.row("MNIST")[1:] == at_a_glance  # 2: the root of 4 classes


def test_csv_files_hold_the_same_numbers(study) -> None:
    folder, results, _ = study
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(r.metrics) for r in results)
    one = next(r for r in rows if (r["held_out"], r["seed"], r["score"]) == ("9", "1", "elbo"))
    assert one["auroc"] == f"{values(results, 'vae', '9', 'elbo')[1]:.6f}" and one["accuracy"] == ""
    assert float(one["auroc_all"]) == pytest.approx(float(one["auroc"]) - 0.01, abs=1e-5)
    with open(folder / "tables" / "mnist.csv", newline="") as file:
        table = {row["held_out"]: row for row in csv.DictReader(file)}
    pp = values(results, "capsnet", "4", "pp")
    assert table["4"]["CapsNet (PP) mean"] == f"{np.mean(pp):.6f}"
    assert table["4"]["CapsNet (PP) sd"] == f"{np.std(pp, ddof=1):.6f}"


def test_every_file_is_reported(study) -> None:
    folder, _, paths = study
    assert paths[0] == folder / "index.html"
    assert sorted(paths) == sorted(p for p in folder.rglob("*") if p.is_file())
    names = {path.stem for path in paths if path.parent.name == "figures"}
    assert {"roc-mnist-2", "reconstructed-mnist-2", "auroc-mnist"} <= names
    assert len(paths) == 5 + len(names)


@pytest.mark.usefixtures("page_only")
def test_verdicts_of_claims_are_shown_where_something_was_measured(tmp_path: Path) -> None:
    verdicts = ["holds", "in part", "does not hold", "not measured"]
    claims = [judged(verdict, f"Claim {n}.") for n, verdict in enumerate(verdicts)]
    write_study_report(tmp_path, mnist(2, "29"), claims)
    page = Page(tmp_path / "index.html")
    for n, verdict in enumerate(verdicts):
        (row,) = (row for row in page.rows if row[0].startswith(f"Claim {n}."))
        assert row[-1].startswith(verdict)
    write_study_report(tmp_path, mnist(1, "2"), [judged("not measured")])
    assert "claims" not in {attrs.get("id") for _, attrs in Page(tmp_path / "index.html").tags}


@pytest.mark.usefixtures("page_only")
def test_corrected_rules_are_told_and_counted(tmp_path: Path) -> None:
    plain, corrected = judged("holds", "Claim 0."), judged(
        "in part", "Claim 1.", revised="near 1 is over .9", before="not so before"
    )  # fmt: skip
    counts = []
    for claims in ([plain, corrected, corrected], [plain, plain]):
        write_study_report(tmp_path, mnist(2, "29"), claims)
        page = Page(tmp_path / "index.html")
        said = "".join(page.text)
        counts.append(re.findall(r"(\d+) of them", said))
        rows = {row[0].split(".")[0]: row[1] for row in page.rows if row and "Claim" in row[0]}
        assert "near 1 is over .9" not in rows["Claim 0"]
        if corrected in claims:
            assert "near 1 is over .9" in rows["Claim 1"] and "not so before" in rows["Claim 1"]
    assert counts == [["2"], []]


def test_an_unfinished_study_of_other_methods_and_data(tmp_path: Path, monkeypatch) -> None:
    """One seed, a missing cell, a method and a folder of the user."""
    monkeypatch.setattr(figures, "FORMATS", ("png",))
    names = ("nut", "bolt", "wash/er")
    results = [
        make_result((name,), 0, "pixel-knn", "my parts", names, scores=("near", "far"))
        for name in names
    ]
    results += [
        make_result((name,), 0, "dbn", "my parts", names, official=False) for name in names[:2]
    ]
    paths = write_study_report(tmp_path, results)
    page = Page(tmp_path / "index.html")
    near = [r.metrics["near"].auroc for r in results[:3]]
    assert page.row("wash/er") == ["wash/er", "–", f"{near[2]:.3f}"]  # no ± of one seed
    assert page.row("mean") == ["mean", "–", f"{np.mean(near):.3f}"]
    assert page.row("my parts")[1] == "–"
    assert "roc-my_parts-wash%2Fer" in {path.stem for path in paths if path.suffix == ".png"}


def test_a_mean_is_of_seeds_and_classes_that_are_complete() -> None:
    results = [r for r in mnist(3, "29") if (r.held_out, r.seed) != (("9",), 1)]
    numbers = Numbers([*results, make_result(("0", "3", "5"), 0, strength=0.0)])
    mean = numbers.mean_auroc("mnist", numbers.headlines("mnist")[0])
    first, last = values(results, "capsnet", "2", "pp"), values(results, "capsnet", "9", "pp")
    assert mean.by_seed == pytest.approx({0: (first[0] + last[0]) / 2, 2: (first[2] + last[1]) / 2})


@pytest.mark.usefixtures("page_only")
def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    names = (HOSTILE, *DIGITS)
    results = [make_result((HOSTILE,), 0, HOSTILE, HOSTILE, names, scores=(HOSTILE,))]
    write_study_report(tmp_path, results, [judged("holds", HOSTILE, HOSTILE)])
    page = Page(tmp_path / "index.html")
    page.assert_hostile_is_text()


def test_the_page_in_a_browser(study) -> None:
    with chromium() as browser:
        page, errors = browser.new_page(), []
        page.on("pageerror", lambda error: errors.append(error))
        page.goto((study[0] / "index.html").as_uri())
        title = page.locator("#field-table thead th").nth(1)
        order = []
        for direction in ("descending", "ascending"):
            title.get_by_role("button").click()
            assert title.get_attribute("aria-sort") == direction
            cells = page.locator("#field-table tbody td:nth-child(2)").all()
            order.append([float(cell.get_attribute("data-value")) for cell in cells])
        assert order[0] == sorted(order[1], reverse=True) and order[1] == sorted(order[0])

        key, marks = page.locator(".dots .key span"), page.locator(".dots path > title")
        assert (key.count(), marks.count()) == (3, 15)  # four classes and their mean
        page.locator(".dots summary").click()
        page.get_by_role("checkbox", name="CapsNet (MSE)").check()
        assert (key.count(), marks.count()) == (4, 20)

        page.select_option("#roc-1", label="VAE")
        first = values(study[1], "vae", "2", "re")[0]
        assert f"{first:.3f}" in page.inner_text("#roc-key")

        shown = page.locator("[aria-pressed=true]")
        assert shown.inner_text() == "all" and page.get_by_text("PP is best.").is_visible()
        page.get_by_role("button", name="does not hold").click()
        assert shown.inner_text() == "does not hold"
        assert not page.get_by_text("PP is best.").is_visible()

        details, aside = page.locator("#field-details"), page.locator("#field-table .aside").first
        assert details.is_checked() and aside.is_visible()
        page.set_viewport_size({"width": 390, "height": 800})
        page.reload()
        assert not details.is_checked() and not aside.is_visible()
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390 and not errors


@pytest.mark.usefixtures("page_only")
def test_costs_are_sorted_and_fit_on_a_phone(tmp_path: Path) -> None:
    seconds = {"capsnet": 800.0, "cnn-ocsvm": 16.0, "cnn-scores": None, "kde": 3200.0}
    every = ("mnist", "fashion-mnist", "small-norb", "cifar10")
    made = {
        (method, dataset): make_result(
            ("2",), 0, method, dataset, scores=("mahalanobis",) if "scores" in method else ("re",)
        )
        for method in seconds
        for dataset in every
        if (method, dataset) != ("kde", "cifar10")
    }
    results = [
        replace(r, record=r.record | {"training_seconds": seconds[method], "model_bytes": 2e8})
        for (method, _), r in made.items()
    ]
    write_study_report(tmp_path, results)
    total = Costs(Numbers(results), RunLog()).total()
    assert Page(tmp_path / "index.html").row("time")[1] == total
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.goto((tmp_path / "index.html").as_uri())
        head = page.locator("#field-table thead th")
        place = [cell.inner_text() for cell in head.all()].index("seconds")
        head.nth(place).get_by_role("button").click()
        rows = page.locator("#field-table tbody tr").all()
        found = [row.locator("td").nth(place - 1).get_attribute("data-value") for row in rows]
        assert found == ["3200.000", "800.000", "16.000", ""]  # the unknown one last
        assert page.locator("th .part", has_text="one seed").first.is_visible()
        last = page.locator("#field-table td:last-child").first
        assert last.is_visible() and "200" in last.inner_text()
        box = last.bounding_box()
        assert box is not None and box["x"] + box["width"] <= 390


def test_no_results_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write_study_report(tmp_path, [])
    assert not list(tmp_path.iterdir())


def test_variants_follow_their_method() -> None:
    rows = [("pixel-knn", ""), ("cnn-ocsvm", "tuned"), ("capsnet", "deep"), ("vae", ""),
            ("capsnet", "paper-tuned"), ("cnn-ocsvm", ""), ("capsnet", "")]  # fmt: skip
    scores = {"pixel-knn": ("near",)}
    numbers = Numbers(make_result(method=m, variant=v, scores=scores.get(m)) for m, v in rows)
    found = list(dict.fromkeys((s.method, s.variant) for s in numbers.every()))
    assert found == [rows[6], rows[4], rows[2], rows[5], rows[1], rows[3], rows[0]]
    labels = [s.look.label for s in numbers.every()]
    assert len(set(labels)) == len(labels) and labels[:2] == ["CapsNet (PP)", "CapsNet (RE)"]


def test_every_score_of_the_field_is_explained() -> None:
    for row in FIELD:
        for score in find_method(row.method).score_names:
            numbers = Numbers([make_result(method=row.method, scores=(score,))])
            assert len(explained(numbers).rows) == 1, (row.method, score)


def test_charts_have_every_score_of_every_class() -> None:
    results = [r for r in mnist(2, "29") if (r.method, r.held_out) != ("vae", ("2",))]
    numbers = Numbers(results)
    found = chart_data(numbers)
    names = [each["name"] for each in found["series"]]
    assert names == [s.look.label for s in numbers.every()]
    assert [each["name"] for each in found["series"] if each["first"]] == [
        s.look.label for s in numbers.headlines()
    ]
    looks = [(each["colour"], each["shape"]) for each in found["series"]]
    assert len(set(looks)) == len(looks)
    dots = found["dots"]["data-mnist"]
    assert dots["classes"] == ["2", "9"] and len(dots["values"]) == len(names)
    vae = dots["values"][names.index("VAE")]
    assert vae[0] is None and vae[2] is None  # no class 2, so no mean
    assert vae[1] == pytest.approx(
        [np.mean(v := values(results, "vae", "9", "re")), np.std(v, ddof=1)], abs=1e-4
    )
    (two, nine) = found["cells"]
    assert names.index("VAE") not in two["curves"]
    curve = nine["curves"][names.index("VAE")]
    x, y = np.reshape(curve["points"], (-1, 2)).T
    assert curve["auroc"] == pytest.approx(v[0], abs=1e-4)
    assert np.trapezoid(y, x) == pytest.approx(v[0], abs=0.02)
