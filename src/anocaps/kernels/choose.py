"""This file alone decides which form of an operation runs, where and why.

operation         form      condition                            why
────────────────  ────────  ───────────────────────────────────  ─────────────────────────────────
route             triton    GPU; D and E powers of 2, ≤ 32;      few launches, no votes in memory
                            J ≤ 128
                  blocked   otherwise                            no votes, blocks fit a CPU's cache
primary_capsules  triton    GPU in bf16:
  first maps                … patches of ≤ 256 numbers           stores no patches
  primary                   … Hopper or newer; 64, 128 … maps;   fills the GPU with 100 images,
                            stride 1 or 2                        which cuDNN does not
  squash                    … D a power of 2, ≤ 32               reads and writes the maps once
                  plain     otherwise
capsule_loss      triton    GPU in bf16; dense decoder           saves a hundred launches
                  plain     otherwise
convolution       patches   ≤ 256 numbers per patch              one matrix product
                  spectral  fp32; a large kernel and many maps,  a fifth of the multiplications
                            or very many maps
                  direct    otherwise
next_batch        triton    GPU                                  one launch
                  plain     otherwise
adam              fused     everywhere; capturable on a GPU      one launch; a CUDA graph can record
fused             compiled  training on a GPU                    reads the votes of EM routing once
                  plain     otherwise

The form of a convolution depends on shapes alone. It is the same in training and in scoring, for
one image and for many. Scoring fewer than 64 images uses no Triton kernel, since compiling one
takes seconds. All fp32 forms agree within rounding. "GPU" includes Triton's interpreter, which
tests switch on with TRITON_INTERPRET=1.
"""

import os
from collections.abc import Callable, Iterable
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from anocaps.capsules import routing, textbook
from anocaps.capsules.textbook import Gradient, lengths, margin_loss
from anocaps.kernels.patches import MOST_NUMBERS, patch_conv2d
from anocaps.kernels.spectral.convolution import spectral_conv2d, spectral_weight
from anocaps.kernels.spectral.plan import spectral_plan, wins

P = ParamSpec("P")
T = TypeVar("T")

FEWEST_IMAGES = 64  # with fewer, Triton runs in training only

ConvolutionForm = Literal["patches", "spectral", "direct"]


@cache
def _installed() -> bool:
    return find_spec("triton") is not None


def _triton(x: Tensor) -> bool:
    """Whether Triton kernels may be imported and run for these images [N, …]."""
    there = x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    return there and (torch.is_grad_enabled() or len(x) >= FEWEST_IMAGES) and _installed()


def _bf16(x: Tensor) -> bool:
    """Whether autocast asks for bfloat16."""
    kind = x.device.type
    return torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16


# ── capsules ─────────────────────────────────────────────────────────────────────────────────


def route(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    gradient: Gradient = "all",
) -> Tensor:
    """Routing by agreement: u [N, I, D], weight [I, J, E, D], bias [J, E] → [N, J, E]."""
    if _triton(u):
        from anocaps.kernels.triton import routing as kernels

        if kernels.takes(u, weight):
            reduced = torch.is_autocast_enabled(u.device.type)
            return kernels.route(u, weight, bias, iterations, gradient, tf32=reduced)
    return routing.route(u, weight, bias, iterations, gradient)


def primary_capsules(x: Tensor, conv1: nn.Conv2d, primary: nn.Conv2d, size: int) -> Tensor:
    """conv1, ReLU, primary convolution and squash: [N, C, H, W] → [N, I, D], D = size."""
    if not (_triton(x) and _bf16(x)):
        return textbook.primary_capsules(primary(torch.relu_(conv1(x))), size)
    from anocaps.kernels.triton import maps as thin
    from anocaps.kernels.triton import primary as wide

    assert conv1.bias is not None and primary.bias is not None
    if thin.takes_pixels(x, conv1.weight):
        maps = thin.first_maps(x, conv1.weight, conv1.bias, conv1.stride[0])
    else:
        maps = functional.conv2d(x, conv1.weight, conv1.bias, conv1.stride).relu_()
        maps = maps.contiguous(memory_format=torch.channels_last)
    if wide.takes(maps, primary.weight, primary.stride[0]):
        maps = wide.strided_conv(maps, primary.weight, primary.stride[0])
    else:
        maps = functional.conv2d(maps, primary.weight, None, primary.stride)
    if thin.takes_capsules(maps, size):
        return thin.squash_maps(maps, primary.bias, size)
    return textbook.primary_capsules(maps + primary.bias[:, None, None], size)


