"""Draw docs/figures/ from the files under results/: speed.svg and growth.svg.

A figure shows the devices whose results are there, and is left alone where none are. They stand on
white, so that they can be read on any background. `--check` draws nothing and fails if a figure is
not what its files say.

    python benchmarks/plots.py        (make tables)
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, log10
from typing import Any

from arguments import Parser
from resultfiles import ROOT, read, there
from speed_tables import step_label

from anocaps.study.report.drawing import Area, Drawing, Line, Shape, Text, rectangle, svg_file

FIGURES = ROOT / "docs" / "figures"

WIDTH = 900.0
SMALL = 11.5
COLOURS = {"cpu": "anomalous", "gpu": "normal"}
DASHES = {"training": (), "scoring": (5.0, 3.0)}


def results(name: str) -> dict[str, Any]:
    """Those of the devices that were measured: cpu, gpu."""
    files = {short: f"{name}-{short}.json" for short in COLOURS}
    return {short: read(file) for short, file in files.items() if there(file)}


def device_name(short: str, result: dict[str, Any]) -> str:
    """A CPU by its model, where that was stored."""
    if short == "cpu" and "processor" in result:
        return str(result["processor"]["model"])
    return str(result["device"])


def small_print(name: str, found: dict[str, Any], y: float) -> Text:
    """What each device's file was measured with: they need not be of one version."""
    told = [
        f"results/{name}-{short}.json: commit {result['commit']}, torch "
        f"{result['versions']['torch']}"
        for short, result in found.items()
    ]
    return Text(12, y, "; ".join(told), "muted", SMALL)


def text_width(text: str, size: float) -> float:
    """Of Helvetica or Arial, near enough to lay texts out."""
    return 0.52 * size * len(text)


def main(check: bool) -> None:
    stale = []
    for name, draw in {"speed": speed, "growth": growth}.items():
        if not (found := results(name)):
            continue
        path, made = FIGURES / f"{name}.svg", svg_file(draw(found))
        if not path.exists() or path.read_text("utf-8") != made:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(made, "utf-8")
    if stale and check:
        raise SystemExit(f"{', '.join(stale)}: not what results/ says; run make tables")


# ── speed: bars ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Bar:
    label: str
    rate: float  # images/s
    textbook: bool = False
    apart: bool = False  # from the bar above


def speed(found: dict[str, Any]) -> Drawing:
    shapes: list[Shape] = []
    for x, colour, name in ((12, "normal", "anocaps"), (112, "muted", "textbook PyTorch")):
        shapes.append(Area(rectangle(x, 16, 14, 11), colour))
        shapes.append(Text(x + 20, 26, name))
    shapes.append(Text(WIDTH - 12, 26, "images a second: more is better", "muted", anchor="end"))
    y = 30.0
    if "cpu" in found:
        heading = f"{device_name('cpu', found['cpu'])}, {found['cpu']['threads']} threads, fp32"
        y = _bars(shapes, y, heading, _cpu_bars(found["cpu"]))
    if "gpu" in found:
        y = _bars(shapes, y, device_name("gpu", found["gpu"]), _gpu_bars(found["gpu"]))
    shapes.append(small_print("speed", found, y + 4))
    return Drawing("Images a second of anocaps and of a textbook CapsNet", WIDTH, y + 14, shapes)


def _cpu_bars(result: dict[str, Any]) -> list[Bar]:
    return [
        bar
        for name, row in result["rates"].items()
        for bar in (
            Bar(name, row["ours"]["median"], apart=True),
            Bar("textbook PyTorch", row["textbook"]["median"], textbook=True),
        )
    ]


def _gpu_bars(result: dict[str, Any]) -> list[Bar]:
    bars = [
        Bar(
            f"training, {step_label(re.sub(', (one|per) network$', '', name), result)}",
            result["batch"] / row["median"] * 1e3,
            textbook=name.startswith("textbook"),
        )
        for name, row in result["steps"].items()
    ]
    scoring = [
        Bar(
            f"scoring PP and RE, {name}",
            row["median"],
            textbook=name.startswith("textbook"),
            apart=name == next(iter(result["scoring"])),
        )
        for name, row in result["scoring"].items()
    ]
    return bars + scoring


