"""The cells of each study, and the settings of every cell.

`paper`: the paper's methods on its three datasets, each class held out in turn.
`ablation`: choices that the paper leaves open, changed one at a time, on mock anomalies.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any
from urllib.parse import quote

from anocaps.base.errors import InputError
from anocaps.data import Dataset
from anocaps.detectors import find_method
from anocaps.detectors.presets import find_preset

# Appendices A and C of the paper. Small-NORB: random crops, and every image standardised, as in
# Sabour et al.
_PAPER_SETTINGS: dict[str, dict[str, Any]] = {
    "mnist": {"epochs": 20, "batch_size": 100},
    "fashion-mnist": {"epochs": 50, "batch_size": 100},
    "small-norb": {"epochs": 50, "batch_size": 64, "crop": 32, "standardize": True},
}
PAPER_METHODS = ("capsnet", "cnn-ocsvm", "vae", "dbn")
PAPER_DATASETS = ("mnist", "fashion-mnist", "small-norb")
_TOGETHER = {"mnist": ("0", "3", "5")}  # held out together: Section 3.1.2 of the paper
# Trained in bf16 on a GPU, as CapsNet is. A DBN is not: CD-1 subtracts nearly equal numbers.
_BF16_METHODS = ("cnn-ocsvm", "vae")
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
    variant: str = ""  # other settings than the method's own: a preset, or what an ablation changes
    mock: bool = False  # tested on training images: see protocol.mock_dataset
    channels: int | None = None  # use only the first channels of the images
    limit: int | None = None  # training images per class
    reconstructions: int = 0  # anomalous images kept with their reconstruction

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
    """What a user may choose in any study."""

    datasets: tuple[str, ...] = PAPER_DATASETS
    methods: tuple[str, ...] = ()
    seeds: int = 3
    epochs: int | None = None  # None: the study's
    limit: int | None = None  # training images per class
    preset: str | None = None  # of CapsNet; None: "paper" where its network fits the images


Study = Callable[[Dataset, Options], Iterator[Cell]]


def paper(dataset: Dataset, options: Options) -> Iterator[Cell]:
    """Every method, with each class held out alone, and 0, 3 and 5 of MNIST together."""
    classes: list[tuple[str, ...]] = [(name,) for name in dataset.class_names]
    if dataset.name in _TOGETHER:
        classes.append(_TOGETHER[dataset.name])
    for name in options.methods or PAPER_METHODS:
        method = find_method(name).method
        settings = accepted(method, _settings(dataset, options))
        if method in _BF16_METHODS:
            settings["precision"] = "auto"
        preset = settings.get("preset", "paper")
        variant = "" if preset == "paper" else preset
        kept = _RECONSTRUCTIONS.get(dataset.name, {}) if method == "capsnet" else {}
        for seed in range(options.seeds):
            for held_out in classes:
                yield Cell(
                    dataset.name, method, held_out, seed, settings, variant, limit=options.limit,
                    reconstructions=kept.get("+".join(held_out), 0) if seed == 0 else 0,
                )  # fmt: skip


# The ablation starts from the preset as it was before the ablation chose its weight and decay.
_ABLATION_BASE: dict[str, dict[str, Any]] = {
    "paper": {"reconstruction_weight": 0.0005, "final_share": 0.1},
}
# Choices that the paper leaves open: name → changed settings. "The released code" is that of Sabour
# et al. Its learning rate decays by steps, to .84 over the 20 epochs of MNIST. Its reconstruction
# weight is the paper's × 2 × classes: ×18 with 9 classes, ×8 with 4.
UNCHANGED = "unchanged"
_CHOICES: dict[str, dict[str, Any]] = {
    UNCHANGED: {},
    "shifts of 2 pixels": {"shift": 2},
    "reconstruction ×8": {"reconstruction_times": 8},
    "reconstruction ×18": {"reconstruction_times": 18},
    "start flat": {"start": "flat"},
    "start of the released code": {"start": "released"},
    "gradient of the last iteration": {"gradient": "last"},
    "no decay": {"final_share": 1.0},
    "decay of the released code": {"final_share": 0.84},
    "class bias": {"class_bias": True},
}
_CHOICES_OF_DATASET: dict[str, dict[str, dict[str, Any]]] = {
    "small-norb": {"pixels as they are": {"standardize": False}, "one camera": {"channels": 1}},
}
_ABLATION_EPOCHS = {"mnist": 4, "fashion-mnist": 6, "small-norb": 8}
_ABLATION_LIMIT = 3000  # training images per class
_ABLATION_HELD_OUT = 5  # classes: every second of ten
# Short trainings favour choices that learn faster. So weight and decay are also trained for all
# epochs of the study, alone and together.
WHOLE = ", whole training"
_THIRD = {"final_share": 0.33}
_WHOLE_CHOICES: dict[str, dict[str, Any]] = {
    name: _CHOICES[name] for name in (UNCHANGED, "reconstruction ×8", "decay of the released code")
} | {
    "decay to a third": _THIRD,
    "reconstruction ×8, decay to a third": _CHOICES["reconstruction ×8"] | _THIRD,
}


def ablation(dataset: Dataset, options: Options) -> Iterator[Cell]:
    """Each choice in short trainings, some also for all epochs; no test image is read."""
    if set(options.methods) - {"capsnet"}:
        raise InputError("the ablation compares choices of capsnet: leave --method out")
    settings = _settings(dataset, options)
    settings |= _ABLATION_BASE.get(settings["preset"], {})
    short = {"epochs": options.epochs or _ABLATION_EPOCHS.get(dataset.name, 5)}
    for name, changed in (_CHOICES | _CHOICES_OF_DATASET.get(dataset.name, {})).items():
        if dataset.name == "small-norb" and "shift" in changed:
            continue  # random crops already shift the image
        yield from _mock_cells(dataset, options, name, settings | short, changed)
    for name, changed in _WHOLE_CHOICES.items():
        yield from _mock_cells(dataset, options, name + WHOLE, settings, changed)


def _mock_cells(
    dataset: Dataset, options: Options, name: str, settings: dict[str, Any], changed: dict[str, Any]
) -> Iterator[Cell]:
    """The cells of one choice."""
    changed = dict(changed)
    channels = changed.pop("channels", None)
    if times := changed.pop("reconstruction_times", None):
        # rounded, so that 18 × .0005 is .009
        weight = round(times * _reconstruction_weight(dataset, settings), 12)
        changed["reconstruction_weight"] = weight
    step = max(1, len(dataset.class_names) // _ABLATION_HELD_OUT)
    for seed in range(options.seeds):
        for held_out in dataset.class_names[::step]:
            yield Cell(
                dataset.name, "capsnet", (held_out,), seed,
                accepted("capsnet", settings | changed),
                variant=name, mock=True, channels=channels,
                limit=options.limit or _ABLATION_LIMIT,
            )  # fmt: skip


def settings_for(dataset: str, preset: str) -> dict[str, Any]:
    """Constructor arguments for a dataset that differ from the preset's."""
    if preset in ("paper", "paper-tuned"):
        return dict(_PAPER_SETTINGS.get(dataset, {}))
    if dataset == "small-norb":
        return {"crop": 32, "standardize": True}
    return {}


