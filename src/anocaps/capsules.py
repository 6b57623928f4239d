"""The mathematics of capsules: squash, routing by agreement, margin loss.

Written from the appendix of "Exploring Deep Anomaly Detection Methods Based on Capsule Net"
(Li et al., 2019), whose network is that of Sabour, Frosst and Hinton (2017).

Letters used for shapes: N images, I input capsules of D numbers, J class capsules of E numbers,
R routing iterations.

Routing never builds the votes W_ij u_i (N × I × J × E numbers, by far the largest tensor of the
network). Two products are all it needs, and both can be taken without them:

    weighted sum   s_j  = Σ_i c_ij W_ij u_i  = W_j (c_j u)       [E, I·D] · [I·D]
    agreement      a_ij = (W_ij u_i) · v_j   = u_i · (W_ijᵀ v_j)

Since the logits start at 0 and the votes do not change, the logits of iteration r are
b_ij = û_ij · (v_j⁰ + … + v_jʳ⁻¹): nothing of size I × J is carried between iterations.
"""

from typing import Any, Literal

import torch
from torch import Tensor

# Added under the square root of a capsule's length: sqrt has no derivative at zero.
EPS = 1e-9

# Images routed at a time when no gradient is asked for: their [J, N, I, D] stay in the cache.
_PART = 16

Gradient = Literal["all", "last"]


def squash(s: Tensor) -> Tensor:
    """Keep the direction of each vector along the last axis, bring its length n to n²/(1+n²)."""
    n = (s.square().sum(-1, keepdim=True) + EPS).sqrt()
    # n/(1+n²), in a form that stays finite when n² overflows
    return s / (n + 1 / n)


def _squash_backward(s: Tensor, grad: Tensor) -> Tensor:
    n = (s.square().sum(-1, keepdim=True) + EPS).sqrt()
    scale = 1 / (n + 1 / n)
    slope = scale.square() * (n.reciprocal().square() - 1)  # d scale / dn = (1−n²)/(1+n²)²
    return scale * grad + s * (slope / n) * (s * grad).sum(-1, keepdim=True)


def lengths(capsules: Tensor) -> Tensor:
    """[N, J, E] → [N, J], each in [0, 1): how sure the network is that class j is there."""
    length: Tensor = torch.linalg.vector_norm(capsules, dim=-1)
    return length


def route(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    gradient: Gradient = "all",
) -> Tensor:
    """Routing by agreement: input capsules u [N, I, D] → class capsules [N, J, E].

    weight [I, J, E, D] holds one matrix per pair of capsules; bias [J, E], the released code's
    extra, is added to s in every iteration. gradient="last" treats the coupling coefficients as
    constants, "all" differentiates through every iteration.
    """
    from anocaps import fused_routing  # it needs this module's constants

    if fused_routing.available(u):
        rounding: Literal["fp32", "tf32"] = (
            "tf32" if torch.is_autocast_enabled(u.device.type) else "fp32"
        )
        return fused_routing.fused_route(u, weight, bias, iterations, gradient, rounding)
    with torch.autocast(u.device.type, enabled=False):  # fp32, whatever the network's precision
        if torch.is_grad_enabled() and (u.requires_grad or weight.requires_grad):
            routed: Tensor = _Route.apply(u, weight, bias, iterations, gradient)  # type: ignore[no-untyped-call]
            return routed
        w = _stacked(weight)
        parts = [_route_forward(part, w, bias, iterations)[-1][1] for part in torch.split(u, _PART)]
        return torch.cat(parts, dim=1).transpose(0, 1)


def _stacked(weight: Tensor) -> Tensor:
    """[I, J, E, D] → [J, E, I·D]: one matrix per class, applied to all input capsules at once."""
    return weight.permute(1, 2, 0, 3).flatten(2)


def _weighted_sum(c: Tensor, u: Tensor, w: Tensor) -> Tensor:
    """Σ_i c_ij W_ij u_i: c [J, N, I], u [N, I, D], w [J, E, I·D] → [J, N, E]."""
    return torch.bmm((c.unsqueeze(-1) * u).flatten(2), w.mT)


def _pulled_back(v: Tensor, w: Tensor, u: Tensor) -> Tensor:
    """W_ijᵀ v_j: v [J, N, E] → [J, N, I, D], whose inner product with u is the agreement."""
    return torch.bmm(v, w).view(-1, *u.shape)


