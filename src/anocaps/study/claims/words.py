"""The result of a rule, and its numbers as text."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class NotMeasured(Exception):
    """The results lack a number that a rule needs."""


class Number(NamedTuple):
    label: str
    value: float
    out_of: int | None = None  # set if the value is a count
    place: str = ""  # dataset or held-out class, if there are several
    interval: tuple[float, float] | None = None  # of a difference, over the classes


class Finding(NamedTuple):
    true: bool
    numbers: tuple[Number, ...]  # with the same labels in every view
    exceeds: bool = False  # better than the paper says


def text(in_the_mean: Finding, seeds: Sequence[Finding], differences: bool = False) -> str:
    """'PP .985 ± .003, RE .962 ± .005', or of one seed 'trouser: PP .950; bag: PP .930'.

    `differences`: only those with an interval.
    """
    columns = zip(in_the_mean.numbers, *(finding.numbers for finding in seeds))
    places: dict[str, list[str]] = {}
    for mean, *each in columns:
        if differences and mean.interval is None:
            continue
        places.setdefault(mean.place, []).append(_number(mean, [n.value for n in each]))
    return "; ".join(
        (f"{place}: " if place else "") + ", ".join(numbers) for place, numbers in places.items()
    )


def _number(mean: Number, seeds: Sequence[float]) -> str:
    if mean.out_of is not None:
        each = f" (by seed {', '.join(f'{count:.0f}' for count in seeds)})"
        return f"{mean.label} {mean.value:.0f} of {mean.out_of}{each if len(seeds) > 1 else ''}"
    if mean.interval is not None:
        low, high = (_short(value) for value in mean.interval)
        return f"{mean.label} {_short(mean.value)} [{low}, {high}]"
    spread = f" ± {_short(statistics.stdev(seeds))}" if len(seeds) > 1 else ""
    return f"{mean.label} {_short(mean.value)}{spread}"


def _short(value: float) -> str:
    """.985, −.034, 1.000"""
    digits = f"{abs(value):.3f}"
    sign = "−" if value < 0 and float(digits) else ""
    return sign + digits.removeprefix("0")


def plain(value: float) -> str:
    """A threshold without needless zeros: .05, .70, .9841."""
    return f"{value:.4f}".rstrip("0").ljust(4, "0").removeprefix("0")
