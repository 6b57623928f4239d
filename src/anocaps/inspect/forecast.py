"""Estimate the time of training on this computer, from a few timed steps, and the model's size.

The time to read images is not counted. The timed steps are those whose time grows with the images
or the network.
"""

import time
from collections.abc import Callable
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import clone

from anocaps.detectors.capsnet_scoring import built
from anocaps.detectors.neighbours import MOST_COMPONENTS, MOST_NUMBERS, MOST_VECTORS
from anocaps.detectors.photo.features import maps_of
from anocaps.detectors.photo.model import BRIEF, PhotoModel
from anocaps.detectors.photo.patches import PatchMemory, PatchPool
from anocaps.detectors.presets import choose_preset, find_preset
from anocaps.detectors.saving import outline
from anocaps.images.resampling import STRIDE, working_size
from anocaps.inspect import selfcheck
from anocaps.inspect.synthetic import lines_of
from anocaps.judging.combining import MOST_NORMAL
from anocaps.networks.photo import GRID, PhotoConfig, PhotoNetwork
from anocaps.networks.pretrained import CHANNELS
from anocaps.training.device import pick_device
from anocaps.training.loop import Run, TrainingConfig
from anocaps.training.preprocessing import Chosen, Preprocessing, as_images

if TYPE_CHECKING:
    from anocaps.detectors import CapsNetDetector

_TIMES = 2  # calls to time, after one that warms up
_LONG = 5.0  # seconds: a longer call is timed once, warming up included
_STEM_IMAGES = 3
_TRIAL_BATCH = 16  # images
_TRIAL_POOL = 20_000  # patches


def expected_seconds(
    detector: "CapsNetDetector", images: Any, labels: ArrayLike, checked: bool
) -> float:
    """The approximate seconds of `fit` and, if `checked`, of the self-check."""
    classes, on_cpu = len(np.unique(labels)), pick_device(detector.device).type == "cpu"
    height, width = images.shape[1:3]
    name = _preset_of(detector, images, classes)
    epochs, batch = find_preset(name).schedule(len(images))
    epochs, batch = detector.epochs or epochs, min(detector.batch_size or batch, len(images))
    steps = epochs * ceil(len(images) / batch)
    networks = 0
    if checked and classes > 1:
        most = selfcheck.MOST_CLASSES_ON_CPU if on_cpu else selfcheck.MOST_CLASSES
        networks = min(classes, most)
    extra = networks * selfcheck.steps_of_each(steps, max(1, networks), on_cpu)
    synthetic = 0
    if checked and detector.calibration_share(len(images)):
        lines = lines_of(height, width)
        synthetic = min(len(images), lines * selfcheck.MOST_SYNTHETIC)
    if name == "photo":
        return _of_photo(detector, images, classes, batch, steps, extra, networks, synthetic)
    trial = clone(detector).set_params(epochs=epochs, batch_size=_TRIAL_BATCH)
    trial.classes_ = np.unique(labels)
    some = as_images(images[:_TRIAL_BATCH])
    run = next(iter(trial._training(some, np.arange(len(some)) % classes)))
    return (steps + extra) * batch / len(some) * _of_step(run)


def seconds_for(
    count: int,
    classes: int,
    shape: tuple[int, int, int],
    preset: str = "auto",
    epochs: int | None = None,
) -> float:
    """The same for images of height, width and channels that were not read yet, self-check
    included."""
    from anocaps.detectors import CapsNetDetector

    some = np.random.default_rng(0).integers(0, 256, (_TRIAL_BATCH, *shape), np.uint8)
    images = Chosen(some, np.arange(count) % _TRIAL_BATCH)
    labels = np.arange(count) % max(1, classes)
    detector = CapsNetDetector(preset=preset, epochs=epochs, seed=0)
    return expected_seconds(detector, images, labels, checked=True)


