"""Fill the tables of README.md and docs/, and draw docs/figures/, from the files under results/.

A page asks for a table by name. What stands between the two markers is replaced:

    <!-- table: NAME -->
    <!-- /table -->

NAME is one of:

    results          mean AUROC of each method on each dataset, every symbol explained
    field            the main score of every method on every dataset
    claims           the central claims of the paper, each with a verdict
    moves            verdicts that change with a threshold
    nines            what reconstructions of anomalous 9s look like
    tuned            the tuned rows beside the paper's CapsNet
    widths           CNN+OCSVM with our width of the kernel and with the usual one
    deep             the presets `paper-tuned` and `deep` side by side
    conformal        false-alarm rates over 200 re-splits, and as calibrated in training
    guarantee        the same for every score function of every preset
    fuzz             damaged inputs to every reader, accepted and refused
    differences      scores of every preset, scored in other ways than torch on a CPU
    speed-cpu        anocaps and the textbook network on a CPU
    speed-gpu        the same on a GPU
    speed-public     anocaps and public implementations
    convolution      forms of the primary convolution on a GPU
    startup          whole commands beside `import torch`
    folders          anocaps and other methods on folders of images
    photos           preset `photo` and other methods on folders of real photos
    photo-choices    what preset `photo` could do instead, on mock anomalies
    many-files       time and memory for up to a million files
    photo-times      preset `photo`: time of training and scoring, memory of training
    crash-points     what was done to each command, and the faults that were found
    soak             a million rows with kills, an hour of requests
    engines          the Ray engine and the local one side by side
    scale            what ten million and a billion images would cost

`--check` writes nothing and fails if a table differs from what results/ says.

    python benchmarks/tables.py        (make tables)
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import reliability_tables
import scale_tables
import study_tables
import trust_tables
from common import ROOT, read, table
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- /table -->)", re.DOTALL)
FIGURES = ROOT / "docs" / "figures"
COLOURS = {"cpu": "#b4530a", "gpu": "#1f6f8b"}
OURS, TEXTBOOK = "#1f6f8b", "#9aa3ab"
STYLES = {"training": "-o", "scoring": "--s"}
SPREAD = "median (lowest–highest)"


def _spread(found: dict[str, float], form: str) -> str:
    middle, low, high = (format(found[name], form) for name in ("median", "lowest", "highest"))
    return f"{middle} ({low}–{high})"


def cpu() -> str:
    speed = read("speed-cpu.json")
    sides = ("ours", "textbook")
    rows = [
        [name, *(_spread(row[side], ",.0f") for side in sides), f"{row['ratio']:.1f}×"]
        for name, row in speed["rates"].items()
    ]
    processor = speed["processor"]
    return "\n\n".join([
        table(["images/s", "anocaps", "textbook", "ratio"], rows),
        f"{SPREAD.capitalize()} of {speed['repeats']} turns, on a CPU ({processor['model']}, "
        f"{processor['cores']} cores), fp32. Ratios are medians over pairs of turns. From `make "
        f"bench-cpu` with torch {speed['versions']['torch']}. The largest difference of a score to "
        f"the textbook is {speed['largest score difference']:.0e}.",
    ])  # fmt: skip


def gpu() -> str:
    speed = read("speed-gpu.json")
    share = speed["share of peak"]

    def row(key: str, label: str, took: str) -> list[str]:
        return [label, took, f"{100 * share[key]:.0f} %"]

    rows = [
        row(name, f"training, {step_label(name, speed)}", f"{_spread(found, '.3f')} ms a step")
        for name, found in speed["steps"].items()
    ] + [
        row(f"scoring, {name}", f"scoring PP and RE, {name}", f"{_spread(found, ',.0f')} images/s")
        for name, found in speed["scoring"].items()
    ]
    step, scores = speed["bf16 step against float64"], speed["bf16 scores"]
    return "\n\n".join([
        table(["", SPREAD, "share of peak"], rows),
        f"One {speed['device']}, training steps of {speed['batch']} images, {speed['repeats']} "
        "turns. The share counts the arithmetic of direct convolutions and compares it with a "
        "large matrix product. In fp32 anocaps does less arithmetic, so it can pass 100 %.",
        f"From `make bench-gpu` with torch {speed['versions']['torch']}. The largest difference of "
        f"a score to the textbook is {speed['largest score difference to textbook']:.0e} in fp32; "
        f"bf16 changes PP by up to {scores['largest PP difference']:.0e}. Gradients of a bf16 step "
        f"differ from float64 by at most {100 * step['gradients']:.1f} %.",
    ])  # fmt: skip


def step_label(name: str, speed: dict[str, Any]) -> str:
    """The textbook's names tell their precision already."""
    return name if name.startswith("textbook") else f"{name}, {speed['training precision']}"


def public() -> str:
    devices: dict[str, dict[str, Any]] = {}  # [device][implementation]
    for name, found in sorted(read("speed-public.json").items()):
        implementation, device = name.rsplit(", ", 1)
        devices.setdefault(device, {})[implementation] = found
    head, commits = ["faster than"], []
    for device, found in devices.items():
        head += [f"{device}, training", "scoring"]
        commits.append(f"{next(iter(found.values()))['commit']} ({device})")
    rows = []
    for implementation in sorted({name for found in devices.values() for name in found}):
        row = [implementation]
        for found in devices.values():
            rates = found.get(implementation, {}).get("rates", {}).values()
            row += [f"{rate['ratio']:.1f}×" for rate in rates] or ["–", "–"]
        rows.append(row)
    return (
        table(head, rows)
        + f"\n\nMeasured at commits {' and '.join(commits)}. Ratios are medians over pairs of "
        "turns. From `python benchmarks/public.py`; `results/speed-public.json` has all rates and "
        "the versions of the others. On a GPU "
        "anocaps trains in bf16 and scores in fp32; they do both in fp32 with TF32 convolutions."
    )


