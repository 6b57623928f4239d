"""Tables of the ablation, and of what its choice changed in the study, from results/ alone."""

from typing import Any

from resultfiles import read, table, there
from study_tables import place

from anocaps.study.report.numbers import dataset_title
from anocaps.study.studies import PAPER_DATASETS, UNCHANGED


def ablation() -> str:
    """One table per dataset and length of training; empty until the ablation was run."""
    if not there("ablation.json"):
        return ""
    found = read("ablation.json")
    parts = []
    for dataset in PAPER_DATASETS:
        for whole in (False, True):
            rows = [r for r in found["rows"] if (r["dataset"], r["whole"]) == (dataset, whole)]
            if rows:
                limit = found["training images per class"][dataset]
                parts.append(_ablation_of(dataset, rows, limit))
    return "\n\n".join([*parts, "From `anocaps study run ablation` and `anocaps study report "
                        "ablation`: mean AUROC, and in brackets the difference to the unchanged "
                        "network ± its standard deviation over the seeds."])  # fmt: skip


def _ablation_of(dataset: str, rows: list[dict[str, Any]], limit: int) -> str:
    shown = [
        [row["choice"]]
        + [
            f"{row['auroc'][s]:.3f}"
            if row["choice"] == UNCHANGED
            else f"{row['auroc'][s]:.3f} ({_changed(row['difference'][s], row['spread'][s])})"
            for s in ("pp", "re", "pp+re")
        ]
        + [f"{row['accuracy']:.3f}", f"{row['loss']:.3f}"]
        for row in rows
    ]
    return (
        f"{dataset_title(dataset)}, {rows[0]['epochs']} epochs of at most {limit} images per "
        f"class, {rows[0]['classes']} mock anomalies, {_seeds(rows[0]['seeds'])}:\n\n"
        + table(["choice", "PP", "RE", "PP+RE", "accuracy", "last loss"], shown)
    )


def verdicts() -> str:
    """What the rule of ablation_rule.py says of each choice."""
    if not there("ablation.json"):
        return ""
    rows = [
        [verdict["choice"], "whole" if verdict["whole"] else "short",
         place(verdict["datasets"]),
         *(_changed(**verdict[of], digits=4) for of in ("both", "pp")),
         "yes" if verdict["gains"] else "no"]
        for verdict in read("ablation.json")["verdicts"]
    ]  # fmt: skip
    return table(["choice", "training", "datasets", "PP and RE", "PP alone", "gains"], rows)


def _changed(mean: float, error: float | None, digits: int = 3) -> str:
    told = f"{mean:+.{digits}f}"
    return told if error is None else f"{told} ± {error:.{digits}f}"


def _seeds(number: int) -> str:
    return "1 seed" if number == 1 else f"{number} seeds"


def second_look() -> str:
    """The study before and after the ablation's choice; empty until they were compared."""
    if not there("second-look.json"):
        return ""
    found = read("second-look.json")
    scores = {"pp": "PP", "re": "RE", "pp+re": "PP+RE", "knn": "knn"}
    means = [
        [dataset_title(name), *(f"{found['means'][name][score]:+.3f}" for score in scores)]
        for name in PAPER_DATASETS
    ]
    verdicts = [[each["says"], each["before"], each["after"]] for each in found["verdicts"]]
    both, pp = (_changed(**found["rule"][of]) for of in ("both", "pp"))
    return "\n\n".join(
        [
            table(["change of mean AUROC", *scores.values()], means),
            f"By the rule's measure {both}, PP alone {pp} (± the standard error over the classes). "
            f"Of {found['claims']} claims {len(verdicts)} are judged otherwise:",
            table(["the paper says", "before", "now"], verdicts),
            f"From `python benchmarks/second_look.py BEFORE --commit {found['before']}`, where "
            "BEFORE is `results/paper` of that commit, whose CapsNets are of "
            f"{', '.join(found['commits'])}.",
        ]
    )
