"""The rules that claims are made of.

A rule takes a `View` of the results and returns a `Finding`. A view holds one seed or several. With
several, each AUROC and each share of images is the mean over the seeds, and a rule computes the
rest (the highest, a count, a spread) from these means.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anocaps.data import CATALOGUE
from anocaps.judging.metrics import paired_interval
from anocaps.study.cell import CellResult
from anocaps.study.claims.quantities import auroc_of_ranks, looks_like
from anocaps.study.claims.words import Finding, NotMeasured, Number, plain


@dataclass
class Thresholds:
    """Numbers for the words of the paper."""

    random: float = 0.05  # |AUROC − .5| at most
    reasonable: float = 0.70  # "reasonably good", at least
    well: float = 0.80  # "quite well", at least
    near_perfect: float = 0.95  # at least
    above: float = 0.0  # "higher", "better", "worse": difference of AUROCs, more than
    similar: float = 0.02  # |difference| at most
    slight: float = 0.10  # "slightly", "without big differences": |difference| at most
    vary_largely: float = 0.30  # highest − lowest over the classes, at least
    several: int = 4  # classes that each take the share `noticeable` of the images or more
    noticeable: float = 0.05
    most: float = 1 / 2  # shares: `few` at most, the others at least
    many: float = 1 / 3
    few: float = 1 / 3
    some: float = 1 / 5
    nearly_all: float = 0.90  # of the images, at least
    near_one: float = 0.90  # length of a capsule "close to 1", at least
    detects: float = 0.50  # length of a capsule that detects its class, more than
    central: float = 0.95  # share of the normal scores that are "the same range"


T = Thresholds()  # read each time that a rule is checked


@contextmanager
def moved(name: str, value: float) -> Iterator[None]:
    """Inside the block, rules are checked with another threshold. Their text does not change."""
    before = getattr(T, name)
    setattr(T, name, value)
    try:
        yield
    finally:
        setattr(T, name, before)


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
ELBO = Contender("vae-scores", "elbo", "ELBO")
KDE = Contender("kde", "pixels", "KDE")
KDE_PCA = Contender("kde", "pca", "KDE (PCA)")
SVDD = Contender("svm", "rbf", "SVDD")  # with a Gaussian kernel
MATRIX_PP = Contender("matrix-capsnet", "pp", "matrix PP")
MATRIX_RE = Contender("matrix-capsnet", "re", "matrix RE")
GEOM = Contender("geom", "dirichlet", "GEOM")


@dataclass(frozen=True)
class View:
    """The cells of one seed, or of several. Held-out classes are written 'bag' or '0,3,5'."""

    seeds: Sequence[Cells]
    data_dir: Path | None = None  # where datasets are, for rules that need images
    _known: dict[tuple[object, ...], float] = field(default_factory=dict)  # AUROCs taken before

    def mean(
        self, dataset: str, method: str, held_out: str, quantity: Callable[[CellResult], ArrayLike]
    ) -> Floats:
        """The mean over the seeds of a number or an array of one cell."""
        key = dataset, method, frozenset(held_out.split(","))
        if not all(key in cells for cells in self.seeds):
            raise NotMeasured(f"{method} on {dataset}, {held_out} held out")
        each = np.array([quantity(cells[key]) for cells in self.seeds], dtype=np.float64)
        return np.asarray(each.mean(axis=0).round(12))  # else the mean of three .7 is below .7

    def auroc(self, dataset: str, held_out: str, contender: Contender) -> float:
        def quantity(cell: CellResult) -> float:
            if contender.score not in cell.metrics:
                raise NotMeasured(f"{contender.score} of {contender.method}")
            return cell.metrics[contender.score].auroc

        key = dataset, held_out, contender
        if key not in self._known:
            self._known[key] = float(self.mean(dataset, contender.method, held_out, quantity))
        return self._known[key]

    def auroc_together(self, dataset: str, held_out: str, contenders: Sequence[Contender]) -> float:
        """AUROC of the mean rank of these scores, mean over the seeds."""
        if (known := self._known.get((dataset, held_out, *contenders))) is not None:
            return known
        found = []
        for cells in self.seeds:
            keys = [(dataset, c.method, frozenset(held_out.split(","))) for c in contenders]
            if not all(key in cells for key in keys):
                raise NotMeasured(f"{dataset}, {held_out} held out")
            scores = [c.score for c in contenders]
            found.append(auroc_of_ranks([cells[key] for key in keys], scores))
        self._known[dataset, held_out, *contenders] = joined = float(np.mean(found).round(12))
        return joined

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
        numbers = _named(values, contenders, held_out)
        if len(contenders) == 2 and len(held_out) > 2:
            numbers += (_difference(values, contenders, (0, 1), "together"),)
        return Finding(bool(test(values)), numbers)

    return Rule(words, check)


def over_classes(
    words: str,
    datasets: Sequence[str],
    contenders: Sequence[Contender],
    test: Callable[[Floats], object],
    spread: bool = False,
    compared: Sequence[tuple[int, int]] = (),
) -> Rule:
    """Test means over the classes, or highest − lowest: [contenders, datasets].

    `compared` are pairs of contenders whose difference is shown with its interval over the classes.
    """
    pairs = compared or ([(0, 1)] if len(contenders) == 2 and not spread else ())

    def check(view: View) -> Finding:
        tables = [view.table(name, contenders, classes_of(name)) for name in datasets]
        values = np.array([np.ptp(t, axis=1) if spread else t.mean(axis=1) for t in tables]).T
        numbers = _named(values, contenders, datasets)
        for name, each in zip(datasets, tables):
            place = name if len(datasets) > 1 else ""
            numbers += tuple(_difference(each, contenders, pair, place) for pair in pairs)
        return Finding(bool(test(values)), numbers)

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
    what: str = "share of images",
) -> Rule:
    """Test the mean of a quantity in each group: label → dataset, held-out classes."""

    def check(view: View) -> Finding:
        shares = [
            float(np.mean([view.mean(dataset, method, name, quantity) for name in held_out]))
            for dataset, held_out in groups.values()
        ]
        numbers = tuple(
            Number(what, share, place=name if len(groups) > 1 else "")
            for name, share in zip(groups, shares)
        )
        return Finding(bool(test(np.array(shares))), numbers)

    return Rule(words, check)


def reconstructed(
    words: str, dataset: str, held_out: str, test: Callable[[Mapping[str, float]], object]
) -> Rule:
    """Test the share of CapsNet's reconstructions of anomalous images that look like each class."""

    def check(view: View) -> Finding:
        quantity = partial(looks_like, data_dir=view.data_dir)
        found = view.mean(dataset, PP.method, held_out, quantity)
        shares = dict(zip(classes_of(dataset), map(float, found)))
        return Finding(
            bool(test(shares)), tuple(Number(f"as {name}", share) for name, share in shares.items())
        )

    return Rule(f"of the kept reconstructions, by their nearest training images: {words}", check)


