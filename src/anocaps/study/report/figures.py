"""The figures of a study, drawn by matplotlib: SVG and PNG files, and SVG for the page.

A figure is made only if the study has its results. The same results give the same bytes.
"""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from anocaps.base.files import replacing
from anocaps.judging.metrics import roc_curve
from anocaps.pages.rendering import light_colours
from anocaps.study.cell import LENGTH_BINS, LONG
from anocaps.study.report.numbers import (
    EXTRA_COLOURS,
    HeldOut,
    Look,
    Numbers,
    Series,
    Spread,
    dataset_title,
    file_name,
    held_out_title,
    method_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "png")
_NO_METADATA = {"svg": ("Creator", "Date", "Format", "Type"), "png": ("Software",)}
_POINTS = 72  # per inch
_NARROW, _WIDE = 400, 900  # points: one column of a paper or a phone; a page
_WIDEST = 1.2  # pixels of the page per point

CHANCE = 0.5
# The cases that the paper shows in detail, with ROC curves and reconstructions.
_CASES: dict[str, list[HeldOut]] = {
    "mnist": [("2",), ("9",), ("0", "3", "5")],
    "fashion-mnist": [],
    "small-norb": [],
    "cifar10": [],
}
_MOST_CASES = 12  # of a dataset that is not the study's
_MOST_UPRIGHT = 14  # groups of dots beside each other
_LEAST_NAMED = 0.01  # a caption names classes with at least this share of the images
_LOWEST_SHARE = 1e-4  # where the axis of a histogram begins
_COLUMNS = 10  # images in a row
_GAP = 3  # pixels between images
_KINDS = {"normal": Look("normal", "normal"), "anomalous": Look("anomalous", "anomalous", (5, 2))}


class Group(NamedTuple):
    """Neighbouring dots: one per series, if it was measured."""

    name: str
    spreads: Sequence[Spread | None]
    apart: bool = False  # separated from the groups before


@dataclass(frozen=True)
class Drawn:
    """A figure inside the page: its colours follow light and dark mode."""

    view_box: str
    widest: int  # pixels
    shapes: str  # SVG


@dataclass(frozen=True)
class StudyFigure:
    name: str  # of its files
    heading: str
    title: str  # alternative text
    caption: str
    figure: "Figure"

    def write(self, folder: Path) -> list[Path]:
        paths = [folder / f"{self.name}.{kind}" for kind in FORMATS]
        for path in paths:
            with replacing(path) as temporary:
                temporary.write_bytes(_saved(self.figure, path.suffix[1:], self.name))
        return paths

    @property
    def files(self) -> list[tuple[str, str]]:
        """Format and name of each file."""
        return [(kind.upper(), f"{self.name}.{kind}") for kind in FORMATS]

    @property
    def drawn(self) -> Drawn:
        svg = _saved(self.figure, "svg", self.name).decode()
        shapes = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
        names = {code: f"var(--{name})" for name, code in reversed(light_colours().items())}
        shapes = re.sub(
            r"#[0-9a-f]{6}(?![0-9a-f])", lambda found: names.get(found[0], found[0]), shapes
        )
        shapes = re.sub(r'(<g) id="(?!\w*clip)[^"]*"', r"\1", shapes)  # an id must not repeat
        width, height = self.figure.get_size_inches() * _POINTS
        return Drawn(f"0 0 {width:g} {height:g}", round(_WIDEST * width), shapes)


@contextmanager
def figure_style() -> Iterator[None]:
    """The style of all figures: draw and save them inside this block."""
    import matplotlib

    colours = light_colours()
    style: dict[Any, Any] = {
        "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib
        "font.size": 11,
        "text.color": colours["ink"],
        "text.parse_math": False,  # a class may be named $a$
        "axes.labelcolor": colours["muted"],
        "axes.edgecolor": colours["rule"],
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": colours["rule"],
        "xtick.color": colours["rule"],
        "ytick.color": colours["rule"],
        "xtick.labelcolor": colours["muted"],
        "ytick.labelcolor": colours["muted"],
        "legend.frameon": False,
        "lines.scale_dashes": False,
        "figure.facecolor": colours["paper"],
        "axes.facecolor": colours["paper"],
        "svg.fonttype": "none",  # text stays text
        "pdf.fonttype": 42,
    }
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a class name in another script
        yield


