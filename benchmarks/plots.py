"""Draw docs/figures/speed.svg and growth.svg from the files under results/.

python benchmarks/plots.py        (make tables)
"""

import re
from pathlib import Path
from typing import Any

import matplotlib
from common import ROOT, read
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter
from speed_tables import step_label

FIGURES = ROOT / "docs" / "figures"
COLOURS = {"cpu": "#b4530a", "gpu": "#1f6f8b"}
OURS, TEXTBOOK = "#1f6f8b", "#9aa3ab"
STYLES = {"training": "-o", "scoring": "--s"}


def main() -> None:
    # the same text and ids in every run; letters as text
    matplotlib.rcParams |= {"svg.hashsalt": "anocaps", "svg.fonttype": "none", "font.size": 10}
    save(speed(), FIGURES / "speed.svg")
    save(growth(), FIGURES / "growth.svg")


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    text = path.read_text("utf-8")
    path.write_text(re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE), "utf-8")


def speed() -> Figure:
    cpu, gpu = read("speed-cpu.json"), read("speed-gpu.json")
    on_cpu: dict[str, float] = {}
    for name, row in cpu["rates"].items():
        on_cpu[f"{name}, anocaps"] = row["ours"]["median"]
        on_cpu[f"{name}, textbook"] = row["textbook"]["median"]
    on_gpu = {
        f"training, {step_label(re.sub(', (one|per) network$', '', name), gpu)}": (
            1e3 * gpu["batch"] / row["median"]
        )
        for name, row in gpu["steps"].items()
    }
    on_gpu |= {f"scoring, {name}": row["median"] for name, row in gpu["scoring"].items()}
    figure = Figure(figsize=(9, 5.4), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(len(on_cpu), len(on_gpu)))
    bars(above, f"{cpu['processor']['model']}, {cpu['threads']} threads, fp32", on_cpu)
    bars(below, gpu["device"], on_gpu)
    below.set_xlabel("images a second: more is better")
    return figure


def bars(axes: Axes, title: str, rates: dict[str, float]) -> None:
    colours = [TEXTBOOK if "textbook" in name else OURS for name in rates]
    drawn = axes.barh(list(rates), list(rates.values()), color=colours)
    axes.bar_label(drawn, [f"{rate:,.0f}" for rate in rates.values()], padding=4)
    axes.set_title(title, loc="left", fontweight="bold")
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter("{x:,.0f}")


def growth() -> Figure:
    """Both axes are logarithmic: what grows in proportion has slope 1."""
    found = {device: read(f"growth-{device}.json") for device in COLOURS}
    rows: list[tuple[str, str, str, str]] = [  # key, x axis, title, time
        ("images", "images", "More images", "scoring, seconds"),
        ("classes", "classes", "More classes (paper preset, 28×28)", "µs an image"),
        ("side", "pixels a side", "Larger images (9 classes)", "µs an image"),
        ("fleet", "networks at once", "More networks (paper preset, 28×28)", "ms a step each"),
    ]
    figure = Figure(figsize=(9, 13), layout="constrained")
    panels = figure.subplots(4, 2)
    for (time, memory), (key, x, title, unit) in zip(panels, rows):
        for device, result in found.items():
            for preset in dict.fromkeys(row.get("preset", "paper") for row in result[key]):
                mine = [r for r in result[key] if r.get("preset", "paper") == preset]
                curves(time, memory, key, mine, result["batch"], COLOURS[device], preset)
        time.set_title(title, loc="left", fontweight="bold")
        for axes, label in ((time, unit), (memory, "peak memory, MiB")):
            axes.set(xscale="log", yscale="log", xlabel=x, ylabel=label)
            places = sorted({place for line in axes.lines for place in line.get_xdata()})
            axes.set_xticks(places, [f"{place:,}" for place in places])
            axes.set_xticks([], minor=True)
            axes.yaxis.set_major_formatter("{x:,g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.margins(x=0.16)
            axes.grid(alpha=0.3)
    panels[-1][0].set(yscale="linear", ylim=(0, None))
    names = {"cpu": found["cpu"]["processor"]["model"], "gpu": found["gpu"]["device"]}
    legend = [Line2D([], [], color=COLOURS[device], label=name) for device, name in names.items()]
    legend += [Line2D([], [], color="black", ls=s[:-1], marker=s[-1], label=n)
            for n, s in STYLES.items()]  # fmt: skip
    figure.legend(handles=legend, loc="outside upper center", ncols=4)
    return figure


def curves(
    time: Axes, memory: Axes, key: str, rows: list[dict[str, Any]], batch: int, colour: str,
    preset: str,
) -> None:  # fmt: skip
    """Training and scoring of one device and preset."""
    if key in ("images", "fleet"):
        work = "scoring" if key == "images" else "training"
        x = "images" if key == "images" else "networks"
        columns = {work: ("seconds" if key == "images" else "ms a step and network", "peak MiB", 1)}
    else:
        x = key
        columns = {
            "training": ("training ms a step", "training peak MiB", 1e3 / batch),
            "scoring": ("scoring µs an image", "scoring peak MiB", 1),
        }
    places = [row[x] for row in rows]
    for work, (taken, held, factor) in columns.items():
        for axes, values in (
            (time, [factor * row[taken] for row in rows]),
            (memory, [row[held] for row in rows]),
        ):
            axes.plot(places, values, STYLES[work], color=colour, markersize=4)
            if key in ("images", "side") and work == next(iter(columns)):
                offset = {"textcoords": "offset points", "xytext": (5, 0), "va": "center"}
                axes.annotate(preset, (places[-1], values[-1]), color=colour, **offset)


if __name__ == "__main__":
    main()