# ---- The rules that several claims share ----


def quoted(targets: Mapping[Contender, float], dataset: str, held_out: str, floor: str) -> Rule:
    """Our values are near the paper's, or exceed them, and each is at least a threshold."""
    values = [f"{c.label} within {plain(T.similar)} of {plain(v)}" for c, v in targets.items()]
    words = f"{', '.join(values)}, each at least {plain(getattr(T, floor))}"
    wanted = np.array([list(targets.values())]).T

    def check(view: View) -> Finding:
        found = view.table(dataset, list(targets), (held_out,))
        good = np.all(found >= getattr(T, floor)) and np.all(found >= wanted - T.similar)
        higher = bool(good and np.any(found > wanted + T.similar))
        return Finding(bool(good and not higher), _named(found, list(targets), (held_out,)), higher)

    return Rule(words, check)


def both(*rules: Rule) -> Rule:
    """All of these rules are true. The paper says them in one sentence."""

    def check(view: View) -> Finding:
        found = [rule.check(view) for rule in rules]
        numbers = dict.fromkeys(number for each in found for number in each.numbers)
        return Finding(all(each.true for each in found), tuple(numbers))

    return Rule("; ".join(rule.words for rule in rules), check)


def differs_by(
    target: float, better: Contender, worse: Contender, dataset: str, held_out: str
) -> Rule:
    def check(view: View) -> Finding:
        high, low = (view.auroc(dataset, held_out, c) for c in (better, worse))
        labels = (better.label, worse.label, "difference")
        numbers = tuple(map(Number, labels, (high, low, high - low)))
        return Finding(abs(high - low - target) <= T.similar, numbers)

    return Rule(
        f"{better.label} − {worse.label} within {plain(T.similar)} of {plain(target)}", check
    )


