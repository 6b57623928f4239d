"""Figures of a study show what was measured."""

import io
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from study_results import make_result

from anocaps.pages.rendering import light_colours
from anocaps.study.report import figures
from anocaps.study.report.figures import (
    FORMATS,
    case_figures,
    dot_figure,
    figure_style,
    length_figures,
)
from anocaps.study.report.numbers import Numbers


@pytest.fixture(autouse=True)
def _style():
    with figure_style():
        yield


def test_the_same_results_give_the_same_files(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        for figure in case_figures(Numbers([make_result(("2",), reconstructions=3)]), "mnist"):
            figure.write(tmp_path / folder)
    made = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert len(made) == 2 * len(FORMATS)
    for name in made:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_files_stand_alone_and_are_not_blank(tmp_path: Path) -> None:
    figure = dot_figure(Numbers([make_result((d,), 0) for d in "29"]), "mnist")
    svg, png = figure.write(tmp_path)
    ElementTree.parse(svg)
    assert "var(" not in svg.read_text("utf-8")
    image = np.asarray(Image.open(io.BytesIO(png.read_bytes())).convert("RGB"))
    for name in ("pp", "re", "paper"):
        assert (image == list(bytes.fromhex(light_colours()[name][1:]))).all(2).any()


def test_git_keeps_the_files_that_the_page_links() -> None:
    figure = dot_figure(Numbers([make_result()]), "mnist")
    paths = [f"docs/paper/figures/{name}" for _, name in figure.files]
    checked = subprocess.run(
        ["git", "check-ignore", "--no-index", *paths],
        cwd=Path(__file__).parents[2], capture_output=True, text=True,
    )  # fmt: skip
    if checked.returncode == 128:
        pytest.skip("not a git checkout")
    assert paths and checked.returncode == 1, checked.stdout


def test_images_are_shown_beside_their_reconstructions() -> None:
    results = [make_result(("2",), seed, reconstructions=7) for seed in range(3)]
    found = {figure.name: figure for figure in case_figures(Numbers(results), "mnist")}
    (tiles,) = found["reconstructed-mnist-2"].figure.axes[0].images
    pairs, shown = results[0].reconstructions, np.asarray(tiles.get_array())
    assert (shown[..., 3] > 0).sum() == pairs.size  # 7 pairs, with gaps between them
    np.testing.assert_array_equal(shown[:12, :12, :3], pairs[0, 0].repeat(3, 2))


def test_dots_stand_at_their_value() -> None:
    results = [make_result((d,), s, m) for d in "29" for s in range(3) for m in ("capsnet", "vae")]
    results = [r for r in results if (r.held_out, r.method) != (("2",), "vae")]  # not measured
    numbers = Numbers(results)
    pp, re_, vae = numbers.headlines("mnist")
    spreads = []
    for series in (pp, re_):
        spreads += [numbers.auroc("mnist", (digit,), series) for digit in "29"]
        spreads.append(numbers.mean_auroc("mnist", series))
    spreads.append(numbers.auroc("mnist", ("9",), vae))
    lines = dot_figure(numbers, "mnist").figure.axes[0].lines
    dots = [line for line in lines if line.get_marker() == "o"]
    assert [dot.get_ydata()[0] for dot in dots] == pytest.approx([s.mean for s in spreads])


def test_a_study_without_headlines_shows_every_score(tmp_path: Path) -> None:
    results = [
        make_result((d,), 0, "kde", "parts", ("a", "b"), scores=("pixels", "pca")) for d in "ab"
    ]
    numbers = Numbers(results)
    axes = dot_figure(numbers, "parts").figure.axes[0]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert len(dots) == 6 and len({dot.get_color() for dot in dots}) == 2  # 2 classes and the mean
    assert len(list(case_figures(numbers, "parts"))) == 2


def test_any_name_can_be_drawn(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(figures, "FORMATS", ("svg",))
    names = ("$a^$", "mean", "<b>&", "寸法", *(f"a long name of part {n}" for n in range(20)))
    numbers = Numbers([make_result((n,), 0, "vae", "parts", names) for n in names])
    figure = dot_figure(numbers, "parts")
    svg = figure.write(tmp_path)[0].read_text("utf-8")
    texts = {element.text for element in ElementTree.fromstring(svg).iter() if element.text}
    assert set(names[:4]) <= texts
    shown = [text.get_text() for text in figure.figure.axes[0].get_yticklabels()]
    assert len(set(shown)) == 24 and len(shown) == 25  # a class is called mean, as the mean is


def test_lengths_are_summed_over_cells_and_seeds() -> None:
    results = [make_result((d,), s) for d in "29" for s in range(2)]
    longest, _ = length_figures(Numbers(results), "mnist")
    steps = [p for p in longest.figure.axes[0].patches if hasattr(p, "get_data") and p.get_fill()]
    for kind, step in zip(("normal", "anomalous"), steps):
        counts = np.sum([r.lengths[kind]["longest"] for r in results], axis=0)
        shares = np.clip(counts / counts.sum(), 1e-4, None)
        np.testing.assert_allclose(step.get_data().values, shares)
