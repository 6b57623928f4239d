"""The rules that claims are made of.

A rule takes a `View` of the results and returns a `Finding`. A view holds one seed or several. With
several, each AUROC and each share of images is the mean over the seeds, and a rule computes the
rest (the highest, a count, a spread) from these means.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anocaps.data import CATALOGUE
from anocaps.study.cell import LONG, CellResult

# What the words of the paper mean here.
RANDOM = 0.05  # |AUROC − .5| at most
REASONABLE = 0.70  # "reasonably good", at least
WELL = 0.80  # "quite well", at least
NEAR_PERFECT = 0.95  # at least
SIMILAR = 0.02  # |difference| at most
SLIGHT = 0.10  # "slightly", "without big differences": |difference| at most
VARY_LARGELY = 0.30  # highest − lowest over the classes, at least
SEVERAL, NOTICEABLE = 4, 0.05  # number of classes; share of the images that each takes, at least
MOST, MANY, FEW, SOME = 1 / 2, 1 / 3, 1 / 3, 1 / 5  # shares: FEW at most, the others at least
NEARLY_ALL = 0.90  # of the images, at least

CellKey: TypeAlias = tuple[str, str, frozenset[str]]  # dataset, method, held-out classes
Cells: TypeAlias = Mapping[CellKey, CellResult]  # of one seed
Floats: TypeAlias = NDArray[np.float64]


class Contender(NamedTuple):
    """One score of one method, to be compared with others."""

    method: str
    score: str
    label: str


PP = Contender("capsnet", "pp", "PP")
RE = Contender("capsnet", "re", "RE")
OCSVM = Contender("cnn-ocsvm", "ocsvm", "CNN+OCSVM")
VAE = Contender("vae", "re", "VAE")
DBN = Contender("dbn", "re", "DBN")
FIVE = (PP, RE, OCSVM, VAE, DBN)  # the paper's methods
MSE = Contender("capsnet", "mse", "MSE")  # RE without its normalisation
ELBO = Contender("vae", "elbo", "ELBO")


class NotMeasured(Exception):
    """The results lack what a rule needs."""


class Number(NamedTuple):
    label: str
    value: float
    out_of: int | None = None  # set if the value is a count
    place: str = ""  # dataset or held-out class, if there are several


class Finding(NamedTuple):
    true: bool
    numbers: tuple[Number, ...]  # with the same labels in every view


@dataclass(frozen=True)
class View:
    """The cells of one seed, or of several. Held-out classes are written 'bag' or '0,3,5'."""

    seeds: Sequence[Cells]

    def mean(
        self, dataset: str, method: str, held_out: str, quantity: Callable[[CellResult], ArrayLike]
    ) -> Floats:
        """The mean over the seeds of a number or an array of one cell."""
        key = dataset, method, frozenset(held_out.split(","))
        if not all(key in cells for cells in self.seeds):
            raise NotMeasured(f"{method} on {dataset} without {held_out}")
        each = np.array([quantity(cells[key]) for cells in self.seeds], dtype=np.float64)
        return np.asarray(each.mean(axis=0).round(12))  # NumPy's mean of three .7 is below .7

    def auroc(self, dataset: str, held_out: str, contender: Contender) -> float:
        def quantity(cell: CellResult) -> float:
            if contender.score not in cell.metrics:
                raise NotMeasured(f"{contender.score} of {contender.method}")
            return cell.metrics[contender.score].auroc

        return float(self.mean(dataset, contender.method, held_out, quantity))

    def table(
        self, dataset: str, contenders: Iterable[Contender], held_out: Iterable[str]
    ) -> Floats:
        """AUROCs [contenders, held-out classes]."""
        columns = [[self.auroc(dataset, name, c) for c in contenders] for name in held_out]
        return np.array(columns).T


@dataclass(frozen=True)
class Rule:
    words: str
    check: Callable[[View], Finding]


def classes_of(dataset: str) -> tuple[str, ...]:
    return CATALOGUE[dataset].class_names


# ---- Quantities of one cell other than AUROCs ----


def taken_for(cell: CellResult) -> Floats:
    """[classes] share of the anomalous images that is assigned to each class."""
    if cell.predicted is None:
        raise NotMeasured(f"classes given by {cell.method}")
    given = cell.predicted[cell.anomalous]
    return np.bincount(given, minlength=len(cell.class_names)) / len(given)


def surely_taken_for(cell: CellResult, classes: Iterable[str]) -> float:
    """Share of the anomalous images that a long capsule takes for one of these classes."""
    if cell.predicted is None or PP.score not in cell.scores:
        raise NotMeasured(f"classes given by {cell.method}")
    among = np.isin(cell.predicted, [cell.class_names.index(name) for name in classes])
    return float(np.mean((among & (cell.scores[PP.score] > LONG))[cell.anomalous]))


def with_long_capsules(cell: CellResult, kind: str, count: int) -> float:
    """Share of the "normal" or "anomalous" images with exactly this many long class capsules."""
    if cell.lengths is None:
        raise NotMeasured(f"capsules of {cell.method}")
    long = cell.lengths[kind]["long"]
    return long[count] / sum(long)


def in_the_range_of_normals(cell: CellResult, score: str) -> float:
    """Share of the anomalous images whose score lies within the central 95 % of the normals'."""
    if score not in cell.scores:
        raise NotMeasured(f"{score} of {cell.method}")
    values, anomalous = cell.scores[score], cell.anomalous
    low, high = np.quantile(values[~anomalous], [0.025, 0.975])
    return float(np.mean(((low <= values) & (values <= high))[anomalous]))


