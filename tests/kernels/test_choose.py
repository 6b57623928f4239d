"""Which form runs: Triton where it serves, plain torch elsewhere; see triton_interpreter.py."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from triton_interpreter import DEVICE, HERE, WithoutGpu, needs_triton

from anocaps.kernels import choose
from anocaps.networks.capsnet import CapsNet, CapsNetConfig
from anocaps.networks.deep import DeepCapsNet, DeepConfig
from anocaps.training.preprocessing import Preprocessing

NETWORKS = {
    "capsnet": lambda: CapsNet(
        CapsNetConfig(1, 9, 9, 2, 64, 3, primary_types=8, primary_kernel=3, decoder=(7,))
    ),
    "deep": lambda: DeepCapsNet(DeepConfig(1, 9, 9, 2, (4, 4, 4), ((1, 1), (2, 2)), 2)),
    "large deep": lambda: DeepCapsNet(
        DeepConfig(1, 9, 9, 2, (4, 4, 4), ((1, 1), (2, 2)), 2, decoder_maps=(4,))
    ),
}
KERNELS = {
    "first maps": "maps.first_maps",
    "primary": "primary.strided_conv",
    "squash": "maps.squash_maps",
    "route": "routing.route",
    "loss": "loss.capsule_loss",
    "batch": "batch.take",
}


@pytest.fixture
def used(monkeypatch):
    """The Triton functions that ran, in order."""
    found: list[str] = []
    for name, place in KERNELS.items():
        target = f"anocaps.kernels.triton.{place}"
        module, _, attribute = target.rpartition(".")
        true = getattr(__import__(module, fromlist=[attribute]), attribute)
        monkeypatch.setattr(
            target, lambda *a, name=name, true=true, **k: (found.append(name), true(*a, **k))[1]
        )
    return found


def run(network, images=2, bf16=False, dtype=torch.float32):
    """Class capsules and loss."""
    network, labels = network.to(DEVICE, dtype), torch.arange(images, device=DEVICE) % 2
    x = torch.rand(images, 1, 9, 9, device=DEVICE, dtype=dtype)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=bf16):
        capsules = network(x)
        return capsules, choose.capsule_loss(network, capsules, labels, x, 0.01)


@needs_triton
class TestOnGpu:
    __test__ = HERE

    @pytest.mark.parametrize(
        ("name", "kernels"),
        [
            ("capsnet", ["first maps", "primary", "squash", "route", "loss"]),
            ("deep", ["route", "loss"]),
            ("large deep", ["route"]),
        ],
    )
    def test_training_in_bfloat16_takes_every_kernel_that_fits(self, name, kernels, used):
        network = NETWORKS[name]()
        _, loss = run(network, bf16=True)
        assert used == kernels
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
        used.clear()
        run(network)
        assert used == ["route"]  # in fp32
        used.clear()
        run(network, dtype=torch.float64)
        assert used == []

    def test_few_images_are_scored_without_kernels_and_get_the_same_numbers(
        self, used, monkeypatch
    ):
        monkeypatch.setattr(choose, "FEWEST_IMAGES", 4)
        network = NETWORKS["capsnet"]().to(DEVICE)
        x = torch.rand(4, 1, 9, 9, device=DEVICE)
        with torch.inference_mode():
            few = network(x[1:])
            assert used == []
            many = network(x)
            assert used == ["route"]
        torch.testing.assert_close(few, many[1:], rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("dtype", [np.uint8, np.float32])
    @pytest.mark.parametrize(
        ("height", "width", "channels", "crop", "shift"),
        [(5, 7, 1, None, 0), (6, 5, 3, None, 2), (9, 8, 2, 4, 0), (9, 8, 3, 5, 1)],
    )
    def test_the_next_windows(self, height, width, channels, crop, shift, dtype, used, monkeypatch):
        """Bit by bit those of Preprocessing.windows."""
        monkeypatch.setattr("anocaps.kernels.triton.batch.NUMBERS", 32)  # several programs an image
        generator = np.random.default_rng(0)
        bytes_ = generator.integers(0, 256, (10, height, width, channels), dtype=np.uint8)
        images = bytes_ if dtype == np.uint8 else bytes_.astype(np.float32) / 300
        preprocessing = Preprocessing(height, width, channels, crop, shift)
        padded = preprocessing.pad(torch.from_numpy(images))
        order = torch.from_numpy(generator.permutation(10))
        offsets = torch.from_numpy(preprocessing.draw_offsets(generator, 10))
        labels = torch.arange(10) * 7
        for cursor in (0, 6):
            batch = slice(cursor, cursor + 4)
            right = preprocessing.windows(padded, order[batch], offsets[batch])
            found, taken = choose.next_batch(
                *(x.to(DEVICE) for x in (padded, labels, order, offsets, torch.tensor(cursor))),
                4,
                preprocessing.window,
                pytest.fail,
            )
            assert found.dtype == torch.float32
            assert torch.equal(found.cpu(), right)
            assert torch.equal(taken.cpu(), labels[order[batch]])
        assert used == ["batch", "batch"]


class TestOnCpu(WithoutGpu):
    __test__ = not HERE

    def test_triton_is_not_imported(self):
        code = (
            "import sys, torch; from anocaps.networks.capsnet import CapsNet, CapsNetConfig; "
            "CapsNet(CapsNetConfig(classes=2))(torch.rand(1, 1, 28, 28)).sum().backward(); "
            "print('triton' in sys.modules)"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert out.stdout.strip() == "False", out.stderr

    def test_adam_is_torch_s_with_a_state_from_the_start(self):
        mine, true = (nn.Parameter(torch.ones(3, 2)) for _ in range(2))
        rate = torch.tensor(0.1)
        fused, plain = choose.adam([mine], rate), torch.optim.Adam([true], lr=0.1, foreach=False)
        assert set(fused.state[mine]) == {"step", "exp_avg", "exp_avg_sq"}
        for step in range(3):
            mine.grad = true.grad = torch.arange(6.0).view(3, 2) - step
            fused.step()
            plain.step()
            rate.mul_(0.5)
            plain.param_groups[0]["lr"] *= 0.5
        torch.testing.assert_close(mine, true)
        for name, value in plain.state[true].items():
            torch.testing.assert_close(fused.state[mine][name], value)
