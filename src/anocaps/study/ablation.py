"""What an ablation found, and which choice to take.

Every cell of a changed network is paired with the cell of the unchanged network that has the same
dataset, length of training, held-out class and seed, so both were tested on the same images.

A choice gains if

- the mean AUROC of PP and RE over the datasets is higher than that of the unchanged network, by
  more than twice the standard error of that gain, and
- PP is not lower by more than twice the standard error of its own difference.

The two scores count equally, and so do the datasets. The standard error is taken over the classes.
Only trainings of full length on all datasets decide. Of several choices that gain, the one with the
largest gain is taken.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import fmean, stdev, variance
from typing import Any, NamedTuple

from anocaps.base.errors import DataError
from anocaps.study.cell import CellResult
from anocaps.study.studies import UNCHANGED, WHOLE

SCORES = ("pp", "re", "pp+re")
_ERRORS = 2.0  # a difference of fewer standard errors may be chance


# ── pairs of cells ───────────────────────────────────────────────────────────────────────────


class Change(NamedTuple):
    whole: bool  # trained for as many epochs as the study
    choice: str


class Pair(NamedTuple):
    changed: CellResult
    unchanged: CellResult

    def difference(self, score: str) -> float:
        """How much higher the AUROC of the changed network is."""
        return self.changed.metrics[score].auroc - self.unchanged.metrics[score].auroc


def paired(results: Sequence[CellResult]) -> dict[Change, list[Pair]]:
    """The pairs of every choice, short trainings first; the unchanged network pairs with itself."""
    places = {(r.dataset, _change(r), r.held_out, r.seed): r for r in results}
    run = {(r.dataset, _change(r)) for r in results}
    pairs: dict[Change, list[Pair]] = {}
    for (dataset, change, held_out, seed), result in places.items():
        base = change._replace(choice=UNCHANGED)
        if (dataset, base) not in run:
            raise DataError(f"{dataset}: the cells of {UNCHANGED!r} are missing; run the ablation")
        if unchanged := places.get((dataset, base, held_out, seed)):
            pairs.setdefault(change, []).append(Pair(result, unchanged))
    return {change: pairs[change] for change in sorted(pairs, key=lambda change: change.whole)}


def _change(result: CellResult) -> Change:
    return Change(result.variant.endswith(WHOLE), result.variant.removesuffix(WHOLE))


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Difference:
    """Difference in AUROC from the unchanged network."""

    mean: float  # over the datasets, of means over their classes
    error: float | None  # standard error of the mean; None if a dataset has only one class


@dataclass(frozen=True)
class Verdict:
    choice: str
    whole: bool  # trained for as many epochs as the study
    datasets: tuple[str, ...]
    both: Difference  # in the mean of PP and RE
    pp: Difference

    @property
    def gains(self) -> bool:
        if self.both.error is None or self.pp.error is None:
            return False
        return (
            self.both.mean > _ERRORS * self.both.error and self.pp.mean >= -_ERRORS * self.pp.error
        )


def verdicts(results: Sequence[CellResult]) -> list[Verdict]:
    """One verdict for every choice, short trainings first."""
    return [
        _verdict(change, pairs)
        for change, pairs in paired(results).items()
        if change.choice != UNCHANGED
    ]


def taken(judged: Sequence[Verdict]) -> str:
    """The choice to take: only whole trainings on all datasets count."""
    every = {dataset for verdict in judged for dataset in verdict.datasets}
    better = [each for each in judged if each.whole and each.gains and every <= set(each.datasets)]
    return max(better, key=lambda verdict: verdict.both.mean).choice if better else UNCHANGED


def _verdict(change: Change, pairs: Sequence[Pair]) -> Verdict:
    datasets = tuple(dict.fromkeys(pair.changed.dataset for pair in pairs))

    def difference(*scores: str) -> Difference:
        found = [
            _by_class([pair for pair in pairs if pair.changed.dataset == dataset], scores)
            for dataset in datasets
        ]
        error = None
        if min(map(len, found)) > 1:
            error = sqrt(sum(variance(each) / len(each) for each in found)) / len(found)
        return Difference(fmean(map(fmean, found)), error)

    return Verdict(
        change.choice, change.whole, datasets, both=difference("pp", "re"), pp=difference("pp")
    )


def _by_class(pairs: Sequence[Pair], scores: Sequence[str]) -> list[float]:
    """For each held-out class, the mean difference in AUROC over seeds and scores."""
    classes: dict[tuple[str, ...], list[float]] = {}
    for pair in pairs:
        own = classes.setdefault(pair.changed.held_out, [])
        own.extend(pair.difference(score) for score in scores)
    return [fmean(differences) for differences in classes.values()]


# ── summary ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Row:
    """One choice on one dataset; each number is a mean over classes and seeds."""

    dataset: str
    choice: str
    whole: bool  # trained for as many epochs as the study
    epochs: int
    seeds: int
    classes: int
    auroc: dict[str, float]
    difference: dict[str, float]  # from the unchanged network
    spread: dict[str, float | None]  # of the difference over the seeds; None with one seed
    accuracy: float
    loss: float  # of the last epoch


def summarise(results: Sequence[CellResult]) -> list[Row]:
    """Rows sorted by dataset, short trainings first, the unchanged network first."""
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
    """JSON: rows, verdicts, the AUROC of every cell, devices and versions."""
    records = [r.record for r in results]
    versions = [record["versions"] for record in records]
    names = dict.fromkeys(name for each in versions for name in each)
    whole = {
        "what": "mock anomalies: training classes held out in turn, test images never read",
        "rows": [asdict(row) for row in rows],
        "verdicts": [_verdict_json(verdict) for verdict in judged],
        "taken": taken(judged),
        "cells": [
            [r.dataset, r.variant, "+".join(r.held_out), r.seed]
            + [round(r.metrics[score].auroc, 5) for score in SCORES]
            for r in results
        ],
        "unofficial copies": sorted({r.dataset for r in results if not r.official}),
        "training images per class": {r.dataset: r.limit for r in results},
        "devices": _distinct(record["device"] for record in records),
        "versions": {name: _distinct(each.get(name) for each in versions) for name in names},
        "commits": _distinct(record["commit"] for record in records),
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    def rounded(found: Difference) -> dict[str, float | None]:
        return {k: None if v is None else round(v, 5) for k, v in asdict(found).items()}

    differences = {"both": rounded(verdict.both), "pp": rounded(verdict.pp)}
    return asdict(verdict) | differences | {"gains": verdict.gains}


def _distinct(values: Iterable[Any]) -> list[Any]:
    return sorted({value for value in values if value is not None})