def _route_forward(
    u: Tensor, w: Tensor, bias: Tensor | None, iterations: int
) -> list[tuple[Tensor, Tensor]]:
    """The pairs (s, v), both [J, N, E], of every iteration."""
    steps: list[tuple[Tensor, Tensor]] = []
    total = torch.zeros(())  # v⁰ + … + vʳ⁻¹
    for r in range(iterations):
        if r == 0:  # all couplings are 1/J: one plain product
            s = torch.matmul(u.flatten(1), w.mT) / w.shape[0]
        else:
            total = steps[-1][1] if r == 1 else total + steps[-1][1]
            c = _couplings(_pulled_back(total, w, u).mul_(u))
            s = _weighted_sum(c, u, w)
        if bias is not None:
            s = s + bias.unsqueeze(1)
        steps.append((s, squash(s)))
    return steps


def _couplings(products: Tensor) -> Tensor:
    """Agreement products [J, N, I, D] → couplings [J, N, I]: softmax over the classes J."""
    return products.sum(-1).softmax(0)


class _Route(torch.autograd.Function):
    """Routing that keeps only its inputs and the [J, N, E] sums, and recomputes the rest.

    Differentiating, with Vʳ = v⁰ + … + vʳ⁻¹ and couplings cʳ = softmax_j(û_ij · Vʳ_j):
        dc = û·ds,  db = c (dc − Σ_j c dc),  dû = c ds + db V,  dV_j = Σ_i db_ij û_ij,
    and dV flows to every earlier v.
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
        w = _stacked(weight)
        steps = _route_forward(u, w, bias, iterations)
        ctx.save_for_backward(u, w, *(s for s, _ in steps))
        ctx.gradient, ctx.has_bias = gradient, bias is not None
        return steps[-1][1].transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        u, w, *sums = ctx.saved_tensors
        _, i, d = u.shape
        j, e, _ = w.shape
        totals = [torch.zeros_like(sums[0])]  # Vʳ for every r
        for s in sums[:-1]:
            totals.append(totals[-1] + squash(s))

        grad_u = torch.zeros_like(u)
        grad_w = torch.zeros_like(w)
        grad_bias = torch.zeros(j, e, dtype=u.dtype, device=u.device)
        grad_v = grads[0].transpose(0, 1)  # of the v of iteration r: [J, N, E]
        carried = torch.zeros_like(grad_v)  # Σ dVᵠ of the later iterations q
        for r in reversed(range(len(sums))):
            grad_s = _squash_backward(sums[r], grad_v)
            grad_bias += grad_s.sum(1)
            if r == 0:
                grad_u += torch.bmm(grad_s, w).sum(0).view_as(u) / j
                grad_w += torch.matmul(grad_s.mT, u.flatten(1)) / j
                break
            pulled_v = _pulled_back(totals[r], w, u)
            pulled_s = _pulled_back(grad_s, w, u)
            c = _couplings(pulled_v * u)
            grad_u += (c.unsqueeze(-1) * pulled_s).sum(0)
            grad_w.baddbmm_(grad_s.mT, (c.unsqueeze(-1) * u).flatten(2))
            if ctx.gradient == "last":
                break
            grad_c = pulled_s.mul_(u).sum(-1)  # [J, N, I]
            grad_b = c * (grad_c - (c * grad_c).sum(0))
            grad_u += pulled_v.mul_(grad_b.unsqueeze(-1)).sum(0)
            weighted = (grad_b.unsqueeze(-1) * u).flatten(2)  # [J, N, I·D]
            grad_w.baddbmm_(totals[r].mT, weighted)
            carried.baddbmm_(weighted, w.mT)
            grad_v = carried
        grad_weight = grad_w.view(j, e, i, d).permute(2, 0, 1, 3)
        return grad_u, grad_weight, grad_bias if ctx.has_bias else None, None, None


def margin_loss(
    capsule_lengths: Tensor,
    labels: Tensor,
    upper: float = 0.9,
    lower: float = 0.1,
    down: float = 0.5,
) -> Tensor:
    """Σ_c of equation L_c, averaged over the images: lengths [N, J], labels [N] → scalar."""
    present = torch.nn.functional.one_hot(labels, capsule_lengths.shape[1])
    too_short = (upper - capsule_lengths).clamp(min=0).square()
    too_long = (capsule_lengths - lower).clamp(min=0).square()
    return (present * too_short + down * (1 - present) * too_long).sum(1).mean()