# ---- Kinds of rules: each takes some numbers and tests them ----


def by_auroc(
    words: str,
    dataset: str,
    held_out: Sequence[str],
    contenders: Sequence[Contender],
    test: Callable[[Floats], object],
) -> Rule:
    """Test the AUROCs [contenders, held-out classes]."""

    def check(view: View) -> Finding:
        values = view.table(dataset, contenders, held_out)
        return Finding(bool(test(values)), _named(values, contenders, held_out))

    return Rule(words, check)


def over_classes(
    words: str,
    datasets: Sequence[str],
    contenders: Sequence[Contender],
    test: Callable[[Floats], object],
    spread: bool = False,
) -> Rule:
    """Test means over the classes, or highest − lowest: [contenders, datasets]."""

    def check(view: View) -> Finding:
        tables = [view.table(name, contenders, classes_of(name)) for name in datasets]
        values = np.array([np.ptp(t, axis=1) if spread else t.mean(axis=1) for t in tables]).T
        return Finding(bool(test(values)), _named(values, contenders, datasets))

    over = "highest − lowest" if spread else "mean"
    return Rule(f"{over} over the classes: {words}", check)


def counted(
    words: str,
    datasets: Sequence[str],
    contenders: Sequence[Contender],
    cases: Callable[[Floats], Mapping[str, NDArray[np.bool_]]],
    enough: Callable[[Floats], object],
) -> Rule:
    """Count cases among all classes of some datasets.

    `cases` takes the AUROCs [contenders, classes] and returns name → marks. `enough` tests the
    share of marks of each name.
    """

    def check(view: View) -> Finding:
        tables = [view.table(name, contenders, classes_of(name)) for name in datasets]
        found = cases(np.concatenate(tables, axis=1))
        numbers = [Number(name, float(marks.sum()), marks.size) for name, marks in found.items()]
        return Finding(bool(enough(np.array([m.mean() for m in found.values()]))), tuple(numbers))

    return Rule(words, check)


def by_share(
    words: str,
    method: str,
    groups: Mapping[str, tuple[str, Sequence[str]]],
    quantity: Callable[[CellResult], float],
    test: Callable[[Floats], object],
) -> Rule:
    """Test the mean share of images in each group: label → dataset, held-out classes."""

    def check(view: View) -> Finding:
        shares = [
            float(np.mean([view.mean(dataset, method, name, quantity) for name in held_out]))
            for dataset, held_out in groups.values()
        ]
        return Finding(bool(test(np.array(shares))), tuple(map(Number, groups, shares)))

    return Rule(words, check)


def reconstructed(
    words: str, dataset: str, held_out: str, test: Callable[[Mapping[str, float]], object]
) -> Rule:
    """Test the share of anomalous images that CapsNet reconstructs as each class."""

    def check(view: View) -> Finding:
        shares = view.mean(dataset, PP.method, held_out, taken_for)
        normal = {n: float(s) for n, s in zip(classes_of(dataset), shares) if n != held_out}
        return Finding(
            bool(test(normal)), tuple(Number(f"as {name}", share) for name, share in normal.items())
        )

    return Rule(words, check)


# ---- The rules that several claims share ----


