"""Tables of the study and of what else is measured in AUROC or false alarms; see tables.py."""

from collections.abc import Callable
from statistics import fmean

import numpy as np
from common import RESULTS, read, table

from anocaps.inspect.card import promised_range
from anocaps.study.report.numbers import Numbers, Series, Spread, dataset_title, held_out_title
from anocaps.study.reports import read_results
from anocaps.study.studies import PAPER_DATASETS

SCORES = {"pp": "PP", "re": "RE", "pp+re": "PP+RE", "knn": "knn"}
# What the normality score of every method is, whatever its preset.
MEANING = {
    "CapsNet (PP)": "length of the longest class capsule (prediction probability)",
    "CapsNet (RE)": "minus the squared reconstruction error, divided by the image's norm",
    "CNN+OCSVM": "one-class SVM on the features of a CNN classifier",
    "VAE": "minus the reconstruction error of a variational autoencoder",
    "DBN": "minus the reconstruction error of a deep belief network",
    "CapsNet (PP+RE)": "PP and RE standardised over normal images, added (ours)",
    "CapsNet (knn)": "minus the distance to the nearest class capsules of normal images (ours)",
}
# Means of the paper's MNIST table that later papers quote; no others are known.
QUOTED = {("mnist", "CapsNet (PP)"): ".977", ("mnist", "CapsNet (RE)"): ".925"}


def _columns(found: Numbers) -> list[Series]:
    """The paper's methods, then CapsNet's further scores."""
    further = [s for s in found.further("mnist") if s.method == "capsnet" and s.score != "mse"]
    return [*found.headlines(), *further]


def results() -> str:
    found = Numbers(read_results(RESULTS / "paper"))
    rows, seeds = [], set()
    for series in _columns(found):
        name, *_ = series.look.label.split(", ")
        row = [series.look.label, MEANING[name]]
        for dataset in found.datasets:
            mean = found.mean_auroc(dataset, series)
            quoted = QUOTED.get((dataset, name))
            row.append(f"{mean}" + (f" (paper {quoted})" if quoted else ""))
            seeds.add(len(mean.by_seed) if mean else 0)
        rows.append(row)
    return (
        table(["method", "normality score", *map(dataset_title, found.datasets)], rows)
        + "\n\nMean AUROC over the classes, each held out in turn and never trained on. AUROC is "
        "the probability that a normal test image scores higher than an anomalous one: 0.5 is a "
        f"guess, 1 is perfect. ± is the standard deviation over {max(seeds)} seeds. Test sets are "
        "balanced; Small-NORB is read from JPEG copies. In brackets: the paper's own mean, where "
        "later papers quote it. From `anocaps study run paper`."
    )


def classes() -> str:
    """One table per dataset, a row per held-out class."""
    found = Numbers(read_results(RESULTS / "paper"))
    columns = found.headlines()
    parts = []
    for dataset in found.datasets:
        rows = [
            _row(held_out_title(held_out), [found.auroc(dataset, held_out, s) for s in columns])
            for held_out in found.cells(dataset)
        ]
        rows.append(_row("mean", [found.mean_auroc(dataset, series) for series in columns]))
        head = [dataset_title(dataset), *(series.look.label for series in columns)]
        parts.append(table(head, rows))
    return "\n\n".join(parts)


def _row(title: str, spreads: list[Spread | None]) -> list[str]:
    """Means over the seeds, the highest in bold."""
    means = ["–" if spread is None else f"{spread.mean:.3f}" for spread in spreads]
    best = max(mean for mean in means if mean != "–")
    return [title, *(f"**{mean}**" if mean == best else mean for mean in means)]


def premise() -> str:
    cells = read_results(RESULTS / "paper")
    rows = []
    for dataset in Numbers(cells).datasets:
        shares: list[list[float]] = []  # [cell][4]
        for cell in cells:
            if (cell.dataset, cell.method, len(cell.held_out)) == (dataset, "capsnet", 1):
                longest, anomalous = cell.scores["pp"], cell.anomalous
                parts = longest[~anomalous], longest[anomalous]
                shares.append([np.mean(p > bound) for bound in (0.5, 0.9) for p in parts])
        rows.append([dataset_title(dataset), *(f"{share:.3f}" for share in np.mean(shares, 0))])
    head = ["longest capsule", "over .5, normal", "anomalous", "over .9, normal", "anomalous"]
    return table(head, rows) + "\n\nShares of the test images, mean over classes and seeds."


