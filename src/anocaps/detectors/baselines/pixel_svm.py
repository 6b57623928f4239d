"""One-class support vector machines on pixels, without labels (`one_class_svm` explains them).

Scores say how far inside a boundary an image lies. `rbf` has a Gaussian kernel, with which the
one-class SVM and SVDD are the same. `hyperplane` is the one-class SVM without a kernel,
`hypersphere` is SVDD without a kernel.
"""

from collections.abc import Set as AbstractSet
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from anocaps.base import arrayfile as modelfile
from anocaps.detectors.baselines.one_class_svm import LinearMachine, OneClassSVM
from anocaps.detectors.baselines.pixels import PixelDetector
from anocaps.training.device import pick_device


class PixelSVMDetector(PixelDetector):
    """Detect anomalous images with a one-class SVM and SVDD on pixels.

    Parameters
    ----------
    score_function : {"auto", "rbf", "hyperplane", "hypersphere"}, default="auto"
        The score function of the verdict. "auto" is "rbf".

    Notes
    -----
    The other parameters, `**settings`, are those of `PixelDetector`.
    """

    method = "svm"
    score_names = ("rbf", "hyperplane", "hypersphere")

    def _training(self, images: NDArray[Any], labels: NDArray[np.int64]) -> tuple[()]:
        vectors = self._begin(images)
        self.svm_ = OneClassSVM.fit(vectors.float(), seed=0, widen=self.widen)
        self.hyperplane_ = LinearMachine.fit(vectors, sphere=False).array()
        self.hypersphere_ = LinearMachine.fit(vectors, sphere=True).array()
        self.record_ = {"gamma": self.svm_.gamma, "support_vectors": len(self.svm_.support)}
        return ()

    def _forward(self, images: NDArray[Any], wanted: AbstractSet[str]) -> dict[str, NDArray[Any]]:
        device = pick_device(self.device)
        machines: dict[str, OneClassSVM | LinearMachine] = {
            "rbf": self.svm_,
            "hyperplane": LinearMachine.from_array(self.hyperplane_, device),
            "hypersphere": LinearMachine.from_array(self.hypersphere_, device),
        }

        def score(vectors: Tensor) -> dict[str, Tensor]:
            return {name: machines[name].decision(vectors) for name in wanted}

        return self._scored(images, score)

    def _learned(self) -> tuple[modelfile.Arrays, dict[str, Any]]:
        linear = {f"learned.{k}": getattr(self, k) for k in ("hyperplane_", "hypersphere_")}
        return linear | self.svm_.arrays(), {"preprocessing": asdict(self.preprocessing_)}

    def _relearn(self, arrays: modelfile.Arrays, header: dict[str, Any]) -> None:
        super()._relearn(arrays, header)
        self.svm_ = OneClassSVM.from_arrays(arrays, pick_device(self.device))
