"""Preset `photo`: how it learns and how it scores.

It has a frozen pretrained stem, class capsules on its maps, and a memory of normal patches.

`patch` and `combined` compare an image with the scores of training images. The model knows its
training images, so their own scores would be too high. Therefore distances leave out the image and
its near-copies, and pp and knn come from capsules that were trained on other folds.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anocaps.base import arrayfile as modelfile
from anocaps.base.errors import InputError
from anocaps.capsules.textbook import lengths, margin_loss
from anocaps.detectors import scores
from anocaps.detectors.neighbours import FeatureNeighbours, Neighbours, draw
from anocaps.detectors.photo.features import Features, maps_of
from anocaps.detectors.photo.patches import PatchMemory, PatchPool, largest_and_mean
from anocaps.judging.combining import (
    MOST_NORMAL,
    ClassReferences,
    Reference,
    arrays_of,
    bonferroni,
    fisher,
    references_of,
)
from anocaps.networks.photo import CapsuleHead, PhotoNetwork, pooled
from anocaps.networks.pretrained import CHANNELS
from anocaps.training.inference import gathered, inference
from anocaps.training.loop import Loss, Run, TrainingConfig
from anocaps.training.preprocessing import Chosen, Images, Preprocessing

SCORES = ("combined", "patch", "stem-knn", "pp", "knn")
SCORES_OF_ONE_CLASS = ("combined", "patch", "stem-knn")

# Shares of the false alarms. The largest distances show small defects, the mean shows diffuse
# changes.
PATCH_SHARES = {"largest": 0.9, "mean": 0.1}
# With one class, only patches show local defects.
ONE_CLASS_SHARES = {"patch": 0.95, "stem-knn": 0.05}

_MANY = 4000  # training images from which one fold of ten is enough
_AT_ONCE = 512  # images whose class capsules are computed at once; more need much memory


@dataclass(frozen=True)
class Effort:
    """Limits on the work of training."""

    folds: int = 4  # of the training images; capsules trained on the others score a fold
    scored: int = 4  # number of folds that are scored
    pool: int = 100_000  # patches to choose from
    patches: int = 2500  # patches to keep; searching more takes over 0.3 of the stem's time


BRIEF = Effort(folds=2, scored=1, pool=10_000, patches=1500)  # for the self-check


class PhotoModel:
    def __init__(self, network: PhotoNetwork, preprocessing: Preprocessing) -> None:
        self.network = network
        self.preprocessing = preprocessing
        self.memory: PatchMemory
        self.stem_neighbours: FeatureNeighbours  # of the maps' means
        self.neighbours: Neighbours | None = None  # of the class capsules
        self.references: dict[str, ClassReferences] = {}

    @property
    def score_names(self) -> tuple[str, ...]:
        return SCORES if self.network.head is not None else SCORES_OF_ONE_CLASS

    @property
    def device(self) -> torch.device:
        return next(self.network.stem.parameters()).device

    # ── training ─────────────────────────────────────────────────────────────────────────────

    def train(
        self,
        features: Features,
        labels: NDArray[np.int64],
        config: TrainingConfig,
        effort: Effort,
    ) -> Iterator[Run]:
        """Yield the runs to train: the capsules of the model, then those of each fold."""
        self._learn_memory(features, config.seed, effort)
        kept = draw(labels, CHANNELS, config.seed)
        self.stem_neighbours = FeatureNeighbours.fit(self._on_device(features.means[kept]))
        generator = np.random.default_rng([config.seed, 0xF01D])
        compared = np.sort(generator.permutation(len(features))[:MOST_NORMAL])
        head, classes = self.network.head, None
        found: dict[str, NDArray[Any]] = {}
        if head is not None:
            yield from self._train_head(head, features.pooled, labels, config)
            size = self.network.config.classes * self.network.config.class_size
            some = draw(labels, size, config.seed)
            self.neighbours = Neighbours.fit(self._capsules(head, features.pooled[some]))
            compared, found = yield from self._out_of_fold(
                features, labels, config, effort, generator
            )
            classes = found.pop("class")
        found |= self._without_themselves(features[compared], features, kept)
        self._learn_references(found, classes)

    def _learn_memory(self, features: Features, seed: int, effort: Effort) -> None:
        pool = PatchPool(len(features), features.places, seed, effort.pool)
        for maps in features.batches(self.device):
            pool.add(maps)
        self.memory = pool.memory(self.device, effort.patches)

    def _train_head(
        self,
        head: CapsuleHead,
        images: Any,  # pooled maps N×4×4×C
        labels: NDArray[np.int64],
        config: TrainingConfig,
    ) -> Iterator[Run]:
        some = images[:20_000].reshape(-1, CHANNELS)
        head.mean.copy_(torch.from_numpy(some.mean(0)))
        head.spread.copy_(torch.from_numpy(some.std(0).clip(min=1e-6)))
        shape = Preprocessing(*images.shape[1:])
        yield Run(head, _loss(head), images, labels, shape, config, self.device)

    def _on_device(self, array: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _capsules(self, head: CapsuleHead, images: NDArray[np.float32]) -> Tensor:
        """Pooled maps N×4×4×C → class capsules [N, J, E]."""
        with inference(self.device):
            maps = self._on_device(images).permute(0, 3, 1, 2)
            return torch.cat([head(part) for part in torch.split(maps, _AT_ONCE)])

    def _out_of_fold(
        self,
        features: Features,
        labels: NDArray[np.int64],
        config: TrainingConfig,
        effort: Effort,
        generator: np.random.Generator,
    ) -> Generator[Run, None, tuple[NDArray[np.int64], dict[str, NDArray[Any]]]]:
        """Rows, with scores and classes from capsules that were not trained on them."""
        folds, scored = (10, 1) if len(labels) >= _MANY else (effort.folds, effort.scored)
        fold = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):  # each class is in all folds; near-copies stay together
            members = np.flatnonzero(labels == label)
            _, group = np.unique(features.copies[members], return_inverse=True)
            fold[members] = (generator.permutation(group.max() + 1) % folds)[group]
        rows, parts = [], []
        for k in range(scored):
            left, right = np.flatnonzero(fold != k), np.flatnonzero(fold == k)[:MOST_NORMAL]
            if len(right) == 0:
                continue
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(config.seed)
                head = CapsuleHead(self.network.config).to(self.device)
            yield from self._train_head(head, Chosen(features.pooled, left), labels[left], config)
            size = head.config.classes * head.config.class_size
            kept = left[draw(labels[left], size, config.seed)]
            neighbours = Neighbours.fit(self._capsules(head, features.pooled[kept]))
            capsules = self._capsules(head, features.pooled[right])
            rows.append(right)
            parts.append(_of_capsules(capsules, neighbours))
        return np.concatenate(rows), {
            name: torch.cat([part[name] for part in parts]).cpu().numpy()
            for name in ("pp", "knn", "class")
        }

    def _without_themselves(
        self, some: Features, everything: Features, kept: NDArray[np.int64]
    ) -> dict[str, NDArray[np.float64]]:
        """Scores of training images without comparison with themselves or their near-copies."""
        of_patch = everything.copies[self.memory.origin]
        others = some.copies[:, None] != everything.copies[kept]
        apart = self.stem_neighbours.score(self._on_device(some.means), others)
        found = {"stem-knn": [apart], "largest": [], "mean": []}
        done = 0
        with inference(self.device):
            for maps in some.batches(self.device):
                own = some.copies[done : done + len(maps)]
                done += len(maps)
                distances = self.memory.distances(maps, own[:, None] != of_patch)
                for name, values in largest_and_mean(distances).items():
                    found[name].append(values)
        return {k: torch.cat(v).double().cpu().numpy() for k, v in found.items()}

    def _learn_references(
        self, normal: dict[str, NDArray[Any]], classes: NDArray[np.int64] | None
    ) -> None:
        self.references = {
            name: ClassReferences(Reference.fit(normal[name]), {}) for name in PATCH_SHARES
        }
        normal["patch"] = self._patch(normal)
        for name in self.score_names[1:]:
            self.references[name] = ClassReferences.fit(normal[name], classes)

    # ── the model file ───────────────────────────────────────────────────────────────────────

    def arrays(self) -> modelfile.Arrays:
        """All learned arrays except the network's."""
        memory = {"kept": self.memory.kept, "mean": self.memory.mean, "spread": self.memory.spread}
        found = {f"memory.{name}": part.cpu().numpy() for name, part in memory.items()}
        found["memory.origin"] = self.memory.origin.astype(np.int32)
        if self.neighbours is not None:
            found["neighbours"] = self.neighbours.kept.cpu().numpy()
        return found | self.stem_neighbours.arrays() | arrays_of(self.references)

    def take(self, arrays: modelfile.Arrays) -> None:
        """The inverse of `arrays`."""
        kept, mean, spread = (
            torch.from_numpy(arrays[f"memory.{name}"]).to(self.device)
            for name in ("kept", "mean", "spread")
        )
        if not kept.shape[1:] == mean.shape == spread.shape == (CHANNELS,) or kept.numel() == 0:
            raise InputError("its memory of patches does not fit the stem")
        self.memory = PatchMemory(kept, mean, spread, arrays["memory.origin"].astype(np.int64))
        self.stem_neighbours = FeatureNeighbours.of_arrays(arrays)
        if self.network.head is not None:
            self.neighbours = Neighbours(torch.from_numpy(arrays["neighbours"]))
            size = self.network.config.classes * self.network.config.class_size
            if self.neighbours.kept.shape[1:] != (size,):
                raise InputError("its kept vectors do not fit its network")
        self.references = references_of(arrays)
        if set(self.references) != {*PATCH_SHARES, *self.score_names[1:]}:
            raise InputError("its references are of other score functions than the model's")

    # ── scoring ──────────────────────────────────────────────────────────────────────────────

    def forward(
        self, images: "Images | Features", wanted: AbstractSet[str]
    ) -> dict[str, NDArray[Any]]:
        """At least the outputs `wanted`, from one pass."""
        maps: Iterable[Tensor]
        if isinstance(images, Features):
            maps = images.batches(self.device)
        else:
            maps = maps_of(self.network, self.preprocessing, images)
        found = gathered((self._of_batch(batch, wanted) for batch in maps), len(images))
        found["patch"] = self._patch(found)
        found["combined"] = self.combined(found)
        found.setdefault("class", np.zeros(len(images), dtype=np.int64))
        return found

    def _of_batch(self, maps: Tensor, wanted: AbstractSet[str]) -> dict[str, Tensor]:
        with inference(self.device):
            distances = self.memory.distances(maps)
            found = {k: v.double() for k, v in largest_and_mean(distances).items()}
            found["stem-knn"] = self.stem_neighbours.score(maps.mean((2, 3)))
            if "nearest" in wanted:
                found["nearest"] = self.stem_neighbours.nearest(maps.mean((2, 3)))
            if "heat" in wanted:
                found["heat"] = distances.square()
            if self.network.head is not None and self.neighbours is not None:
                found |= _of_capsules(self.network.head(pooled(maps)), self.neighbours)
        return found

    def _patch(self, found: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
        surprises = {
            name: self.references[name].everything.surprise(found[name]) for name in PATCH_SHARES
        }
        return -bonferroni(surprises, PATCH_SHARES)

    def combined(self, found: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The score `combined`, which follows from the other scores and the class."""
        names = self.score_names[1:]
        if self.network.head is None:
            usual = {name: self.references[name].everything for name in names}
            surprises = {name: usual[name].surprise(found[name]) for name in names}
            return -bonferroni(surprises, ONE_CLASS_SHARES)
        return -fisher({k: self.references[k].surprise(found[k], found["class"]) for k in names})


def _of_capsules(capsules: Tensor, neighbours: Neighbours) -> dict[str, Tensor]:
    """Class capsules [N, J, E] → class, pp and knn [N], and lengths [N, J]."""
    length = lengths(capsules)
    return {
        "class": length.argmax(1),
        "class_lengths": length,
        "pp": scores.pp(length).double(),
        "knn": neighbours.score(capsules),
    }


def _loss(head: CapsuleHead) -> Loss:
    def loss(maps: Tensor, labels: Tensor) -> Tensor:
        return margin_loss(lengths(head(maps)), labels)

    return loss