class Decodes(Protocol):
    """A network that reconstructs images."""

    decoder: nn.Sequential

    def decode(self, capsules: Tensor, chosen: Tensor) -> Tensor:
        """Class capsules [N, J, E] and chosen classes [N] → pixels [N, C, H, W]."""


def capsule_loss(
    network: Decodes, capsules: Tensor, labels: Tensor, pixels: Tensor, weight: float
) -> Tensor:
    """Margin loss + weight × squared error of the reconstruction from the labelled class.

    capsules [N, J, E], labels [N], pixels [N, C, H, W] → mean over the images.
    """
    if _triton(capsules) and _bf16(capsules):
        from anocaps.kernels.triton import loss as kernels

        if kernels.takes(capsules, pixels, network.decoder):
            return kernels.capsule_loss(capsules, labels, pixels, network.decoder, weight)
    reconstruction = network.decode(capsules, labels).to(pixels.dtype)
    error = (reconstruction - pixels).square().flatten(1).sum(1)
    return margin_loss(lengths(capsules), labels) + weight * error.mean()


def fused(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """The result of a function of tensors. In training on a GPU, torch's compiler fuses it."""
    on_gpu = any(isinstance(each, Tensor) and each.is_cuda for each in arguments)
    if on_gpu and torch.is_grad_enabled() and _installed():
        found: T = _compiled(function)(*arguments, **named)
        return found
    return function(*arguments, **named)


@cache
def _compiled(function: Callable[P, T]) -> Callable[P, T]:
    return torch.compile(function, dynamic=False)


# ── convolution ──────────────────────────────────────────────────────────────────────────────


def convolution_form(
    channels: int, maps: int, kernel: int, stride: int, height: int, width: int
) -> ConvolutionForm:
    """The form of a convolution without padding, for maps [channels, height, width]."""
    if channels * kernel**2 <= MOST_NUMBERS:
        return "patches"
    return "spectral" if wins(height, width, kernel, stride, channels, maps) else "direct"


def convolution(
    form: ConvolutionForm,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: int,
    memory: dict[str, Any] | None = None,
) -> Tensor:
    """As conv2d: [N, C, H, W], [O, C, k, k], [O] → [N, O, h, w].

    In scoring, the spectral form keeps the transformed weight in `memory`.
    """
    if form == "patches":
        return patch_conv2d(x, weight, bias, stride)
    if form == "spectral" and not torch.is_autocast_enabled(x.device.type):
        transformed = None
        # a weight made in inference mode has no version number
        if memory is not None and not (torch.is_grad_enabled() or weight.is_inference()):
            plan = spectral_plan(*x.shape[2:], weight.shape[2], stride, x.dtype, x.device)
            key = id(weight), weight._version, id(plan)
            if memory.get("key") != key:
                kept = spectral_weight(weight, plan)
                memory |= {"key": key, "of": (weight, plan), "transformed": kept}
            transformed = memory["transformed"]
        return spectral_conv2d(x, weight, bias, stride, transformed)
    return functional.conv2d(x, weight, bias, stride)


# ── training ─────────────────────────────────────────────────────────────────────────────────


def next_batch(
    images: Tensor,
    labels: Tensor,
    order: Tensor,
    offsets: Tensor,
    cursor: Tensor,
    batch: int,
    window: tuple[int, int],
    windows: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """The images order[cursor : cursor + batch], cropped at their offsets, and their labels.

    images [·, H, W, C] padded, offsets [·, 2] → pixels [batch, C, *window] in [0, 1] and [batch].
    `windows` is the plain form: images, indices and offsets → pixels.
    """
    if _triton(images):
        from anocaps.kernels.triton.batch import take

        return take(images, labels, order, offsets, cursor, batch, window)
    place = cursor + torch.arange(batch, device=cursor.device)
    index = order[place]
    return windows(images, index, offsets[place]), labels[index]


def adam(parameters: Iterable[nn.Parameter], rate: Tensor) -> torch.optim.Adam:
    """torch's fused Adam, with its state from the start, so that a checkpoint can restore it."""
    optimizer = torch.optim.Adam(parameters, lr=rate, fused=True, capturable=rate.is_cuda)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    return optimizer
