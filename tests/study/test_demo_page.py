"""The report of the demo: its numbers, and that it is self-contained."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from html_page import HOSTILE, Page

from anocaps.judging.metrics import measure
from anocaps.study.report.demo import ReportCell, write_report


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


@pytest.fixture
def write(tmp_path):
    """Writes a report of these cells and reads it."""

    def write(*cells: ReportCell, text: str = "text") -> Page:
        path: Path = tmp_path / "new" / "report.html"
        write_report(path, text, text, cells, {text: text})
        assert [file.name for file in path.parent.iterdir()] == ["report.html"]
        return Page(path)

    return write


def test_every_cell_is_shown_with_its_aurocs(write):
    cells = [make_cell(f"kind {n}", n) for n in range(3)]
    page = write(*cells)
    page.assert_fetches_nothing()
    for cell in cells:
        aurocs = [f"{metrics.auroc:.3f}" for metrics in cell.metrics.values()]
        assert [text.split()[0] for text in page.row(cell.held_out)[1:4]] == aurocs
    means = [f"{np.mean([c.metrics[s].auroc for c in cells]):.3f}" for s in cells[0].metrics]
    assert page.row("Mean")[1:4] == means
    assert len(page.attributes("img", "src")) == 3 * 2 * (2 * 20 + 2 * 6)
    assert write(*cells).source == page.source


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_channels_and_few_images(write, channels):
    page = write(make_cell("a", 0, count=2, channels=channels))
    assert len(page.attributes("img", "src")) == 2 * (4 + 4 + 4)


def test_hostile_names_are_only_text(write):
    cell = replace(make_cell(HOSTILE, 0), looks_like=[HOSTILE] * 60)
    page = write(cell, text=HOSTILE)
    page.assert_hostile_is_text()
    assert [tag for tag, _ in page.tags].count("script") == 1
