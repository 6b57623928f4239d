"""Early stopping: images kept out of training decide which epoch's weights are kept.

Their loss is measured after each epoch as in scoring: in fp32, in eval mode, on central windows.
Training ends after `patience` epochs without a lower loss. Weights are copied in place, so that a
recorded CUDA graph stays valid.
"""

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anocaps.training.inference import inference
from anocaps.training.loop import Run
from anocaps.training.memory import in_parts

_BATCH = 512


class Validation:
    def __init__(
        self,
        images: NDArray[Any],  # N×H×W×C, uint8 or float32
        labels: NDArray[np.int64],
        patience: int,
    ) -> None:
        self.images, self.labels, self.patience = images, labels, patience
        self.losses: list[float] = []  # mean per finished epoch
        self.best: dict[str, Tensor] = {}  # the network's state after the best epoch

    @property
    def fingerprint(self) -> str:
        """A hash of images and labels, and `patience`: part of the run's fingerprint."""
        digest = hashlib.sha256(np.ascontiguousarray(self.images).data)
        digest.update(np.ascontiguousarray(self.labels).data)
        return f"{digest.hexdigest()} {self.patience}"

    @property
    def stopped(self) -> bool:
        """Whether the best epoch was `patience` epochs ago."""
        return len(self.losses) > self.patience + int(np.argmin(self.losses or [0]))

    def measure(self, run: Run) -> None:
        """Record the loss after an epoch, and copy the weights if it is the lowest."""
        run.network.eval()
        with run.on_stream():
            loss = self._loss(run)
            if loss < min(self.losses, default=np.inf):
                self.best = {k: v.clone() for k, v in run.network.state_dict().items()}
        run.network.train()
        self.losses.append(loss)

    def _loss(self, run: Run) -> float:
        def summed(part: slice) -> float:
            images = torch.from_numpy(self.images[part]).to(run.device)
            labels = torch.from_numpy(self.labels[part]).to(run.device)
            with inference(run.device):
                loss = run.loss(run.preprocessing.central(images), labels)
            return len(labels) * float(loss)

        parts = in_parts(len(self.images), _BATCH, summed, whole="batch", thing="image")
        return sum(parts) / len(self.images)

    def give_back(self, run: Run) -> None:
        """Copy the best weights into the network."""
        if self.best:
            with torch.no_grad(), run.on_stream():
                for k, value in run.network.state_dict(keep_vars=True).items():
                    value.copy_(self.best[k])
