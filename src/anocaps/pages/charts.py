"""Curves and histograms as SVG inside a page.

Colours and fonts come from style.css by class (`series-0`, `group-0`, …), so they follow light and
dark mode. <title> shows numbers on hover.
"""

import math
from collections.abc import Mapping
from html import escape

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BINS = 32
LOG_FROM = 100  # counts above this make the axis logarithmic
HOVER_POINTS = 24

_LEFT, _TOP, _RIGHT, _BOTTOM = 62, 12, 16, 44  # margins of the plot, in chart units


def line_chart(
    curves: Mapping[str, tuple[Floats, Floats]], title: str, x_label: str, y_label: str
) -> str:
    """Curves of one share against another, in a square, with the diagonal of guessing."""
    side = 380
    parts = []
    for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        x, y = _LEFT + share * side, _TOP + (1 - share) * side
        parts.append(_grid(_LEFT, y, _LEFT + side, y) + _grid(x, _TOP, x, _TOP + side))
        parts.append(_x_tick(x, _TOP + side, _percent(share)) + _y_tick(y, _percent(share)))
    parts.append(f'<path class="chance" d="M{_LEFT} {_TOP + side}L{_LEFT + side} {_TOP}"/>')
    for index, (name, (x_share, y_share)) in enumerate(curves.items()):
        xs, ys = _thin(_LEFT + side * x_share, _TOP + side * (1 - y_share))
        parts.append(
            f'<path class="curve series-{index}" d="{_path(xs, ys)}">'
            f"<title>{escape(name)}</title></path>"
        )
        for at in np.unique(np.linspace(0, len(xs) - 1, HOVER_POINTS).astype(int)):
            across, up = (xs[at] - _LEFT) / side, 1 - (ys[at] - _TOP) / side
            text = f"{name}\n{x_label}: {_percent(across)}\n{y_label}: {_percent(up)}"
            parts.append(
                f'<circle class="point series-{index}" cx="{xs[at]:g}" cy="{ys[at]:g}" r="5">'
                f"<title>{escape(text)}</title></circle>"
            )
    parts.append(_legend(list(curves), _LEFT + side - 186, _TOP + side - 14))
    return _chart(title, _LEFT + side + _RIGHT, _TOP + side + _BOTTOM, parts, x_label, y_label)


def histogram(groups: Mapping[str, Floats], title: str, x_label: str) -> str:
    """Overlaid histograms with the same bins. The bars of all groups start at zero."""
    width, height = 430, 178
    edges = _edges(np.concatenate(list(groups.values())))
    counts = {name: np.histogram(values, edges)[0] for name, values in groups.items()}
    tallest = max(1, *(int(count.max()) for count in counts.values()))
    log = tallest > LOG_FROM

    def up(count: npt.ArrayLike) -> Floats:
        share = np.log1p(count) / np.log1p(tallest) if log else np.asarray(count) / tallest
        return np.asarray(_TOP + height * (1 - share), dtype=np.float64)

    def across(value: npt.ArrayLike) -> Floats:
        share = (np.asarray(value, dtype=np.float64) - edges[0]) / (edges[-1] - edges[0])
        return np.asarray(_LEFT + width * share)

    parts = []
    for tick in _count_ticks(tallest, log):
        y = float(up(tick))
        parts.append(_grid(_LEFT, y, _LEFT + width, y) + _y_tick(y, f"{tick:,}"))
    for text, value in _ticks(edges[0], edges[-1], 8):
        parts.append(_x_tick(float(across(value)), _TOP + height, text))
    base = _TOP + height
    sides = across(edges)
    for index, count in enumerate(counts.values()):
        xs = np.concatenate([sides[:1], np.repeat(sides[1:-1], 2), sides[-1:]])
        outline = _path(xs, np.repeat(up(count), 2))
        area = f"M{sides[0]:g} {base}L{outline[1:]}L{sides[-1]:g} {base}Z"
        parts.append(f'<path class="bars group-{index}" d="{area}"/>')
    for index in range(BINS):
        low, high = _number(edges[index]), _number(edges[index + 1])
        lines = [f"{low} to {high}", *(f"{count[index]} {name}" for name, count in counts.items())]
        parts.append(
            f'<rect class="bin" x="{sides[index]:.1f}" y="{_TOP}" width="{width / BINS:.1f}"'
            f' height="{height}"><title>{escape(chr(10).join(lines))}</title></rect>'
        )
    y_label = "images (log)" if log else "images"
    return _chart(title, _LEFT + width + _RIGHT, base + _BOTTOM, parts, x_label, y_label)


