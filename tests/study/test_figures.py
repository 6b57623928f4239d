"""Figures show what was measured, in the page and in files, and are the same every time."""

import io
import re
from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from study_results import make_result

from anocaps.pages.rendering import light_colours
from anocaps.study.report.figures import (
    FORMATS,
    StudyFigure,
    bar_figure,
    case_figures,
    figure_style,
    length_figures,
)
from anocaps.study.report.numbers import Numbers


@pytest.fixture(autouse=True)
def _style():
    with figure_style():
        yield


def bars(figure: StudyFigure) -> StudyFigure:
    return [p for p in figure.figure.axes[0].patches if (p.get_gid() or "").startswith("tip-")]


def test_every_colour_has_a_dark_one() -> None:
    style = (files("anocaps.pages") / "templates/style.css").read_text("utf-8")
    dark = style[style.index("prefers-color-scheme: dark") :].split("}")[0]
    assert set(light_colours()) == set(re.findall(r"--([\w-]+):", dark))


def test_files_of_the_same_results_have_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        results = [make_result(("2",), seed, pictures=3) for seed in range(2)]
        numbers = Numbers(results)
        for figure in [*case_figures(numbers, "mnist"), bar_figure(numbers, "mnist")]:
            paths = figure.write(tmp_path / folder)
            assert [path.suffix[1:] for path in paths] == list(FORMATS)
    made = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert len(made) == 3 * len(FORMATS)
    for name in made:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_files_stand_alone_and_are_not_blank(tmp_path: Path) -> None:
    figure = bar_figure(Numbers([make_result((d,), 0) for d in "29"]), "mnist")
    svg, png, pdf = figure.write(tmp_path)
    root = ElementTree.parse(svg).getroot()
    assert root.get("viewBox") and "var(" not in svg.read_text("utf-8")
    image = np.asarray(Image.open(io.BytesIO(png.read_bytes())).convert("RGB"))
    for name in ("pp", "re", "paper"):
        assert (image == list(bytes.fromhex(light_colours()[name][1:]))).all(2).any()
    assert pdf.read_bytes().startswith(b"%PDF")


def test_the_page_colours_by_name() -> None:
    numbers = Numbers([make_result((d,), 0, pictures=2) for d in "29"])
    for figure in (*case_figures(numbers, "mnist"), *length_figures(numbers, "mnist")):
        shapes = figure.drawn.shapes
        assert not re.search(r"#[0-9a-f]{6}(?![0-9a-f])", shapes)
        ElementTree.fromstring(f'<svg xmlns:xlink="x">{shapes}</svg>')
    assert "var(--normal)" in next(length_figures(numbers, "mnist")).drawn.shapes


def test_the_figures_of_a_study() -> None:
    results = [make_result((d,), s, pictures=7 * (d == "2")) for d in "259" for s in range(3)]
    results += [make_result(("0", "3", "5"), s) for s in range(3)]
    numbers = Numbers(results)
    figures = {figure.name: figure for figure in case_figures(numbers, "mnist")}
    assert list(figures) == [
        "roc-mnist-2", "roc-mnist-9", "reconstructed-mnist-2", "roc-mnist-0-3-5",
    ]  # fmt: skip
    reconstructed = figures["reconstructed-mnist-2"]
    (tiles,) = reconstructed.figure.axes[0].images
    pairs = next(r.pictures for r in results if r.pictures is not None)
    shown = np.asarray(tiles.get_array())
    assert (shown[..., 3] > 0).sum() == pairs.size  # 7 pairs, with gaps between them
    np.testing.assert_array_equal(shown[:12, :12, :3], pairs[0, 0].repeat(3, 2))
    taken = np.concatenate([r.predicted[r.anomalous] for r in results if r.held_out == ("2",)])
    for digit in "013":  # what the made-up network takes a 2 for
        assert f"{digit} ({100 * np.mean(taken == int(digit)):.0f}\u00a0%)" in reconstructed.caption


def test_bars_start_at_chance_and_end_at_their_value() -> None:
    results = [make_result((d,), s, m) for d in "29" for s in range(3) for m in ("capsnet", "vae")]
    results = [r for r in results if (r.held_out, r.method) != (("2",), "vae")]  # not measured
    numbers = Numbers(results)
    figure = bar_figure(numbers, "mnist")
    pp, re_, vae = numbers.headlines("mnist")
    spreads = []
    for series in (pp, re_):
        spreads += [numbers.auroc("mnist", (digit,), series) for digit in "29"]
        spreads.append(numbers.mean_auroc("mnist", series))
    spreads.append(numbers.auroc("mnist", ("9",), vae))
    drawn = bars(figure)
    assert [bar.get_y() + bar.get_height() for bar in drawn] == pytest.approx(
        [spread.mean for spread in spreads]
    )
    assert {bar.get_y() for bar in drawn} == {0.5}
    assert len(figure.tips) == len(drawn) == 7
    for spread, tip in zip(spreads, figure.tips):
        assert str(spread) in tip
        assert all(f"seed {seed}: {value:.3f}" in tip for seed, value in spread.by_seed.items())
    assert figure.drawn.shapes.count("<title>") == figure.narrow.shapes.count("<title>") == 7


def test_many_long_names_stay_different() -> None:
    names = tuple(f"a rather long name of a part, number {n}" for n in range(20))
    results = [make_result((n,), 0, "vae", "parts", names) for n in names]
    figure = bar_figure(Numbers(results), "parts")
    shown = [text.get_text() for text in figure.figure.axes[0].get_yticklabels()]
    assert len(set(shown)) == 21 and max(map(len, shown)) < 20
    assert figure.narrow is None  # too many to stand beside each other: always lying


def test_names_are_not_read_as_formulas(tmp_path: Path) -> None:
    names = ("$a^$", "mean", "<b>&", "寸法")
    numbers = Numbers([make_result((n,), 0, "vae", "parts", names) for n in names])
    figure = bar_figure(numbers, "parts")
    svg = figure.write(tmp_path)[0].read_text("utf-8")
    texts = {element.text for element in ElementTree.fromstring(svg).iter() if element.text}
    assert set(names) <= texts
    assert len(bars(figure)) == 5  # a class that is called mean, and the mean


def test_lengths_are_summed_over_cells_and_seeds() -> None:
    results = [make_result((d,), s) for d in "29" for s in range(2)]
    longest, _ = length_figures(Numbers(results), "mnist")
    steps = [p for p in longest.figure.axes[0].patches if hasattr(p, "get_data") and p.get_fill()]
    for kind, step in zip(("normal", "anomalous"), steps):
        counts = np.sum([r.lengths[kind]["longest"] for r in results], axis=0)
        shares = np.clip(counts / counts.sum(), 1e-4, None)
        np.testing.assert_allclose(step.get_data().values, shares)
