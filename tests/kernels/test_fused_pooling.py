"""The Triton kernels between the layers of CNN and VAE against plain float64 PyTorch.

Where a kernel rounds to bfloat16 the reference rounds too: values must be the same to the bit.
"""

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate, max_pool2d
from triton_interpreter import (
    DEVICE,
    HERE,
    WithoutGpu,
    gradient_like,
    in_bfloat16,
    needs_triton,
    off,
)

pytestmark = needs_triton

LAST = torch.channels_last
SHAPES = [(1, 64, 4, 4), (3, 5, 7, 5), (2, 32, 6, 9), (1, 96, 2, 3), (2, 8, 5, 1), (5, 1, 4, 4)]


def some_maps(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    """bfloat16 maps and an fp32 bias. Few different numbers, so that many are equal."""
    g = torch.Generator().manual_seed(seed)
    maps = (torch.randn(shape, generator=g) * 4).round().div(4).to(DEVICE, torch.bfloat16)
    bias = torch.randn(shape[1], generator=g).to(DEVICE)
    if len(shape) == 4:
        maps = maps.contiguous(memory_format=LAST)
    return maps.requires_grad_(), bias.requires_grad_()


def true_bias_relu(x: Tensor, bias: Tensor, pool: int) -> Tensor:
    shifted = x + bias.view(-1, *(1 for _ in x.shape[2:]))
    return (max_pool2d(shifted, pool) if pool > 1 else shifted).relu()


def compare_bias_relu(x: Tensor, bias: Tensor, pool: int, flat: bool = False) -> None:
    from anocaps.kernels.pooling import bias_relu

    y = bias_relu(x, bias, pool, flat)
    x64, b64 = (t.detach().double().requires_grad_() for t in (x, bias))
    true = true_bias_relu(x64, b64, pool)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, in_bfloat16(true.float()))
    if x.ndim == 4:
        assert y.is_contiguous(memory_format=torch.contiguous_format if flat else LAST)

    grad = gradient_like(y)
    y.backward(grad)
    true.backward(grad.double())
    assert torch.equal(x.grad, x64.grad.to(x.dtype))  # moved, not rounded
    assert x.grad.stride() == x.stride()
    assert bias.grad.dtype == bias.dtype
    assert off(bias.grad, b64.grad) < 1e-6


