"""The figures of a study, each made only where its results are there."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from anocaps.judging.metrics import roc_curve
from anocaps.study.cell import LENGTH_BINS, LONG
from anocaps.study.report.charts import (
    Bar,
    Curve,
    Group,
    Look,
    bar_chart,
    curve_chart,
    density_chart,
    pair_grid,
    row_chart,
)
from anocaps.study.report.drawing import Drawing
from anocaps.study.report.numbers import (
    HeldOut,
    Numbers,
    Series,
    Spread,
    dataset_title,
    file_name,
    held_out_title,
    method_title,
)

CHANCE = 0.5
# Looked at closely in the paper: ROC curves, and of single classes the reconstructions.
_CASES: dict[str, list[HeldOut]] = {
    "mnist": [("2",), ("9",), ("0", "3", "5")],
    "fashion-mnist": [],
    "small-norb": [],
}
_MOST_CASES = 12  # of a dataset that is not the paper's
_MOST_UPRIGHT = 14  # groups of bars beside each other
_FEWEST_NAMED = 0.01  # share of images from which a class is named
_KINDS = {"normal": Look("normal", "normal"), "anomalous": Look("anomalous", "anomalous", (5, 2))}


@dataclass(frozen=True)
class Figure:
    name: str  # of its files
    heading: str
    caption: str
    drawing: Drawing
    narrow: Drawing | None = None  # instead of it on a phone


def case_figures(numbers: Numbers, dataset: str) -> Iterator[Figure]:
    """As the paper tells it: ROC curves of single classes, these redrawn, then several at once."""
    every = numbers.cells(dataset)
    cases = [held for held in _CASES.get(dataset, every[:_MOST_CASES]) if held in every]
    several = [held for held in cases if len(held) > 1]
    for held_out in cases:
        if held_out not in several:
            yield from _roc(numbers, dataset, held_out)
    for held_out in cases:
        yield from _redrawn(numbers, dataset, held_out)
    for held_out in several:
        yield from _roc(numbers, dataset, held_out)


def _roc(numbers: Numbers, dataset: str, held_out: HeldOut) -> Iterator[Figure]:
    curves = []
    for series in numbers.headlines(dataset):
        runs = numbers.runs(dataset, held_out, series)
        if not runs:
            continue
        x, y = roc_curve(*runs[0].normal_and_odd(series.score))
        curves.append(Curve(series.look, str(numbers.auroc(dataset, held_out, series)), x, y))
    if not curves:
        return
    what = held_out_title(held_out)
    title = f"ROC curves, {dataset_title(dataset)}, held out: {what}"
    drawing = curve_chart(curves, title, "false alarms", "anomalies found", "AUROC")
    yield Figure(
        file_name("roc", dataset, *held_out),
        f"{what} held out",
        "Anomalies found against false alarms among normal images: ROC curves of the first seed. "
        + _spread_words(numbers, dataset),
        drawing,
    )


def _redrawn(numbers: Numbers, dataset: str, held_out: HeldOut) -> Iterator[Figure]:
    run = numbers.pictures(dataset, held_out)
    if run is None or run.pictures is None:
        return
    what = held_out_title(held_out)
    title = f"Originals and reconstructions, {dataset_title(dataset)}, held out: {what}"
    taken = numbers.taken_for(dataset, held_out, run.method)
    named = [
        f"{name} ({100 * share:.0f}\u00a0%)" for name, share in taken if share >= _FEWEST_NAMED
    ]
    words = f" Taken for, of all images of {what} and all seeds: {', '.join(named)}."
    yield Figure(
        file_name("redrawn", dataset, *held_out),
        f"{what} redrawn",
        f"{len(run.pictures)} images of {what} above what {method_title(run.method)}, which has "
        f"never seen {what}, makes of them." + (words if named else ""),
        pair_grid(run.pictures, title, ("original", "redrawn")),
    )


def bar_figure(numbers: Numbers, dataset: str) -> Figure:
    """AUROC by held-out class, and its mean, for every method."""
    headlines = numbers.headlines(dataset)
    cells = numbers.class_cells(dataset)
    groups = [
        Group(
            held_out_title(held),
            [
                _bar(s, numbers.auroc(dataset, held, s), f"held out: {held_out_title(held)}")
                for s in headlines
            ],
        )
        for held in cells
    ]
    if len(cells) > 1:
        means = [_bar(s, numbers.mean_auroc(dataset, s), "mean of the classes") for s in headlines]
        if any(means):
            groups.append(Group("mean", means, apart=True))
    looks = [series.look for series in headlines]
    title = f"AUROC by held-out class, {dataset_title(dataset)}"
    rows = row_chart(groups, looks, title, "AUROC", CHANCE)
    fits = len(groups) <= _MOST_UPRIGHT
    upright = bar_chart(groups, looks, title, "AUROC", CHANCE) if fits else rows
    return Figure(
        file_name("auroc", dataset),
        "Every class held out in turn",
        "AUROC on the balanced test set; bars start at 0.5, which is guessing. "
        + _spread_words(numbers, dataset),
        upright,
        rows if fits else None,
    )


def _bar(series: Series, spread: Spread | None, where: str) -> Bar | None:
    if spread is None:
        return None
    seeds = [f"seed {seed}: {value:.3f}" for seed, value in spread.by_seed.items()]
    said = [where, f"{series.look.label}: {spread}", *(seeds if len(seeds) > 1 else [])]
    return Bar(spread.mean, spread.sd, said)


def length_figures(numbers: Numbers, dataset: str) -> Iterator[Figure]:
    """The premise of PP: an image has one long class capsule, or none."""
    lengths = numbers.lengths(dataset)
    if lengths is None:
        return
    name = dataset_title(dataset)
    parts = {
        "longest": (f"{name}: longest capsule of an image", "images"),
        "others": (f"{name}: all its other capsules", "capsules"),
    }
    for part, (heading, unit) in parts.items():
        counts = [(look, lengths[kind][part]) for kind, look in _KINDS.items()]
        drawing = density_chart(
            counts,
            np.linspace(0, 1, LENGTH_BINS + 1),
            f"Lengths of class capsules, {heading}",
            "length",
            f"share of {unit} (log)",
            (LONG, f"long: over {LONG}"),
        )
        yield Figure(file_name("lengths", dataset, part), heading, "", drawing)


def kinds() -> list[Look]:
    """Of images."""
    return list(_KINDS.values())


def _spread_words(numbers: Numbers, dataset: str) -> str:
    seeds = len(numbers.seeds(dataset))
    if seeds == 1:
        return "One seed."
    return f"±: standard deviation over {seeds} seeds."
