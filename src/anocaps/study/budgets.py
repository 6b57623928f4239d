"""The rows of the study `field`, and how long each may train.

A row has three seeds, or one to save time. Costly methods have a shorter training. A row's `note`
says so in the report.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PRESETS = ("paper-tuned", "deep", "photo")  # variants of CapsNet


@dataclass(frozen=True)
class Row:
    method: str
    variant: str = ""  # empty: the method as described
    settings: Mapping[str, Any] = field(default_factory=dict)  # beyond the dataset's own
    seeds: int = 3
    epochs: Mapping[str, int] = field(default_factory=dict)  # dataset → epochs, if shortened
    limit: Mapping[str, int] = field(default_factory=dict)  # dataset → training images per class
    datasets: tuple[str, ...] = ()  # empty: all
    balanced_only: bool = False  # score only the balanced test set
    note: str = ""  # what was shortened, for the report

    @property
    def label(self) -> str:
        return f"{self.method}-{self.variant}" if self.variant else self.method

    @property
    def preset(self) -> str | None:
        return self.variant if self.variant in PRESETS else None


ONE_SEED = ("cifar10",)  # datasets on which every method has one seed
_ONE = "one seed"
_SHORT = {"mnist": 5, "fashion-mnist": 5, "small-norb": 10, "cifar10": 5}  # epochs
_SVDD: dict[str, Any] = {
    "seeds": 1,
    "epochs": {"cifar10": 10},
    "note": "one seed; 10 + 10 to 50 + 50 epochs, in the original 150 + 150 (CIFAR-10: 350 + 150)",
}

FIELD = (
    Row("capsnet"),
    Row(
        "capsnet", "paper-tuned", datasets=("mnist", "fashion-mnist", "small-norb"),
        note="reconstruction weight and decay chosen for CapsNet alone, on every second class",
    ),
    Row(
        "capsnet", "deep",
        note="settings chosen on mock anomalies, among them the classes that cells hold out",
    ),
    Row(
        "capsnet", "photo", seeds=1, datasets=("mnist", "fashion-mnist", "cifar10"),
        limit={"mnist": 1000, "fashion-mnist": 1000},
        note="one seed; pretrained on ImageNet; not for stereo pairs; "
        "1,000 training images per class, except on CIFAR-10",
    ),
    Row("cnn-ocsvm"),
    Row("vae"),
    Row("dbn"),
    Row("cnn-scores", seeds=1, note=_ONE),
    Row("vae-scores", seeds=1, note=_ONE),
    Row("dbn-scores", seeds=1, note=_ONE),
    Row("kde"),
    Row("svm"),
    Row("deep-svdd", **_SVDD),
    Row("deep-svdd", "soft-boundary", {"objective": "soft-boundary"}, **_SVDD),
    Row(
        "geom", seeds=1, epochs=dict.fromkeys(_SHORT, 10), balanced_only=True,
        note="one seed; each image is seen 10 times, in the original 216 times",
    ),
    Row(
        "anogan", settings={"search_steps": 150}, seeds=1, epochs=_SHORT, balanced_only=True,
        note="one seed; 5 or 10 epochs instead of 20 or 50, 150 search steps instead of 500",
    ),
    Row(
        "matrix-capsnet", seeds=1, epochs=_SHORT, balanced_only=True,
        note="one seed; 5 or 10 epochs instead of 20 or 50",
    ),
)  # fmt: skip
