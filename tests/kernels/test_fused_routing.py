"""The Triton kernels of fused routing against plain float64 routing with the votes written out.

They run as triton_interpreter.py says.
"""

import pytest
import torch
from torch import Tensor
from triton_interpreter import DEVICE, HERE, WithoutGpu, needs_triton, off

pytestmark = needs_triton


def reference(u, W, bias, iterations: int, gradient: str) -> Tensor:
    votes = torch.einsum("ijed,nid->nije", W, u)
    b = votes.new_zeros(votes.shape[:3])
    for r in range(iterations):
        c = b.softmax(2)
        if gradient == "last":
            c = c.detach()
        s = torch.einsum("nij,nije->nje", c, votes)
        if bias is not None:
            s = s + bias
        n = (s.square().sum(-1, keepdim=True) + 1e-9).sqrt()
        v = s * n / (1 + n.square())
        if r < iterations - 1:
            b = b + torch.einsum("nije,nje->nij", votes, v)
    return v


def leaves(n, i, j, d, e, *, bias=True, seed=0, scale=0.5, dtype=torch.float32):
    """Random u, W, bias and an output gradient, u as long as squashed capsules are."""
    g = torch.Generator().manual_seed(seed)
    u = torch.randn(n, i, d, generator=g)
    u = u / u.norm(dim=-1, keepdim=True) * torch.rand(n, i, 1, generator=g)
    w = torch.randn(i, j, e, d, generator=g) * scale
    b = torch.randn(j, e, generator=g) * 0.1 if bias else None
    out = torch.randn(n, j, e, generator=g)
    move = [None if x is None else x.to(DEVICE, dtype) for x in (u, w, b)]
    return *move, out.to(DEVICE)


def compare(
    inputs, out, iterations, gradient, tolerance=3e-6, grad_tolerance=3e-6, precision="fp32"
):
    from anocaps.kernels.routing import fused_route

    mine = [None if x is None else x.detach().clone().requires_grad_() for x in inputs]
    true = [None if x is None else x.detach().double().requires_grad_() for x in inputs]
    v = fused_route(*mine, iterations, gradient, precision)
    ref = reference(*true, iterations, gradient)
    assert v.dtype == torch.float32
    assert v.shape == ref.shape
    assert off(v, ref) < tolerance
    v.backward(out)
    ref.backward(out.double())
    for a, b in zip(mine, true):
        if a is not None:
            assert a.grad is not None
            assert a.grad.dtype == a.dtype
            assert off(a.grad, b.grad) < grad_tolerance


