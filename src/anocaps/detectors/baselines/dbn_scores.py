"""Four more scores of the paper's DBN, with the same training, without labels.

rbm         log-likelihood of the lowest machine in nats: minus the free energy of the pixels, minus
            the log partition function. Annealed importance sampling estimates the latter
            (Salakhutdinov and Murray 2008).
energy      minus the free energy of the top machine
ocsvm       one-class SVM with a Gaussian kernel, on the top 500 units
hyperplane  the same without a kernel
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anocaps.base import arrayfile as modelfile
from anocaps.detectors.baselines.dbn import DBNDetector
from anocaps.detectors.baselines.one_class_svm import LinearMachine, OneClassSVM
from anocaps.networks.dbn import HIDDEN, log_partition
from anocaps.training.device import pick_device
from anocaps.training.inference import inference
from anocaps.training.loop import Run
from anocaps.training.preprocessing import Images

_MIDDLE = 0.5  # subtracted from probabilities, since distances of small numbers round less


class DBNScoresDetector(DBNDetector):
    """Detect anomalous images with likelihoods of a deep belief network, and SVMs on its top layer.

    Parameters
    ----------
    score_function : {"auto", "energy", "rbm", "ocsvm", "hyperplane"}, default="auto"
        The score function of the verdict. The top of this file explains each. "auto" is "energy".

    Notes
    -----
    The other parameters, `**settings`, are those of `PlainDetector`.
    """

    method = "dbn-scores"
    score_names = ("energy", "rbm", "ocsvm", "hyperplane")
    gives = ()

    def _training(self, images: Images, labels: NDArray[np.int64]) -> Iterator[Run]:
        yield from super()._training(images, labels)
        units = torch.cat(list(self._each(images, self._top)))
        self.svm_ = OneClassSVM.fit((units - _MIDDLE).float(), self.seed)
        self.hyperplane_ = LinearMachine.fit(units, sphere=False)
        with inference(units.device):
            self.log_partition_ = log_partition(self.network_.rbms[0], self.seed)
        self.record_["log_partition"] = self.log_partition_

    def _top(self, pixels: Tensor) -> Tensor:
        """The top units [B, 500], in float64 because the SVMs amplify rounding."""
        return self.network_.up(pixels.double(), len(HIDDEN))

    def _batch(self, pixels: Tensor) -> dict[str, Tensor]:
        *_, top = self.network_.rbms
        below = self.network_.up(pixels.double(), len(HIDDEN) - 1)
        units = top.up(below)
        lowest = self.network_.rbms[0].free_energy(pixels.flatten(1).double())
        return {
            "rbm": -lowest - self.log_partition_,
            "energy": -top.free_energy(below),
            "ocsvm": self.svm_.decision(units - _MIDDLE),
            "hyperplane": self.hyperplane_.decision(units),
        }

    # ── the model file ───────────────────────────────────────────────────────────────────────

    def _learned(self) -> tuple[modelfile.Arrays, dict[str, Any]]:
        arrays, header = super()._learned()
        arrays |= self.svm_.arrays() | {"hyperplane": self.hyperplane_.array()}
        return arrays, header | {"log_partition": self.log_partition_}

    def _relearn(self, arrays: modelfile.Arrays, header: dict[str, Any]) -> None:
        super()._relearn(arrays, header)
        device = pick_device(self.device)
        self.svm_ = OneClassSVM.from_arrays(arrays, device)
        self.hyperplane_ = LinearMachine.from_array(arrays["hyperplane"], device)
        self.log_partition_ = float(header["log_partition"])
