"""Drawings say what was measured, alike in the page, in SVG and in PNG files."""

import re
from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from study_results import make_result

from anocaps.judging.metrics import roc_curve
from anocaps.study.cell import LENGTH_BINS
from anocaps.study.report.charts import Bar, Curve, Group, Look, bar_chart, curve_chart, row_chart
from anocaps.study.report.drawing import (
    Area,
    Drawing,
    Line,
    Picture,
    Text,
    Zone,
    light_colours,
    rectangle,
    svg_file,
    svg_for_page,
)
from anocaps.study.report.figures import bar_figure, case_figures, length_figures
from anocaps.study.report.numbers import Numbers
from anocaps.study.report.png import SCALE, draw, write_png

SVG = "{http://www.w3.org/2000/svg}"
LOOKS = [Look("first", "pp"), Look("second", "re", (4, 2))]


def rgb(name: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(light_colours()[name][1:]))


def said(drawing: Drawing) -> list[list[str]]:
    return [list(shape.lines) for shape in drawing.shapes if isinstance(shape, Zone)]


def written(drawing: Drawing) -> list[str]:
    return [shape.text for shape in drawing.shapes if isinstance(shape, Text)]


def areas(drawing: Drawing, colour: str) -> list[np.ndarray]:
    """Corners of the bars of a colour; the first is its sample in the key."""
    found = [np.asarray(s.points) for s in drawing.shapes if isinstance(s, Area)]
    shown = [s.colour for s in drawing.shapes if isinstance(s, Area)]
    return [points for points, name in zip(found, shown) if name == colour][1:]


EVERYTHING = Drawing(
    "all & <every>",
    60,
    40,
    [
        Area(rectangle(0, 0, 20, 20), "pp"),
        Area(rectangle(20, 0, 20, 20), "ink", 0.5),
        Line([(0, 30), (60, 30)], "re", 4),
        Text(50, 38, "<a&b>", anchor="end", bold=True),
        Picture(40, 0, 20, 20, np.array([[0, 255], [255, 0]], dtype=np.uint8)),
        Zone(0, 0, 20, 20, ["x < 1", "a: 2 & 3"]),
    ],
)


def test_a_file_is_whole_and_needs_no_style_sheet() -> None:
    text = svg_file(EVERYTHING)
    root = ElementTree.fromstring(text)
    assert root.get("viewBox") == "0 0 60 40"
    assert root.get("aria-label") == EVERYTHING.title
    assert [e.text for e in root.iter(f"{SVG}text")] == ["<a&b>"]
    assert [e.text for e in root.iter(f"{SVG}title")] == ["x < 1\na: 2 & 3"]
    assert "var(" not in text
    assert light_colours()["pp"] in text
    assert all("http" not in value for e in root.iter() for value in e.attrib.values())


def test_the_page_colours_by_name() -> None:
    text = svg_for_page(EVERYTHING)
    assert "var(--pp)" in text
    assert not re.search(r"#[0-9a-f]{6}|http", text)


def test_every_colour_has_a_dark_one() -> None:
    style = (files("anocaps.pages") / "templates/style.css").read_text("utf-8")
    dark = style[style.index("prefers-color-scheme: dark") :].split("}")[0]
    assert set(light_colours()) == set(re.findall(r"--([\w-]+):", dark))


def test_a_png_shows_every_shape_in_its_place() -> None:
    image = draw(EVERYTHING)
    assert image.size == (60 * SCALE, 40 * SCALE)
    pixel = {at: image.getpixel((at[0] * SCALE, at[1] * SCALE)) for at in
             [(10, 10), (30, 10), (30, 30), (44, 4), (56, 4), (5, 25)]}  # fmt: skip
    assert pixel[10, 10] == rgb("pp")
    half = (np.array(rgb("ink")) + rgb("paper")) / 2
    assert np.abs(np.array(pixel[30, 10]) - half).max() <= 1
    assert pixel[30, 30] == rgb("re")
    assert pixel[44, 4] == (0, 0, 0) and pixel[56, 4] == (255, 255, 255)
    assert pixel[5, 25] == rgb("paper")
    text = np.asarray(image)[33 * SCALE :, 20 * SCALE : 50 * SCALE]
    assert (text < 100).any()


def test_dashes_leave_gaps() -> None:
    def dark(dash: tuple[float, ...]) -> float:
        image = np.asarray(draw(Drawing("", 100, 10, [Line([(0, 5), (100, 5)], "ink", 2, dash)])))
        return float((image[5 * SCALE] < 128).all(1).mean())

    assert dark(()) > 0.98
    assert abs(dark((6, 4)) - 0.6) < 0.06


def test_signs_that_the_typeface_lacks_are_no_error(tmp_path: Path) -> None:
    write_png(tmp_path / "a.png", Drawing("", 60, 20, [Text(2, 15, "Größe 寸法")]))
    assert np.asarray(Image.open(tmp_path / "a.png").convert("L")).min() < 128


