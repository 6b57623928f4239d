"""How a study's numbers were made: data, training, machines, versions, settings."""

from collections.abc import Iterable, Sequence
from html import escape
from statistics import fmean
from typing import Any

from anocaps.study.cell import CellResult
from anocaps.study.report.numbers import (
    Numbers,
    dataset_title,
    method_title,
    place_of_dataset,
    place_of_method,
)
from anocaps.study.report.tables import NONE, html_row, html_table

_UNOFFICIAL = {
    "small-norb": "its files were put together from JPEG copies of the images, so that pixels "
    "differ slightly from the published ones",
}
_OTHERWISE = "its files do not have the published content"
# Of preset "paper" in every version that did not yet keep them with a result.
_ONCE_UNTOLD = {"shift": 0, "gradient": "all"}
_NOT_A_SETTING = {"seed", "device"}  # differ from cell to cell, or say nothing of the result
_IN_WORDS = {"final_share": "learning rate falls to this share"}


def circumstances_of(numbers: Numbers) -> str:
    results = numbers.results
    return "\n".join([_data(numbers), _training(numbers), _machines(results), _settings(results)])


def _data(numbers: Numbers) -> str:
    notes = []
    for dataset in numbers.datasets:
        if any(not r.official for r in numbers.results if r.dataset == dataset):
            why = _UNOFFICIAL.get(dataset, _OTHERWISE)
            notes.append(f"<b>{escape(dataset_title(dataset))}</b> is an unofficial copy: {why}.")
    limits = {r.limit for r in numbers.results if r.limit is not None}
    if limits:
        most = " or ".join(f"{limit:,}" for limit in sorted(limits))
        notes.append(f"Some networks saw only {most} training images of each class.")
    hashes = {
        f"{dataset_title(r.dataset)}: {file}": digest
        for r in numbers.results
        for file, digest in r.hashes.items()
    }
    rows = [html_row(escape(k), [f"<td>{escape(v)}</td>"]) for k, v in sorted(hashes.items())]
    files = _folded("Checksums of the data (SHA-256)", html_table("settings", [], rows))
    return "".join(f'<p class="prose">{note}</p>' for note in notes) + files


def _training(numbers: Numbers) -> str:
    groups: dict[tuple[str, str, str], list[CellResult]] = {}
    for r in numbers.results:
        groups.setdefault((r.dataset, r.method, r.variant), []).append(r)
    rows = []
    for key in sorted(groups, key=lambda k: (place_of_dataset(k[0]), place_of_method(k[1]), k)):
        dataset, method, variant = key
        runs = groups[key]
        training = [r.record.get("training", {}) for r in runs]
        seconds = [r.record["training_seconds"] for r in runs if "training_seconds" in r.record]
        accuracies = [r.accuracy for r in runs if r.accuracy is not None]
        cells = [
            _cell(f"{len(runs)}"),
            *(_cell(_every(t.get(k) for t in training)) for k in ("epochs", "batch_size")),
            _cell(_every(t.get("precision") for t in training)),
            _cell(f"{fmean(seconds):,.1f}" if seconds else ""),
            _cell(f"{100 * fmean(accuracies):.1f}\u00a0%" if accuracies else ""),
        ]
        names = [dataset_title(dataset), method_title(method), variant]
        rows.append(html_row(escape(", ".join(filter(None, names))), cells))
    titles = ["", "networks", "epochs", "batch", "precision", "seconds", "accuracy"]
    return (
        html_table("study made", titles, rows)
        + '<p class="note">Seconds: mean time of training a network; networks trained together ran '
        "at the same time, and runs beside each other shared the device. Accuracy: normal test "
        "images given their right class.</p>"
    )


def _machines(results: Sequence[CellResult]) -> str:
    devices = _every(r.record.get("device") for r in results)
    versions = [r.record.get("versions", {}) for r in results]
    names = dict.fromkeys(name for each in versions for name in each)
    said = {
        "device": devices,
        "versions": ", ".join(f"{n} {_every(v.get(n) for v in versions)}" for n in names),
        "commit": _every(r.record.get("commit") for r in results),
        "seeds": ", ".join(map(str, sorted({r.seed for r in results}))),
    }
    rows = [html_row(k, [f"<td>{escape(v)}</td>"]) for k, v in said.items() if v]
    return html_table("settings", [], rows)


def _settings(results: Sequence[CellResult]) -> str:
    """Of each method, by dataset where they differ."""
    parts = []
    for method in dict.fromkeys(r.method for r in results):
        runs = [r for r in results if r.method == method]
        names = dict.fromkeys(k for r in runs for k in (*r.settings, *r.record.get("training", ())))
        told = {
            _IN_WORDS.get(name, name.replace("_", " ")): _values(runs, name)
            for name in names
            if name not in _NOT_A_SETTING
        } | _machine(runs)
        rows = [html_row(escape(k), [f"<td>{escape(v)}</td>"]) for k, v in told.items()]
        title = f"All settings of {escape(method_title(method))}"
        parts.append(_folded(title, html_table("settings", [], rows)))
    return "".join(parts)


def _machine(runs: Sequence[CellResult]) -> dict[str, str]:
    """ν and γ of one-class SVMs, from the least to the greatest of each dataset."""
    told = {}
    for name, title in (("nu", "ν of the SVM"), ("gamma", "γ of the SVM")):
        found: dict[str, list[float]] = {}
        for r in runs:
            if (value := r.record.get("svm", {}).get(name)) is not None:
                found.setdefault(dataset_title(r.dataset), []).append(value)
        if found:
            told[title] = _by_place((_range(values), place) for place, values in found.items())
    return told


def _range(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{end:.2g}" for end in (min(values), max(values))))


def _values(runs: Sequence[CellResult], name: str) -> str:
    return _by_place((_value(r, name), dataset_title(r.dataset)) for r in runs)


def _by_place(values: Iterable[tuple[str, str]]) -> str:
    """One value, or each with the datasets it was used for."""
    where: dict[str, dict[str, None]] = {}
    for value, place in values:
        where.setdefault(value, {})[place] = None
    if len(where) == 1:
        return next(iter(where))
    return "; ".join(f"{value} ({', '.join(places)})" for value, places in where.items())


def _value(result: CellResult, name: str) -> str:
    """What was used. Older results say it of a setting left open in their record, or not at all."""
    value, used = result.settings.get(name), result.record.get("training", {}).get(name)
    if value == "auto" and used is not None:
        return f"auto: {used}"
    if value is None:
        value = used
    preset = result.settings.get("preset")
    if value is None and preset is not None and name in _ONCE_UNTOLD:
        return f"as preset {preset}" + (f": {_ONCE_UNTOLD[name]}" if preset == "paper" else "")
    return "none" if value is None else str(value)


def _every(values: Iterable[Any]) -> str:
    """All different ones, in order of appearance."""
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None))


def _cell(text: str) -> str:
    return f"<td>{escape(text)}</td>" if text else NONE


def _folded(title: str, body: str) -> str:
    return f'<details><summary>{title}</summary><div class="body">{body}</div></details>'
