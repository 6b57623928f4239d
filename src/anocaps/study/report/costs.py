"""What a cell costs: seconds of each row on each dataset, from the log or else from the results.

The log gives training and scoring. Its lines count only if they finished as many cells as are kept
of their commit, datasets and row: other lines have cells that were discarded, or cells of a run
beside them. Without such lines the cost is the time of training that the results record. This is
the time of a whole fleet. Divided by the most networks of a fleet, it is a lower bound.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from anocaps.detectors.plugins import known_methods
from anocaps.study.cell import CellResult
from anocaps.study.claims.quantities import most_in_fleet
from anocaps.study.report.numbers import Numbers, place_of_dataset, row_of
from anocaps.study.report.runlog import MOST, RunLog

_SAME_NETWORK = {"capsnet-paper-tuned": "capsnet"}  # they differ in training only


@dataclass(frozen=True)
class Cost:
    seconds: float  # of a cell
    datasets: tuple[str, ...]  # the mean over their cells
    at_least: bool = False  # only training is known

    def __str__(self) -> str:
        return "≥\u00a0" * self.at_least + short(self.seconds)


class Costs:
    def __init__(self, numbers: Numbers, log: RunLog) -> None:
        self._results = numbers.results
        sizes: dict[tuple[str, str], list[float]] = {}
        for result in numbers.results:
            if "model_bytes" in result.record:
                key = row_of(result), result.dataset
                sizes.setdefault(key, []).append(result.record["model_bytes"] / 1e6)
        self._sizes = {key: fmean(values) for key, values in sizes.items()}
        rows: dict[str, dict[str, list[CellResult]]] = {}
        for result in numbers.results:
            rows.setdefault(row_of(result), {}).setdefault(result.dataset, []).append(result)
        self._found: dict[tuple[str, str], Cost] = {}  # row, dataset
        for row, cells in rows.items():
            for cost in (*_trained(cells, numbers), *_logged(row, cells, log)):
                self._found |= {(row, dataset): cost for dataset in cost.datasets}

    def on(self, row: str, dataset: str) -> Cost | None:
        """The cost on this dataset, perhaps as a mean with other datasets; None if unknown."""
        return self._found.get((row, dataset))

    def mean(self, row: str, datasets: Iterable[str]) -> Cost | None:
        """The mean over those of these datasets on which the cost is known."""
        known = {name: cost for name in datasets if (cost := self.on(row, name))}
        if not known:
            return None
        at_least = any(cost.at_least for cost in known.values())
        return Cost(fmean(cost.seconds for cost in known.values()), tuple(known), at_least)

    def megabytes(self, row: str, dataset: str) -> float | None:
        """The mean size of a model; None if it was not recorded."""
        own = self._sizes.get((row, dataset))
        return own or self._sizes.get((_SAME_NETWORK.get(row, row), dataset))

    def total(self) -> str:
        """The time of all results, in one sentence."""
        by_device: dict[str, list[Cost]] = {}
        unknown = 0
        for result in self._results:
            if cost := self.on(row_of(result), result.dataset):
                by_device.setdefault(str(result.record.get("device")), []).append(cost)
            else:
                unknown += 1
        parts = []
        for device, costs in by_device.items():
            minutes, training = sum(c.seconds for c in costs) / 60, sum(c.at_least for c in costs)
            parts.append(
                f"{len(costs):,} cells took {'at least ' * bool(training)}{minutes:,.0f} minutes "
                f"on {device}" + f" (of {training:,} only the training is known)" * bool(training)
            )
        if unknown:
            parts.append(f"the time of {unknown:,} cells is unknown")
        return "; ".join(parts) + "."


def short(value: float) -> str:
    """A number for a table."""
    return f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"


def _logged(row: str, cells: Mapping[str, list[CellResult]], log: RunLog) -> Iterator[Cost]:
    """Costs by the log: one line may cover several datasets, but no dataset is in two costs."""
    method = next(iter(cells.values()))[0].method
    # Older runs of the study `paper` name every preset "capsnet".
    runs = [run for run in log.runs if run["methods"] == [row]] or [
        run for run in log.runs if run["methods"] == [method] and run["study"] == "paper"
    ]
    by_datasets: dict[frozenset[str], list[dict[str, Any]]] = {}
    for run in runs:
        by_datasets.setdefault(frozenset(run["datasets"]), []).append(run)
    done: set[str] = set()
    for names in sorted(by_datasets, key=len):
        if names <= cells.keys() and not names & done:
            cost = _mean({name: cells[name] for name in cells if name in names}, by_datasets[names])
            if cost is not None:
                done |= names
                yield cost


def _mean(cells: Mapping[str, list[CellResult]], runs: Sequence[dict[str, Any]]) -> Cost | None:
    """The mean of these runs, if they made at least half of the cells of each dataset."""
    kept = Counter(str(r.record.get("commit")) for own in cells.values() for r in own)
    seconds, made = 0.0, set()
    for commit, count in kept.items():
        lines = [run for run in runs if run["finished"] and str(run.get("commit")) == commit]
        if sum(line["finished"] for line in lines) == count:
            seconds += sum(line["seconds"] for line in lines)
            made.add(commit)
    for own in cells.values():
        if 2 * sum(str(r.record.get("commit")) in made for r in own) < len(own):
            return None
    datasets = sorted(cells, key=place_of_dataset)
    return Cost(seconds / sum(kept[commit] for commit in made), tuple(datasets))


def _trained(cells: Mapping[str, list[CellResult]], numbers: Numbers) -> Iterator[Cost]:
    """Costs of datasets on which every cell records the time of its training."""
    for dataset, own in cells.items():
        seconds = [r.record.get("training_seconds") for r in own]
        known = [s for s in seconds if isinstance(s, int | float) and 0 <= s < MOST]
        if len(known) == len(own):
            seeds = len({r.seed for r in own})
            method = known_methods().get(own[0].method)
            if method is not None and not method.needs_seed:
                together = seeds  # one training serves all seeds of a class
            else:
                together = min(most_in_fleet(own[0]), seeds * len(numbers.cells(dataset)))
            yield Cost(fmean(known) / together, (dataset,), at_least=True)
