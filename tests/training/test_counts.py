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

HERE = Path(__file__).parent
SCORED = 256
FORWARD = 20 * 20 * 256 * 81 + 6 * 6 * 256 * 81 * 256  # multiply-adds of both convolutions


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


def counted(call: Callable[[], object], first: bool = False) -> dict[str, float]:
    """Of a call, by default not the first: optimiser state and transformed weights are there."""
    if not first:
        call()
    with Counter() as counter:
        call()
    return counter.found()


@pytest.fixture(scope="module")
def costs() -> dict[str, dict[str, float]]:
    """Of anocaps and of the textbook, which has the same weights and sees the same images."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE.parents[1] / "benchmarks")
        from speed_cpu import BATCH, CLASSES, textbook_step, training_step
        from textbook import TextbookCapsNet

        from anocaps import CapsNetDetector
    images = np.random.default_rng(0).integers(0, 256, (SCORED, 28, 28), dtype=np.uint8)
    labels = np.arange(SCORED) % CLASSES
    detector = CapsNetDetector(epochs=1, calibration=0.0, device="cpu")
    detector.fit(images[: 2 * CLASSES], labels[: 2 * CLASSES])
    book = TextbookCapsNet(CLASSES)
    book.load_state_dict(detector.network_.state_dict())
    pixels = torch.from_numpy(images).unsqueeze(1) / 255
    return {
        "training": counted(training_step(detector, images, labels)),
        "scoring": counted(lambda: detector.all_scores(images, ("pp", "re"))),
        "textbook training": counted(
            textbook_step(book, pixels[:BATCH], torch.from_numpy(labels[:BATCH]))
        ),
        "textbook scoring": counted(
            lambda: torch.inference_mode()(book.scores)(pixels), first=True
        ),
    }


@pytest.mark.parametrize("what", ["training", "scoring"])
def test_costs_no_more_than_it_did(costs, what):
    bounds = tomllib.loads((HERE / "counts.toml").read_text("utf-8"))[what]
    found = costs[what]
    assert found.keys() == bounds.keys()
    grown = [f"{name} is {found[name]:,}, was at most {bounds[name]:,}"
             for name in bounds if found[name] > bounds[name]]  # fmt: skip
    assert not grown, f"{what} costs more: {'; '.join(grown)} (tests/counts.toml)"


@pytest.mark.parametrize("what", ["training", "scoring"])
def test_the_textbook_costs_more(costs, what):
    """Not in operators: its are few and large, the transformed convolution goes block by block."""
    for name in ("peak_mib", "million_multiply_adds"):
        assert costs[f"textbook {what}"][name] > costs[what][name]


def test_multiply_adds_of_the_textbook_are_those_of_its_equations(costs):
    votes, decoder = 1152 * 9 * 16 * 8, 144 * 512 + 512 * 1024 + 1024 * 784
    expected = SCORED * (FORWARD + votes + decoder) / 1e6
    assert costs["textbook scoring"]["million_multiply_adds"] == pytest.approx(expected, abs=0.1)


def test_the_counter_counts():
    a, b = torch.ones(300, 400), torch.ones(400, 500)
    with Counter() as counter:
        c = a @ b  # 600,000 bytes
        c += 1
        d = c[1:] * 2  # 598,000 bytes; a view counts as an operator, not as memory
        del c
        e = d.clone()  # after c is gone
        torch.baddbmm(torch.ones(1, 1, 1), a.view(1, 300, 400), b.view(1, 400, 500))
    assert counter.multiply_adds == 2 * 300 * 400 * 500
    assert counter.operators == 9
    assert counter.peak == 598_000 * 2 + 4 + 600_000
    assert counter.live == 598_000 * 2
    assert torch.equal(d, e)


def test_inference_mode_hides_nothing():
    layer, x = torch.nn.Linear(64, 32), torch.ones(8, 64)
    with torch.inference_mode(), Counter() as counter:
        layer(x)
    assert counter.multiply_adds == 8 * 64 * 32
