"""The Triton routing against the textbook's in float64; see triton_interpreter.py."""

import pytest
import torch
from agreement import assert_agree, off
from triton_interpreter import DEVICE, HERE, WithoutGpu, needs_triton

from anocaps.capsules import textbook

pytestmark = needs_triton


def random_case(n, i, j, d, e, *, scale=0.5, dtype=torch.float32):
    """u [N, I, D] as long as squashed capsules are, weight and bias."""
    g = torch.Generator().manual_seed(j)
    u = torch.randn(n, i, d, generator=g)
    u = u / u.norm(dim=-1, keepdim=True) * torch.rand(n, i, 1, generator=g)
    weight = torch.randn(i, j, e, d, generator=g) * scale
    bias = torch.randn(j, e, generator=g) * 0.1
    return [x.to(DEVICE, dtype) for x in (u, weight, bias)]


def compare(inputs, iterations=3, gradient="all", value=3e-6, slope=3e-6, tf32=False):
    from anocaps.kernels.triton.routing import route

    assert_agree(
        lambda *x: route(*x, iterations, gradient, tf32),
        lambda *x: textbook.route(*x, iterations, gradient),
        inputs,
        value,
        slope,
    )


class TestRoute:
    __test__ = HERE

    @pytest.mark.parametrize("gradient", ["all", "last"])
    @pytest.mark.parametrize("iterations", [1, 3])
    def test_iterations(self, iterations, gradient):
        compare(random_case(3, 40, 3, 4, 8), iterations, gradient)

    @pytest.mark.parametrize(
        ("n", "i", "j", "d", "e"),
        [(2, 17, 9, 8, 16), (2, 17, 16, 4, 8), (1, 15, 3, 16, 2), (1, 40, 1, 1, 32)],
    )
    def test_shapes(self, n, i, j, d, e):
        u, weight, bias = random_case(n, i, j, d, e)
        compare((u, weight, bias if j % 2 else None), 3 if j < 10 else 2)

    def test_strong_agreement_does_not_overflow(self):
        compare(random_case(2, 32, 5, 4, 8, scale=60.0), slope=1e-4)

    def test_zero_capsules_have_finite_gradients(self):
        from anocaps.kernels.triton.routing import route

        u, weight, _ = (x.requires_grad_() for x in random_case(2, 32, 3, 4, 8))
        v = route(u * 0, weight)
        v.sum().backward()
        assert v.abs().max() < 1e-6
        assert torch.isfinite(u.grad).all() and torch.isfinite(weight.grad).all()

    def test_bfloat16_inputs_are_computed_in_float32(self):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):  # gradients are rounded to bf16 once
            compare(random_case(2, 17, 3, 4, 8, dtype=torch.bfloat16), slope=4e-3)

    def test_tf32(self):
        compare(random_case(2, 17, 3, 4, 8), value=3e-3, slope=3e-3, tf32=True)

    def test_an_image_is_the_same_in_any_batch_and_memory_order(self, monkeypatch):
        from anocaps.kernels.triton.routing import route

        monkeypatch.setattr("anocaps.kernels.triton.routing.SWEEP_SPLITS", 2)
        u, weight, bias = random_case(70, 8, 2, 4, 4)  # two blocks of images
        together = route(u, weight, bias)
        assert off(route(u[67:68], weight, bias), together[67:68]) < 1e-6
        moved = u.transpose(0, 1).contiguous().transpose(0, 1)
        assert torch.equal(route(moved, weight, bias), together)


class TestWithoutGpu(WithoutGpu):
    __test__ = not HERE
