# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: allow-incomplete-defs, no-check-untyped-defs
"""Adam with a learning rate that lives on the device and falls by a factor in every step.

    m ← β₁ m + (1 − β₁) g    v ← β₂ v + (1 − β₂) g²
    p ← p − rate / (1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + ε)    rate ← rate · decay

`Adam` is torch's. `FusedAdam`, on a GPU, is the same as two Triton kernels:

    _advance  one program: t, the rate, and the two factors of a step that all parameters share
    _update   all parameters in one launch: a program takes one block of numbers of one tensor

Every tensor stays where PyTorch put it: addresses are arguments of `_update`, so that a CUDA graph
holds those of its own gradients. Numbers are taken in the order of memory, whatever the strides.
Both classes keep the state of torch.optim.Adam, from the start.

Where a step is done in bfloat16 some weights are needed rounded. `_update` can write those copies
on the way (`rounded`): 2 more bytes a parameter instead of a kernel that moves 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log

import torch
from torch import Tensor, nn

from anocaps.kernels.triton_support import jit, tl, triton, usable

BETAS = 0.9, 0.999
EPS = 1e-8

# Knobs.
BLOCK = 2048
WARPS = 4


# ---- kernels ----


@jit
def _advance(count, rate, factors, decay, LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr):
    """count + 1 = t; factors = rate / (1 − β₁ᵗ), 1 / √(1 − β₂ᵗ); then rate · decay."""
    t = tl.load(count) + 1
    r = tl.load(rate)
    left1 = 1 - tl.exp(t.to(tl.float64) * LOG_BETA1)  # 1 − 0.999 in fp32 would lose 5 digits
    left2 = 1 - tl.exp(t.to(tl.float64) * LOG_BETA2)
    tl.store(factors, (r.to(tl.float64) / left1).to(tl.float32))
    tl.store(factors + 1, (1 / tl.sqrt(left2)).to(tl.float32))
    tl.store(count, t)
    tl.store(rate, r * decay)


@jit
def _block(p, g, m, v, copy, rounds, factors, inside, BETA1: tl.constexpr, BETA2: tl.constexpr,
           EPS: tl.constexpr):  # fmt: skip
    """One step of the numbers at these addresses [BLOCK]; all loads come before the first store."""
    parameter = tl.load(p, mask=inside)
    gradient = tl.load(g, mask=inside)
    mean = BETA1 * tl.load(m, mask=inside) + (1 - BETA1) * gradient
    square = BETA2 * tl.load(v, mask=inside) + (1 - BETA2) * gradient * gradient
    spread = tl.sqrt(square) * tl.load(factors + 1) + EPS
    parameter -= tl.load(factors) * mean / spread
    tl.store(m, mean, mask=inside)
    tl.store(v, square, mask=inside)
    tl.store(p, parameter, mask=inside)
    if rounds:
        tl.store(copy, parameter.to(tl.bfloat16), mask=inside)


@jit
def _update(parameters, gradients, means, squares, copies, factors, SIZES: tl.constexpr,
            BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    """One step of tensors of these SIZES, cut into blocks, which are numbered through all tensors.
    The first tensors have copies, the others none."""
    program = tl.program_id(0)
    p, g, m, v = parameters[0], gradients[0], means[0], squares[0]
    copy, rounds = copies[0] if len(copies) > 0 else p, len(copies) > 0
    size, block, first = SIZES[0], program, 0
    for k in tl.static_range(1, len(SIZES)):
        first += (SIZES[k - 1] + BLOCK - 1) // BLOCK
        here = program >= first  # a later tensor may say so too, and overrules
        p = tl.where(here, parameters[k], p)
        g = tl.where(here, gradients[k], g)
        m = tl.where(here, means[k], m)
        v = tl.where(here, squares[k], v)
        if k < len(copies):
            copy = tl.where(here, copies[k], copy)
        if k == len(copies):
            rounds = program < first
        size = tl.where(here, SIZES[k], size)
        block = tl.where(here, program - first, block)
    start = block.to(tl.int64) * BLOCK
    i = tl.arange(0, BLOCK)
    p, g, m, v, copy = p + start + i, g + start + i, m + start + i, v + start + i, copy + start + i
    if start + BLOCK <= size:  # without a mask a thread moves 16 bytes at a time
        _block(p, g, m, v, copy, rounds, factors, None, BETA1, BETA2, EPS)
    else:
        _block(p, g, m, v, copy, rounds, factors, i < size - start, BETA1, BETA2, EPS)


# ---- host side ----


class Adam(torch.optim.Adam):
    """torch's, with the rate in the hands of `step`; for every device and dtype."""

    def __init__(self, parameters: Iterable[nn.Parameter], rate: Tensor, decay: float) -> None:
        super().__init__(
            parameters, lr=rate, betas=BETAS, eps=EPS, fused=True, capturable=rate.is_cuda
        )
        self.rate, self.decay = rate, decay
        for parameter in self._parameters():
            self.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def _parameters(self) -> list[nn.Parameter]:
        return [p for group in self.param_groups for p in group["params"]]

    def step(self) -> None:  # type: ignore[override]
        super().step()
        self.rate.mul_(self.decay)

    def round(self) -> None:
        """Make rounded copies anew, after a change of parameters by others; here are none."""


class FusedAdam(Adam):
    """The same in two kernels, for what `available` says.

    `rounded` holds bfloat16 copies of some parameters, in their order of memory, that every step
    writes anew. The state's "step" is one tensor for all parameters.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        rate: Tensor,
        decay: float,
        rounded: Mapping[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__(parameters, rate, decay)
        self.rounded = dict(rounded or {})
        self.count = torch.zeros((), device=rate.device)
        self.factors = torch.zeros(2, device=rate.device)
        for state in self.state.values():
            state["step"] = self.count
        self.round()

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        trained = [p for p in self._parameters() if p.grad is not None]
        trained.sort(key=lambda p: p not in self.rounded)
        sizes = tuple(p.numel() for p in trained)
        with torch.cuda.device_of(self.rate):
            _advance[(1,)](
                self.count, self.rate, self.factors, self.decay,
                LOG_BETA1=log(BETAS[0]), LOG_BETA2=log(BETAS[1]),
            )  # fmt: skip
            _update[(sum(triton.cdiv(size, BLOCK) for size in sizes),)](
                tuple(p.detach() for p in trained),
                tuple(_gradient(p) for p in trained),
                tuple(self.state[p]["exp_avg"] for p in trained),
                tuple(self.state[p]["exp_avg_sq"] for p in trained),
                tuple(self.rounded[p] for p in trained if p in self.rounded),
                self.factors, SIZES=sizes, BETA1=BETAS[0], BETA2=BETAS[1], EPS=EPS, BLOCK=BLOCK,
                num_warps=WARPS,
            )  # fmt: skip

    @torch.no_grad()
    def round(self) -> None:
        for parameter, copy in self.rounded.items():
            copy.copy_(parameter)


def available(parameters: Iterable[nn.Parameter]) -> bool:
    """Whether FusedAdam takes these: fp32 on a GPU (or in Triton's interpreter), without gaps."""
    return all(
        p.dtype == torch.float32
        and usable(p)
        and p.stride() == torch.empty_like(p, device="meta").stride()
        for p in parameters
    )


def _gradient(parameter: nn.Parameter) -> Tensor:
    """In the parameter's order of memory, at an address for moves of 16 bytes."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.stride() == parameter.stride() and gradient.data_ptr() % 16 == 0:
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
