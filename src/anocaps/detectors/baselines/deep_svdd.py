"""Deep SVDD (Ruff et al. 2018): a network maps normal images near one point, without labels.

An autoencoder is trained first. The centre is the mean code of the training images and stays
fixed. Then the encoder is trained to bring codes near the centre. The score `distance` is minus the
squared distance to the centre. With the soft boundary, the loss counts only codes outside a sphere.
Its radius is such that the share ν of the codes is outside.

Differs from the original: the learning rate starts at 1e-3 and decays to a tenth, instead of a step
from 1e-4 to 1e-5. Batches have 100 images (64 in the study of Small-NORB), not 200. The weight
decay of the autoencoder is 1e-6, as that of the encoder. Images have no global contrast
normalisation. The radius is that of each batch from the first step, without warm-up epochs. The
study trains fewer epochs. `networks/lenet.py` says what differs in the network.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anocaps.base import arrayfile as modelfile
from anocaps.base.errors import InputError
from anocaps.detectors.base import AUTO
from anocaps.detectors.baselines.plain import PlainDetector
from anocaps.networks.lenet import LeNet
from anocaps.training.device import Precision, pick_device
from anocaps.training.loop import Loss, Run
from anocaps.training.preprocessing import Images

NU = 0.1  # share of the images outside the soft boundary
_DECAY = 1e-6  # of the weights
# Smallest absolute value of each number of the centre. With a centre at 0, all weights could be 0.
_LEAST = 0.1
OBJECTIVES = ("one-class", "soft-boundary")


class DeepSVDDDetector(PlainDetector):
    """Detect anomalous images with Deep SVDD.

    Parameters
    ----------
    objective : {"one-class", "soft-boundary"}, default="one-class"
        Whether the loss counts all codes, or only those outside a sphere.
    **settings
        The other parameters of `PlainDetector`. The autoencoder and the encoder are trained for
        `epochs` each.
    """

    method = "deep-svdd"
    score_names = ("distance",)
    network_: LeNet

    def __init__(
        self,
        score_function: str = AUTO,
        epochs: int = 20,
        calibration: float | None = None,
        seed: int = 0,
        device: str = "auto",
        batch_size: int = 100,
        learning_rate: float = 1e-3,
        crop: int | None = None,
        shift: int = 0,
        precision: Literal["auto", "fp32", "bf16"] = "fp32",
        scoring_precision: Precision = "fp32",
        objective: str = "one-class",
    ) -> None:
        super().__init__(
            score_function, epochs, calibration, seed, device, batch_size, learning_rate, crop,
            shift, precision, scoring_precision,
        )  # fmt: skip
        self.objective = objective

    def _network(self) -> LeNet:
        return LeNet(self.preprocessing_.channels, *self.preprocessing_.window)

    def _training(self, images: Images, labels: NDArray[np.int64]) -> Iterator[Run]:
        if self.objective not in OBJECTIVES:
            raise InputError(
                f"objective must be one of {', '.join(OBJECTIVES)}, not {self.objective!r}"
            )
        stages = super()._training(images, labels)
        yield next(stages)  # the autoencoder
        self.network_.eval()
        codes = torch.cat(list(self._each(images, self.network_)))
        self.centre_ = centre_of(codes)
        self.network_.train()
        yield from stages

    def _stages(self, noise: torch.Generator) -> Iterable[tuple[nn.Module, Loss]]:
        network = self.network_

        def autoencoder(pixels: Tensor, labels: Tensor) -> Tensor:
            error = (network.decode(network(pixels)) - pixels).square().flatten(1).sum(1).mean()
            total: Tensor = error + _weight_decay(network)
            return total

        yield network, autoencoder
        centre = self.centre_.to(pick_device(self.device))
        radius = torch.zeros((), device=centre.device)  # squared

        def svdd(pixels: Tensor, labels: Tensor) -> Tensor:
            distance: Tensor = (network(pixels) - centre).square().sum(1)
            if self.objective == "soft-boundary":
                radius.copy_(torch.quantile(distance.detach(), 1 - NU))
                distance = radius + (distance - radius).clamp(min=0) / NU
            return distance.mean() + _weight_decay(network)

        yield network, svdd

    def _batch(self, pixels: Tensor) -> dict[str, Tensor]:
        return {"distance": -(self.network_(pixels) - self.centre_).square().sum(1)}

    # ── the model file ───────────────────────────────────────────────────────────────────────

    def _learned(self) -> tuple[modelfile.Arrays, dict[str, Any]]:
        arrays, header = super()._learned()
        return arrays | {"centre": self.centre_.cpu().numpy()}, header

    def _relearn(self, arrays: modelfile.Arrays, header: dict[str, Any]) -> None:
        super()._relearn(arrays, header)
        self.centre_ = torch.from_numpy(arrays["centre"]).to(pick_device(self.device))


def centre_of(codes: Tensor) -> Tensor:
    """The mean [D]. Numbers near 0 are moved to ±_LEAST."""
    mean = codes.mean(0)
    side = torch.where(mean < 0, -1.0, 1.0)
    return torch.where(mean.abs() < _LEAST, _LEAST * side, mean).clone()


def _weight_decay(network: LeNet) -> Tensor:
    total = sum(p.square().sum() for p in network.parameters())
    return _DECAY / 2 * torch.as_tensor(total)
