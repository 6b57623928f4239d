"""Matrix capsules with EM routing (Hinton et al. 2018), scored as the paper scores its CapsNet.

The score `pp` is the largest class activation. `re` is the normalised reconstruction error of a
decoder on the poses. The loss is the spread loss plus .0005 times the squared reconstruction error.
The margin of the spread loss grows from .2 to .9 during training.

Differs from the original: it has no decoder and no reconstruction error. Here the learning rate is
.01, decaying to a tenth, and batches have 100 images. `networks/matrix_capsules.py` says what
differs in the network.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anocaps.detectors import scores
from anocaps.detectors.base import AUTO
from anocaps.detectors.baselines.cnn_ocsvm import CNNOCSVMDetector
from anocaps.detectors.baselines.plain import PlainDetector
from anocaps.networks.matrix_capsules import MatrixCapsNet, spread_loss
from anocaps.training.device import Precision
from anocaps.training.loop import Loss, Run
from anocaps.training.preprocessing import Images

_MARGINS = (0.2, 0.9)
_RECONSTRUCTION = 0.0005


class MatrixCapsNetDetector(CNNOCSVMDetector):
    """Detect anomalous images with matrix capsules.

    Parameters
    ----------
    score_function : {"auto", "pp", "re"}, default="auto"
        The score function of the verdict. The top of this file explains each. "auto" is "pp" for
        two or more normal classes, otherwise "re".
    capsules : int, default=16
        Capsules at each place of the two middle layers.

    Notes
    -----
    The other parameters, `**settings`, are those of `CNNOCSVMDetector`.
    """

    method = "matrix-capsnet"
    score_names = ("pp", "re")
    gives = ("class", "reconstruction")
    network_: MatrixCapsNet  # type: ignore[assignment]

    def __init__(
        self,
        score_function: str = AUTO,
        epochs: int = 20,
        calibration: float | None = None,
        seed: int = 0,
        device: str = "auto",
        batch_size: int = 100,
        learning_rate: float = 1e-2,
        crop: int | None = None,
        shift: int = 0,
        standardize: bool = False,
        precision: Literal["auto", "fp32", "bf16"] = "fp32",
        scoring_precision: Precision = "fp32",
        capsules: int = 16,
    ) -> None:
        super().__init__(
            score_function, epochs, calibration, seed, device, batch_size, learning_rate, crop,
            shift, standardize, precision, scoring_precision,
        )  # fmt: skip
        self.capsules = capsules

    def _usable_scores(self) -> tuple[str, ...]:
        return self.score_names if len(self.classes_) > 1 else ("re",)

    def _network(self) -> MatrixCapsNet:  # type: ignore[override]
        shape = self.preprocessing_.channels, *self.preprocessing_.window
        return MatrixCapsNet(*shape, classes=len(self.classes_), capsules=self.capsules)

    def _training(self, images: Images, labels: NDArray[np.int64]) -> Iterator[Run]:
        batch = max(1, min(self.batch_size, len(images)))
        self._seen = self.epochs * batch * -(-len(images) // batch)
        yield from PlainDetector._training(self, images, labels)
        del self._seen

    def _stages(self, noise: torch.Generator) -> Iterable[tuple[nn.Module, Loss]]:
        network, preprocessing = self.network_, self.preprocessing_
        low, high = _MARGINS
        seen = self._seen  # images in all epochs together

        def loss(pixels: Tensor, labels: Tensor) -> Tensor:
            poses, active = network(preprocessing.encoder_input(pixels))
            error = -scores.squared_error(pixels, network.decode(poses, labels)).mean()
            margin = low + (high - low) * network.trained.clone().clamp(max=1)
            network.trained.add_(len(pixels) / seen)
            return spread_loss(active, labels, margin) + _RECONSTRUCTION * error

        yield network, loss

    def _batch(self, pixels: Tensor) -> dict[str, Tensor]:
        poses, active = self.network_(self.preprocessing_.encoder_input(pixels))
        index = active.argmax(1)
        reconstructed = self.network_.decode(poses, index)
        return {
            "pp": active.amax(1),
            "re": scores.re(pixels, reconstructed),
            "class": index,
            "reconstruction": reconstructed.permute(0, 2, 3, 1),
        }

    _learned, _relearn = PlainDetector._learned, PlainDetector._relearn
