"""A changed network beside the unchanged one, cell by cell: same dataset, length of training, class
and seed, so that both were tested on the same images."""

from collections.abc import Sequence
from typing import NamedTuple

from anocaps.base.errors import DataError
from anocaps.study.cell import CellResult
from anocaps.study.studies import UNCHANGED, WHOLE


class Change(NamedTuple):
    whole: bool  # training, as long as the study's
    choice: str


class Pair(NamedTuple):
    changed: CellResult
    unchanged: CellResult

    def difference(self, score: str) -> float:
        """Of AUROC."""
        return self.changed.metrics[score].auroc - self.unchanged.metrics[score].auroc


def paired(results: Sequence[CellResult]) -> dict[Change, list[Pair]]:
    """Every choice, short trainings first; the unchanged network too, beside itself."""
    places = {(r.dataset, _change(r), r.held_out, r.seed): r for r in results}
    run = {(r.dataset, _change(r)) for r in results}
    pairs: dict[Change, list[Pair]] = {}
    for (dataset, change, held_out, seed), result in places.items():
        base = change._replace(choice=UNCHANGED)
        if (dataset, base) not in run:
            raise DataError(f"{dataset}: the ablation lacks {UNCHANGED!r}; run it to its end")
        if unchanged := places.get((dataset, base, held_out, seed)):
            pairs.setdefault(change, []).append(Pair(result, unchanged))
    return {change: pairs[change] for change in sorted(pairs, key=lambda change: change.whole)}


def _change(result: CellResult) -> Change:
    return Change(result.variant.endswith(WHOLE), result.variant.removesuffix(WHOLE))
