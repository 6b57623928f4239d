"""The numbers of a study's page: results by dataset, held-out classes and method.

A series is a method with one of its scores: a column of the tables, a colour of the figures.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from anocaps.study.budgets import PRESETS
from anocaps.study.cell import CellResult
from anocaps.study.studies import as_file_name

HeldOut: TypeAlias = tuple[str, ...]

_DATASETS = {
    "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "small-norb": "Small-NORB",
    "cifar10": "CIFAR-10",
}  # fmt: skip
_ABBREVIATIONS = (
    "pp", "re", "pp+re", "mse", "nse", "ocsvm", "rbf", "rbm", "pca", "elbo", "iwae",
)  # fmt: skip
_METHODS = {  # in the order of the page: further scores of a network follow its method
    "capsnet": "CapsNet",
    "cnn-ocsvm": "CNN+OCSVM",
    "cnn-scores": "CNN",
    "vae": "VAE",
    "vae-scores": "VAE",
    "dbn": "DBN",
    "dbn-scores": "DBN",
    "kde": "KDE",
    "svm": "SVM on pixels",
    "deep-svdd": "Deep SVDD",
    "matrix-capsnet": "Matrix capsules",
    "geom": "GEOM",
    "anogan": "AnoGAN",
}
_LABELS = {  # method and score → label, if not made from their names
    ("cnn-ocsvm", "ocsvm"): "CNN+OCSVM",
    ("vae", "re"): "VAE",
    ("dbn", "re"): "DBN",
    ("vae", "elbo"): "VAE (ELBO at the mean of z)",  # not a true bound; `vae-scores` has one
    ("dbn-scores", "rbm"): "RBM (log-likelihood)",
    ("dbn-scores", "hyperplane"): "DBN (OCSVM, linear)",
    ("svm", "rbf"): "OCSVM = SVDD (RBF)",
    ("svm", "hyperplane"): "OCSVM (linear)",
    ("svm", "hypersphere"): "SVDD (linear)",
}
EXTRA_COLOURS = 4  # in style.css


@dataclass(frozen=True)
class Look:
    """The look of a series, the same in every figure."""

    label: str
    colour: str  # a name from style.css
    dash: tuple[float, ...] = ()  # lengths of line and gap, in turn


@dataclass(frozen=True)
class Series:
    method: str
    variant: str
    score: str
    look: Look

    @property
    def row(self) -> str:
        """The label of its row in budgets.py."""
        return row_of(self)


# The paper's five, in its order.
_PAPER = (
    Series("capsnet", "", "pp", Look("CapsNet (PP)", "pp")),
    Series("capsnet", "", "re", Look("CapsNet (RE)", "re", (9, 3))),
    Series("cnn-ocsvm", "", "ocsvm", Look("CNN+OCSVM", "cnn-ocsvm", (3, 2.5))),
    Series("vae", "", "re", Look("VAE", "vae", (9, 3, 2.5, 3))),
    Series("dbn", "", "re", Look("DBN", "dbn", (5, 4))),
)


@dataclass(frozen=True)
class Spread:
    """One number per seed."""

    by_seed: Mapping[int, float]

    @property
    def mean(self) -> float:
        return fmean(self.by_seed.values())

    @property
    def sd(self) -> float | None:
        """Sample standard deviation; None with one seed."""
        return stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if self.sd is None else f"{self.mean:.3f} ± {self.sd:.3f}"


class Numbers:
    """The results of a study, with means and counts over several results."""

    def __init__(self, results: Iterable[CellResult]) -> None:
        self.results = sorted(results, key=lambda result: result.seed)
        self._cells: dict[tuple[str, HeldOut, str, str], dict[int, CellResult]] = {}
        for result in self.results:
            key = result.dataset, result.held_out, result.method, result.variant
            self._cells.setdefault(key, {})[result.seed] = result
        self.datasets = sorted({r.dataset for r in self.results}, key=place_of_dataset)
        self._headlines = _headlines(self.results)

    def cells(self, dataset: str) -> list[HeldOut]:
        """The held-out classes of each cell: single classes first, then several at once."""
        of = {r.held_out: r for r in self.results if r.dataset == dataset}
        return sorted(of, key=lambda held: (len(held), *map(of[held].class_names.index, held)))

    def class_cells(self, dataset: str) -> list[HeldOut]:
        """The cells with one held-out class; all cells if there is none."""
        every = self.cells(dataset)
        return [held for held in every if len(held) == 1] or every

    def headlines(self, dataset: str | None = None) -> list[Series]:
        """The paper's five series and the main score of any other method, if measured."""
        there = {
            (r.method, r.variant, score)
            for r in self.results
            if dataset in (None, r.dataset)
            for score in r.metrics
        }
        return [s for s in self._headlines if (s.method, s.variant, s.score) in there]

    def further(self, dataset: str) -> list[Series]:
        """Further scores of the same networks, without the headlines."""
        seen = {(s.method, s.variant, s.score) for s in self._headlines}
        found: dict[tuple[str, str, str], Series] = {}
        for result in self.results:
            for score in result.metrics if result.dataset == dataset else ():
                key = result.method, result.variant, score
                if key not in seen:
                    found[key] = Series(*key, Look(_label(*key), "ink"))
        ordered = sorted(found, key=lambda key: (place_of_method(key[0]), key[1]))
        return [found[key] for key in ordered]

    def every(self) -> list[Series]:
        """Every score of every method: variants follow their method, headlines come first."""
        found = dict.fromkeys(self.headlines())
        for dataset in self.datasets:
            found |= dict.fromkeys(self.further(dataset))
        return sorted(found, key=lambda s: (place_of_method(s.method), s.method, _place(s)))

    def runs(self, dataset: str, held_out: HeldOut, series: Series) -> list[CellResult]:
        """The results of all seeds, in order."""
        key = dataset, held_out, series.method, series.variant
        return [r for r in self._cells.get(key, {}).values() if series.score in r.metrics]

    def auroc(self, dataset: str, held_out: HeldOut, series: Series) -> Spread | None:
        runs = self.runs(dataset, held_out, series)
        return Spread({r.seed: r.metrics[series.score].auroc for r in runs}) if runs else None

    def mean_auroc(self, dataset: str, series: Series) -> Spread | None:
        """The mean over the classes, for each seed that has all classes; None if none has."""
        found = [self.auroc(dataset, held, series) for held in self.class_cells(dataset)]
        spreads = [spread.by_seed if spread else {} for spread in found]
        seeds = [seed for seed in spreads[0] if all(seed in each for each in spreads)]
        return Spread({seed: fmean(s[seed] for s in spreads) for seed in seeds}) if seeds else None

    def interval_width(self, dataset: str) -> float:
        """The mean width of the 95 % bootstrap intervals of AUROC."""
        return fmean(
            run.metrics[series.score].auroc_high - run.metrics[series.score].auroc_low
            for series in self.headlines(dataset) or self.further(dataset)
            for held_out in self.cells(dataset)
            for run in self.runs(dataset, held_out, series)
        )

    def seeds(self, dataset: str) -> list[int]:
        return sorted({r.seed for r in self.results if r.dataset == dataset})

    def seeds_of_row(self, dataset: str, series: Series) -> int:
        """The number of seeds that the networks of a series have."""
        row = (dataset, series.method, series.variant)
        return len({r.seed for r in self.results if (r.dataset, r.method, r.variant) == row})

    def is_official(self, dataset: str) -> bool:
        return all(r.official for r in self.results if r.dataset == dataset)

    def taken_for(self, dataset: str, held_out: HeldOut, method: str) -> list[tuple[str, float]]:
        """Each class with the share of anomalous images assigned to it, over all seeds."""
        counts: Counter[str] = Counter()
        for run in self._cells.get((dataset, held_out, method, ""), {}).values():
            if run.predicted is not None:
                counts.update(run.class_names[c] for c in run.predicted[run.anomalous])
        return [(name, count / counts.total()) for name, count in counts.most_common()]

    def reconstructed(self, dataset: str, held_out: HeldOut) -> CellResult | None:
        """The first run that kept images and reconstructions of this cell."""
        of_cell = (r for r in self.results if (r.dataset, r.held_out) == (dataset, held_out))
        return next((r for r in of_cell if r.reconstructions is not None and not r.variant), None)

    def lengths(self, dataset: str) -> dict[str, dict[str, npt.NDArray[np.int64]]] | None:
        """The sum of CellResult.lengths over the dataset's CapsNets."""
        every = [
            r.lengths
            for r in self.results
            if r.dataset == dataset and r.method == "capsnet" and not r.variant and r.lengths
        ]
        if not every:
            return None
        return {
            kind: {part: _sum([each[kind][part] for each in every]) for part in every[0][kind]}
            for kind in ("normal", "anomalous")
        }


