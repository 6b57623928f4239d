"""GEOM (Golan and El-Yaniv 2018): a network learns to recognise 72 transformations of images,
without labels. If it does not recognise those of an image, the image is anomalous.

A transformation may mirror the image, may shift it by a quarter of the side in each direction, and
turns it by 0, 90, 180 or 270°. Each image of a batch gets one of them at random. The score
`dirichlet` is that of the paper: the likelihood of the 72 softmax outputs under Dirichlet
distributions fitted to normal images. `simple` is the mean log-probability of the right
transformation.

Differs from the original: the Dirichlet distributions are fitted to at most 1,000 training images,
not all. An epoch shows one transformation of each image, not all 72. Pixels are in [0, 1], not
[−1, 1]. Batches have 100 images, not 128. There is no weight decay, and the learning rate decays to
a tenth. A shift fills the border by reflection without repeating the edge. Images of 28×28 pixels
are not padded to 32×32. `simple` is a mean of logarithms, not of probabilities.
"""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import digamma, polygamma
from torch import Tensor, nn

from anocaps.base import arrayfile as modelfile
from anocaps.base.errors import InputError
from anocaps.detectors.base import AUTO
from anocaps.detectors.baselines.plain import PlainDetector
from anocaps.networks.wide_resnet import WideResNet
from anocaps.training.device import Precision, pick_device
from anocaps.training.inference import in_batches, inference
from anocaps.training.loop import Loss, Run
from anocaps.training.preprocessing import Images

_FITTED = 1000  # images that the Dirichlet distributions are fitted to
_SMALLEST = 1e-12  # smallest probability
_TOGETHER = 64  # images whose 72 transformations pass through the network together


class GEOMDetector(PlainDetector):
    """Detect anomalous images by the transformations that a network recognises.

    Parameters
    ----------
    score_function : {"auto", "dirichlet", "simple"}, default="auto"
        The score function of the verdict. "auto" is "dirichlet".
    width : int, default=4
        The width of the wide residual network, whose depth is 10.

    Notes
    -----
    The other parameters, `**settings`, are those of `PlainDetector`.
    """

    method = "geom"
    score_names = ("dirichlet", "simple")
    network_: WideResNet

    def __init__(
        self,
        score_function: str = AUTO,
        epochs: int = 20,
        calibration: float | None = None,
        seed: int = 0,
        device: str = "auto",
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        crop: int | None = None,
        shift: int = 0,
        precision: Literal["auto", "fp32", "bf16"] = "fp32",
        scoring_precision: Precision = "fp32",
        width: int = 4,
    ) -> None:
        super().__init__(
            score_function, epochs, calibration, seed, device, batch_size, learning_rate, crop,
            shift, precision, scoring_precision,
        )  # fmt: skip
        self.width = width

    def _network(self) -> WideResNet:
        return WideResNet(self.preprocessing_.channels, 72, self.width)

    def _stages(self, noise: torch.Generator) -> Iterable[tuple[nn.Module, Loss]]:
        network = self.network_
        places = transformations(*self.preprocessing_.window).to(pick_device(self.device))

        def loss(pixels: Tensor, labels: Tensor) -> Tensor:
            which = torch.randint(72, (len(pixels),), generator=noise, device=pixels.device)
            return nn.functional.cross_entropy(network(transformed(pixels, places[which])), which)

        yield network, loss

    def _training(self, images: Images, labels: NDArray[np.int64]) -> Iterator[Run]:
        yield from super()._training(images, labels)
        few = np.sort(np.random.default_rng([self.seed, 72]).permutation(len(images))[:_FITTED])
        logs = torch.cat(list(self._each(images[few], self._logs))).cpu().numpy()  # [n, 72, 72]
        self.alpha_ = fit_dirichlet(logs)

    # ── scoring ──────────────────────────────────────────────────────────────────────────────

    def _each(self, images: Images, function: Any) -> Iterator[Any]:
        """As in PlainDetector, but fewer images at a time."""
        device = next(self.network_.parameters()).device

        def work(batch: Tensor) -> Any:
            with inference(device, self.scoring_precision):
                return function(self.preprocessing_.central(batch))

        return in_batches(images, device, work, _TOGETHER)

    def _logs(self, pixels: Tensor) -> Tensor:
        """[B, C, h, w] → log-probabilities [B, 72 transformations, 72 classes] in float64."""
        places = transformations(*self.preprocessing_.window).to(pixels.device)
        every = pixels.repeat_interleave(72, 0)
        logits = self.network_(transformed(every, places.repeat(len(pixels), 1)))
        found: Tensor = logits.double().log_softmax(1).clamp(min=float(np.log(_SMALLEST)))
        return found.view(len(pixels), 72, 72)

    def _batch(self, pixels: Tensor) -> dict[str, Tensor]:
        logs = self._logs(pixels)
        alpha = torch.from_numpy(self.alpha_).to(pixels.device)
        right = logs.diagonal(dim1=1, dim2=2)
        return {"dirichlet": ((alpha - 1) * logs).sum((1, 2)) / 72, "simple": right.mean(1)}

    # ── the model file ───────────────────────────────────────────────────────────────────────

    def _learned(self) -> tuple[modelfile.Arrays, dict[str, Any]]:
        arrays, header = super()._learned()
        return arrays | {"alpha": self.alpha_}, header

    def _relearn(self, arrays: modelfile.Arrays, header: dict[str, Any]) -> None:
        super()._relearn(arrays, header)
        self.alpha_ = arrays["alpha"]


def transformations(height: int, width: int) -> Tensor:
    """[72, h·w]: the index of the original pixel that each pixel of a transformed image shows."""
    if height != width:
        raise InputError(f"GEOM turns images by 90°, so they must be square, not {height}×{width}")
    pixels = np.arange(height * width).reshape(height, width)
    step = height // 4
    found = []
    for mirrored, down, right, turns in product((0, 1), (0, -1, 1), (0, -1, 1), range(4)):
        image = pixels[:, ::-1] if mirrored else pixels
        padded = np.pad(image, step, mode="symmetric" if step >= height else "reflect")
        top, left = step * (1 + down), step * (1 + right)
        found.append(np.rot90(padded[top : top + height, left : left + width], turns).ravel())
    return torch.from_numpy(np.stack(found))


def transformed(pixels: Tensor, places: Tensor) -> Tensor:
    """Pixels [B, C, h, w] rearranged by places [B, h·w]."""
    index = places[:, None].expand(-1, pixels.shape[1], -1)
    return pixels.flatten(2).gather(2, index).view_as(pixels)


def fit_dirichlet(logs: NDArray[np.float64], steps: int = 100) -> NDArray[np.float64]:
    """The most likely parameters [.., k] for log-probabilities [n, .., k] (Minka's fixed point)."""
    mean_log = logs.mean(0)
    mean = np.exp(logs).mean(0)
    alpha = mean / mean.sum(-1, keepdims=True)
    for _ in range(steps):
        alpha = _inverse_digamma(digamma(alpha.sum(-1, keepdims=True)) + mean_log)
    return np.asarray(alpha)


def _inverse_digamma(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """By Newton's method, from Minka's start."""
    found = np.where(values >= -2.22, np.exp(values) + 0.5, -1 / (values - digamma(1.0)))
    for _ in range(5):
        found = found - (digamma(found) - values) / polygamma(1, found)
    return np.asarray(found)
