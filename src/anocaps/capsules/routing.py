"""Routing by agreement that stores no votes, for a CPU: forward and backward.

It computes the same as `textbook.route`. Shapes: N images, I input capsules of D numbers, J class
capsules of E numbers.

The votes W_ij u_i are N × I × J × E numbers, by far the largest tensor of the network. Routing
needs only two products of them, and both can be computed without the votes:

    weighted sum   s_j  = Σ_i c_ij W_ij u_i  = W_j (c_j u)       [E, I·D] · [I·D]
    agreement      a_ij = (W_ij u_i) · v_j   = u_i · (W_ijᵀ v_j)

The logits start at 0 and the votes û_ij = W_ij u_i do not change. So the logits of iteration r are
b_ij = û_ij · (v_j⁰ + … + v_jʳ⁻¹), and nothing of size I × J is kept between iterations. The input
capsules are processed in blocks that fit a CPU's cache. In a block, the axis D comes before the
axis I, so that memory is read in order.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anocaps.capsules.textbook import EPS, Gradient, squash

_IMAGES = 64  # per block, at most
_NUMBERS = 2**19  # of a block's tensor [J, N, D, I], roughly


def route(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    gradient: Gradient = "all",
) -> Tensor:
    """As `textbook.route`: u [N, I, D], weight [I, J, E, D], bias [J, E] → [N, J, E]."""
    with torch.autocast(u.device.type, enabled=False):  # always fp32
        if torch.is_grad_enabled() and (u.requires_grad or weight.requires_grad):
            routed: Tensor = _Route.apply(u, weight, bias, iterations, gradient)  # type: ignore[no-untyped-call]
            return routed
        parts = [_route_forward(part, bias, iterations)[-1][1] for part in _parts(u, weight)]
        return torch.cat(parts, dim=1).transpose(0, 1)


class _Block(NamedTuple):
    """Some input capsules of some images."""

    u: Tensor  # [N, D, I]
    w: Tensor  # [J, E, D·I]: one matrix per class, applied to all capsules at once


def _parts(u: Tensor, weight: Tensor) -> list[list[_Block]]:
    """Split the images into parts, and the capsules of each part into blocks.

    The blocks do not depend on N, so an image gets the same result alone and in a batch.
    """
    parts, blocks = 1, 1
    if u.device.type == "cpu":
        i, j, _, d = weight.shape
        parts = max(1, -(-len(u) // _IMAGES))
        blocks = max(1, _IMAGES * i * j * d // _NUMBERS)
    matrices = [w.permute(1, 2, 3, 0).flatten(2) for w in weight.chunk(blocks)]
    return [
        [_Block(some.mT.contiguous(), w) for some, w in zip(part.chunk(blocks, 1), matrices)]
        for part in u.chunk(parts)
    ]


def _route_forward(
    blocks: Sequence[_Block], bias: Tensor | None, iterations: int
) -> list[tuple[Tensor, Tensor]]:
    """The pair (s, v) of every iteration, both [J, N, E]."""
    (j, e, _), n = blocks[0].w.shape, len(blocks[0].u)
    steps: list[tuple[Tensor, Tensor]] = []
    total = blocks[0].u.new_zeros(j, n, e)  # v⁰ + … + vʳ⁻¹
    for r in range(iterations):
        if r == 0:  # all couplings are 1/J: one matrix product
            flat = total.new_zeros(n, j * e)
            for u, w in blocks:
                flat.addmm_(u.flatten(1), w.flatten(0, 1).T)
            s = flat.view(n, j, e).transpose(0, 1) / j
        else:
            total = total + steps[-1][1]
            s = total.new_zeros(total.shape)
            for u, w in blocks:
                # W_ijᵀ v_j [J, N, D, I], whose inner product with u is the agreement
                pulled = torch.bmm(total, w).view(j, *u.shape)
                c = pulled.mul_(u).sum(2, keepdim=True).softmax(0)  # over the classes
                s.baddbmm_(torch.mul(c, u, out=pulled).flatten(2), w.mT)
        if bias is not None:
            s = s + bias.unsqueeze(1)
        steps.append((s, squash(s)))
    return steps


class _Route(torch.autograd.Function):
    """Keeps its inputs and the sums s [J, N, E] for the backward pass, which recomputes the rest.

    With Vʳ = v⁰ + … + vʳ⁻¹ and couplings cʳ = softmax_j(û_ij · Vʳ_j) the gradients are
        dc = û·ds,  db = c (dc − Σ_j c dc),  dû = c ds + db V,  dV_j = Σ_i db_ij û_ij.
    dVʳ is added to dv of every earlier iteration.
    """

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        iterations: int,
        gradient: Gradient,
    ) -> Tensor:
        steps = [_route_forward(part, bias, iterations) for part in _parts(u, weight)]
        sums = [torch.cat([s for s, _ in parts], dim=1) for parts in zip(*steps)]
        ctx.save_for_backward(u, weight, *sums)
        ctx.gradient, ctx.has_bias = gradient, bias is not None
        return torch.cat([part[-1][1] for part in steps], dim=1).transpose(0, 1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, weight, *sums = ctx.saved_tensors
        parts = _parts(u, weight)
        grad_w = [torch.zeros_like(w) for _, w in parts[0]]
        grad_bias = grad.new_zeros(grad.shape[1:])
        grad_u, start = [], 0
        for blocks in parts:
            images = slice(start, start + len(blocks[0].u))
            grad_v, of_part = grad[images].transpose(0, 1), [s[:, images] for s in sums]
            grad_u.append(_route_backward(blocks, of_part, grad_v, ctx.gradient, grad_w, grad_bias))
            start = images.stop
        _, j, e, d = weight.shape
        grad_weight = torch.cat([g.view(j, e, d, -1).permute(3, 0, 1, 2) for g in grad_w])
        return torch.cat(grad_u), grad_weight, grad_bias if ctx.has_bias else None, None, None


def _squash_backward(s: Tensor, grad: Tensor) -> Tensor:
    """The gradient of s from the gradient of squash(s)."""
    n = (s.square().sum(-1, keepdim=True) + EPS).sqrt()
    scale = 1 / (n + 1 / n)
    slope = scale.square() * (n.reciprocal().square() - 1)  # d scale / dn = (1−n²)/(1+n²)²
    return scale * grad + s * (slope / n) * (s * grad).sum(-1, keepdim=True)


def _route_backward(
    blocks: Sequence[_Block],
    sums: Sequence[Tensor],
    grad_v: Tensor,
    gradient: Gradient,
    grad_w: Sequence[Tensor],
    grad_bias: Tensor,
) -> Tensor:
    """Return the gradient of u [N, I, D]; add to grad_w ([J, E, D·I] per block) and grad_bias.

    sums: s of every iteration; grad_v: the gradient of the last v; all [J, N, E].
    """
    j, n, _ = grad_v.shape
    totals = [grad_v.new_zeros(grad_v.shape)]  # Vʳ for every r
    for s in sums[:-1]:
        totals.append(totals[-1] + squash(s))
    grad_u = [torch.zeros_like(u) for u, _ in blocks]
    carried = grad_v.new_zeros(grad_v.shape)  # Σ dVᵠ of the later iterations q
    scratch = [grad_v.new_empty(2 * j * blocks[0].u.numel()) for _ in range(2)]
    for r in reversed(range(len(sums))):
        grad_s = _squash_backward(sums[r], grad_v)
        grad_bias += grad_s.sum(1)
        if r == 0:
            flat = (grad_s / j).transpose(0, 1).flatten(1)  # [N, J·E]
            for (u, w), du, dw in zip(blocks, grad_u, grad_w):
                du.flatten(1).addmm_(flat, w.flatten(0, 1))
                dw.flatten(0, 1).addmm_(flat.T, u.flatten(1))
            break
        pair = torch.cat([totals[r], grad_s], dim=1)  # [J, 2·N, E]
        for (u, w), du, dw in zip(blocks, grad_u, grad_w):
            pulled, product = (m[: 2 * j * u.numel()].view(j, 2, *u.shape) for m in scratch)
            torch.bmm(pair, w, out=pulled.view(j, 2 * n, w.shape[2]))  # Wᵀ V and Wᵀ ds
            dots = torch.mul(pulled, u, out=product).sum(3)  # b and dc [J, 2, N, I]
            c = dots[:, 0].softmax(0)
            grad_b = c * dots[:, 1]
            grad_b -= c * grad_b.sum(0)
            if gradient == "last":
                grad_b.zero_()
            factors = torch.stack([grad_b, c], dim=1).unsqueeze(3)  # of V and ds in dû
            torch.mul(factors, u, out=product)
            dw.baddbmm_(pair.mT, product.view(j, 2 * n, w.shape[2]))
            carried.baddbmm_(product[:, 0].flatten(2), w.mT)
            du += pulled.mul_(factors).sum((0, 1))
        if gradient == "last":
            break
        grad_v = carried
    return torch.cat([du.mT for du in grad_u], dim=1)