def row_of(each: CellResult | Series) -> str:
    """The label of its row in budgets.py."""
    return f"{each.method}-{each.variant}" if each.variant else each.method


def dataset_title(name: str) -> str:
    return _DATASETS.get(name, name)


def titled(numbers: str) -> list[str]:
    """The numbers of a claim, each dataset by its title: 'mnist: PP .98; …' → 'MNIST: PP .98', …"""
    parts = (part.partition(": ") for part in numbers.split("; ") if part)
    return [f"{dataset_title(name)}{colon}{rest}" for name, colon, rest in parts]


def method_title(name: str) -> str:
    return _METHODS.get(name, name)


def held_out_title(held_out: HeldOut) -> str:
    return ", ".join(held_out)


def section_id(dataset: str) -> str:
    """The id of the dataset's section in the page."""
    return f"data-{file_name(dataset)}"


def file_name(*parts: str) -> str:
    return "-".join(map(as_file_name, parts))


def _headlines(results: Sequence[CellResult]) -> list[Series]:
    """The paper's five, and the main score of every other method: a user's own, or CapsNet with
    another preset if `paper` does not fit the images."""
    described = {r.method for r in results if not r.variant}
    main: dict[tuple[str, str], str] = {}
    for result in results:
        if result.method not in _METHODS or (result.variant and result.method not in described):
            settings = result.settings  # of older results, "score" names the score function
            score: Any = settings.get("score_function", settings.get("score"))
            usable = score if score in result.metrics else next(iter(result.metrics))
            main.setdefault((result.method, result.variant), usable)
    extra = [
        Series(*key, score, Look(_label(*key, score), f"extra-{index % EXTRA_COLOURS}", (1.5, 2)))
        for index, (key, score) in enumerate(sorted(main.items()))
    ]
    return [*_PAPER, *extra]


def _label(method: str, variant: str, score: str) -> str:
    said = score.upper() if score in _ABBREVIATIONS else score
    name = _LABELS.get((method, score), f"{method_title(method)} ({said})")
    return f"{name}, {variant}" if variant else name


def place_of_dataset(name: str) -> tuple[int, str]:
    return (list(_DATASETS).index(name) if name in _DATASETS else len(_DATASETS), name)


def place_of_method(name: str) -> int:
    return list(_METHODS).index(name) if name in _METHODS else len(_METHODS)


def _place(series: Series) -> tuple[int, str]:
    """The place of a variant: as described, presets, others."""
    order = ["", *PRESETS]
    variant = series.variant
    return (order.index(variant) if variant in order else len(order), variant)


def _sum(counts: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    """The sum of lists, which may differ in length."""
    total = np.zeros(max(map(len, counts)), dtype=np.int64)
    for each in counts:
        total[: len(each)] += each
    return total
