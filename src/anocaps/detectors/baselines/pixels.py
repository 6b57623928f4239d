"""The base class of methods without a network. It turns images into vectors of pixels."""

from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from anocaps.base.errors import InputError
from anocaps.detectors.base import AUTO, Detector
from anocaps.training.device import Precision, pick_device
from anocaps.training.inference import gathered, in_batches, inference
from anocaps.training.preprocessing import Images, Preprocessing


class PixelDetector(Detector):
    """Base class of detectors that compare pixels. Nothing in their training is random.

    Parameters
    ----------
    score_function : str, default="auto"
        The score function of the verdict.
    calibration : float, default=None
        The share of images kept out of training to set false-alarm rates. None: 0.1, or more for
        few images. 0: scores without verdicts.
    seed : int, default=0
        Seed of the random calibration set.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Device of all computations. "auto" takes a GPU if there is one.
    scoring_precision : {"fp32"}, default="fp32"
        Unused: scores are computed in float64.
    crop : int, default=None
        The side of the central window that is compared. None: the whole image.
    widen : float, default=1
        Factor on the chosen width of Gaussian kernels, above 0.
    """

    needs_seed = False

    def __init__(
        self,
        score_function: str = AUTO,
        calibration: float | None = None,
        seed: int = 0,
        device: str = "auto",
        scoring_precision: Precision = "fp32",
        crop: int | None = None,
        widen: float = 1.0,
    ) -> None:
        super().__init__(score_function, calibration, seed, device, scoring_precision)
        self.crop = crop
        self.widen = widen

    def _begin(self, images: NDArray[Any]) -> Tensor:
        """Set the window, and return the training images as vectors [N, D]."""
        if not 0 < self.widen < inf:
            raise InputError(f"widen must be above 0 and finite, not {self.widen!r}")
        _, height, width, channels = images.shape
        self.preprocessing_ = Preprocessing(height, width, channels, crop=self.crop)
        return torch.cat(list(self._vectors(images)))

    def _vectors(self, images: Images) -> Iterator[Tensor]:
        """Central windows in batches of vectors [B, D], float64 in [0, 1]."""

        def work(batch: Tensor) -> Tensor:
            return self.preprocessing_.central(batch).flatten(1).double()

        return in_batches(images, pick_device(self.device), work)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        """A learned array on the device."""
        return torch.from_numpy(array).to(pick_device(self.device))

    def _scored(
        self, images: NDArray[Any], score: Callable[[Tensor], dict[str, Tensor]]
    ) -> dict[str, NDArray[Any]]:
        """The named scores of all images. `score` takes vectors [B, D] and returns scores [B]."""
        with inference(pick_device(self.device)):
            return gathered(map(score, self._vectors(images)), len(images))
