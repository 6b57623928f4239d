"""The cells of each study, and the settings of every cell.

`field`: every method that the paper names, on four datasets, with each class held out in turn.
`paper`: the part of `field` that the paper ran. `tuning`: settings of methods, compared on mock
anomalies.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

from anocaps.base.errors import InputError
from anocaps.data import Dataset
from anocaps.detectors import find_method
from anocaps.detectors.presets import find_preset
from anocaps.study.budgets import FIELD, ONE_SEED, Row
from anocaps.study.tuning import METHODS as TUNED_METHODS
from anocaps.study.tuning import TUNED, Choices, changes, pairs

# Appendices A and C of the paper. Small-NORB: random crops, and every image standardised, as in
# Sabour et al. The paper did not run CIFAR-10: it has the settings of Small-NORB, but fewer epochs.
_PAPER_SETTINGS: dict[str, dict[str, Any]] = {
    "mnist": {"epochs": 20, "batch_size": 100},
    "fashion-mnist": {"epochs": 50, "batch_size": 100},
    "small-norb": {"epochs": 50, "batch_size": 64, "crop": 32, "standardize": True},
    "cifar10": {"epochs": 20, "batch_size": 100, "standardize": True},
}
PAPER_METHODS = ("capsnet", "cnn-ocsvm", "vae", "dbn")
PAPER_DATASETS = ("mnist", "fashion-mnist", "small-norb")
_TOGETHER = {"mnist": ("0", "3", "5")}  # held out together: Section 3.1.2 of the paper
# Trained in bf16 on a GPU, like CapsNet. A DBN needs fp32: CD-1 subtracts nearly equal numbers.
_BF16_METHODS = ("cnn-ocsvm", "cnn-scores", "vae", "vae-scores", "geom")
_PAPER_SIDES = (17, 48)  # pixels a side that the paper's network takes
# Dataset → held-out class → number of anomalous images kept with their reconstructions.
_RECONSTRUCTIONS = {"mnist": {"2": 50, "9": 50}}


@dataclass(frozen=True)
class Cell:
    """One network to train and test. Field names are part of its fingerprint."""

    dataset: str
    method: str
    held_out: tuple[str, ...]  # class names
    seed: int
    settings: dict[str, Any] = field(default_factory=dict)  # constructor arguments
    variant: str = ""  # name of changed settings: a preset, or a choice of tuning
    mock: bool = False  # tested on training images: see protocol.mock_dataset
    limit: int | None = None  # training images per class
    reconstructions: int = 0  # anomalous images kept with their reconstruction
    balanced_only: bool = False  # only the balanced test set is scored

    @property
    def label(self) -> str:
        """The row of the study's table."""
        return f"{self.method}-{self.variant}" if self.variant else self.method

    @property
    def name(self) -> str:
        """The path of its files below the study's folder, without suffix."""
        parts = (self.dataset, self.label, f"{'+'.join(self.held_out)}-seed{self.seed}")
        return "/".join(as_file_name(part) for part in parts)


@dataclass(frozen=True)
class Options:
    """The options of every study."""

    datasets: tuple[str, ...] = ()  # empty: the study's
    methods: tuple[str, ...] = ()  # rows, methods or Python files; empty: the study's
    seeds: int = 3  # at most
    epochs: int | None = None  # None: the study's
    limit: int | None = None  # training images per class
    preset: str | None = None  # of CapsNet; None: "paper" if its network fits the images
    choices: Choices = field(default_factory=dict)  # what tuning chose


class Study(NamedTuple):
    cells: Callable[[Dataset, Options], Iterator[Cell]]
    datasets: tuple[str, ...]


def whole_field(dataset: Dataset, options: Options) -> Iterator[Cell]:
    """Every row of budgets.py, and the tuned rows if there are choices of tuning."""
    tuned = [Row(method, TUNED) for method in options.choices.get(dataset.name, ())]
    for row in _asked([*FIELD, *tuned], options):
        yield from _cells(row, dataset, options)


def paper(dataset: Dataset, options: Options) -> Iterator[Cell]:
    """The paper's methods, with each class held out alone, and 0, 3 and 5 of MNIST together."""
    for row in _asked([Row(method) for method in PAPER_METHODS], options):
        if options.preset is not None and row.method == "capsnet":
            row = Row("capsnet", "" if options.preset == "paper" else options.preset)
        yield from _cells(row, dataset, options)


