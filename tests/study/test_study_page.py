"""The report of a study: right numbers, whole files, nothing from elsewhere, parts where parts."""

import csv
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from study_results import DIGITS, make_result

from anocaps.base.errors import InputError
from anocaps.study.cell import CellResult
from anocaps.study.claim_rules import Rule
from anocaps.study.claims import Claim, Judged
from anocaps.study.report import figures
from anocaps.study.report.numbers import Numbers
from anocaps.study.report.page import write_study_report

VOID = {"meta", "br", "wbr"}
EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>$title & ${x}"


class Page(HTMLParser):
    """Tags with their attributes, the text, and the cells of every table."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(path.read_text("utf-8"))
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    def row(self, *start: str) -> list[str]:
        """The first row that starts like this."""
        return next(row for row in self.rows if row[: len(start)] == list(start))


def judged(verdict: str, says: str = "PP is best.", numbers: str = "PP .985 ± .003") -> Judged:
    claim = Claim("key", "Section 3", ("mnist",), says, Rule("PP the highest", lambda view: view))
    return Judged(claim, verdict, numbers, {0: True, 1: verdict == "holds"})


def mnist(seeds: int = 3, digits: str = "2459") -> list[CellResult]:
    return [
        make_result((digit,), seed, method, pictures=4 * (digit == "2" and method == "capsnet"))
        for method in ("capsnet", "vae")
        for digit in digits
        for seed in range(seeds)
    ]


def values(results: list[CellResult], method: str, digit: str, score: str) -> list[float]:
    chosen = [r for r in results if (r.method, r.held_out) == (method, (digit,))]
    return [r.metrics[score].auroc for r in chosen]


@pytest.fixture
def page_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only text and tables are looked at: most of the time goes into figures."""
    monkeypatch.setattr(figures, "FORMATS", ())
    blank = figures.Drawn("0 0 1 1", 1, "")
    monkeypatch.setattr(figures.StudyFigure, "_drawn", lambda *_: blank)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> tuple[Path, list[CellResult], list[Path]]:
    folder = tmp_path_factory.mktemp("study") / "report"
    results = mnist()
    return folder, results, write_study_report(folder, results, [judged("holds")])


def test_the_table_has_means_spreads_and_the_best_in_bold(study) -> None:
    folder, results, _ = study
    page = Page(folder / "index.html")
    assert page.row("held out") == ["held out", "CapsNet (PP)", "CapsNet (RE)", "VAE"]
    columns = [("capsnet", "pp"), ("capsnet", "re"), ("vae", "re")]
    for digit in "2459":
        found = [values(results, method, digit, score) for method, score in columns]
        expected = [f"{np.mean(v):.3f} ± {np.std(v, ddof=1):.3f}" for v in found]
        assert page.row(digit) == [digit, *expected]
        best = max(f"{np.mean(v):.3f}" for v in found)
        assert f'<span class="best">{best}</span>' in (folder / "index.html").read_text("utf-8")
    over_classes = [
        np.mean([values(results, method, digit, score) for digit in "2459"], axis=0)
        for method, score in columns
    ]
    means = [f"{m.mean():.3f} ± {m.std(ddof=1):.3f}" for m in over_classes]
    assert page.row("mean") == ["mean", *means]
    assert page.row("MNIST") == ["MNIST", *means]
    elbo = np.mean([values(results, "vae", digit, "elbo") for digit in "2459"], axis=0)
    assert page.row("VAE (ELBO)")[1] == f"{elbo.mean():.3f} ± {elbo.std(ddof=1):.3f}"
    widths = [
        r.metrics[score].auroc_high - r.metrics[score].auroc_low
        for r in results
        for score in (("pp", "re") if r.method == "capsnet" else ("re",))
    ]
    assert f"{np.mean(widths):.3f} wide on average" in " ".join("".join(page.text).split())


def test_the_premise_is_counted(study) -> None:
    folder, results, _ = study
    long = np.sum([r.lengths["anomalous"]["long"] for r in results if r.lengths], axis=0)
    shares = 100 * np.array([long[0], long[1], long[2:].sum()]) / long.sum()
    assert long[2] > 0 and long[0] > 0
    row = Page(folder / "index.html").row("MNIST, anomalous")
    assert row[1:] == [f"{share:.2f}\u00a0%" for share in shares]


