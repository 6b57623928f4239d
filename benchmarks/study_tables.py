"""Tables of the paper's study and its one-class SVM for README.md and docs/, from results/."""

import json
from collections.abc import Iterable
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import resultfiles
from resultfiles import read, table, there

from anocaps.study.cell import CellResult
from anocaps.study.claims import Judged, judge
from anocaps.study.report.numbers import Numbers, Series, Spread, dataset_title, held_out_title
from anocaps.study.reports import read_results
from anocaps.study.studies import PAPER_DATASETS

# Means of the MNIST row as later papers quote it (second hand), the only ones known.
_PAPER_MEANS = {
    ("mnist", "capsnet", "pp"): " (quoted .977)",
    ("mnist", "capsnet", "re"): " (quoted .925)",
}
# PP and RE against all normal test images of a throw-away script of ours, before this code: one
# seed, one H200. A mean over the classes, or of one class.
_PROTOTYPE = {
    ("mnist", "mean"): (0.979, 0.962),
    ("fashion-mnist", "mean"): (0.755, 0.732),
    ("small-norb", "mean"): (0.698, 0.680),
    ("small-norb", "animal"): (0.92, 0.70),
    ("small-norb", "human"): (0.45, 0.66),
    ("small-norb", "airplane"): (0.69, 0.83),
    ("small-norb", "truck"): (0.67, 0.68),
    ("small-norb", "car"): (0.76, 0.53),
}
_PLURAL = {
    "holds": "hold",
    "in part": "hold in part",
    "does not hold": "do not hold",
    "not measured": "were not measured",
}
_SINGULAR = {"in part": "holds in part", "not measured": "was not measured"}


def results() -> list[CellResult]:
    return read_results(resultfiles.RESULTS / "paper")


def numbers() -> Numbers:
    return Numbers(results())


def _columns(found: Numbers) -> list[Series]:
    """The paper's methods, then CapsNet's further scores."""
    further = [s for s in found.further("mnist") if s.method == "capsnet" and s.score != "mse"]
    return [*found.headlines(), *further]


def means() -> str:
    """One row per dataset: the mean over the classes, ± the standard deviation over the seeds."""
    found = numbers()
    columns = _columns(found)
    rows = []
    for dataset in found.datasets:
        every = [found.mean_auroc(dataset, series) for series in columns]
        counts = sorted({len(mean.by_seed) for mean in every if mean is not None})
        row = [dataset_title(dataset), "–".join(map(str, dict.fromkeys((counts[0], counts[-1]))))]
        for series, mean in zip(columns, every):
            known = _PAPER_MEANS.get((dataset, series.method, series.score), "")
            row.append(("–" if mean is None else str(mean)) + known)
        rows.append(row)
    told = "From `anocaps study run paper`."
    if runs := one_seed():
        seconds, networks = (sum(run[key] for run in runs) for key in ("seconds", "finished"))
        told += f" The {networks} CapsNets of one seed took {seconds:.0f} s on one "
        told += f"{runs[0]['device']} in {len(runs)} run{'s, each' if len(runs) > 1 else ','}"
        told += f" from start to last AUROC ({told_runs(runs)})."
    return (
        "Mean AUROC with each class held out in turn, balanced test sets, the paper's networks and "
        "epochs; Small-NORB from JPEG copies:\n\n"
        + table(["", "seeds", *(series.look.label for series in columns)], rows)
        + f"\n\n{told}"
    )


def one_seed() -> list[dict[str, Any]]:
    """The newest runs that made one seed of every CapsNet on a GPU, no dataset twice."""
    found = numbers()
    log = (resultfiles.RESULTS / "paper" / "log.jsonl").read_text("utf-8")
    runs = []
    for line in map(json.loads, reversed(log.splitlines())):
        cells = sum(len(found.cells(dataset)) for dataset in line["datasets"])
        whole = line["methods"] == ["capsnet"] and line["finished"] == cells > 0
        if whole and not line["device"].endswith("CPU"):
            runs.append(line)
    return _covering(set(found.datasets), runs) or []


def told_runs(runs: list[dict[str, Any]]) -> str:
    """Which code each of them ran on what: the log has no other date than that of a commit."""
    return "; ".join(
        f"{' and '.join(map(dataset_title, run['datasets']))}: {run['seconds']:.0f} s at commit "
        f"{run['commit']}"
        for run in runs
    )