def case_figures(numbers: Numbers, dataset: str) -> Iterator[StudyFigure]:
    """ROC curves of single classes, reconstructions, then ROC curves of several classes."""
    every = numbers.cells(dataset)
    cases = [held for held in _CASES.get(dataset, every[:_MOST_CASES]) if held in every]
    several = [held for held in cases if len(held) > 1]
    for held_out in cases:
        if held_out not in several:
            yield from _roc(numbers, dataset, held_out)
    for held_out in cases:
        yield from _reconstructed(numbers, dataset, held_out)
    for held_out in several:
        yield from _roc(numbers, dataset, held_out)


def _roc(numbers: Numbers, dataset: str, held_out: HeldOut) -> Iterator[StudyFigure]:
    runs = [(s, numbers.runs(dataset, held_out, s)) for s in _shown(numbers, dataset)]
    runs = [(series, own) for series, own in runs if own]
    if not runs:
        return
    figure, axes = _axes(_NARROW, 370 + 18 * len(runs))
    axes.set_box_aspect(1)
    for series, (first, *_) in runs:
        scores, anomalous = first.scores[series.score], first.anomalous
        curve = np.stack(roc_curve(scores[~anomalous], scores[anomalous]), axis=1)
        x, y = np.unique(np.round(500 * curve), axis=0).T / 500  # fewer points, same look
        label = f"{series.look.label}: AUROC {numbers.auroc(dataset, held_out, series)}"
        axes.plot(x, y, label=label, zorder=3 - 0.01 * len(axes.lines), **_line(series.look, 1.8))
    axes.axline((0, 0), slope=1, color=light_colours()["muted"], lw=1, dashes=(2, 4))
    axes.set(xlim=(0, 1), ylim=(0, 1.005), xlabel="false alarms", ylabel="anomalies found")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(np.linspace(0, 1, 5))
        axis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    figure.legend(loc="outside lower left", handlelength=2.8)
    what = held_out_title(held_out)
    yield StudyFigure(
        file_name("roc", dataset, *held_out),
        f"{what} held out",
        f"ROC curves, {dataset_title(dataset)}, held out: {what}",
        "Anomalies found against false alarms among normal images: ROC curves of the first seed. "
        + _spread_words(numbers, dataset),
        figure,
    )