def similar_to(target: float, dataset: str, held_out: str, contender: Contender) -> Rule:
    words = f"{contender.label} within {plain(SIMILAR)} of {plain(target)}"
    return by_auroc(
        words, dataset, (held_out,), (contender,), lambda a: np.all(abs(a - target) <= SIMILAR)
    )


def differs_by(
    target: float, better: Contender, worse: Contender, dataset: str, held_out: str
) -> Rule:
    def check(view: View) -> Finding:
        high, low = (view.auroc(dataset, held_out, c) for c in (better, worse))
        labels = (better.label, worse.label, "difference")
        numbers = tuple(map(Number, labels, (high, low, high - low)))
        return Finding(abs(high - low - target) <= SIMILAR, numbers)

    return Rule(f"{better.label} − {worse.label} within {plain(SIMILAR)} of {plain(target)}", check)


def reaches(
    floor: float, contenders: Sequence[Contender], dataset: str, held_out: Sequence[str]
) -> Rule:
    words = f"{_listed(contenders)} at least {plain(floor)}{_for_each(held_out)}"
    return by_auroc(words, dataset, held_out, contenders, lambda a: np.all(a >= floor))


def beats(
    better: Contender, worse: Contender, dataset: str, held_out: Sequence[str], by: float = 0.0
) -> Rule:
    margin = f" by more than {plain(by)}" if by else ""
    words = f"{better.label} higher than {worse.label}{margin}{_for_each(held_out)}"
    return by_auroc(words, dataset, held_out, (better, worse), lambda a: np.all(a[0] - a[1] > by))


def within(gap: float, pair: Sequence[Contender], dataset: str, held_out: Sequence[str]) -> Rule:
    words = f"{_listed(pair)} within {plain(gap)} of each other{_for_each(held_out)}"
    return by_auroc(words, dataset, held_out, pair, lambda a: np.all(abs(a[0] - a[1]) <= gap))


def random(contenders: Sequence[Contender], dataset: str, held_out: str) -> Rule:
    words = f"{_listed(contenders)} each within {plain(RANDOM)} of .5"
    return by_auroc(
        words, dataset, (held_out,), contenders, lambda a: np.all(abs(a - 0.5) <= RANDOM)
    )


def only(
    chosen: Sequence[Contender], dataset: str, held_out: str, floor: float = REASONABLE
) -> Rule:
    expected = np.array([[c in chosen] for c in FIVE])
    words = f"of the five, {_listed(chosen)} alone at least {plain(floor)}"
    return by_auroc(
        words, dataset, (held_out,), FIVE, lambda a: np.array_equal(a >= floor, expected)
    )


def best(chosen: Sequence[Contender], dataset: str, held_out: str) -> Rule:
    is_chosen = np.array([c in chosen for c in FIVE])
    words = f"the {len(chosen)} highest of the five are {_listed(chosen)}"
    return by_auroc(
        words, dataset, (held_out,), FIVE, lambda a: a[is_chosen].min() > a[~is_chosen].max()
    )


# ---- Text ----


def text(in_the_mean: Finding, seeds: Sequence[Finding]) -> str:
    """'PP .985 ± .003, RE .962 ± .005', or of one seed 'trouser: PP .950; bag: PP .930'."""
    columns = zip(in_the_mean.numbers, *(finding.numbers for finding in seeds))
    places: dict[str, list[str]] = {}
    for mean, *each in columns:
        places.setdefault(mean.place, []).append(_number(mean, [n.value for n in each]))
    return "; ".join(
        (f"{place}: " if place else "") + ", ".join(numbers) for place, numbers in places.items()
    )


def _number(mean: Number, seeds: Sequence[float]) -> str:
    if mean.out_of is not None:
        each = f" (by seed {', '.join(f'{count:.0f}' for count in seeds)})"
        return f"{mean.label} {mean.value:.0f} of {mean.out_of}{each if len(seeds) > 1 else ''}"
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


def _listed(contenders: Sequence[Contender]) -> str:
    *most, last = (c.label for c in contenders)
    return f"{', '.join(most)} and {last}" if most else last


def _for_each(held_out: Sequence[str]) -> str:
    return f" for each of {', '.join(held_out)}" if len(held_out) > 1 else ""


def _named(
    values: Floats, contenders: Sequence[Contender], places: Sequence[str]
) -> tuple[Number, ...]:
    """Values [contenders, places] as numbers; places are named if there are several."""
    return tuple(
        Number(c.label, float(value), place=place if len(places) > 1 else "")
        for place, column in zip(places, values.T)
        for c, value in zip(contenders, column)
    )