def reaches(
    floor: str, contenders: Sequence[Contender], dataset: str, held_out: Sequence[str]
) -> Rule:
    """`floor` names a threshold."""
    words = f"{listed(contenders)} at least {plain(getattr(T, floor))}{_for_each(held_out)}"
    return by_auroc(words, dataset, held_out, contenders, lambda a: np.all(a >= getattr(T, floor)))


def beats(
    better: Contender,
    worse: Contender,
    dataset: str,
    held_out: Sequence[str],
    clearly: bool = False,
) -> Rule:
    """`clearly`: by more than the threshold `similar`."""
    margin = f" by more than {plain(T.similar)}" if clearly else ""
    words = f"{better.label} higher than {worse.label}{margin}{_for_each(held_out)}"
    return by_auroc(
        words, dataset, held_out, (better, worse),
        lambda a: np.all(a[0] - a[1] > (T.similar if clearly else T.above)),
    )  # fmt: skip


def within(gap: str, pair: Sequence[Contender], dataset: str, held_out: Sequence[str]) -> Rule:
    """`gap` names a threshold."""
    words = f"{listed(pair)} within {plain(getattr(T, gap))} of each other{_for_each(held_out)}"
    return by_auroc(
        words, dataset, held_out, pair, lambda a: np.all(abs(a[0] - a[1]) <= getattr(T, gap))
    )


def random(contenders: Sequence[Contender], dataset: str, held_out: str) -> Rule:
    words = f"{listed(contenders)} each within {plain(T.random)} of .5"
    return by_auroc(
        words, dataset, (held_out,), contenders, lambda a: np.all(abs(a - 0.5) <= T.random)
    )


def only(
    chosen: Sequence[Contender], dataset: str, held_out: str, than_random: bool = False
) -> Rule:
    """`than_random`: better than random, else reasonably good."""
    expected = np.array([[c in chosen] for c in FIVE])

    def floor() -> float:
        return 0.5 + T.random if than_random else T.reasonable

    words = f"of the five, {listed(chosen)} alone at least {plain(floor())}"
    return by_auroc(
        words, dataset, (held_out,), FIVE, lambda a: np.array_equal(a >= floor(), expected)
    )


def best(chosen: Sequence[Contender], dataset: str, held_out: str) -> Rule:
    is_chosen = np.array([c in chosen for c in FIVE])
    words = f"the {len(chosen)} highest of the five are {listed(chosen)}"
    return by_auroc(
        words, dataset, (held_out,), FIVE,
        lambda a: a[is_chosen].min() - a[~is_chosen].max() > T.above,
    )  # fmt: skip


# ---- Words ----


def listed(contenders: Sequence[Contender]) -> str:
    *most, last = (c.label for c in contenders)
    return f"{', '.join(most)} and {last}" if most else last


def _for_each(held_out: Sequence[str]) -> str:
    return f" for each of {', '.join(held_out)}" if len(held_out) > 1 else ""


def _difference(
    values: Floats, contenders: Sequence[Contender], pair: tuple[int, int], place: str
) -> Number:
    """The mean difference of two contenders, paired by class: values [contenders, classes]."""
    first, second = pair
    mean, low, high = paired_interval(values[first] - values[second])
    label = f"{contenders[first].label} − {contenders[second].label}"
    return Number(label, mean, place=place, interval=(low, high))


def _named(
    values: Floats, contenders: Sequence[Contender], places: Sequence[str]
) -> tuple[Number, ...]:
    """Values [contenders, places] as numbers; places are named if there are several."""
    return tuple(
        Number(c.label, float(value), place=place if len(places) > 1 else "")
        for place, column in zip(places, values.T)
        for c, value in zip(contenders, column)
    )