def _reconstructed(numbers: Numbers, dataset: str, held_out: HeldOut) -> Iterator[StudyFigure]:
    run = numbers.reconstructed(dataset, held_out)
    if run is None or run.reconstructions is None:
        return
    tiles = _tiles(run.reconstructions)
    rows = -(-len(run.reconstructions) // _COLUMNS)
    left = 92  # points, for the names of the first two rows
    height = (_NARROW - left) * tiles.shape[0] / tiles.shape[1]
    figure, axes = _axes(_NARROW, height, layout=None)
    axes.set_position((left / _NARROW, 0, 1 - left / _NARROW, 1))
    axes.set_axis_off()
    axes.imshow(tiles, interpolation="none", aspect="auto")
    for second, name in enumerate(("original", "reconstruction")):
        middle = 1 - (second + 0.4) / (2 * rows)
        axes.text(-8 / (_NARROW - left), middle, name, transform=axes.transAxes, ha="right",
                  va="center", color=light_colours()["muted"])  # fmt: skip
    what = held_out_title(held_out)
    taken = numbers.taken_for(dataset, held_out, run.method)
    named = [f"{name} ({100 * share:.0f}\u00a0%)" for name, share in taken if share >= _LEAST_NAMED]
    words = (
        f" Their longest capsule, over all images of {what} and all seeds, is that of class "
        f"{', '.join(named)}. This need not be what the reconstruction looks like."
    )
    yield StudyFigure(
        file_name("reconstructed", dataset, *held_out),
        f"{what} reconstructed",
        f"Originals and reconstructions, {dataset_title(dataset)}, held out: {what}",
        f"{len(run.reconstructions)} images of {what} above their reconstructions by "
        f"{method_title(run.method)}, which was not trained on {what}." + (words if named else ""),
        figure,
    )


def _tiles(pairs: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Pairs [n, 2, h, w, C] as one image H×W×4, each original above its reconstruction."""
    count, _, height, width, channels = pairs.shape
    rows = -(-count // _COLUMNS)
    columns = min(count, _COLUMNS)
    block = 2 * (height + _GAP) + 2 * _GAP  # an original, its reconstruction, a wider gap
    shape = (rows * block, columns * (width + _GAP), 4)
    tiles = np.zeros(shape, np.uint8)  # transparent between the images
    for index, pair in enumerate(pairs if channels == 3 else pairs[..., :1]):
        row, column = divmod(index, _COLUMNS)
        for second, pixels in enumerate(pair):
            top, left = row * block + second * (height + _GAP), column * (width + _GAP)
            tiles[top : top + height, left : left + width, :3] = pixels
            tiles[top : top + height, left : left + width, 3] = 255
    return tiles


def dot_figure(numbers: Numbers, dataset: str) -> StudyFigure:
    """AUROC by held-out class, and its mean, for every method."""
    headlines = _shown(numbers, dataset)
    cells = numbers.class_cells(dataset)
    groups = [
        Group(held_out_title(held), [numbers.auroc(dataset, held, series) for series in headlines])
        for held in cells
    ]
    means = [numbers.mean_auroc(dataset, series) for series in headlines]
    if len(cells) > 1 and any(means):
        groups.append(Group("mean", means, apart=True))
    return StudyFigure(
        file_name("auroc", dataset),
        "Every class held out in turn",
        f"AUROC by held-out class, {dataset_title(dataset)}",
        "AUROC on the balanced test set; 0.5 is guessing. The axis shows only what was measured. "
        + _spread_words(numbers, dataset),
        _dots(groups, headlines, upright=len(groups) <= _MOST_UPRIGHT),
    )


def _shown(numbers: Numbers, dataset: str) -> list[Series]:
    """The headlines. A study without them, such as one of KDE alone, shows all its scores."""
    return numbers.headlines(dataset) or [
        replace(series, look=replace(series.look, colour=f"extra-{k % EXTRA_COLOURS}"))
        for k, series in enumerate(numbers.further(dataset))
    ]


def _dots(groups: Sequence[Group], headlines: Sequence[Series], upright: bool) -> "Figure":
    """Groups of dots on an axis that shows what was measured: wide, or tall for many."""
    colours = light_colours()
    size = (_WIDE, 330) if upright else (_NARROW, 90 + len(groups) * (16 + 15 * len(headlines)))
    figure, axes = _axes(*size)
    lows = [s.mean - (s.sd or 0) for group in groups for s in group.spreads if s]
    low = np.floor(10 * max(min(lows), 0)) / 10
    apart = 0.8 / len(headlines)
    places = [place + 0.3 * group.apart for place, group in enumerate(groups)]
    for index, series in enumerate(headlines):
        shown = [(at, group.spreads[index]) for at, group in zip(places, groups)]
        for at, spread in ((k, each) for k, each in shown if each):
            place = at + (index + 0.5) * apart - 0.4
            error, colour = spread.sd or 0.0, colours[series.look.colour]
            ends = ([place] * 2, [spread.mean - error, spread.mean + error])
            axes.plot(*(ends if upright else ends[::-1]), color=colour, lw=2, alpha=0.5)
            point = (place, spread.mean) if upright else (spread.mean, place)
            axes.plot(*point, "o", color=colour, ms=6)
            if not upright:
                axes.text(1.01, place, f"{spread.mean:.3f}", va="center", size=10)
    if groups[-1].apart:
        (axes.axvline if upright else axes.axhline)(
            places[-1] - 0.65, color=colours["muted"], lw=0.8
        )
    value, kind = (axes.yaxis, axes.xaxis) if upright else (axes.xaxis, axes.yaxis)
    letters = 130 // len(groups) if upright else 16
    kind.set_ticks(places, [_short(group.name, letters) for group in groups])
    kind.set_tick_params(length=0, labelcolor=colours["ink"])
    kind.grid(False)
    value.set_ticks(np.arange(round(20 * low), 21, 2 if low < 0.8 else 1) / 20)
    value.set_label_text("AUROC")
    (axes.set_ylim if upright else axes.set_xlim)(low, 1.01)
    if low < CHANCE:
        (axes.axhline if upright else axes.axvline)(CHANCE, color=colours["ink"], lw=0.8)
    if not upright:
        axes.invert_yaxis()
    from matplotlib.patches import Patch

    keys = [Patch(color=colours[s.look.colour], label=s.look.label) for s in headlines]
    figure.legend(handles=keys, loc="outside upper left", ncols=len(keys) if upright else 2,
                  handlelength=1, handleheight=1)  # fmt: skip
    axes.set_xmargin(0.01)
    axes.set_ymargin(0.01)
    return figure


def length_figures(numbers: Numbers, dataset: str) -> Iterator[StudyFigure]:
    """Histograms of capsule lengths. PP assumes one long capsule per normal image and no other."""
    lengths = numbers.lengths(dataset)
    if lengths is None:
        return
    name = dataset_title(dataset)
    parts = {
        "longest": (f"{name}: longest capsule of an image", "images"),
        "others": (f"{name}: all its other capsules", "capsules"),
    }
    muted = light_colours()["muted"]
    for part, (heading, unit) in parts.items():
        figure, axes = _axes(_NARROW, 300)
        for kind, look in _KINDS.items():
            counts = lengths[kind][part]
            shares = np.clip(counts / max(1, counts.sum()), _LOWEST_SHARE, None)
            edges = np.linspace(0, 1, LENGTH_BINS + 1)
            colour = light_colours()[look.colour]
            axes.stairs(shares, edges, baseline=_LOWEST_SHARE, fill=True, color=colour, alpha=0.25)
            axes.stairs(shares, edges, baseline=None, label=look.label, **_line(look, 1.5))
        axes.axvline(LONG, color=light_colours()["ink"], lw=1, dashes=(3, 3))
        axes.text(LONG + 0.015, 0.6, f"long: over {LONG}", color=muted)
        axes.set(yscale="log", xlim=(0, 1), ylim=(_LOWEST_SHARE, 1), xlabel="length",
                 ylabel=f"share of {unit} (log)")  # fmt: skip
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
        axes.minorticks_off()
        figure.legend(loc="outside upper left", ncols=2, handlelength=2.8)
        title = f"Lengths of class capsules, {heading}"
        yield StudyFigure(file_name("lengths", dataset, part), heading, title, "", figure)


def _axes(width: float, height: float, layout: Any = "constrained") -> "tuple[Figure, Axes]":
    """A figure of this size in points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / _POINTS, height / _POINTS), layout=layout)
    return figure, figure.add_subplot()


def _line(look: Look, width: float) -> dict[str, Any]:
    style: Any = (0, look.dash) if look.dash else "-"
    return {"color": light_colours()[look.colour], "linestyle": style, "linewidth": width}


def _saved(figure: "Figure", kind: str, salt: str) -> bytes:
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": salt}):
        metadata = dict.fromkeys(_NO_METADATA[kind])
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()


def _short(name: str, letters: int) -> str:
    """A long name loses its middle, because names often differ only at their end."""
    if len(name) <= letters:
        return name
    half = max(1, (letters - 1) // 2)
    return f"{name[:half].rstrip()}…{name[-half:].lstrip()}"


def _spread_words(numbers: Numbers, dataset: str) -> str:
    seeds = len(numbers.seeds(dataset))
    return "One seed." if seeds == 1 else f"±: standard deviation over {seeds} seeds."
