"""Which choice an ablation takes: one rule for all of them.

PP and RE, the paper's two scores, have equal say, and so have the datasets. A choice gains where

- the mean of both scores' AUROC, over the datasets, is higher than with the network as it is, by
  more than the standard deviation of that gain over the seeds, and
- PP, the paper's first score, is not lower by more than the deviation of its own difference.

Short trainings say what is worth a whole one; whole trainings decide, and of several that gain the
one that gains most is taken. The rule stood before the whole trainings were run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from anocaps.study.cell import CellResult
from anocaps.study.studies import AS_IT_IS, WHOLE


@dataclass(frozen=True)
class Verdict:
    """On one choice; differences to the network as it is, means over datasets, classes, seeds."""

    choice: str
    whole: bool  # training
    datasets: tuple[str, ...]
    gain: float  # of the mean of PP and RE
    gain_spread: float | None  # over the seeds; one seed has none
    pp: float
    pp_spread: float | None

    @property
    def gains(self) -> bool:
        """One seed says nothing."""
        if self.gain_spread is None or self.pp_spread is None:
            return False
        return self.gain > self.gain_spread and self.pp >= -self.pp_spread


def verdicts(results: Sequence[CellResult]) -> list[Verdict]:
    """On every choice but the network as it is, in the order of the results."""
    choices = dict.fromkeys((result.variant.removesuffix(WHOLE), WHOLE in result.variant)
                            for result in results)  # fmt: skip
    return [_verdict(choice, whole, results) for choice, whole in choices if choice != AS_IT_IS]


def taken(judged: Sequence[Verdict]) -> str:
    """The choice that the ablation takes, by its whole trainings."""
    better = [verdict for verdict in judged if verdict.whole and verdict.gains]
    return max(better, key=lambda verdict: verdict.gain).choice if better else AS_IT_IS


def _verdict(choice: str, whole: bool, results: Sequence[CellResult]) -> Verdict:
    kind = WHOLE if whole else ""
    mine = {_place(r): r for r in results if r.variant == choice + kind}
    base = {_place(r): r for r in results if r.variant == AS_IT_IS + kind}
    datasets = tuple(dict.fromkeys(dataset for dataset, _, _ in mine))
    every_dataset = [{seed for name, seed, _ in mine if name == dataset} for dataset in datasets]
    seeds = sorted(set.intersection(*every_dataset))

    def differences(scores: tuple[str, ...]) -> list[float]:
        """Seed by seed; same class, same test images."""
        return [
            fmean(
                fmean(
                    mine[place].metrics[score].auroc - base[place].metrics[score].auroc
                    for place in mine
                    if place[:2] == (dataset, seed) and place in base
                    for score in scores
                )
                for dataset in datasets
            )
            for seed in seeds
        ]

    gain, pp = differences(("pp", "re")), differences(("pp",))
    return Verdict(
        choice, whole, datasets,
        round(fmean(gain), 4), round(stdev(gain), 4) if len(seeds) > 1 else None,
        round(fmean(pp), 4), round(stdev(pp), 4) if len(seeds) > 1 else None,
    )  # fmt: skip


def _place(result: CellResult) -> tuple[str, int, tuple[str, ...]]:
    return result.dataset, result.seed, result.held_out