def test_csv_files_hold_the_same_numbers(study) -> None:
    folder, results, _ = study
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    titles = (
        "dataset,method,variant,held_out,seed,score,auroc,low,high,aupr,fpr95,auroc_all,accuracy"
    )
    assert ",".join(rows[0]) == titles
    assert len(rows) == sum(len(r.metrics) for r in results)
    one = next(r for r in rows if (r["held_out"], r["seed"], r["score"]) == ("9", "1", "elbo"))
    assert one["auroc"] == f"{values(results, 'vae', '9', 'elbo')[1]:.6f}" and one["accuracy"] == ""
    assert float(one["auroc_all"]) == pytest.approx(float(one["auroc"]) - 0.01, abs=1e-5)
    with open(folder / "tables" / "mnist.csv", newline="") as file:
        table = {row["held_out"]: row for row in csv.DictReader(file)}
    assert set(table) == {*"2459", "mean of classes"}
    pp = values(results, "capsnet", "4", "pp")
    assert table["4"]["CapsNet (PP) mean"] == f"{np.mean(pp):.6f}"
    assert table["4"]["CapsNet (PP) sd"] == f"{np.std(pp, ddof=1):.6f}"
    assert table["4"]["CapsNet (PP) seeds"] == "3"


def test_every_file_is_there(study) -> None:
    folder, _, paths = study
    assert paths[0] == folder / "index.html"
    assert sorted(paths) == sorted(p for p in folder.rglob("*") if p.is_file())
    names = {path.stem for path in paths if path.parent.name == "figures"}
    assert names == {
        "roc-mnist-2", "roc-mnist-9", "reconstructed-mnist-2", "auroc-mnist",
        "lengths-mnist-longest", "lengths-mnist-others",
    }  # fmt: skip
    assert len(paths) == 3 + len(figures.FORMATS) * len(names)


def test_nothing_is_fetched_from_elsewhere(study) -> None:
    text = (study[0] / "index.html").read_text("utf-8")
    page = Page(study[0] / "index.html")
    assert not re.search(r"https?:|@import|url\((?!#)", text)
    for tag, attrs in page.tags:
        assert tag not in ("link", "iframe", "img") and "src" not in attrs
        if tag == "image":
            assert str(attrs["xlink:href"]).startswith("data:image/png;base64,")
        if tag == "a":
            ids = {other.get("id") for _, other in page.tags}
            assert str(attrs["href"])[0] == "#" and str(attrs["href"])[1:] in ids


@pytest.mark.usefixtures("page_only")
def test_claims_are_counted_and_told(tmp_path: Path) -> None:
    verdicts = ["holds", "in part", "does not hold", "does not hold", "not measured"]
    claims = [judged(v, f"Claim {n}.", "" if n == 4 else f".9{n}") for n, v in enumerate(verdicts)]
    write_study_report(tmp_path, mnist(2, "29"), claims)
    page = Page(tmp_path / "index.html")
    text = "".join(page.text)
    for words in ("1 holds", "1 in part", "2 do not hold", "1 not measured"):
        assert words in text
    row = page.row("Claim 1.Section 3 · MNIST")
    assert row[1:] == ["PP the highest", ".91", "in parttrue in 1 of 2 seeds"]
    assert page.row("Claim 4.Section 3 · MNIST")[2] == "–"
    kinds = {attrs["class"] for tag, attrs in page.tags if "verdict " in (attrs.get("class") or "")}
    assert kinds == {"verdict good", "verdict partly", "verdict bad", "verdict unknown"}


@pytest.mark.usefixtures("page_only")
def test_claims_that_nothing_was_measured_for_are_left_out(tmp_path: Path) -> None:
    write_study_report(tmp_path, mnist(1, "2"), [judged("not measured")])
    assert "claims" not in {attrs.get("id") for _, attrs in Page(tmp_path / "index.html").tags}


def test_parts_of_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One seed, a missing cell, a method of somebody's own, a folder of images."""
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
    assert page.row("held out") == ["held out", "DBN", "pixel-knn (near)"]
    near = [r.metrics["near"].auroc for r in results[:3]]
    assert page.row("wash/er") == ["wash/er", "–", f"{near[2]:.3f}"]  # no ± of one seed
    assert page.row("mean") == ["mean", "–", f"{np.mean(near):.3f}"]
    assert "unofficial copy" in page.text
    drawn = {path.stem for path in paths if path.suffix == ".png"}
    assert drawn == {
        "auroc-my_parts", "roc-my_parts-nut", "roc-my_parts-bolt", "roc-my_parts-wash%2Fer",
    }  # fmt: skip


def test_a_mean_is_of_seeds_that_have_every_class() -> None:
    results = [r for r in mnist(3, "29") if (r.held_out, r.seed) != (("9",), 1)]
    numbers = Numbers(results)
    pp = numbers.headlines("mnist")[0]
    mean = numbers.mean_auroc("mnist", pp)
    first, last = values(results, "capsnet", "2", "pp"), values(results, "capsnet", "9", "pp")
    assert mean.by_seed == pytest.approx({0: (first[0] + last[0]) / 2, 2: (first[2] + last[1]) / 2})


