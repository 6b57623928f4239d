"""The charts of a study, as drawings: curves, bars, densities, and pictures beside pictures."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise

import numpy as np
import numpy.typing as npt

from anocaps.pages.charts import thin
from anocaps.study.report.drawing import (
    Area,
    Drawing,
    Floats,
    Line,
    Picture,
    Shape,
    Text,
    Zone,
    rectangle,
)

NARROW, WIDE = 400.0, 900.0  # units: one column of a paper or a phone; a page

_SMALL = 11.5  # type of ticks
_LINE = 19.0  # from one line of text to the next
_WIDE_LETTERS = set("ABCDEFGHKMNOPQRSTUVWXYZmw+%@&")
_SLIM_LETTERS = set("Iijlftr.,:;'|()[] -")
_READINGS = 50  # places along the curves where numbers are said
_LOWEST_SHARE = 1e-4  # of the axis of densities


@dataclass(frozen=True)
class Look:
    """What tells one series from the others, in every chart alike."""

    label: str
    colour: str  # a name from style.css
    dash: Sequence[float] = ()


@dataclass(frozen=True)
class Curve:
    look: Look
    note: str  # beside its name
    x: Floats  # shares, from 0 to 1
    y: Floats


@dataclass(frozen=True)
class Bar:
    value: float
    spread: float | None  # drawn as value ± spread
    lines: Sequence[str]  # what is said of it


@dataclass(frozen=True)
class Group:
    label: str
    bars: Sequence[Bar | None]  # one per look
    apart: bool = False  # from the groups before


def curve_chart(
    curves: Sequence[Curve], title: str, x_label: str, y_label: str, heading: str
) -> Drawing:
    """Curves of one share against another, with the diagonal of pure chance."""
    left, top, side = 46.0, 30.0, NARROW - 46 - 22
    bottom = top + side
    shapes: list[Shape] = [Text(2, 14, y_label, "muted")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = left + share * side, bottom - share * side
        shapes += [Line([(left, y), (left + side, y)]), Line([(x, top), (x, bottom)])]
        shapes += _tick_left(left, y, _percent(share)) + _tick_below(x, bottom, _percent(share))
    shapes.append(Line([(left, bottom), (left + side, top)], "muted", 1, (2, 4)))
    for curve in reversed(curves):  # the first lies on top
        xs, ys = thin(left + side * curve.x, bottom - side * curve.y)
        shapes.append(Line(np.stack([xs, ys], 1), curve.look.colour, 2.2, curve.look.dash))
    for share in np.linspace(0, 1, _READINGS + 1):
        half = side / _READINGS / 2
        read = [f"{c.look.label}: {_percent(_height(c, share), 1)}" for c in curves]
        lines = [f"{x_label} {_percent(share)}", *read]
        shapes.append(Zone(left + share * side - half, top, 2 * half, side, lines))
    shapes.append(Text(left + side / 2, bottom + 38, x_label, "muted", anchor="middle"))
    shapes += _legend(curves, heading, left, bottom + 68)
    return Drawing(title, NARROW, bottom + 76 + _LINE * len(curves), shapes)


def bar_chart(
    groups: Sequence[Group], looks: Sequence[Look], title: str, label: str, base: float
) -> Drawing:
    """Upright bars in groups, from `base` up or down."""
    low, ticks = _axis(groups, base)
    left, right, height = 44.0, WIDE - 8, 240.0
    key, top = _key(looks, left, 16, right)
    top += 40
    bottom = top + height

    def up(value: float) -> float:
        return bottom - height * (value - low) / (1 - low)

    shapes: list[Shape] = [*key, Text(2, top - 14, label, "muted")]
    for tick in ticks:
        shapes.append(Line([(left, up(tick)), (right, up(tick))]))
        shapes += _tick_left(left, up(tick), f"{tick:.1f}")
    slot = (right - left) / (len(groups) + 0.4 * sum(group.apart for group in groups))
    step = slot * 0.8 / len(looks)
    x = left
    for group in groups:
        if group.apart:
            shapes.append(Line([(x + 0.2 * slot, top), (x + 0.2 * slot, bottom + 22)], "muted"))
            x += 0.4 * slot
        for index, (look, bar) in enumerate(zip(looks, group.bars)):
            if bar is None:
                continue
            start = x + 0.1 * slot + index * step
            ends = sorted((up(base), up(bar.value)))
            shapes.append(
                Area(rectangle(start, ends[0], step * 0.88, ends[1] - ends[0]), look.colour)
            )
            shapes += _error_bar(bar, base, start + step * 0.44, up, upright=True)
            shapes.append(Zone(start, top, step, height, bar.lines))
        name = _fitting(group.label, slot - 4, 13)
        shapes.append(Text(x + slot / 2, bottom + 20, name, anchor="middle", bold=group.apart))
        x += slot
    shapes.append(Line([(left, up(base)), (right, up(base))], "ink", 1))
    return Drawing(title, WIDE, bottom + 30, shapes)


def row_chart(
    groups: Sequence[Group], looks: Sequence[Look], title: str, label: str, base: float
) -> Drawing:
    """The same bars lying, for a narrow page or many groups, with their values written out."""
    low, ticks = _axis(groups, base)
    longest = max(_width(group.label, 13) for group in groups)
    left, right, thick = 16 + min(max(longest, 54), 134), NARROW - 44, 14.0
    key, top = _key(looks, 2, 16, NARROW)
    top += 34
    tall = [thick * sum(bar is not None for bar in group.bars) for group in groups]
    gaps = [26 if group.apart else 14 for group in groups]
    bottom = top + sum(tall) + sum(gaps)

    def across(value: float) -> float:
        return left + (right - left) * (value - low) / (1 - low)

    shapes: list[Shape] = [*key, Text(2, top - 8, label, "muted")]
    for tick in ticks:
        shapes.append(Line([(across(tick), top), (across(tick), bottom)]))
        shapes.append(Text(across(tick), top - 8, f"{tick:.1f}", "muted", _SMALL, "middle"))
    y = top
    for group, height, gap in zip(groups, tall, gaps):
        if group.apart:
            shapes.append(Line([(2, y + gap / 2), (NARROW, y + gap / 2)], "muted"))
        y += gap
        name = _fitting(group.label, left - 12, 13)
        middle = y + height / 2 + 4.5
        shapes.append(Text(left - 10, middle, name, anchor="end", bold=group.apart))
        for look, bar in zip(looks, group.bars):
            if bar is None:
                continue
            ends = sorted((across(base), across(bar.value)))
            box = rectangle(ends[0], y + 1, ends[1] - ends[0], thick - 2)
            shapes.append(Area(box, look.colour))
            shapes += _error_bar(bar, base, y + thick / 2, across, upright=False)
            shapes.append(Text(NARROW - 2, y + thick - 3, f"{bar.value:.3f}", "ink", _SMALL, "end"))
            shapes.append(Zone(left, y, NARROW - left, thick, bar.lines))
            y += thick
    shapes.append(Line([(across(base), top), (across(base), bottom)], "ink", 1))
    return Drawing(title, NARROW, bottom + 4, shapes)


def density_chart(
    counts: Sequence[tuple[Look, npt.ArrayLike]],
    edges: Floats,
    title: str,
    x_label: str,
    y_label: str,
    mark: tuple[float, str],
) -> Drawing:
    """Histograms over each other, each as shares of its own total, on a logarithmic axis.

    `mark` is a place on the x axis, and what is written there.
    """
    left, right, height = 58.0, NARROW - 12, 210.0
    key, top = _key([look for look, _ in counts], left, 16, right)
    top += 40
    bottom = top + height

    def across(value: float) -> float:
        return float(left + (right - left) * (value - edges[0]) / (edges[-1] - edges[0]))

    def up(share: float) -> float:
        decades = -np.log10(_LOWEST_SHARE)
        return float(bottom - height * (np.log10(max(share, _LOWEST_SHARE)) + decades) / decades)

    shapes: list[Shape] = [*key, Text(2, top - 14, y_label, "muted")]
    for power in range(round(np.log10(_LOWEST_SHARE)), 1):
        y = up(10.0**power)
        shapes.append(Line([(left, y), (right, y)]))
        shapes += _tick_left(left, y, f"{10.0 ** (power + 2):g} %")
    for value in np.linspace(edges[0], edges[-1], 5):
        shapes += _tick_below(across(value), bottom, f"{value:g}")
    shares = [(look, np.asarray(count) / max(1, np.sum(count))) for look, count in counts]
    sides = [across(edge) for edge in edges]
    for look, share in shares:
        for outline in _outlines(share > _LOWEST_SHARE, sides, [up(s) for s in share], bottom):
            shapes.append(Area(outline, look.colour, 0.25))
            shapes.append(Line(outline, look.colour, 1.6, look.dash))
    shapes.append(Line([(left, bottom), (right, bottom)], "muted"))
    shapes.append(Line([(across(mark[0]), top), (across(mark[0]), bottom)], "ink", 1, (3, 3)))
    shapes.append(Text(across(mark[0]) + 6, top + 12, mark[1], "muted", _SMALL))
    for index, (start, end) in enumerate(pairwise(sides)):
        said = [f"{look.label}: {_percent(share[index], 2)}" for look, share in shares]
        between = f"{x_label} {edges[index]:.2f} to {edges[index + 1]:.2f}"
        shapes.append(Zone(start, top, end - start, height, [between, *said]))
    shapes.append(Text((left + right) / 2, bottom + 38, x_label, "muted", anchor="middle"))
    return Drawing(title, NARROW, bottom + 46, shapes)


def pair_grid(
    pairs: npt.NDArray[np.uint8], title: str, names: tuple[str, str], columns: int = 10
) -> Drawing:
    """Pictures [n, 2, h, w, C], the second of each pair under the first."""
    left, gap = 56.0, 3.0
    width = (NARROW - left + gap) / columns - gap
    height = width * pairs.shape[2] / pairs.shape[3]
    pixels = pairs if pairs.shape[4] == 3 else pairs[..., 0]  # of a stereo pair the first camera
    block = 2 * (height + gap) + 7
    shapes: list[Shape] = []
    for row in range(-(-len(pairs) // columns)):
        for second, name in enumerate(names):
            y = row * block + second * (height + gap)
            if row == 0:
                shapes.append(Text(left - 8, y + height / 2 + 4, name, "muted", _SMALL, "end"))
            for column, pair in enumerate(pixels[row * columns : (row + 1) * columns]):
                x = left + column * (width + gap)
                shapes.append(Picture(x, y, width, height, pair[second]))
    return Drawing(title, NARROW, -(-len(pairs) // columns) * block - 7, shapes)


def _axis(groups: Sequence[Group], base: float) -> tuple[float, Floats]:
    """Where an axis up to 1 starts, at `base` or at a tenth below all bars, and its ticks."""
    bars = [bar for bar in chain(*(group.bars for group in groups)) if bar is not None]
    lowest = min(bar.value - (bar.spread or 0) for bar in bars)
    low = min(base, float(np.floor(10 * max(lowest, 0.0)) / 10))
    return low, np.arange(round(10 * low), 11) / 10


def _legend(curves: Sequence[Curve], heading: str, left: float, y: float) -> Iterator[Shape]:
    """Below the chart, where it hides no curve; `heading` stands over the notes."""
    labels = [_fitting(curve.look.label, 200, 13) for curve in curves]
    middle = left + 48 + max(_width(label, 13) for label in labels)
    yield Text(middle, y, heading, "muted", _SMALL)
    for index, (curve, label) in enumerate(zip(curves, labels), 1):
        base = y + _LINE * index
        sample = [(left, base - 4.5), (left + 28, base - 4.5)]
        yield Line(sample, curve.look.colour, 2.2, curve.look.dash)
        yield Text(left + 36, base, label)
        yield Text(middle, base, curve.note)


def _key(looks: Sequence[Look], left: float, y: float, right: float) -> tuple[list[Shape], float]:
    """Colours with their names in lines of text, and the base line of the last."""
    shapes: list[Shape] = []
    x = left
    for look in looks:
        label = _fitting(look.label, right - left - 18, 13)
        width = 18 + _width(label, 13)
        if x > left and x + width > right:
            x, y = left, y + 20
        shapes.append(Area(rectangle(x, y - 10, 12, 11), look.colour))
        shapes.append(Text(x + 18, y, label))
        x += width + 16
    return shapes, y


def _outlines(
    seen: npt.NDArray[np.bool_], sides: Sequence[float], tops: Sequence[float], bottom: float
) -> Iterator[list[tuple[float, float]]]:
    """Round every run of bins that can be seen, from its foot on the left to that on the right."""
    for there, run in groupby(range(len(seen)), key=lambda index: bool(seen[index])):
        bins = list(run)
        if there:
            steps = [(side, tops[index]) for index in bins for side in sides[index : index + 2]]
            yield [(steps[0][0], bottom), *steps, (steps[-1][0], bottom)]


def _error_bar(
    bar: Bar, base: float, middle: float, along: Callable[[float], float], upright: bool
) -> Iterator[Shape]:
    """From value − spread to value + spread: dark outside the bar, light where it lies on it."""
    if bar.spread is None:
        return
    ends = np.clip([bar.value - bar.spread, bar.value + bar.spread], 0, 1)
    inside = np.clip(ends, min(base, bar.value), max(base, bar.value))
    for values, colour in ((ends, "ink"), (inside, "paper")):
        points = [(middle, along(value)) for value in values]
        yield Line(points if upright else [(x, y) for y, x in points], colour, 1.3)


def _tick_left(x: float, y: float, text: str) -> list[Shape]:
    return [Text(x - 7, y + 4, text, "muted", _SMALL, "end")]


def _tick_below(x: float, y: float, text: str) -> list[Shape]:
    return [Text(x, y + 17, text, "muted", _SMALL, "middle")]


def _height(curve: Curve, share: float) -> float:
    """The highest point of a curve up to a place on the x axis."""
    return float(curve.y[np.searchsorted(curve.x, share + 1e-12, side="right") - 1])


def _fitting(text: str, width: float, size: float) -> str:
    """A text that is cut in its middle if need be: names often differ at their end only."""
    kept, shown = len(text), text
    while kept > 2 and _width(shown, size) > width:
        kept -= 1
        shown = text[: kept - kept // 2].rstrip() + "…" + text[-(kept // 2) :].lstrip()
    return shown


def _width(text: str, size: float) -> float:
    """Of a text in a usual typeface without serifs, rather a bit too much."""
    slim = sum(letter in _SLIM_LETTERS for letter in text)
    wide = sum(letter in _WIDE_LETTERS for letter in text)
    return size * (0.6 * len(text) - 0.22 * slim + 0.16 * wide)


def _percent(share: float, decimals: int = 0) -> str:
    return f"{100 * share:.{decimals}f} %"