def _bars(shapes: list[Shape], top: float, heading: str, bars: Sequence[Bar]) -> float:
    """Lying bars on one scale, with their values; the lower end is returned."""
    left, right, thick = 270.0, WIDTH - 90, 18.0
    most = max(bar.rate for bar in bars)
    shapes.append(Text(12, top + 24, heading, bold=True))
    y = top + 36
    for bar in bars:
        y += 10 if bar.apart else 2
        end = left + (right - left) * bar.rate / most
        colour = "muted" if bar.textbook else "normal"
        shapes.append(Area(rectangle(left, y, end - left, thick), colour))
        shapes.append(Text(left - 10, y + 13.5, bar.label, "ink", 13, "end"))
        shapes.append(Text(end + 8, y + 13.5, f"{bar.rate:,.0f}", "ink", 13))
        y += thick
    return y + 14


# ── growth: curves on logarithmic axes ───────────────────────────────────────────────────────


@dataclass(frozen=True)
class Series:
    device: str
    work: str  # training or scoring
    x: Sequence[float]
    y: Sequence[float]
    note: str = ""  # at its end


def growth(found: dict[str, Any]) -> Drawing:
    shapes: list[Shape] = [*_key(found)]
    y = 62.0
    for heading, label, time_label, times, memories in _growth_rows(found):
        if not times:
            continue
        shapes.append(Text(12, y, heading, bold=True))
        shapes += _panel(times, 62, y + 30, time_label, label)
        shapes += _panel(memories, 512, y + 30, "peak memory, MiB", label)
        y += 262
    shapes.append(small_print("growth", found, y - 8))
    return Drawing("Time and memory as the work grows", WIDTH, y + 2, shapes)


def _growth_rows(
    found: dict[str, Any],
) -> list[tuple[str, str, str, list[Series], list[Series]]]:
    """Heading, label of the x axis, label of the times, times, memories."""
    scorers = [
        f"{short.upper()}: {rows[0]['preset']} preset, {rows[0]['side']}×{rows[0]['side']}"
        for short, result in found.items()
        if (rows := result["images"])
    ]
    images, fleet = (
        [
            [_series(short, work, result[name], x, y, 1) for short, result in found.items()
             if result[name]]
            for y in columns
        ]
        for name, work, x, columns in (
            ("images", "scoring", "images", ("seconds", "peak MiB")),
            ("fleet", "training", "networks", ("ms a step and network", "peak MiB")),
        )
    )  # fmt: skip
    return [
        (f"More images ({'; '.join(scorers)})", "images", "scoring, seconds", *images),
        (
            "More classes (paper preset, 28×28)",
            "classes",
            "µs an image",
            *_both(found, "classes", "classes"),
        ),
        (
            "Larger images (9 classes)",
            "pixels a side",
            "µs an image",
            *_both(found, "side", "side"),
        ),
        (
            "More networks at once (paper preset, 28×28; a CPU takes them in turn)",
            "networks in a fleet",
            "ms a step and network",
            *fleet,
        ),
    ]


def _both(found: dict[str, Any], name: str, x: str) -> tuple[list[Series], list[Series]]:
    """Times and memories of training and scoring."""
    times, memories = [], []
    for short, result in found.items():
        presets = dict.fromkeys(row["preset"] for row in result[name])
        for preset in presets:
            rows = [row for row in result[name] if row["preset"] == preset]
            note = preset if len(presets) > 1 else ""
            for work, time, factor in (
                ("training", "training ms a step", 1e3 / result["batch"]),
                ("scoring", "scoring µs an image", 1),
            ):
                times.append(_series(short, work, rows, x, time, factor, note))
                memories.append(_series(short, work, rows, x, f"{work} peak MiB", 1, note))
                note = ""  # it stands at the first
    return times, memories


def _series(
    device: str,
    work: str,
    rows: Sequence[dict[str, Any]],
    x: str,
    y: str,
    factor: float,
    note: str = "",
) -> Series:
    return Series(device, work, [r[x] for r in rows], [factor * r[y] for r in rows], note)


def _key(found: dict[str, Any]) -> list[Shape]:
    shapes: list[Shape] = []
    x = 12.0
    for short, result in found.items():
        shapes.append(Area(rectangle(x, 16, 14, 11), COLOURS[short]))
        shapes.append(Text(x + 20, 26, name := device_name(short, result)))
        x += 60 + text_width(name, 13)
    for work, dash in DASHES.items():
        shapes.append(Line([(x, 22), (x + 34, 22)], "ink", 2.2, dash))
        shapes.append(Text(x + 42, 26, work))
        x += 120
    return shapes