def deep() -> str:
    cells = [*read_results(RESULTS / "deep"), *read_results(RESULTS / "paper")]
    seeds = {cell.seed for cell in cells if cell.variant == "deep"}

    def mean(preset: str, dataset: str, score: str) -> str:
        wanted = (dataset, "capsnet", preset, 1)
        mine = (c for c in cells if (c.dataset, c.method, c.variant, len(c.held_out)) == wanted)
        return f"{fmean(c.metrics[score].auroc for c in mine if c.seed in seeds):.3f}"

    rows = [
        [dataset_title(dataset), f"`{preset}`", *(mean(preset, dataset, s) for s in SCORES)]
        for dataset in PAPER_DATASETS
        for preset in ("paper-tuned", "deep")
    ]
    return (
        table(["", "preset", *SCORES.values()], rows)
        + "\n\nMean AUROC over the held-out classes, one seed. From `anocaps study run paper "
        "--method capsnet --preset deep --seeds 1` (`results/deep`) and the same seed of "
        "`results/paper`."
    )


def conformal() -> str:
    rows = []
    for dataset, each in read("conformal.json").items():
        means = {row["alpha"]: row["mean"] for row in each["resplits"]}
        rates = means[0.05], each["calibrated_once"]["rates"]["0.05"]
        rows.append([dataset_title(dataset), *(f"{100 * rate:.1f} %" for rate in rates)])
    return (
        table(["at alpha 0.05", "200 re-splits", "as calibrated in training"], rows)
        + "\n\nShare of normal images called anomalous. From `python benchmarks/conformal.py`."
    )


def folders() -> str:
    """Every method on every folder, and what anocaps took."""
    found = read("folders.json")
    names = {
        name: f"{dataset_title(each['dataset'])} without {each['left_out']}, "
        f"{each['images']['train']:,} images"
        for name, each in found["folders"].items()
    }
    cells: dict[str, dict[str, str]] = {name: {} for name in names}  # [folder][method]
    took = []
    for row in found["rows"]:
        cells[row["folder"]][row["method"]] = (
            f"{row['auroc']:.3f}, {100 * row['found_at_equal_rates']['0.05']:.0f} %"
        )
        if row["method"] == "anocaps":
            check, seconds = row["self_check"], row["command_seconds"]
            tested = {  # the file was written when the key had another name
                name: {"anomalous": each["odd"], "normal": each["normal"]}
                for name, each in check["tested"].items()
            }
            of = {"self_check": check | {"tested": tested}, "score_function": row["score"]}
            low, high = promised_range(of)
            alarms = {a: f"{100 * rate:.1f} %" for a, rate in row["false_alarms"].items()}
            rates = (alarms.get(alpha, "–") for alpha in ("0.01", "0.05"))
            took.append(
                [names[row["folder"]],
                 f"{check['auroc'][row['score']]:.2f} ({low:.2f} to {high:.2f})", *rates,
                 f"{seconds['train']:.0f} s", f"{seconds['score']:.0f} s", row["device"]]
            )  # fmt: skip
    methods = list(dict.fromkeys(row["method"] for row in found["rows"]))
    return "\n\n".join([
        "AUROC, and share of anomalies found if 5 % of the normal test images are called "
        "anomalous:",
        table(["normal images", *methods],
              [[names[name], *(of.get(method, "") for method in methods)]
               for name, of in cells.items()]),
        "What the self-check expected, false alarms at two alphas, and time:",
        table(["normal images", "self-check", "false alarms at 0.01", "at 0.05",
               "`train`", "`score`", "on"], took),
        "From `python benchmarks/folders.py`. Small-NORB is an unofficial copy. An alpha of 0.01 "
        "needs more calibration images than 99 images give.",
    ])  # fmt: skip


TABLES: dict[str, Callable[[], str]] = {
    "results": results,
    "classes": classes,
    "premise": premise,
    "deep": deep,
    "conformal": conformal,
    "folders": folders,
}
