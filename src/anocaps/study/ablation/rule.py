"""Which choice an ablation takes: one rule for all of them.

PP and RE, the paper's two scores, have equal say, and so have the datasets. A choice gains where

- the mean of both scores' AUROC, over the datasets, is higher than with the unchanged network, by
  more than twice the standard error of that gain, and
- PP, the paper's first score, is not lower by more than twice the error of its own difference.

The error is that of a mean over classes: what counts is whether another class would gain too. Short
trainings show what may matter; whole trainings on all datasets decide, and of several that gain the
one that gains most is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance

from anocaps.study.ablation.pairs import Change, Pair, paired
from anocaps.study.cell import CellResult
from anocaps.study.studies import UNCHANGED

_ERRORS = 2.0  # a difference of fewer may be chance


@dataclass(frozen=True)
class Difference:
    """To the unchanged network."""

    mean: float  # over the datasets' means over their classes
    error: float | None  # of that mean; unknown where a dataset has one class only


@dataclass(frozen=True)
class Verdict:
    choice: str
    whole: bool  # training
    datasets: tuple[str, ...]
    both: Difference  # of the mean of PP and RE
    pp: Difference

    @property
    def gains(self) -> bool:
        if self.both.error is None or self.pp.error is None:
            return False
        return (
            self.both.mean > _ERRORS * self.both.error and self.pp.mean >= -_ERRORS * self.pp.error
        )


def verdicts(results: Sequence[CellResult]) -> list[Verdict]:
    """On every choice, short trainings first."""
    return [
        _verdict(change, pairs)
        for change, pairs in paired(results).items()
        if change.choice != UNCHANGED
    ]


def taken(judged: Sequence[Verdict]) -> str:
    """The choice to take, by whole trainings on all datasets that were tried."""
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
    """For each held-out class how much the scores' AUROC differs, in the mean over the seeds."""
    classes: dict[tuple[str, ...], list[float]] = {}
    for pair in pairs:
        own = classes.setdefault(pair.changed.held_out, [])
        own.extend(pair.difference(score) for score in scores)
    return [fmean(differences) for differences in classes.values()]
