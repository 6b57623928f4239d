"""A plain CNN classifier for the folders of folders.py: what one would try first.

It is small and batch-normalised, trained by the loop, epochs, batches, shifts and learning rate of
the `deep` preset, with as large a calibration set. Shifts bring in black, and no images are kept to
choose an epoch.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anocaps.detectors.baselines.plain import PlainDetector
from anocaps.detectors.presets import PRESETS
from anocaps.judging.calibration import share_for
from anocaps.training.loop import Loss, Run

NEAREST = 5  # neighbours: PyOD's default


class CNN(nn.Module):
    """Two 3×3 convolutions each of 64, 128 and 256 maps, halved in between, then their means."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = channels
        for maps in (64, 64, 128, 128, 256, 256):
            if layers and maps != before:
                layers.append(nn.MaxPool2d(2))
            convolution = nn.Conv2d(before, maps, 3, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(maps), nn.ReLU(inplace=True)]
            before = maps
        self.maps = nn.Sequential(*layers)
        self.output = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, C, H, W] → features [N, 256] and class logits [N, classes]."""
        features = self.maps(x).mean((2, 3))
        return features, self.output(features)


class CNNDetector(PlainDetector):
    """`softmax`: the largest probability of a class. `knn`: minus the distance of the features to
    the fifth nearest training image."""

    method = "plain-cnn"
    score_names = ("softmax", "knn")
    network_: CNN

    def _network(self) -> CNN:
        return CNN(self.preprocessing_.channels, len(self.classes_))

    def _stages(self, noise: torch.Generator) -> Iterable[tuple[nn.Module, Loss]]:
        def loss(pixels: Tensor, labels: Tensor) -> Tensor:
            _, logits = self.network_(pixels)
            return nn.functional.cross_entropy(logits.float(), labels)

        yield self.network_, loss

    def _training(self, images: NDArray[Any], labels: NDArray[np.int64]) -> Iterator[Run]:
        yield from super()._training(images, labels)
        found = self._each(images, lambda pixels: self.network_(pixels)[0].double())
        self.features_ = torch.cat(list(found))  # of the training images

    def _batch(self, pixels: Tensor) -> dict[str, Tensor]:
        features, logits = self.network_(pixels)
        distances = torch.cdist(features.double(), self.features_)
        nearest = min(NEAREST, len(self.features_))
        return {
            # in float64: fp32 would round sure answers to 1 and make them ties
            "softmax": logits.double().softmax(1).amax(1),
            "knn": -distances.kthvalue(nearest, dim=1).values,
        }


def trained_cnn(
    images: NDArray[np.uint8], labels: NDArray[Any], device: str, epochs: int | None
) -> CNNDetector:
    """Fitted on N×H×W×C images."""
    preset, calibration = PRESETS["deep"], share_for(len(labels))
    by_rule, batch_size = preset.schedule(len(labels) - round(calibration * len(labels)))
    detector = CNNDetector(
        score_function="softmax",
        epochs=by_rule if epochs is None else epochs,
        calibration=calibration,
        device=device,
        batch_size=batch_size,
        learning_rate=preset.learning_rate,
        shift=preset.shift_for(*images.shape[1:3]),
        precision="auto",
    )
    return detector.fit(images, labels)