class TestKernels:
    __test__ = HERE

    @pytest.mark.parametrize("gradient", ["all", "last"])
    @pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5])
    def test_iterations(self, iterations, gradient):
        *inputs, out = leaves(3, 40, 3, 4, 8, seed=iterations)
        compare(inputs, out, iterations, gradient)

    @pytest.mark.parametrize(
        ("n", "i", "j", "d", "e"),
        [
            (1, 32, 2, 8, 16),
            (2, 33, 9, 8, 16),
            (5, 50, 10, 8, 16),
            (4, 64, 4, 8, 16),
            (2, 37, 17, 4, 8),
            (3, 32, 33, 4, 4),
            (1, 32, 100, 2, 4),
            (2, 70, 3, 16, 2),
            (1, 40, 1, 1, 32),
        ],
    )
    def test_shapes(self, n, i, j, d, e):
        *inputs, out = leaves(n, i, j, d, e, seed=j)
        compare(inputs, out, 3 if j < 20 else 2, "all")

    @pytest.mark.parametrize("seed", range(4))
    def test_random_shapes(self, seed):
        pick = torch.Generator().manual_seed(seed)

        def one_of(*choices):
            return choices[int(torch.randint(len(choices), (), generator=pick))]

        shape = one_of(1, 2, 3, 5), one_of(*range(32, 80)), one_of(*range(2, 24)), 4, one_of(4, 8)
        *inputs, out = leaves(*shape, bias=one_of(True, False), seed=seed)
        compare(inputs, out, one_of(2, 3, 4), one_of("all", "last"))

    def test_strong_agreement_does_not_overflow(self):
        *inputs, out = leaves(2, 32, 5, 4, 8, scale=60.0)
        compare(inputs, out, 3, "all", grad_tolerance=1e-4)

    def test_zero_capsules_have_finite_gradients(self):
        from anocaps.kernels.routing import fused_route

        u = torch.zeros(2, 32, 4, device=DEVICE, requires_grad=True)
        w = torch.randn(32, 3, 8, 4, device=DEVICE, requires_grad=True)
        v = fused_route(u, w)
        v.sum().backward()
        assert v.abs().max() < 1e-6
        assert torch.isfinite(u.grad).all()
        assert torch.isfinite(w.grad).all()

    def test_bfloat16_inputs_are_computed_in_float32(self):
        *inputs, out = leaves(3, 40, 5, 4, 8, dtype=torch.bfloat16)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            compare(inputs, out, 3, "all", grad_tolerance=4e-3)  # gradients rounded to bf16 once

    def test_many_images_and_ranges_of_several_tiles(self, monkeypatch):
        from anocaps.kernels import routing as fused_routing

        monkeypatch.setattr(fused_routing, "SWEEP_SPLITS", 2)
        *inputs, out = leaves(70, 70, 2, 4, 8)
        compare(inputs, out, 3, "all")

    @pytest.mark.parametrize("gradient", ["all", "last"])
    def test_tf32(self, gradient):
        *inputs, out = leaves(3, 40, 5, 4, 8)
        compare(inputs, out, 3, gradient, 3e-3, 3e-3, precision="tf32")

    def test_equal_to_the_plain_path(self):
        from anocaps.capsules.routing import route
        from anocaps.kernels.routing import fused_route

        *inputs, _ = leaves(3, 48, 6, 4, 8)
        assert off(fused_route(*inputs, 3), route(*inputs, 3)) < 3e-6

    def test_an_image_is_the_same_in_any_batch_and_order_of_memory(self):
        from anocaps.kernels.routing import fused_route

        u, w, b, _ = leaves(70, 20, 5, 4, 4)  # two blocks of images
        together = fused_route(u, w, b)
        assert off(fused_route(u[67:68], w, b), together[67:68]) < 1e-6
        assert torch.equal(
            fused_route(u.transpose(0, 1).contiguous().transpose(0, 1), w, b), together
        )

    def test_only_what_is_asked_for_gets_a_gradient(self):
        from anocaps.kernels.routing import fused_route

        u, w, b, out = leaves(2, 32, 3, 4, 4)
        w.requires_grad_()
        fused_route(u, w, b).backward(out)
        assert u.grad is None
        assert b.grad is None
        assert w.grad.abs().sum() > 0

    def test_what_does_not_fit_is_refused(self):
        from anocaps.base.errors import InputError
        from anocaps.kernels.routing import available, fused_route

        u, w, b, _ = leaves(2, 32, 3, 4, 8)
        assert available(u, w)
        assert not available(u.double(), w)
        assert not available(u, w[..., :3])
        for message, arguments in {
            "float64": (u.double(), w.double()),
            "fit": (u[:, 1:], w),
            "capsules.route": (u[..., :3], w[..., :3]),
            "iterations=0": (u, w, b, 0),
            "gradient": (u, w, b, 3, "some"),
            "precision": (u, w, b, 3, "all", "fp8"),
        }.items():
            with pytest.raises(InputError, match=message):
                fused_route(*arguments)


class TestWithoutGpu(WithoutGpu):
    __test__ = not HERE

    def test_cpu_tensors_are_left_to_the_plain_path(self):
        from anocaps.kernels.routing import available

        assert not available(torch.zeros(1, 32, 8), torch.zeros(32, 3, 4, 8))
