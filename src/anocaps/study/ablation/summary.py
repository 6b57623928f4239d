"""What an ablation found: for each choice the mean AUROC over its mock anomalies, and how much it
differs from the unchanged network, with the spread of that difference over the seeds.

The raw results of an ablation are many; this summary is what is kept of them.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from anocaps.study.ablation.pairs import Change, Pair, paired
from anocaps.study.ablation.rule import Verdict, taken
from anocaps.study.cell import CellResult
from anocaps.study.studies import UNCHANGED

SCORES = ("pp", "re", "pp+re")


@dataclass(frozen=True)
class Row:
    """One choice on one dataset; each number is a mean over classes and seeds."""

    dataset: str
    choice: str
    whole: bool  # training, as long as the study's
    epochs: int
    seeds: int
    classes: int
    auroc: dict[str, float]
    difference: dict[str, float]  # to the unchanged network
    spread: dict[str, float | None]  # of the difference over the seeds; one seed has none
    accuracy: float
    loss: float  # of the last epoch


def summarise(results: Sequence[CellResult]) -> list[Row]:
    """By dataset, short trainings first, the unchanged network first."""
    rows = [
        _row(dataset, change, [pair for pair in pairs if pair.changed.dataset == dataset])
        for change, pairs in paired(results).items()
        for dataset in dict.fromkeys(pair.changed.dataset for pair in pairs)
    ]
    return sorted(rows, key=lambda row: (row.dataset, row.whole, row.choice != UNCHANGED))


def _row(dataset: str, change: Change, pairs: Sequence[Pair]) -> Row:
    mine = [pair.changed for pair in pairs]
    seeds = sorted({r.seed for r in mine})

    def of_seed(score: str, seed: int) -> float:
        return fmean(pair.difference(score) for pair in pairs if pair.changed.seed == seed)

    by_seed = {score: [of_seed(score, seed) for seed in seeds] for score in SCORES}
    return Row(
        dataset=dataset,
        choice=change.choice,
        whole=change.whole,
        epochs=mine[0].settings["epochs"],
        seeds=len(seeds),
        classes=len({r.held_out for r in mine}),
        auroc={s: round(fmean(r.metrics[s].auroc for r in mine), 4) for s in SCORES},
        difference={s: round(fmean(by_seed[s]), 4) for s in SCORES},
        spread={s: round(stdev(by_seed[s]), 4) if len(seeds) > 1 else None for s in SCORES},
        accuracy=round(fmean(r.accuracy or 0.0 for r in mine), 4),
        loss=round(fmean(r.record["losses"][-1] for r in mine), 4),
    )


def summary_text(
    results: Sequence[CellResult], rows: Sequence[Row], judged: Sequence[Verdict]
) -> str:
    """JSON: rows, verdicts, every cell's AUROC, and what it was measured with."""
    records = [r.record for r in results]
    versions = [record["versions"] for record in records]
    names = dict.fromkeys(name for each in versions for name in each)
    whole = {
        "what": "mock anomalies: training classes held out in turn, test images never read",
        "rows": [asdict(row) for row in rows],
        "verdicts": [_told(verdict) for verdict in judged],
        "taken": taken(judged),
        "cells": [
            [r.dataset, r.variant, "+".join(r.held_out), r.seed]
            + [round(r.metrics[score].auroc, 5) for score in SCORES]
            for r in results
        ],
        "unofficial copies": sorted({r.dataset for r in results if not r.official}),
        "training images per class": {r.dataset: r.limit for r in results},
        "devices": _every(record["device"] for record in records),
        "versions": {name: _every(each.get(name) for each in versions) for name in names},
        "commits": _every(record["commit"] for record in records),
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _told(verdict: Verdict) -> dict[str, Any]:
    """Rounded after it was judged."""
    differences = {
        of: {
            name: None if value is None else round(value, 5)
            for name, value in asdict(getattr(verdict, of)).items()
        }
        for of in ("both", "pp")
    }
    return asdict(verdict) | differences | {"gains": verdict.gains}


def _every(values: Iterable[Any]) -> list[Any]:
    """All different ones that are known: cells may come from several machines and days."""
    return sorted({value for value in values if value is not None})
