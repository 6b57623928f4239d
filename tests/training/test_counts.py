"""Cost of the paper's network on a CPU in counts that no clock disturbs: operators, memory and
multiply-adds of one training step and of scoring one batch. The bounds are in counts.toml."""

import tomllib
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from anocaps import CapsNetDetector
from anocaps.detectors.capsnet import capsnet_loss
from anocaps.networks.capsnet import CapsNet, CapsNetConfig
from anocaps.training.loop import Run, TrainingConfig
from anocaps.training.preprocessing import Preprocessing

BOUNDS = tomllib.loads((Path(__file__).parent / "counts.toml").read_text("utf-8"))
CLASSES = 9
IMAGES = np.random.default_rng(0).integers(0, 256, (256, 28, 28), dtype=np.uint8)
LABELS = np.arange(256) % CLASSES


class Counter(TorchDispatchMode):
    """Counts what passes torch's dispatcher while it is on.

    peak_mib: of memory allocated since, as tensors hold it, so the same on every machine.
    million_multiply_adds: of matrix products and convolutions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operators = self.multiply_adds = self.live = self.peak = 0
        self.sizes: dict[int, int] = {}  # of storages that were seen and are alive

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with self:  # in inference mode operators made of others arrive whole
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        for tensor in _tensors((args, kwargs)):
            self._meet(tensor.untyped_storage(), 0)  # was there before
        result = func(*args, **kwargs)
        self.operators += 1
        in_place = func.overloadpacket.__name__.rstrip("_")
        if (flops := flop_registry.get(getattr(torch.ops.aten, in_place, None))) is not None:
            given = {name: value for name, value in kwargs.items() if name != "out"}
            self.multiply_adds += flops(*args, **given, out_val=result) // 2
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            self._meet(storage, storage.nbytes())
        return result

    def _meet(self, storage: torch.UntypedStorage, size: int) -> None:
        key = storage._cdata
        if key not in self.sizes:
            self.sizes[key] = size
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.live -= self.sizes.pop(key)

    def found(self) -> dict[str, float]:
        return {
            "operators": self.operators,
            "peak_mib": round(self.peak / 2**20, 1),
            "million_multiply_adds": round(self.multiply_adds / 1e6, 1),
        }


def _tensors(values: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def training() -> Callable[[], object]:
    """One step over the same first batch again and again."""
    network = CapsNet(CapsNetConfig(classes=CLASSES))
    preprocessing = Preprocessing(28, 28, 1)
    run = Run(
        network, capsnet_loss(network, preprocessing, 0.0005), IMAGES[..., None], LABELS,
        preprocessing, TrainingConfig(1, 100), torch.device("cpu"),
    )  # fmt: skip
    run.begin_epoch()
    return lambda: (run.cursor.zero_(), run.step())


def scoring() -> Callable[[], object]:
    detector = CapsNetDetector("paper", epochs=1, calibration=0.0, device="cpu")
    detector.fit(IMAGES[: 2 * CLASSES], LABELS[: 2 * CLASSES])
    return lambda: detector.outputs(IMAGES, ("pp", "re"))


@pytest.mark.parametrize("work", [training, scoring])
def test_costs_no_more_than_it_did(work):
    call = work()
    call()  # optimiser state and transformed weights are there
    with Counter() as counter:
        call()
    found, bounds = counter.found(), BOUNDS[work.__name__]
    assert found.keys() == bounds.keys()
    assert not {name: value for name, value in found.items() if value > bounds[name]}
