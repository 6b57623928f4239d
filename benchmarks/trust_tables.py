"""Tables of false alarms, damaged files and scores in other places; see tables.py."""

from collections.abc import Callable

from common import read, table

from anocaps.study.report.numbers import dataset_title


def conformal() -> str:
    rows = []
    for dataset, each in read("conformal.json")["datasets"].items():
        means = {row["alpha"]: row["mean"] for row in each["resplits"]}
        rates = means[0.05], each["calibrated_once"]["rates"]["0.05"]
        rows.append([dataset_title(dataset), *(f"{100 * rate:.1f} %" for rate in rates)])
    return (
        table(["at alpha 0.05", "200 re-splits", "as calibrated in training"], rows)
        + "\n\nShare of normal images called anomalous. From `python benchmarks/conformal.py`."
    )


def guarantee() -> str:
    """Every score function of every preset: the lowest and the highest mean rate."""
    found, rows, within = read("conformal.json")["presets"], [], []
    for preset, each in found.items():
        by_alpha = list(zip(*each["scores"].values()))
        rates = [[row["mean"] for row in same] for same in by_alpha]
        within += [row["mean_within"] for same in by_alpha for row in same]
        spans = (f"{100 * min(same):.2f} to {100 * max(same):.2f} %" for same in rates)
        one = by_alpha[0][0]
        images = f"{one['calibration_images']:,} + {one['test_images']:,} of {each['images of']}"
        rows.append([f"`{preset}`", str(len(each["scores"])), images, *spans])
    alphas = [f"alpha {row['alpha']}" for row in next(iter(each["scores"].values()))]
    return (
        table(["preset", "score functions", "calibration + test images", *alphas], rows)
        + "\n\nShare of normal images called anomalous: mean of 200 re-splits, from the lowest "
        f"score function to the highest. {sum(within)} of {len(within)} means lie within three "
        "standard errors of what is promised, alpha − 1/(n + 1) to alpha. From `python "
        "benchmarks/conformal.py --presets`."
    )


def _guided() -> str:
    """One sentence about the inputs that coverage guided."""
    found = read("fuzz-guided.json")
    faults = sum(sum(each["faults"].values()) for each in found["targets"].values())
    return (
        f"Another {found['inputs']:,} inputs were guided by coverage (atheris); faults: {faults}."
    )


def fuzz() -> str:
    found = read("fuzz.json")
    columns = ("inputs", "accepted", "refused")
    rows = [
        [
            name,
            *(f"{each[column]:,}" for column in columns),
            str(sum(each["faults"].values())),
            f"{each['slowest_seconds']:.2f} s",
            f"{each['peak_memory_mb']} MB",
        ]
        for name, each in found["targets"].items()
    ]
    head = ["damaged", *columns, "faults", "slowest", "peak memory of the process"]
    return (
        table(head, rows)
        + f"\n\n{found['inputs']:,} inputs, seed {found['seed']}, on a CPU. {_guided()} From "
        "`make fuzz`."
    )


def decoding() -> str:
    found = read("decoding.json")
    rows = [
        [name, f"{row['file MB']:.0f}", f"{row['CPU seconds']['median']:.1f} s", f"{row['MB']} MB"]
        for name, row in found["rows"].items()
    ]
    return (
        table(["costliest files that are accepted", "file MB", "CPU", "memory"], rows)
        + f"\n\nMemory beyond that of a small image. {found['circumstances']['processor']['model']}"
        ", one core, median. From `python benchmarks/decoding.py`."
    )


def differences() -> str:
    """The largest difference of any score of a preset, and verdicts that differ."""
    found = read("score-differences.json")["presets"]
    ways = sorted({way for each in found.values() for way in each["ways"]})
    rows = []
    for way in ways:
        row = [way]
        for each in found.values():
            one = each["ways"].get(way)
            differ = "" if one is None else sum(one["verdicts_that_differ"].values())
            row.append("" if one is None else f"{one['relative']:.0e}, {differ}")
        rows.append(row)
    images = ", ".join(f"{each['images']} of `{preset}`" for preset, each in found.items())
    return (
        table(["scored by", *(f"`{preset}`" for preset in found)], rows)
        + "\n\nThe largest difference of any score to torch on a CPU in batches, in standard "
        "deviations of that score; and verdicts that differ, at three false-alarm rates together. "
        f"Images: {images}. From `python benchmarks/score_differences.py`."
    )


TABLES: dict[str, Callable[[], str]] = {
    "conformal": conformal,
    "guarantee": guarantee,
    "fuzz": fuzz,
    "decoding": decoding,
    "differences": differences,
}