def _covering(datasets: set[str], runs: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Of runs on one device, the first ones that have each dataset once; None if there are none.

    A run of several datasets has one time: it counts as a whole or not at all.
    """
    if not datasets:
        return []
    for run in runs:
        mine = set(run["datasets"])
        alike = [other for other in runs if other["device"] == run["device"]]
        if mine <= datasets and (rest := _covering(datasets - mine, alike)) is not None:
            return [run, *rest]
    return None


def training_seconds(runs: list[dict[str, Any]]) -> float | None:
    """What the runs of one_seed took to train; None where their results were replaced since.

    The CapsNets of a dataset are one fleet, whose members train at the same time. The clock of each
    also runs while others are made or finished: the shortest time is the nearest.
    """
    found = numbers()
    fleets: list[float] = []
    for run in runs:
        for dataset in run["datasets"]:
            made = dataset, "capsnet", "", run["seeds"] - 1, run["commit"]  # the last seed asked
            took = [
                r.record["training_seconds"]
                for r in found.results
                if (r.dataset, r.method, r.variant, r.seed, r.record["commit"]) == made
            ]
            if len(took) != len(found.cells(dataset)):
                return None
            fleets.append(min(took))
    return sum(fleets)


class Ties(NamedTuple):
    networks: int
    images: int
    found: int  # images whose PP another one of the same test set has already
    expected: float  # by chance


def ties(dataset: str) -> Ties:
    """Of the dataset's CapsNets that were trained in bf16, where all bits of PP were stored.

    Where PP falls on one step of fp32 or the next by chance alone, pairs that lie d steps apart are
    twice as many as equal pairs, for any small d. Those of up to 256 steps are counted.
    """
    steps = 256
    counted = []
    for result in results():
        mine = (result.dataset, result.method, result.variant) == (dataset, "capsnet", "")
        if not mine or result.record["training"]["precision"] != "bf16":
            continue
        bits = np.sort(result.scores["pp"].view(np.int32)).astype(np.int64)  # in order: PP ≥ 0
        if not (bits & 1).any():
            continue  # rounded before it was stored
        near = np.searchsorted(bits, bits + steps, "right") - np.searchsorted(bits, bits, "right")
        same = len(bits) - len(np.unique(bits))
        counted.append(Ties(1, len(bits), same, near.sum() / (2 * steps)))
    return Ties(*map(sum, zip(*counted))) if counted else Ties(0, 0, 0, 0.0)


def datasets() -> str:
    """One table per dataset, a row per held-out class."""
    found = numbers()
    compared = found.headlines()
    parts = ["In bold the highest of the paper's methods; PP+RE and knn are ours."]
    for dataset in found.datasets:
        columns = [s for s in _columns(found) if found.mean_auroc(dataset, s) is not None]

        def row(
            title: str, spreads: list[Spread | None], columns: list[Series] = columns
        ) -> list[str]:
            best = max(
                round(spread.mean, 3)
                for series, spread in zip(columns, spreads)
                if spread is not None and series in compared
            )
            return [
                title,
                *(
                    "–"
                    if spread is None
                    else f"**{spread}**"
                    if series in compared and round(spread.mean, 3) == best
                    else str(spread)
                    for series, spread in zip(columns, spreads)
                ),
            ]

        rows = [
            row(held_out_title(held_out), [found.auroc(dataset, held_out, s) for s in columns])
            for held_out in found.cells(dataset)
        ]
        rows.append(row("mean", [found.mean_auroc(dataset, series) for series in columns]))
        head = ["held out", *(series.look.label for series in columns)]
        parts.append(f"### {dataset_title(dataset)}\n\n{table(head, rows)}")
        parts.append(
            "The 95 % bootstrap interval of an AUROC within one seed is "
            f"{found.interval_width(dataset):.3f} wide on average."
        )
    return "\n\n".join(parts)


def premise() -> str:
    """How long the longest class capsule is, in the balanced test sets of single classes."""
    rows = []
    for dataset in numbers().datasets:
        cells = [
            r
            for r in results()
            if (r.dataset, r.method) == (dataset, "capsnet") and len(r.held_out) == 1
        ]
        parted = [cell.normal_and_odd("pp") for cell in cells]
        shares = [
            fmean(float(np.mean(part[kind] > bound)) for part in parted)
            for bound in (0.5, 0.9)
            for kind in (0, 1)
        ]
        rows.append([dataset_title(dataset), *(f"{share:.3f}" for share in shares)])
    head = ["longest capsule", "over .5, normal", "anomalous", "over .9, normal", "anomalous"]
    return (
        table(head, rows) + "\n\nShares of the balanced test images, mean over classes and seeds."
    )


def prototype() -> str:
    """CapsNet against all normal test images, beside what we had before this code."""
    capsnets = [r for r in results() if (r.method, r.variant) == ("capsnet", "")]
    rows = []
    for (dataset, name), before in _PROTOTYPE.items():
        cells = [
            r for r in capsnets
            if r.dataset == dataset and len(r.held_out) == 1 and name in ("mean", *r.held_out)
        ]  # fmt: skip
        now = [fmean(r.auroc_all[score] for r in cells) for score in ("pp", "re")]
        shown = [f"{new:.3f} ({old:.3f})" for new, old in zip(now, before)]
        rows.append([f"{dataset_title(dataset)}, {name}", *shown])
    return table(["against all normals (prototype)", "PP", "RE"], rows)


def verdict(judged: Judged) -> str:
    """A single seed cannot say how often."""
    return f"**{judged.verdict}**" + (" (1 seed)" if len(judged.by_seed) == 1 else "")


def claims() -> str:
    judged = judge(results())
    count = {name: sum(each.verdict == name for each in judged) for name in _PLURAL}
    rows = [
        [f"{each.claim.where}, {place(each.claim.datasets)}", each.claim.says,
         each.claim.rule.words, each.numbers or "–", verdict(each)]
        for each in judged
    ]  # fmt: skip
    told = ", ".join(
        f"{number} {_SINGULAR.get(name, name) if number == 1 else _PLURAL[name]}"
        for name, number in count.items()
        if number
    )
    return f"Of {len(judged)} claims: {told}.\n\n" + table(
        ["where", "the paper says", "our rule", "our numbers", "verdict"], rows
    )


def place(datasets: Iterable[str]) -> str:
    named = sorted(datasets, key=PAPER_DATASETS.index)
    return "all" if len(named) == len(PAPER_DATASETS) else " and ".join(map(dataset_title, named))


def ocsvm() -> str:
    """Both solvers of the one-class SVM; empty until they were compared."""
    if not there("ocsvm.json"):
        return ""
    whole = read("ocsvm.json")
    # On a CPU the gradient method is not used: its time there says nothing.
    timed = {} if whole["device"].endswith("CPU") else {"seconds": ("seconds", ".1f")}
    pairs = {"AUROC": ("auroc", ".4f"), "gap": ("gap", ".4f"), **timed,
             "support vectors": ("support_vectors", ",")}  # fmt: skip
    solvers, numbers_of_points = [], []
    for cell in whole["cells"]:
        name = f"{dataset_title(cell['dataset'])} without {cell['held_out']}"
        both = [
            ", ".join(format(cell[solver][key], form) for solver in ("ours", "scikit-learn"))
            for key, form in pairs.values()
        ]
        apart = f"{100 * cell['largest_difference']:.2f} %"
        solvers.append([name, f"{cell['ours']['points']:,}", apart, *both])
        every, few = cell["ours_on_all"], cell["few"]
        numbers_of_points.append(
            [name, f"{every['auroc']:.3f} ({every['points']:,})", f"{every['gap']:.4f}",
             f"{few['auroc']:.3f} ± {few['spread']:.3f} ({few['points']:,})",
             f"{few['auroc_usual_width']:.3f}", _nu(cell)]
        )  # fmt: skip
    # once it was taken from the machine of the points that both solvers saw
    told = "nu_points" in whole["cells"][0]
    nu_of = "of all points" if told else "of the points of both solvers"
    epochs = " or ".join(map(str, sorted({cell["epochs"] for cell in whole["cells"]})))
    limit = whole["limit"]
    images = "all normal images" if limit is None else f"{limit:,} of each normal class, not all"
    return "\n\n".join(
        [
            "Both solvers on the same points, given as gradient method, scikit-learn:",
            table(["", "points", "largest difference of scores", *pairs], solvers),
            "The difference is a share of the scores' standard deviation over the test images. The "
            "gap is how far at most the objective lies above its least value, as a share of it. "
            "The gradient method with all of these points; with few, over "
            f"{whole['cells'][0]['few']['draws']} draws; with few and the usual width, the median "
            f"distance of any two points; and, {nu_of}, the ν below which ν changes nothing:",
            table(["", "AUROC (points)", "gap", "few points", "few, usual width", "ν"],
                  numbers_of_points),
            f"From `python benchmarks/ocsvm.py` on one {whole['device']}: epochs of the CNN: "
            f"{epochs}, on {images}; balanced test sets. The AUROC is evidence, nothing was chosen "
            "by it.",
        ]
    )  # fmt: skip


def _nu(cell: dict[str, Any]) -> str:
    below = cell["nu_without_effect_below"]
    return "–" if below is None else f"{below:.2f}"