def expected_megabytes(detector: "CapsNetDetector", images: Any, classes: int) -> float:
    """The size of the model file, at most; 0 for preset "photo", whose file hardly grows."""
    height, width = images.shape[1:3]
    channels = images.shape[3] if len(images.shape) == 4 else 1
    preset = find_preset(_preset_of(detector, images, classes))
    config = preset.network(detector.crop or height, detector.crop or width, channels, classes)
    if isinstance(config, PhotoConfig):
        return 0.0
    network = outline(lambda: built(config))
    weights: int = sum(weight.numel() for weight in network.state_dict().values())
    each = classes * config.class_size  # numbers of an image for `knn`
    kept = min(MOST_VECTORS, len(images), MOST_NUMBERS // each)
    size = network.feature_size
    if size > MOST_COMPONENTS:  # for `stem-knn`: vectors, basis, mean and spread
        features = min(MOST_COMPONENTS, kept) * (kept + size) + 2 * size
    else:
        features = (kept + 2) * size
    return 4 * (weights + kept * each + features) / 1e6


def _preset_of(detector: "CapsNetDetector", images: Any, classes: int) -> str:
    height, width = images.shape[1:3]
    channels = images.shape[3] if len(images.shape) == 4 else 1
    auto = detector.preset == "auto"
    return choose_preset(height, width, channels, classes) if auto else detector.preset


def _of_photo(
    detector: "CapsNetDetector",
    images: Any,
    classes: int,
    batch: int,
    steps: int,
    extra: float,  # steps of the self-check
    networks: int,
    synthetic: int,  # images
) -> float:
    effort, device = detector._effort, pick_device(detector.device)
    some = as_images(images[:_STEM_IMAGES])
    height, width = some.shape[1:3]
    size = working_size(height, width, detector.size)
    config = PhotoConfig((height, width), size, classes)
    model = PhotoModel(PhotoNetwork(config).to(device).eval(), Preprocessing(*some.shape[1:]))
    stem = _seconds(lambda: list(maps_of(model.network, model.preprocessing, some))) / len(some)

    places = size[0] * size[1] // STRIDE**2
    pool = min(effort.pool, places * len(images))
    patches = min(effort.patches, pool)
    kept = torch.randn(patches, CHANNELS, device=device)
    memory = PatchMemory(kept, kept[0], kept[0].abs() + 1, np.zeros(patches, np.int64))
    maps = torch.randn(1, CHANNELS, 1, places, device=device)
    nearest = _seconds(lambda: memory.distances(maps).cpu())
    trial = min(pool, _TRIAL_POOL)
    chosen = PatchPool(1, trial, 0, trial)
    chosen.add(torch.randn(1, CHANNELS, 1, trial))
    few, more = (_seconds(partial(chosen.memory, device, most)) for most in (2, 32))
    # of one patch
    choice = pool / trial * max(0.0, more - few) / 30 if pool > patches else 0.0

    step = 0.0
    if model.network.head is not None:
        pooled = np.random.default_rng(0).random((batch, GRID, GRID, CHANNELS), np.float32)
        config_ = TrainingConfig(epochs=1, batch_size=batch)
        runs = model._train_head(model.network.head, pooled, np.arange(batch) % classes, config_)
        step = _of_step(next(runs))
    count = len(images)
    seconds = count * stem + patches * choice + (min(count, MOST_NORMAL) + count / 5) * nearest
    seconds += (1 + effort.scored) * steps * step
    brief = BRIEF.pool / pool * BRIEF.patches * choice + count * BRIEF.patches / patches * nearest
    checks = networks * brief + (1 + BRIEF.scored) * extra * step + synthetic * (stem + nearest)
    return seconds + checks


def _of_step(run: Run) -> float:
    run.begin_epoch()

    def step() -> None:
        run.cursor.zero_()  # an epoch may be shorter
        run.step()
        run.mean_loss(1)  # waits for the device

    return _seconds(step)


def _seconds(work: Callable[[], object]) -> float:
    """The shortest time of a few calls."""
    taken: list[float] = []
    while len(taken) <= _TIMES and max(taken, default=0) < _LONG:
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)


def about(seconds: float) -> str:
    """A rounded time as text."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 100:
        return f"about {10 * round(seconds / 10)} seconds"
    minutes = seconds / 60
    return f"about {round(minutes)} minutes" if minutes < 100 else f"about {minutes / 60:.0f} hours"
