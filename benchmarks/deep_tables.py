"""Tables of the deep preset and of verdicts for docs/decisions.md, from results/ alone."""

from statistics import fmean, stdev

import resultfiles
from resultfiles import read, table, there

from anocaps.study.cell import CellResult
from anocaps.study.report.numbers import dataset_title
from anocaps.study.reports import read_results

SCORES = ("pp", "re", "pp+re", "knn")
ALPHAS = ("0.01", "0.05", "0.1")


def deep() -> str:
    """The deep network in the paper's protocol, beside the paper's own on the same images."""
    if not there("deep"):
        return ""
    found = read_results(resultfiles.RESULTS / "deep")
    seeds = {result.seed for result in found}
    paper = [
        result
        for result in read_results(resultfiles.RESULTS / "paper")
        if (result.method, result.variant) == ("capsnet", "") and result.seed in seeds
    ]
    names = {"paper": paper, "deep": found}
    rows = [
        [dataset_title(dataset), preset, *(f"{_mean(cells, dataset, s):.3f}" for s in SCORES)]
        for dataset in ("mnist", "fashion-mnist", "small-norb")
        for preset, cells in names.items()
    ]
    return (
        "The network for folders of pictures, `deep`, in the same protocol, one seed of each:\n\n"
        + table(["", "preset", *map(_shown, SCORES)], rows)
        + "\n\nMean AUROC with each class held out in turn, balanced test sets. From "
        "`anocaps study run paper --method capsnet --preset deep --seeds 1` (`results/deep`) and "
        "the same seed of `results/paper`."
    )


def _mean(cells: list[CellResult], dataset: str, score: str) -> float:
    return fmean(
        cell.metrics[score].auroc
        for cell in cells
        if cell.dataset == dataset and len(cell.held_out) == 1
    )


def _shown(score: str) -> str:
    return score if score == "knn" else score.upper()


def shifts() -> str:
    """Ways to move images in training: means over mock anomalies, ± over seeds."""
    if not there("deep-choices.json"):
        return ""
    found = read("deep-choices.json")
    rows = [
        [dataset_title(dataset), choice, *(_over_seeds(each["rows"], choice, s) for s in SCORES)]
        for dataset, each in found.items()
        for choice in dict.fromkeys(row["choice"] for row in each["rows"])
    ]
    return (
        table(["training images of", "shifts in training", *map(_shown, SCORES)], rows)
        + "\n\nMean AUROC over the classes, ± the standard deviation over the seeds. From "
        + " and ".join(
            f"`python benchmarks/deep_choices.py {dataset} --limit {each['limit']} --seeds "
            f"{len({row['seed'] for row in each['rows']})}`"
            for dataset, each in found.items()
        )
        + "."
    )


def _over_seeds(rows: list[dict], choice: str, score: str) -> str:
    mine = [row for row in rows if row["choice"] == choice]
    means = [
        fmean(row["auroc"][score] for row in mine if row["seed"] == seed)
        for seed in sorted({row["seed"] for row in mine})
    ]
    return f"{fmean(means):.3f} ± {stdev(means):.3f}"


def conformal() -> str:
    """False-alarm rates: over re-splits of new normal images, and as a user calibrates."""
    if not there("conformal.json"):
        return ""
    rows = []
    for dataset, each in read("conformal.json").items():
        network = f"{each['settings']['preset']}, {each['settings']['score']}"
        splits, once = each["resplits"], each["calibrated_once"]
        means = {f"{row['alpha']:g}": row["mean"] for row in splits}
        for way, images, rates in (
            (f"{splits[0]['splits']} re-splits", splits[0]["calibration_images"], means),
            ("calibrated in training", once["calibration_images"], once["rates"]),
        ):
            rows.append(
                [dataset_title(dataset), network, way, f"{images:,}",
                 *(f"{100 * rates[alpha]:.2f} %" for alpha in ALPHAS)]
            )  # fmt: skip
    head = ["normal images of", "network", "", "to calibrate", *(f"alpha {a}" for a in ALPHAS)]
    return (
        table(head, rows)
        + "\n\nShare of normal images called anomalous. From `python benchmarks/conformal.py "
        "--dataset DATASET`, which also checks the spread over re-splits."
    )