def tuning(dataset: Dataset, options: Options) -> Iterator[Cell]:
    """Each choice of each method, with each pair of neighbouring classes held out; seed 0."""
    for row in _asked([Row(method) for method in TUNED_METHODS], options):
        described = _settings(row, dataset, options)
        for choice, changed in changes(row.method).items():
            settings = accepted(row.method, described | changed)
            for pair in pairs(dataset.class_names):
                yield Cell(
                    dataset.name, row.method, pair, 0, settings, choice, mock=True,
                    limit=options.limit,
                )  # fmt: skip


def _asked(rows: Sequence[Row], options: Options) -> list[Row]:
    """The rows that --method names, by label or method. A new method gets a new row."""
    if not options.methods:
        return list(rows)
    found = []
    for name in options.methods:
        alike = [row for row in rows if row.label == name]
        alike = alike or [row for row in rows if row.method == name]
        found += alike or [Row(find_method(name).method)]
    return found


def _cells(row: Row, dataset: Dataset, options: Options) -> Iterator[Cell]:
    if row.datasets and dataset.name not in row.datasets:
        return
    classes: list[tuple[str, ...]] = [(name,) for name in dataset.class_names]
    if dataset.name in _TOGETHER and row.variant != TUNED:
        classes.append(_TOGETHER[dataset.name])
    described = _settings(row, dataset, options)
    preset = described.get("preset", "paper")
    variant = row.variant or ("" if preset == "paper" else preset)
    kept = _RECONSTRUCTIONS.get(dataset.name, {}) if row.method == "capsnet" else {}
    seeds = 1 if dataset.name in ONE_SEED else row.seeds
    limit = row.limit.get(dataset.name) if options.limit is None else options.limit
    for seed in range(min(options.seeds, seeds)):
        for held_out in classes:
            settings = described
            if row.variant == TUNED:
                choice = options.choices[dataset.name][row.method][held_out[0]]
                settings = accepted(row.method, described | changes(row.method)[choice])
            yield Cell(
                dataset.name, row.method, held_out, seed, settings, variant, limit=limit,
                reconstructions=kept.get("+".join(held_out), 0) if seed == 0 else 0,
                balanced_only=row.balanced_only,
            )  # fmt: skip


def _settings(row: Row, dataset: Dataset, options: Options) -> dict[str, Any]:
    """The constructor arguments of a row's cells."""
    sides = dataset.train.images.shape[1:3]
    fits = _PAPER_SIDES[0] <= min(sides) and max(sides) <= _PAPER_SIDES[1]
    preset = row.preset or options.preset or ("paper" if fits else "quick")
    find_preset(preset)  # raises for an unknown name before anything is run
    settings = settings_for(dataset.name, preset) | {"preset": preset} | dict(row.settings)
    if dataset.name in row.epochs:
        settings["epochs"] = row.epochs[dataset.name]
    if options.epochs is not None:
        settings["epochs"] = options.epochs
    settings = accepted(row.method, settings)
    if row.method in _BF16_METHODS:
        settings["precision"] = "auto"
    return settings


def settings_for(dataset: str, preset: str) -> dict[str, Any]:
    """Constructor arguments for a dataset that differ from the preset's."""
    if preset in ("paper", "paper-tuned"):
        return dict(_PAPER_SETTINGS.get(dataset, {}))
    if dataset == "small-norb":
        return {"crop": 32, "standardize": True}
    return {}


def accepted(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that the method's constructor takes. A VAE, for example, takes no preset."""
    known = find_method(method)._get_param_names()
    return {name: value for name, value in settings.items() if name in known}


STUDIES = {
    "field": Study(whole_field, (*PAPER_DATASETS, "cifar10")),
    "paper": Study(paper, PAPER_DATASETS),
    "tuning": Study(tuning, PAPER_DATASETS),
}


def find_study(name: str) -> Study:
    if name not in STUDIES:
        raise InputError(f"study {name!r} is unknown: use one of {', '.join(STUDIES)}")
    return STUDIES[name]


def as_file_name(text: str) -> str:
    """A name without spaces and path separators. Different texts give different names."""
    return quote(text.replace("_", "%5F"), safe="%+-. ×").replace(" ", "_")
