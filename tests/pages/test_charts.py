"""Charts are well-formed, escaped and carry their numbers."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from anocaps.judging.metrics import roc_curve
from anocaps.pages.charts import BINS, histogram, line_chart, share_chart

RNG = np.random.default_rng(0)


def texts(svg: str, tag: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(tag)]


def test_line_chart_names_its_curves_and_escapes_them() -> None:
    curve = roc_curve(RNG.normal(1, 1, 50), RNG.normal(0, 1, 50))
    svg = line_chart({"PP: AUROC 0.76": curve, "R<E": curve}, "ROC", "false alarms", "found")
    assert {"PP: AUROC 0.76", "R<E"} <= set(texts(svg, "text"))


def test_long_curves_are_thinned_in_place() -> None:
    normal, anomalous = RNG.normal(1, 1, 10_000), RNG.normal(0, 1, 10_000)
    x, y = roc_curve(normal, anomalous)
    svg = line_chart({"a": (x, y)}, "ROC", "x", "y")
    assert len(svg) < 40_000
    drawn = re.search(r'class="curve series-0" d="M([^"]+)"', svg)
    assert drawn
    points = np.array([point.split() for point in drawn[1].split("L")], dtype=float)
    left, bottom = points[0]
    side = points[-1, 0] - left
    heights = np.interp((points[:, 0] - left) / side, x, y)
    assert np.abs(heights - (bottom - points[:, 1]) / side).max() < 0.02


def test_histogram_counts_every_value_once() -> None:
    groups = {"normal": RNG.normal(1, 1, 300), "anomalous": RNG.normal(-1, 1, 200)}
    titles = texts(histogram(groups, "Scores", "PP"), "title")
    assert len(titles) == BINS
    for name, values in groups.items():
        total = sum(int(n) for title in titles for n in re.findall(rf"^(\d+) {name}", title, re.M))
        assert total == len(values)


@pytest.mark.parametrize(
    "values",
    [[0.3], [0.0] * 9, [1.0, 1.0 + 1e-16], [-1e9, 1e9], [1e-9, 2e-9], [1.0, 1.0 + 1e-7]],
)
def test_histogram_of_unusual_ranges(values: list[float]) -> None:
    svg = histogram({"normal": np.array(values), "anomalous": np.array(values)}, "t", "x")
    assert "nan" not in svg
    assert len(texts(svg, "text")) < 30


def test_an_empty_group_has_no_bars() -> None:
    svg = histogram({"normal": np.array([1.0, 2.0]), "anomalous": np.array([])}, "t", "x")
    assert all("0 anomalous" in title for title in texts(svg, "title"))


@pytest.mark.parametrize("count", [1, 2, 5000])
def test_a_share_chart_shows_the_last_share_and_both_lines(count: int) -> None:
    shares = np.linspace(0, 0.4, count) if count > 1 else np.array([0.4])
    svg = share_chart(shares, 100, 0.05, 0.17, "Flagged images")
    assert "nan" not in svg and len(svg) < 12_000
    assert {"alpha, 5 %", "far more, 17 %"} <= set(texts(svg, "text"))
    assert texts(svg, "title")[-1] == f"until image {count + 99:,}: 40 %"


def test_a_limit_that_cannot_be_reached_is_not_drawn() -> None:
    svg = share_chart(np.array([0.0, 1.0]), 1, 0.05, 2.0, "Flagged images")
    assert not any(text.startswith("far more") for text in texts(svg, "text"))