def convolution() -> str:
    speed = read("speed-gpu.json")
    found = speed["primary convolution"]
    rows = [
        [way, *(f"{row[key]['median']:.3f} ms" for key in ("forward ms", "ms")),
         f"{max(row['relative error'].values()):.1e}"]
        for way, row in found["ways"].items()
        if isinstance(row, dict)  # else it failed
        and way not in ("spectral, bf16", "spectral, tf32")  # never used
    ]  # fmt: skip
    return (
        table(["median", "forward", "forward and backward", "largest relative error"], rows)
        + f"\n\nOne {speed['device']}, {found['batch']} images. Errors of the output and of both "
        "gradients against float64. From `make bench-gpu`."
    )


# ── files and packages ───────────────────────────────────────────────────────────────────────


def startup() -> str:
    machines = [read("startup.json"), read("startup-gpu.json")]
    names = list(dict.fromkeys(name for found in machines for name in found["rows"]))
    rows = []
    for name in names:
        cells = [f"`{name}`" if name == "import torch" else f"`anocaps {name}`"]
        for found in machines:
            row = found["rows"].get(name)
            cells.append(f"{row['wall']['median']:.1f} s ({row['ratio']:.2f}×)" if row else "–")
        rows.append(cells)
    on = [f"{found['device']}, {found['processor']['cores']} cores" for found in machines]
    return (
        table(["command", *on], rows)
        + "\n\nWhole commands in turns: median time, and the ratio to `import torch`. `score` "
        "judges one image, on the CPU unless it says `cuda`. From `python benchmarks/startup.py`."
    )


def many_files() -> str:
    found = read("many-files.json")
    rows = [
        [f"{row['files']:,}", f"{row['seconds']:,.0f}", f"{row['files/s']:,.0f}",
         f"{row['peak MiB']:,.0f}", f"{row['lost'] + row['doubled']}",
         str(row["unlike the original"])]
        for row in found["rows"]
    ]  # fmt: skip
    last = found["rows"][-1]
    return (
        table(["files", "seconds", "files/s", "peak MiB", "rows lost or doubled", "rows wrong"],
              rows)
        + f"\n\nFrom `python benchmarks/many_files.py` on an {found['device']}, with a small "
        f"network ({found['model']}), so that reading files takes most of the time. The run of "
        f"{last['files']:,} was stopped after {last['stopped after rows']:,} rows and resumed."
    )  # fmt: skip


def photo_times() -> str:
    training, scoring = read("photo-training.json"), read("photo-speed.json")
    rows = [
        [f"`{name}`", f"{_spread(row['seconds'], '.0f')} s",
         f"{_spread(row['seconds_without'], '.0f')} s", f"{row['ratio']:.1f}×"]
        for name, row in training["rows"].items()
    ]  # fmt: skip
    height, width = scoring["image"]
    memory = read("many-files-training.json")["rows"][-1]
    check = "with" if memory["self_check"] else "without"
    return "\n\n".join([
        table(["photos", "`train`", "`train --no-self-check`", "ratio"], rows),
        f"{SPREAD.capitalize()} of {training['repeats']} turns on a CPU "
        f"({training['processor']['model']}, {training['threads']} threads). From `python "
        "benchmarks/photo_training.py`.",
        f"An exported model scores a photo of {height}×{width} in "
        f"{scoring['milliseconds']['model']:.0f} ms, {scoring['ratio']:.2f} times the time of its "
        f"stem alone (`python benchmarks/photo_speed.py`). Training on {memory['files']:,} small "
        f"photos, {check} self-check, takes {memory['peak MiB'] / 1024:.1f} GiB of memory and "
        f"{memory['seconds'] / 60:.0f} minutes on one core that does other work, too (`python "
        "benchmarks/many_files.py --train 100000`).",
    ])  # fmt: skip


TABLES: dict[str, Callable[[], str]] = {
    **study_tables.TABLES,
    **scale_tables.TABLES,
    **trust_tables.TABLES,
    **reliability_tables.TABLES,
    "speed-cpu": cpu,
    "speed-gpu": gpu,
    "speed-public": public,
    "convolution": convolution,
    "startup": startup,
    "many-files": many_files,
    "photo-times": photo_times,
}


# ── figures ──────────────────────────────────────────────────────────────────────────────────


def draw() -> None:
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


# ── pages ────────────────────────────────────────────────────────────────────────────────────


def filled(page: str) -> str:
    """The page with each of its tables made from results/."""

    def fill(found: re.Match[str]) -> str:
        start, name, end = found.groups()
        if name not in TABLES:
            raise SystemExit(f"no table is named {name}; there are: {', '.join(TABLES)}")
        return f"{start}\n{TABLES[name]()}\n\n{end}"

    if len(re.findall("^<!-- table:", page, re.MULTILINE)) != len(MARKED.findall(page)):
        raise SystemExit("a marker <!-- table: NAME --> has no <!-- /table -->")
    return MARKED.sub(fill, page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail on a difference")
    check = parser.parse_args().check
    stale = []
    for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))):
        before = path.read_text("utf-8")
        try:
            after = filled(before)
        except SystemExit as error:
            sys.exit(f"{path.relative_to(ROOT)}: {error}")
        if after != before:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(after, "utf-8")
    if not check:
        draw()
    elif stale:
        sys.exit(f"{', '.join(stale)}: differs from results/; run make tables")


if __name__ == "__main__":
    main()
