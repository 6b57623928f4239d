"""The frozen stem's maps of images, computed once per image."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anocaps.base.errors import InputError
from anocaps.base.rows import Rows, room_for
from anocaps.detectors.photo.copies import near_copies
from anocaps.detectors.photo.weights import NOTICE, weights_path
from anocaps.images.resampling import STRIDE, working_size
from anocaps.networks.photo import GRID, PhotoConfig, PhotoNetwork, pooled
from anocaps.networks.pretrained import CHANNELS, read_stem
from anocaps.training.inference import in_batches, inference
from anocaps.training.preprocessing import Chosen, Images, Preprocessing

_SMALLEST, _LARGEST = 32, 1024  # allowed pixels of the shorter side
_BATCH_PIXELS = 800_000  # of a batch for the stem; more are slower on a CPU
_BATCH_PIXELS_OF_GPU = 40_000_000
_MOST_IN_MEMORY = 2**28  # bytes of maps; larger ones are read from disk in order, which is fast
_BATCH_NUMBERS = 5_000_000  # of maps that are read at once


class Features:
    """The stem's maps of N images, with their means and pooled maps.

    They replace the images in training and calibration. `features[rows]` are the features of some
    images, without a copy of the maps.
    """

    def __init__(
        self,
        network: PhotoNetwork,  # whose stem made them
        preprocessing: Preprocessing,
        maps: Rows,  # float32 N×h×w×112
        means: NDArray[np.float32],  # N×112
        pooled: Rows,  # of all rows of maps, float32 ×4×4×112
        copies: NDArray[np.int64],  # N; near-copies have the same number
        rows: NDArray[np.int64] | None = None,  # of maps; None: all
        seconds: float = 0.0,  # of computing them
    ) -> None:
        self.seconds = seconds
        self._network, self.preprocessing = network, preprocessing
        self.means, self.copies = means, copies
        self._maps, self._pooled = maps, pooled
        self._rows: NDArray[np.int64] = np.arange(len(means)) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, chosen: slice | NDArray[Any]) -> "Features":
        rows = self._rows[chosen]
        return Features(
            self._network,
            self.preprocessing,
            self._maps,
            self.means[chosen],
            self._pooled,
            self.copies[chosen],
            rows,
        )

    @property
    def pooled(self) -> Chosen:
        """N×4×4×112. They are copied in parts."""
        return Chosen(self._pooled, self._rows)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the images, N×H×W×C."""
        size = self.preprocessing
        return len(self), size.height, size.width, size.channels

    def network_for(self, classes: int, seed: int) -> PhotoNetwork:
        """A network with this stem and new capsules."""
        config = replace(self._network.config, classes=classes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = PhotoNetwork(config)
        network.stem = self._network.stem
        return network.to(next(network.stem.parameters()).device).eval()

    def record(self) -> dict[str, Any]:
        """The facts about the features that a model keeps."""
        return {
            "pretrained": "ImageNet",
            "notice": NOTICE,
            "size": list(self._network.config.size),
        }

    @property
    def places(self) -> int:
        """Number of places of a map."""
        return self._maps.shape[1] * self._maps.shape[2]

    def batches(self, device: torch.device) -> Iterator[Tensor]:
        """All maps in order, [B, 112, h, w] on the device."""
        size = max(1, _BATCH_NUMBERS // (self.places * CHANNELS))
        for start in range(0, len(self), size):
            part = torch.from_numpy(self._maps[self._rows[start : start + size]])
            yield part.to(device).permute(0, 3, 1, 2)


def maps_of(
    network: PhotoNetwork, preprocessing: Preprocessing, images: Images
) -> Iterator[Tensor]:
    """The stem's maps in batches [B, 112, h, w]. All features of images come from here."""
    device = next(network.stem.parameters()).device
    height, width = network.config.size

    def work(batch: Tensor) -> Tensor:
        with inference(device):
            return network.maps(preprocessing.central(batch))

    most = _BATCH_PIXELS if device.type == "cpu" else _BATCH_PIXELS_OF_GPU
    return in_batches(images, device, work, size=max(1, most // (height * width)))


def features_of(
    images: Images,
    labels: NDArray[np.int64],  # their classes
    classes: int,
    shorter: int | None,  # shorter side of the images that the stem sees
    device: torch.device,
) -> Features:
    """Compute the features of all images with the pretrained stem."""
    if shorter is not None and not _SMALLEST <= shorter <= _LARGEST:
        raise InputError(f"size must be {_SMALLEST} to {_LARGEST} pixels, not {shorter!r}")
    count, height, width, channels = images.shape
    if channels not in (1, 3):
        raise InputError(f"preset 'photo' takes 1 or 3 channels, not {channels}: use preset='deep'")
    started = time.perf_counter()
    preprocessing = Preprocessing(height, width, channels)
    size = working_size(height, width, shorter)
    with torch.random.fork_rng(devices=[]):  # the first weights are random
        network = PhotoNetwork(PhotoConfig((height, width), size, classes))
        network.stem = read_stem(str(weights_path()))
    for part in network.stem.modules():  # the memory order of a loaded network: it affects rounding
        if isinstance(part, torch.nn.Conv2d):
            part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.to(device).eval()
    rows, columns = (side // STRIDE for side in size)
    maps = room_for((count, rows, columns, CHANNELS), np.float32, _MOST_IN_MEMORY)
    means = np.empty((count, CHANNELS), np.float32)
    small = room_for((count, GRID, GRID, CHANNELS), np.float32, _MOST_IN_MEMORY)
    done = 0
    for batch in maps_of(network, preprocessing, images):
        here = slice(done, done + len(batch))
        maps[here] = batch.permute(0, 2, 3, 1).cpu().numpy()
        means[here] = batch.mean((2, 3)).cpu().numpy()
        small[here] = pooled(batch).permute(0, 2, 3, 1).cpu().numpy()
        done = here.stop
    copies = near_copies(means, labels)
    seconds = time.perf_counter() - started
    return Features(network, preprocessing, maps, means, small, copies, seconds=seconds)