def _panel(
    series: Sequence[Series], left: float, top: float, y_label: str, x_label: str
) -> list[Shape]:
    """One set of axes, both logarithmic: what grows in proportion has slope 1."""
    width, height = 340.0, 158.0
    bottom = top + height
    places = sorted({x for each in series for x in each.x})
    first, last = log10(places[0]), log10(places[-1])
    ticks = _ticks([y for each in series for y in each.y])
    low, high = log10(ticks[0]), log10(ticks[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (log10(x) - first) / (last - first or 1)
        up = (log10(y) - low) / (high - low)
        return left + width * across, bottom - height * up

    shapes: list[Shape] = [Text(left - 50, top - 10, y_label, "muted", SMALL)]
    for tick in ticks:
        _, y = place(places[0], tick)
        shapes.append(Line([(left, y), (left + width, y)]))
        shapes.append(Text(left - 7, y + 4, f"{tick:,g}", "muted", SMALL, "end"))
    for x in places:
        across, _ = place(x, 1)
        shapes.append(Line([(across, top), (across, bottom)]))
        shapes.append(Text(across, bottom + 16, f"{x:,}", "muted", SMALL, "middle"))
    shapes.append(Text(left + width / 2, bottom + 34, x_label, "muted", SMALL, "middle"))
    ends, curves = [], []
    for each in series:
        points = [place(x, y) for x, y in zip(each.x, each.y)]
        colour = COLOURS[each.device]
        shapes.append(Line(points, colour, 2.2, DASHES[each.work]))
        curves.append(points)
        shapes += [Area(rectangle(x - 3, y - 3, 6, 6), colour) for x, y in points]
        if each.note:
            ends.append((*points[-1], each.note, colour))
    return shapes + _notes(ends, curves)


def _ticks(values: Sequence[float]) -> list[float]:
    """From the least value to the largest or beyond: 1, 2, 5, or 1 alone if those are many."""
    for steps in ((1, 2, 5), (1,)):
        decades = range(floor(log10(min(values))), floor(log10(max(values))) + 2)
        every = [float(f"{step}e{power}") for power in decades for step in steps]
        first = max(k for k, tick in enumerate(every) if tick <= min(values))
        last = min(k for k, tick in enumerate(every) if tick >= max(values) and k > first)
        if last - first <= 6:
            break
    return every[first : last + 1]


Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom


def _notes(
    ends: Sequence[tuple[float, float, str, str]], curves: Sequence[Sequence[Point]]
) -> list[Shape]:
    """Beside the ends of curves (x, y, text, colour): right of them, a little higher or lower or
    left of them where a curve or another note is in the way."""
    ends = sorted(ends)
    boxes = [_beside(x, y, text)[0] for x, y, text, _ in ends]
    for k, (x, y, text, _) in enumerate(ends):
        placed, waiting = boxes[:k], boxes[k + 1 :]

        def covered(box: Box, placed: list[Box] = placed, waiting: list[Box] = waiting) -> int:
            """Notes that stand count most."""
            notes = 100 * sum(_overlap(box, other) for other in placed)
            lines = sum(any(_meets(box, *ends) for ends in pairwise(curve)) for curve in curves)
            return notes + lines + sum(_overlap(box, other) for other in waiting)

        boxes[k] = min(_beside(x, y, text), key=covered)  # the first of the best
    shapes: list[Shape] = []
    for (left, top, right, bottom), (_, _, text, colour) in zip(boxes, ends):
        shapes.append(Area(rectangle(left, top, right - left, bottom - top), "paper"))  # no grid
        shapes.append(Text(left + 1, top + 9, text, colour, SMALL))
    return shapes


def _beside(x: float, y: float, text: str) -> list[Box]:
    """Places for a note, the best first."""
    width = text_width(text, SMALL) + 2
    return [
        (left, y + off - 5, left + width, y + off + 5)
        for left in (x + 5, x - 5 - width)
        for off in (0, -3, 3, -6, 6, -9, 9, -12, 12, -15, 15, -18, 18, -21, 21)
    ]


def _overlap(a: Box, b: Box) -> bool:
    return all(a[k] < b[k + 2] and b[k] < a[k + 2] for k in (0, 1))


def _meets(box: Box, start: Point, end: Point) -> bool:
    """Whether a line from left to right passes through a box."""
    left, top, right, bottom = box
    first, last = max(left, start[0]), min(right, end[0])
    if first > last:
        return False
    rise = (end[1] - start[1]) / (end[0] - start[0]) if end[0] > start[0] else 0.0
    heights = [start[1] + rise * (x - start[0]) for x in (first, last)]
    return min(heights) <= bottom and max(heights) >= top


if __name__ == "__main__":
    parser = Parser(__doc__)
    parser.add_argument("--check", action="store_true", help="fail where a figure is another one")
    main(parser.parse_args().check)
