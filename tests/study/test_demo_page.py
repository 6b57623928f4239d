"""The page is whole, says what was measured, and lets nothing in or out."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from anocaps.judging.metrics import measure
from anocaps.study.report.demo import ReportCell, write_report

VOID = {"meta", "img", "br", "wbr", "link"}
TITLE, LEAD = "Digits & co", "Ten networks look at what they <never> saw."
SETTINGS = {"dataset": "digits", "note": "<b>bold</b>"}


def make_cell(held_out: str, seed: int, count: int = 30, channels: int = 0) -> ReportCell:
    rng = np.random.default_rng(seed)
    anomalous = np.arange(2 * count) % 2 == 0
    pp, re_ = rng.normal(size=(2, 2 * count)) - anomalous
    scores = {"pp": pp, "re": re_, "pp+re": pp + re_}
    shape = (2 * count, 8, 8, channels) if channels else (2 * count, 8, 8)
    return ReportCell(
        held_out=held_out,
        scores=scores,
        anomalous=anomalous,
        metrics={name: measure(s[~anomalous], s[anomalous]) for name, s in scores.items()},
        accuracy=0.9 + seed / 1000,
        looks_like=[f"class {n % 3}" for n in range(2 * count)],
        images=rng.integers(0, 256, shape, dtype=np.uint8),
        reconstructions=rng.integers(0, 256, shape, dtype=np.uint8),
    )


class Balance(HTMLParser):
    """Fails on the first tag that is not closed in order; keeps what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(path: Path) -> Balance:
    parser = Balance()
    parser.feed(path.read_text("utf-8"))
    parser.close()
    assert not parser.open
    return parser


def attributes(page: Balance, tag: str, name: str) -> list[str | None]:
    return [attrs.get(name) for seen, attrs in page.tags if seen == tag]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "report.html"


def test_every_cell_is_shown_with_its_figures(path: Path) -> None:
    cells = [make_cell(f"kind {n}", n) for n in range(10)]
    write_report(path, TITLE, LEAD, cells, SETTINGS)
    page = read(path)
    text = "\n".join(page.text)
    assert TITLE in text
    assert LEAD in text
    assert "<b>bold</b>" in text
    for cell in cells:
        assert page.text.count(cell.held_out) >= 1
        assert f"Held out: {cell.held_out}" in text
        assert f"{100 * cell.accuracy:.1f}\u00a0%" in text
        for metrics in cell.metrics.values():
            # summary, section's first line, table beside the curves; the legend says more
            assert page.text.count(f"{metrics.auroc:.3f}") >= 3
            assert f" {metrics.auroc_low:.3f}–{metrics.auroc_high:.3f}" in page.text
            assert f": AUROC {metrics.auroc:.3f}" in text
    for score in ("pp", "re", "pp+re"):
        assert f"{np.mean([cell.metrics[score].auroc for cell in cells]):.3f}" in page.text
    assert attributes(page, "svg", "role") == ["img"] * 40
    assert len(attributes(page, "img", "src")) == 10 * 2 * (2 * 20 + 2 * 6)
    assert sum("open" in attrs for tag, attrs in page.tags if tag == "details") == 1
    assert path.stat().st_size < 3_000_000


def test_the_extremes_lead_and_are_described(path: Path) -> None:
    cell = make_cell("9", 1)
    best, worst = 7, 12
    cell.scores["pp+re"][best], cell.scores["pp+re"][worst] = 50.0, -50.0
    for score in ("pp", "re"):
        cell.scores[score][best], cell.scores[score][worst] = 25.0, -25.0
    write_report(path, TITLE, LEAD, [cell], SETTINGS)
    cards = re.findall(r'<div class="card">.*?</p></div>', path.read_text("utf-8"))
    assert len(cards) == 12
    assert "held out: 9" in cards[0]
    assert "class 0" in cards[0] and "class 1" in cards[6]
    assert '<span class="kind normal">' in cards[6]


def test_one_cell_has_no_mean(path: Path) -> None:
    write_report(path, TITLE, LEAD, [make_cell("0, 3", 0)], {})
    assert "Mean" not in read(path).text


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_channels_and_few_images(path: Path, channels: int) -> None:
    write_report(path, TITLE, LEAD, [make_cell("a", 0, count=2, channels=channels)], SETTINGS)
    assert len(attributes(read(path), "img", "src")) == 2 * (4 + 4 + 4)


def test_nothing_is_fetched_from_elsewhere(path: Path) -> None:
    write_report(path, TITLE, LEAD, [make_cell("a", 0)], SETTINGS)
    page = read(path)
    assert not re.search(r"https?://|@import|url\(", path.read_text("utf-8"))
    assert all(str(src).startswith("data:image/png") for src in attributes(page, "img", "src"))
    assert all(str(link).startswith("#") for link in attributes(page, "a", "href"))
    assert "link" not in {tag for tag, _ in page.tags}
    assert attributes(page, "script", "src") == [None]


def test_hostile_names_are_only_text(path: Path) -> None:
    evil = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>$title & ${x}"
    cell = replace(make_cell(evil, 0), looks_like=[evil] * 60)
    write_report(path, evil, evil, [cell], {evil: evil})
    page = read(path)
    assert len(attributes(page, "script", "src")) == 1
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert f"Held out: {evil}" in "".join(page.text)
    assert "<script>alert" not in path.read_text("utf-8")


def test_same_results_same_page(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.html"
    for target in (path, other):
        write_report(target, TITLE, LEAD, [make_cell("a", 0)], SETTINGS)
    assert path.read_bytes() == other.read_bytes()
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
