"""The circumstances of a study: data, training, machines, versions, settings."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from anocaps.study.cell import CellResult
from anocaps.study.report.costs import Costs
from anocaps.study.report.numbers import (
    Numbers,
    dataset_title,
    method_title,
    place_of_dataset,
    place_of_method,
    row_of,
)
from anocaps.study.report.tables import Cell, Row, Table, settings_table

_FROM_JPEG = (
    "its files were made from JPEG copies of the images, so pixels differ slightly from the "
    "published ones"
)
_UNOFFICIAL = {"small-norb": _FROM_JPEG, "cifar10": _FROM_JPEG}
_OTHER_CONTENT = "its files do not have the published content"
# Settings of preset "paper" that older results do not record.
_UNRECORDED = {"shift": 0, "gradient": "all"}
_NOT_A_SETTING = {"seed", "device"}  # differ from cell to cell, or do not change the result
_TITLES = {"final_share": "final share of the learning rate"}


class Circumstances(NamedTuple):
    """The values of the macro `made` in macros.html."""

    unofficial: list[tuple[str, str]]  # dataset, how it differs
    limits: str  # training images of each class; empty if all were used
    checksums: Table
    training: Table
    machines: Table
    settings: list[tuple[str, Table]]  # of each method


def circumstances_of(numbers: Numbers, costs: Costs) -> Circumstances:
    """The circumstances of all results."""
    results = numbers.results
    hashes = {
        f"{dataset_title(r.dataset)}: {file}": digest
        for r in results
        for file, digest in r.hashes.items()
    }
    limits = sorted({r.limit for r in results if r.limit is not None})
    return Circumstances(
        unofficial=[
            (dataset_title(dataset), _UNOFFICIAL.get(dataset, _OTHER_CONTENT))
            for dataset in numbers.datasets
            if not numbers.is_official(dataset)
        ],
        limits=" or ".join(f"{limit:,}" for limit in limits),
        checksums=settings_table(dict(sorted(hashes.items()))),
        training=_training(results, costs),
        machines=_machines(results, costs),
        settings=[
            (_title(method), _settings([r for r in results if r.method == method]))
            for method in dict.fromkeys(r.method for r in results)
        ],
    )


def _title(method: str) -> str:
    """The title of a method. Rows of further scores train the same network again."""
    further = method.endswith("-scores")
    return method_title(method) + (", further scores" if further else "")


def _training(results: Sequence[CellResult], costs: Costs) -> Table:
    groups: dict[tuple[str, str, str], list[CellResult]] = {}
    for r in results:
        groups.setdefault((r.dataset, r.method, r.variant), []).append(r)
    rows = []
    for key in sorted(groups, key=lambda k: (place_of_dataset(k[0]), place_of_method(k[1]), k)):
        dataset, method, variant = key
        runs = groups[key]
        training = [r.record.get("training", {}) for r in runs]
        cost = costs.on(row_of(runs[0]), dataset)
        others = [dataset_title(d) for d in cost.datasets if d != dataset] if cost else []
        accuracies = [r.accuracy for r in runs if r.accuracy is not None]
        cells = [
            Cell(f"{len(runs)}"),
            *(
                Cell(_distinct(each.get(name) for each in training))
                for name in ("epochs", "batch_size", "precision")
            ),
            Cell(str(cost or ""), f"mean with {' and '.join(others)}" if others else ""),
            Cell(f"{100 * fmean(accuracies):.1f}\u00a0%" if accuracies else ""),
        ]
        names = [dataset_title(dataset), _title(method), variant]
        rows.append(Row(", ".join(filter(None, names)), cells))
    titles = ["", "networks", "epochs", "batch", "precision", "seconds per cell", "accuracy"]
    return Table(titles, rows, kind="study made")


def _machines(results: Sequence[CellResult], costs: Costs) -> Table:
    versions = [r.record.get("versions", {}) for r in results]
    names = dict.fromkeys(name for each in versions for name in each)
    rows = {
        "device": _distinct(r.record.get("device") for r in results),
        "versions": ", ".join(f"{n} {_distinct(v.get(n) for v in versions)}" for n in names),
        "commit": _distinct(r.record.get("commit") for r in results),
        "seeds": ", ".join(map(str, sorted({r.seed for r in results}))),
        "time": costs.total(),
    }
    return settings_table({name: value for name, value in rows.items() if value})


def _settings(runs: Sequence[CellResult]) -> Table:
    """The settings of one method, by dataset if they differ."""
    names = dict.fromkeys(k for r in runs for k in (*r.settings, *r.record.get("training", ())))
    rows = {
        _TITLES.get(name, name.replace("_", " ")): _by_dataset(
            (_value(r, name), dataset_title(r.dataset)) for r in runs
        )
        for name in names
        if name not in _NOT_A_SETTING
    }
    return settings_table(rows | _svm(runs))


def _svm(runs: Sequence[CellResult]) -> dict[str, str]:
    """The range of ν and γ of one-class SVMs, by dataset."""
    rows = {}
    for name, title in (("nu", "ν of the SVM"), ("gamma", "γ of the SVM")):
        found: dict[str, list[float]] = {}
        for r in runs:
            if (value := r.record.get("svm", {}).get(name)) is not None:
                found.setdefault(dataset_title(r.dataset), []).append(value)
        if found:
            rows[title] = _by_dataset((_range(values), name) for name, values in found.items())
    return rows


def _range(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{end:.2g}" for end in (min(values), max(values))))


def _by_dataset(values: Iterable[tuple[str, str]]) -> str:
    """The value, or each of several values with its datasets."""
    where: dict[str, dict[str, None]] = {}
    for value, dataset in values:
        where.setdefault(value, {})[dataset] = None
    if len(where) == 1:
        return next(iter(where))
    return "; ".join(f"{value} ({', '.join(names)})" for value, names in where.items())


def _value(result: CellResult, name: str) -> str:
    """The value that was used. Older results keep it in their record, or not at all."""
    value, used = result.settings.get(name), result.record.get("training", {}).get(name)
    if value == "auto" and used is not None:
        return f"auto: {used}"
    if value is None:
        value = used
    preset = result.settings.get("preset")
    if value is None and preset is not None and name in _UNRECORDED:
        return f"as preset {preset}" + (f": {_UNRECORDED[name]}" if preset == "paper" else "")
    return "none" if value is None else str(value)


def _distinct(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None))