class TestBiasRelu:
    __test__ = HERE

    @pytest.mark.parametrize("flat", [False, True])
    @pytest.mark.parametrize(
        ("shape", "pool"),
        [(shape, pool) for shape in SHAPES for pool in (1, 2) if pool <= min(shape[2:])],
    )
    def test_maps(self, shape, pool, flat):
        compare_bias_relu(*some_maps(shape), pool, flat)

    @pytest.mark.parametrize("shape", [(1, 7), (5, 128), (70, 200)])
    def test_dense_layers(self, shape):
        compare_bias_relu(*some_maps(shape), 1)

    @pytest.mark.parametrize("pool", [1, 2])
    @pytest.mark.parametrize("ranges", [1, 3, 1000])
    def test_ranges_of_tiles(self, monkeypatch, ranges, pool):
        from anocaps.kernels import pooling as fused_pooling

        for name, value in {"NUMBERS": 256, "FEW": 0, "RANGES": ranges, "FOLD_RANGES": 4}.items():
            monkeypatch.setattr(fused_pooling, name, value)
        compare_bias_relu(*some_maps((3, 20, 7, 6)), pool)

    def test_of_equal_numbers_the_first_takes_the_gradient(self):
        from anocaps.kernels.pooling import bias_relu

        x = torch.zeros(1, 8, 2, 4, dtype=torch.bfloat16, device=DEVICE)
        x[..., 1, :2], x[..., :, 3] = 1, 1  # largest: the lower two, then the right two
        x.requires_grad_()
        bias_relu(x, torch.ones(8, device=DEVICE), 2).sum().backward()
        assert (x.grad == torch.tensor([[0, 0, 0, 1], [1, 0, 0, 0]], device=DEVICE)).all()

    def test_a_shut_window_has_no_gradient(self):
        from anocaps.kernels.pooling import bias_relu

        x, _ = some_maps((2, 8, 4, 4))
        bias = torch.full((8,), -100.0, device=DEVICE, requires_grad=True)
        bias.data[0] = 100
        y = bias_relu(x, bias, 2)
        y.sum().backward()
        assert (y[:, 1:] == 0).all() and (y[:, 0] > 0).all()
        assert bias.grad.tolist() == [8, 0, 0, 0, 0, 0, 0, 0]
        assert (x.grad[:, 1:] == 0).all() and x.grad[:, 0].sum() == 8

    def test_rounding_after_the_maximum_is_rounding_before_it(self):
        """Bias, rounding and ReLU leave the order of numbers alone: pooling may come first."""
        g = torch.Generator().manual_seed(0)
        x = torch.randn(20, 16, 12, 12, generator=g).bfloat16()
        bias = torch.randn(16, 1, 1, generator=g) * 8
        before = max_pool2d((x.float() + bias).bfloat16().relu(), 2)
        after = (max_pool2d(x, 2).float() + bias).bfloat16().relu()
        assert torch.equal(before, after)

    @pytest.mark.parametrize("pool", [1, 2])
    def test_any_order_of_memory(self, pool):
        from anocaps.kernels.pooling import bias_relu

        x, bias = some_maps((2, 5, 6, 4))
        plain, gaps = x.contiguous(), torch.stack([x, x], dim=-1)[..., 0]
        y = bias_relu(x, bias, pool)
        assert torch.equal(bias_relu(plain, bias, pool), y)
        assert torch.equal(bias_relu(gaps, torch.stack([bias, bias], 1)[:, 0], pool), y)
        grad = gradient_like(y)
        grads = [
            torch.autograd.grad(y, (x, bias), g, retain_graph=True)
            for g in (grad.contiguous(memory_format=LAST), grad.contiguous(), grad.mT.clone().mT)
        ]
        assert all(torch.equal(a, b) for one, two in pairwise(grads) for a, b in zip(one, two))

    @pytest.mark.parametrize("pool", [1, 2])
    def test_not_a_number_is_not_hidden(self, pool):
        from anocaps.kernels.pooling import bias_relu

        x, bias = some_maps((2, 8, 4, 4))
        with torch.no_grad():
            x[1, 3, 2, 1] = float("nan")
        y = bias_relu(x, bias, pool)
        assert y[1, 3, 2 // pool, 1 // pool].isnan() and y.isnan().sum() == 1

    def test_what_does_not_fit_is_refused(self):
        from anocaps.base.errors import InputError
        from anocaps.kernels.pooling import bias_relu, unpool

        x, bias = some_maps((1, 8, 4, 1))
        for message, arguments in {
            "float32": (x.float(), bias, 1),
            "do not fit": (x, bias[1:], 1),
            "pool=2 do not fit": (x[..., 0, 0], bias, 2),
            "not 3": (x, bias, 3),
            "not larger": (x, bias, 2),
        }.items():
            with pytest.raises(InputError, match=message):
                bias_relu(*arguments)
        with pytest.raises(InputError, match="float32"):
            unpool(x.float())
        with pytest.raises(InputError, match=r"\[N, C, h, w\]"):
            unpool(x[0])


class TestUnpool:
    __test__ = HERE

    @pytest.mark.parametrize("order", [LAST, torch.contiguous_format])
    @pytest.mark.parametrize("shape", SHAPES)
    def test_maps(self, shape, order):
        from anocaps.kernels.pooling import unpool

        x, _ = some_maps(shape)
        x = x.detach().contiguous(memory_format=order).requires_grad_()
        y = unpool(x)
        x64 = x.detach().double().requires_grad_()
        true = interpolate(x64, scale_factor=2)
        assert y.dtype == torch.bfloat16
        assert y.is_contiguous(memory_format=LAST)
        assert torch.equal(y.double(), true)

        grad = gradient_like(y)
        y.backward(grad)
        true.backward(grad.double())
        assert torch.equal(x.grad, in_bfloat16(x64.grad.float()))
        assert x.grad.stride() == x.stride()

    def test_gradients_in_another_order_of_memory(self):
        from anocaps.kernels.pooling import unpool

        x, _ = some_maps((2, 5, 3, 2))
        y = unpool(x)
        grad = gradient_like(y)
        last, first = (
            torch.autograd.grad(y, x, g, retain_graph=True)[0]
            for g in (grad.contiguous(memory_format=LAST), grad.contiguous())
        )
        assert torch.equal(last, first)


class TestNetworks:
    """CNN and VAE under autocast, through the kernels, against themselves in fp32."""

    __test__ = HERE

    @staticmethod
    def gradients(network, loss, x, bf16: bool) -> list[Tensor]:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=bf16):
            value = loss(x, torch.arange(len(x), device=DEVICE) % 3)
        return list(torch.autograd.grad(value, list(network.parameters())))

    @staticmethod
    def network(name: str, shape: tuple[int, int, int]):
        """With a loss that draws the same noise each time. Large biases of both signs, so that no
        ReLU falls on another side by rounding."""
        from anocaps.detectors.cnn_ocsvm import cnn_loss
        from anocaps.detectors.vae import vae_loss
        from anocaps.networks.cnn import CNN
        from anocaps.networks.vae import VAE
        from anocaps.training.preprocessing import Preprocessing

        torch.manual_seed(0)
        network = CNN(*shape, classes=3) if name == "cnn" else VAE(*shape)
        for k, parameter in network.named_parameters():
            if k.endswith("bias") and parameter.numel() >= 32 and "latent" not in k:
                parameter.data = torch.randint(2, parameter.shape) * 6.0 - 3
        network = network.to(DEVICE, memory_format=LAST)
        if name == "cnn":
            return network, cnn_loss(network, Preprocessing(shape[1], shape[2], shape[0]))
        noise = torch.Generator(DEVICE)
        return network, lambda x, y: vae_loss(network, noise.manual_seed(1))(x, y)

    @pytest.mark.parametrize("rounded", [False, True])
    @pytest.mark.parametrize("shape", [(1, 6, 8), (2, 7, 9)])
    @pytest.mark.parametrize("name", ["cnn", "vae"])
    def test_gradients(self, name, shape, rounded):
        network, loss = self.network(name, shape)
        x = torch.rand(12, *shape, device=DEVICE)
        true = self.gradients(network, loss, x, bf16=False)
        if rounded:
            network.round_weights()
        mine = self.gradients(network, loss, x, bf16=True)
        for (name, parameter), a, b in zip(network.named_parameters(), mine, true):
            assert a.dtype == parameter.dtype
            assert a.stride() == parameter.stride() or not rounded
            # Which number of a window is the largest may change by rounding.
            assert off(a, b) < (0.2 if name == "encoder.conv1.weight" else 0.05)

    def test_pixels_may_have_a_gradient(self):
        network, _ = self.network("cnn", (1, 8, 8))
        x = torch.rand(12, 1, 8, 8, device=DEVICE, requires_grad=True)
        grads = []
        for bf16 in (True, False):
            with torch.autocast(DEVICE, torch.bfloat16, enabled=bf16):
                grads.append(torch.autograd.grad(network(x)[1].sum(), x)[0])
        assert off(*(grad.sum((2, 3)) for grad in grads)) < 0.2  # in a window it may move

    @pytest.mark.parametrize("name", ["cnn", "vae"])
    def test_copies_stand_for_the_weights_until_the_mode_changes(self, name):
        network, loss = self.network(name, (1, 6, 6))
        x = torch.rand(4, 1, 6, 6, device=DEVICE)
        before = self.gradients(network, loss, x, bf16=True)
        copies = network.round_weights()
        assert {id(p) for p in copies} == {id(p) for p in network.parameters() if p.ndim > 1}
        same = self.gradients(network, loss, x, bf16=True)
        assert all(torch.equal(a, b) for a, b in zip(before, same))
        for copy in copies.values():
            copy.mul_(0.5)
        other = self.gradients(network, loss, x, bf16=True)
        assert not any(torch.equal(a, b) for a, b in zip(before, other))
        network.train()
        again = self.gradients(network, loss, x, bf16=True)
        assert all(torch.equal(a, b) for a, b in zip(before, again))

    def test_training_keeps_the_copies(self):
        """A run in bfloat16: after its steps the copies are those of the weights."""
        import numpy as np

        from anocaps.detectors.vae import vae_loss
        from anocaps.training.loop import Run, TrainingConfig
        from anocaps.training.preprocessing import Preprocessing

        network, _ = self.network("vae", (1, 6, 6))
        noise = torch.Generator(DEVICE)  # a recorded step has to know of it
        images = np.random.default_rng(0).integers(0, 256, (8, 6, 6, 1), dtype=np.uint8)
        config = TrainingConfig(epochs=1, batch_size=4, precision="bf16")
        run = Run(
            network, vae_loss(network, noise), images, np.arange(8) % 3, Preprocessing(6, 6, 1),
            config, torch.device(DEVICE), noise=noise,
        )  # fmt: skip
        before = [p.detach().clone() for p in network.parameters()]
        run.begin_epoch()
        for _ in range(run.steps):
            run.step()
        run.end_epoch()
        assert all(not torch.equal(a, b) for a, b in zip(before, network.parameters()))
        assert len(network.rounded) == 8
        for weight, copy in network.rounded.items():
            assert torch.equal(copy, in_bfloat16(weight))

    def test_twice_the_same_bits(self):
        network, loss = self.network("vae", (1, 6, 8))
        x = torch.rand(6, 1, 6, 8, device=DEVICE)
        first, second = (self.gradients(network, loss, x, bf16=True) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, second))


class TestWithoutGpu(WithoutGpu):
    __test__ = not HERE

    def test_cpu_tensors_are_left_to_the_plain_path(self):
        from anocaps.networks.cnn import in_bfloat16

        with torch.autocast("cpu", torch.bfloat16):
            assert not in_bfloat16(torch.zeros(1, 1, 8, 8))