def share_chart(shares: Floats, window: int, alpha: float, limit: float, title: str) -> str:
    """The share of flagged images in windows that end at image `window`, `window` + 1, …

    Dotted lines show alpha and `limit`, the share that is far more than alpha.
    """
    width, height = 430, 178
    top = min(1.0, 1.1 * max(float(shares.max()), limit, alpha))

    def up(share: npt.ArrayLike) -> Floats:
        return np.asarray(_TOP + height * (1 - np.asarray(share) / top), dtype=np.float64)

    ends = window + np.arange(len(shares))
    last = max(window + 1, int(ends[-1]))
    across = _LEFT + width * (ends - window) / (last - window)
    parts = []
    for text, value in _ticks(0, 100 * top, 5):
        y = float(up(value / 100))
        parts.append(_grid(_LEFT, y, _LEFT + width, y) + _y_tick(y, f"{text} %"))
    for text, value in _ticks(window, last, 6):
        x = _LEFT + width * (value - window) / (last - window)
        parts.append(_x_tick(x, _TOP + height, text))
    lines = {f"alpha, {100 * alpha:g} %": alpha, f"far more, {100 * limit:g} %": limit}
    for name, value in lines.items():
        if value <= top:
            y = float(up(value))
            parts.append(
                f'<path class="chance" d="M{_LEFT} {y:g}h{width}"><title>{name}</title></path>'
                f'<text class="tick side" x="{_LEFT + width}" y="{y - 4:.1f}">{name}</text>'
            )
    parts.append(f'<path class="curve series-2" d="{_path(*_thin(across, up(shares)))}"/>')
    for at in np.unique(np.linspace(0, len(shares) - 1, HOVER_POINTS).astype(int)):
        y = float(up(shares[at]))
        parts.append(
            f'<circle class="point series-2" cx="{across[at]:g}" cy="{y:g}" r="5">'
            f"<title>until image {ends[at]:,}: {_percent(shares[at])}</title></circle>"
        )
    size = _LEFT + width + _RIGHT, _TOP + height + _BOTTOM
    return _chart(title, *size, parts, "images, in their order", f"of {window:,} flagged")


def _chart(
    title: str, width: float, height: float, parts: list[str], x_label: str, y_label: str
) -> str:
    middle_x = (_LEFT + width - _RIGHT) / 2
    middle_y = (_TOP + height - _BOTTOM) / 2
    return (
        f'<svg class="chart" role="img" aria-label="{escape(title)}"'
        f' viewBox="0 0 {width} {height}">'
        + "".join(parts)
        + f'<text class="label" x="{middle_x:g}" y="{height - 6:g}">{escape(x_label)}</text>'
        + f'<text class="label" transform="translate(11 {middle_y:g}) rotate(-90)">'
        + f"{escape(y_label)}</text></svg>"
    )


def _legend(names: list[str], x: float, bottom: float) -> str:
    """Names and line samples, at the bottom right, where a good ROC curve leaves room."""
    line = 22
    top = bottom - line * len(names)
    parts = [
        f'<rect class="legend" x="{x - 12:g}" y="{top - 6:g}" width="178"'
        f' height="{line * len(names) + 10}" rx="4"/>'
    ]
    for index, name in enumerate(names):
        y = top + line * (index + 0.5)
        parts.append(f'<path class="curve series-{index}" d="M{x:g} {y:g}h26"/>')
        parts.append(f'<text class="name" x="{x + 36:g}" y="{y + 4.5:g}">{escape(name)}</text>')
    return "".join(parts)


def _grid(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="grid" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/>'


def _x_tick(x: float, bottom: float, text: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{bottom + 17:g}">{text}</text>'


def _y_tick(y: float, text: str) -> str:
    return f'<text class="tick side" x="{_LEFT - 7}" y="{y + 4:.1f}">{text}</text>'


def _path(xs: Floats, ys: Floats) -> str:
    return "M" + "L".join(f"{x:.5g} {y:.5g}" for x, y in zip(xs, ys))


def _thin(xs: Floats, ys: Floats) -> tuple[Floats, Floats]:
    """Round to half a unit, then drop repeated points and points on a straight line."""
    points = np.round(2 * np.stack([xs, ys], axis=1)) / 2
    points = points[np.r_[True, np.any(np.diff(points, axis=0) != 0, axis=1)]]
    step = np.diff(points, axis=0)
    bends = step[:-1, 0] * step[1:, 1] != step[:-1, 1] * step[1:, 0]
    points = points[np.r_[True, bends, True]] if len(points) > 2 else points
    return points[:, 0], points[:, 1]


def _edges(values: Floats) -> Floats:
    low, high = float(values.min()), float(values.max())
    if high - low <= 1e-9 * max(1.0, abs(low), abs(high)):  # equal values: a bar in the middle
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, BINS + 1)


def _count_ticks(tallest: int, log: bool) -> list[int]:
    if log:
        return [0, *(10**power for power in range(int(math.log10(tallest)) + 1))]
    step = max(1, int(_step(tallest, 4)))
    return list(range(0, tallest + 1, step))


def _ticks(low: float, high: float, about: int) -> list[tuple[str, float]]:
    """Round values between low and high, with as few decimals as possible."""
    step = _step(high - low, about)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [
        (f"{index * step:.{decimals}f}".replace("-", "−"), index * step)
        for index in range(first, last + 1)
    ]


def _step(span: float, about: int) -> float:
    """The smallest step of 1, 2 or 5 × 10ⁿ that divides a span into at most `about` parts."""
    power = float(10 ** math.floor(math.log10(span / about)))
    return next(power * unit for unit in (1, 2, 5, 10) if power * unit * about >= span)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _number(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")
