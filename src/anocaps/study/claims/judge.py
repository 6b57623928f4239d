"""Judge the claims on the results of a study."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from anocaps.study.cell import CellResult
from anocaps.study.claims.paper import CLAIMS, Claim
from anocaps.study.claims.rules import CellKey, T, View, moved
from anocaps.study.claims.words import Finding, NotMeasured, text

Verdict = Literal["holds", "exceeds", "in part", "does not hold", "not measured"]


@dataclass(frozen=True)
class Judged:
    claim: Claim
    verdict: Verdict
    numbers: str  # our mean ± standard deviation over the seeds, or what is missing
    by_seed: dict[int, bool]  # whether the rule is true, by seed; without incomplete seeds
    differences: str = ""  # those numbers that are differences with intervals


class Views:
    """The cells that claims use, of each seed and of several seeds together.

    Variants, and cells trained on fewer images, are not used.
    """

    def __init__(self, results: Iterable[CellResult], data_dir: Path | None) -> None:
        self._data_dir = data_dir
        seeds: dict[int, dict[CellKey, CellResult]] = defaultdict(dict)
        for r in results:
            if not r.variant and r.limit is None:
                seeds[r.seed][r.dataset, r.method, frozenset(r.held_out)] = r
        self.of_seed = {seed: View([cells], data_dir) for seed, cells in sorted(seeds.items())}
        self._together: dict[tuple[int, ...], View] = {}

    def together(self, seeds: Iterable[int]) -> View:
        key = tuple(seeds)
        if key not in self._together:
            cells = [cells for s in key for cells in self.of_seed[s].seeds]
            self._together[key] = View(cells, self._data_dir)
        return self._together[key]


def judge(
    results: Iterable[CellResult],
    claims: Iterable[Claim] = CLAIMS,
    data_dir: Path | None = None,
) -> list[Judged]:
    """Judge each claim. A few need images of datasets in `data_dir`; nothing is downloaded."""
    views = Views(results, data_dir)
    return [_judged(claim, views) for claim in claims]


def _judged(claim: Claim, views: Views) -> Judged:
    found: dict[int, Finding] = {}
    missing = ""
    for seed, view in views.of_seed.items():
        try:
            found[seed] = claim.rule.check(view)
        except NotMeasured as what:
            missing = missing or f"missing: {what}"
    if not found:
        return Judged(claim, "not measured", missing, {})
    in_the_mean = claim.rule.check(views.together(found))
    by_seed = {seed: finding.true for seed, finding in found.items()}
    verdict: Verdict = "exceeds" if in_the_mean.exceeds else "does not hold"
    if in_the_mean.true:
        verdict = "holds" if all(by_seed.values()) else "in part"
    each = list(found.values())
    numbers, differences = text(in_the_mean, each), text(in_the_mean, each, differences=True)
    return Judged(claim, verdict, numbers, by_seed, differences)


def sensitivity(
    results: Sequence[CellResult], data_dir: Path | None = None
) -> list[tuple[Claim, str, float, Verdict]]:
    """Claims whose verdict changes with a threshold: the threshold, its value, the verdict there.

    One threshold at a time is multiplied by .5 and by 1.5. Thresholds of .6 or more are changed by
    ±.05 instead, a threshold of 0 by ±.01.
    """
    views = Views(results, data_dir)
    usual = {claim.key: _judged(claim, views).verdict for claim in CLAIMS}
    found = []
    for threshold, value in asdict(T).items():
        levels = [value / 2, 1.5 * value]
        if value == 0 or value >= 0.6:
            step = 0.05 if value else 0.01
            levels = [value - step, value + step]
        for level in levels:
            with moved(threshold, level):
                found += [
                    (claim, threshold, level, verdict)
                    for claim in CLAIMS
                    if (verdict := _judged(claim, views).verdict) != usual[claim.key]
                ]
    return found