def test_curves_are_read_at_every_place() -> None:
    rng = np.random.default_rng(0)
    normal, odd = rng.normal(1, 1, 200), rng.normal(0, 1, 200)
    x, y = roc_curve(normal, odd)
    drawing = curve_chart([Curve(LOOKS[0], "0.76", x, y)], "t", "false alarms", "found", "AUROC")
    readings = said(drawing)
    assert readings[0][0] == "false alarms 0 %" and readings[-1][1] == "first: 100.0 %"
    threshold = np.sort(normal)[19]  # the 20th lowest: 10 % of the normal images at or below it
    at_ten = next(lines for lines in readings if lines[0] == "false alarms 10 %")
    next_one = np.sort(normal)[20]
    low, high = (100 * np.mean(odd <= threshold), 100 * np.mean(odd < next_one))
    assert low - 0.05 <= float(at_ten[1].split(": ")[1].split()[0]) <= high + 0.05
    assert {"AUROC", "first", "0.76"} <= set(written(drawing))


@pytest.mark.parametrize("chart", [bar_chart, row_chart])
def test_bars_start_at_their_base_and_are_as_long_as_their_value(chart) -> None:
    groups = [
        Group("a", [Bar(0.9, 0.05, ["held out: a", "first: 0.900"]), Bar(0.4, None, ["b"])]),
        Group("b", [None, Bar(0.7, 0.01, ["c"])]),
    ]
    drawing = chart(groups, LOOKS, "t", "AUROC", 0.5)
    along = 1 if chart is bar_chart else 0
    (first,), (low, high) = areas(drawing, "pp"), areas(drawing, "re")
    extents = [np.ptp(bar[:, along]) for bar in (first, low, high)]
    np.testing.assert_allclose(np.array(extents) / extents[0], [1, 0.25, 0.5], rtol=1e-6)
    up = -1 if chart is bar_chart else 1
    base = (first[:, along] * up).min()
    assert (low[:, along] * up).max() == pytest.approx(base)  # below 0.5: to the other side
    assert (high[:, along] * up).min() == pytest.approx(base)
    assert said(drawing) == [["held out: a", "first: 0.900"], ["b"], ["c"]]
    if chart is row_chart:
        assert {"0.900", "0.400", "0.700"} <= set(written(drawing))


def test_long_names_stay_different_and_inside() -> None:
    names = [f"a rather long name of a part, number {n}" for n in range(12)]
    groups = [Group(name, [Bar(0.8, None, [name])]) for name in names]
    for chart in (bar_chart, row_chart):
        shown = [
            text for text in written(chart(groups, LOOKS[:1], "t", "AUROC", 0.5)) if "…" in text
        ]
        assert len(set(shown)) == len(names)
        assert max(map(len, shown)) < 24


def test_the_figures_of_a_study() -> None:
    results = [make_result((d,), s, pictures=7 * (d == "2")) for d in "259" for s in range(3)]
    results += [make_result(("0", "3", "5"), s) for s in range(3)]
    numbers = Numbers(results)
    names = [figure.name for figure in case_figures(numbers, "mnist")]
    assert names == ["roc-mnist-2", "roc-mnist-9", "redrawn-mnist-2", "roc-mnist-0-3-5"]
    redrawn = next(f for f in case_figures(numbers, "mnist") if f.name == "redrawn-mnist-2")
    assert sum(isinstance(shape, Picture) for shape in redrawn.drawing.shapes) == 14
    taken = np.concatenate([r.predicted[r.anomalous] for r in results if r.held_out == ("2",)])
    for digit in "013":  # what the made-up network takes a 2 for
        assert f"{digit} ({100 * np.mean(taken == int(digit)):.0f}\u00a0%)" in redrawn.caption


def test_bars_say_mean_spread_and_seeds() -> None:
    results = [make_result((d,), s, m) for d in "29" for s in range(3) for m in ("capsnet", "vae")]
    figure = bar_figure(Numbers(results), "mnist")
    values = [r.metrics["re"].auroc for r in results if (r.held_out, r.method) == (("9",), "vae")]
    line = f"VAE: {np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
    spoken = [lines for lines in said(figure.drawing) if lines[0] == "held out: 9"]
    assert [lines[1].split(":")[0] for lines in spoken] == ["CapsNet (PP)", "CapsNet (RE)", "VAE"]
    assert spoken[2][1:] == [line, *(f"seed {s}: {v:.3f}" for s, v in enumerate(values))]
    assert figure.narrow is not None and said(figure.narrow) == said(figure.drawing)
    assert f"<title>held out: 9\n{line}\n" in svg_for_page(figure.drawing)


def test_lengths_are_summed_over_cells_and_seeds() -> None:
    results = [make_result((d,), s) for d in "29" for s in range(2)]
    longest, others = length_figures(Numbers(results), "mnist")
    counts = {
        kind: np.sum([r.lengths[kind]["longest"] for r in results], axis=0)
        for kind in ("normal", "anomalous")
    }
    lines = said(longest.drawing)
    assert len(lines) == len(said(others.drawing)) == LENGTH_BINS
    for index in (10, 25, 49):
        assert lines[index] == [
            f"length {index / 50:.2f} to {(index + 1) / 50:.2f}",
            *(f"{k}: {100 * c[index] / c.sum():.2f} %" for k, c in counts.items()),
        ]