@pytest.mark.usefixtures("page_only")
def test_several_classes_at_once_are_no_part_of_the_mean(tmp_path: Path) -> None:
    alone = [make_result((digit,), 0) for digit in "29"]
    write_study_report(tmp_path, [*alone, make_result(("0", "3", "5"), 0, strength=0.0)])
    page = Page(tmp_path / "index.html")
    pp = [r.metrics["pp"].auroc for r in alone]
    assert page.row("mean")[1] == f"{np.mean(pp):.3f}"
    assert page.row("0, 3, 5")[1] < "0.7"


@pytest.mark.usefixtures("page_only")
def test_how_it_was_made(tmp_path: Path) -> None:
    results = [make_result(("2",), seed) for seed in range(2)]
    results.append(
        replace(
            make_result(("car",), 0, "capsnet", "small-norb", ("car", "truck", "human")),
            official=False,
            settings={"score": "pp", "epochs": 50, "crop": 32, "seed": 0},
        )
    )
    write_study_report(tmp_path, results)
    page = Page(tmp_path / "index.html")
    assert page.row("MNIST, CapsNet")[1:] == ["2", "20", "100", "bf16", "12.5", "98.7\u00a0%"]
    assert page.row("epochs") == ["epochs", "20 (MNIST); 50 (Small-NORB)"]
    assert page.row("crop") == ["crop", "none (MNIST); 32 (Small-NORB)"]
    assert page.row("device") == ["device", "a GPU"]
    assert page.row("versions") == ["versions", "python 3.11.0, torch 2.10.0"]
    assert page.row("seeds") == ["seeds", "0, 1"]
    assert "JPEG copies" in "".join(page.text)


@pytest.mark.usefixtures("page_only")
@pytest.mark.parametrize(
    ("preset", "settings", "told"),
    [
        ("paper", {"shift": 0, "gradient": "last"}, ["0", "last"]),
        # results that were written before they held what a preset gave
        (
            "paper",
            {"shift": None, "gradient": None},
            ["as preset paper: 0", "as preset paper: all"],
        ),
        ("deep", {"shift": None, "gradient": None}, ["as preset deep", "as preset deep"]),
    ],
)
def test_settings_are_told_as_used(preset: str, settings: dict, told: list, tmp_path: Path) -> None:
    result = make_result()
    open_ = {"preset": preset, "learning_rate": None, "reconstruction_weight": None}
    used = {"training": {"learning_rate": 0.003, "reconstruction_weight": 0.0}}
    write_study_report(tmp_path, [replace(result, settings=open_ | settings, record=used)])
    page = Page(tmp_path / "index.html")
    assert [page.row(name)[1] for name in ("shift", "gradient")] == told
    assert page.row("learning rate")[1] == "0.003"
    assert page.row("reconstruction weight")[1] == "0.0"


@pytest.mark.usefixtures("page_only")
def test_what_training_used_beside_its_settings_is_told(tmp_path: Path) -> None:
    def cell(held_out: str, dataset: str, names: tuple[str, ...], gamma: float) -> CellResult:
        made = make_result((held_out,), 0, "cnn-ocsvm", dataset, names)
        used = {"precision": "bf16", "final_share": 0.1, "seed": 0}
        svm = {"nu": 0.1, "gamma": gamma, "seconds": 1.5}
        settings = made.settings | {"precision": "auto"}
        return replace(made, settings=settings, record={"training": used, "svm": svm})

    toys = ("car", "truck")
    results = [cell("2", "mnist", DIGITS, 0.00312), cell("9", "mnist", DIGITS, 0.00149)]
    write_study_report(tmp_path, [*results, cell("car", "small-norb", toys, 0.05)])
    page = Page(tmp_path / "index.html")
    assert page.row("precision") == ["precision", "auto: bf16"]
    assert page.row("learning rate falls to this share")[1] == "0.1"
    assert page.row("ν of the SVM")[1] == "0.1"
    assert page.row("γ of the SVM")[1] == "0.0015 to 0.0031 (MNIST); 0.05 (Small-NORB)"
    assert not [row for row in page.rows if row[0] in ("seed", "seconds", "final share")]


@pytest.mark.usefixtures("page_only")
def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    names = (EVIL, *DIGITS)
    results = [make_result((EVIL,), 0, EVIL, EVIL, names, scores=(EVIL,))]
    write_study_report(tmp_path, results, [judged("holds", EVIL, EVIL)])
    page = Page(tmp_path / "index.html")
    assert not any(tag == "script" for tag, _ in page.tags)
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert "<script>alert" not in (tmp_path / "index.html").read_text("utf-8")
    assert EVIL in "".join(page.text)


def test_no_results_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="anocaps study run"):
        write_study_report(tmp_path, [])
    assert not list(tmp_path.iterdir())