def accepted(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that the method's constructor takes; a VAE, for example, takes no preset."""
    known = find_method(method)._get_param_names()
    return {name: value for name, value in settings.items() if name in known}


STUDIES: dict[str, Study] = {"paper": paper, "ablation": ablation}


def find_study(name: str) -> Study:
    if name not in STUDIES:
        raise InputError(f"study {name!r} is unknown: use one of {', '.join(STUDIES)}")
    return STUDIES[name]


def _settings(dataset: Dataset, options: Options) -> dict[str, Any]:
    sides = dataset.train.images.shape[1:3]
    fits = _PAPER_SIDES[0] <= min(sides) and max(sides) <= _PAPER_SIDES[1]
    preset = options.preset or ("paper" if fits else "quick")
    find_preset(preset)  # raises for an unknown name before anything is run
    settings = settings_for(dataset.name, preset) | {"preset": preset}
    return settings | ({} if options.epochs is None else {"epochs": options.epochs})


def _reconstruction_weight(dataset: Dataset, settings: dict[str, Any]) -> float:
    """The reconstruction weight before the change."""
    if known := settings.get("reconstruction_weight"):
        return float(known)
    height, width, *channels = dataset.train.images.shape[1:]
    crop = settings.get("crop")
    window = (height, width) if crop is None else (crop, crop)
    return find_preset(settings["preset"]).weight_for(prod((*window, *channels)))


def as_file_name(text: str) -> str:
    """A name without spaces and path separators; different texts give different names."""
    return quote(text.replace("_", "%5F"), safe="%+-. ×").replace(" ", "_")
