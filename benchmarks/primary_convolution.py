"""Claim: at a batch of 100, our bf16 kernel is the fastest form of the primary convolution (9×9,
stride 2, 256 → 256 maps, 20×20 → 6×6) on a GPU; in fp32 the spectral form is.

speed_gpu.py runs this. Each form is recorded as a CUDA graph, so that times are the device's alone:
forward and backward, and forward alone as in scoring. Errors are relative to the direct convolution
in float64, ‖x − y‖ / ‖y‖ of the output and of both gradients. The input is positive, as after a
ReLU.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from common import Side, Spread, spread, take_turns
from torch import Tensor
from torch.nn.functional import conv2d

from anocaps.kernels.spectral.convolution import spectral_conv2d
from anocaps.kernels.triton.primary import strided_conv

STRIDE = 2


class Form(NamedTuple):
    convolve: Callable[[Tensor, Tensor], Tensor]
    dtype: torch.dtype


def _spectral(x: Tensor, weight: Tensor) -> Tensor:
    return spectral_conv2d(x, weight, None, STRIDE)


def _direct(x: Tensor, weight: Tensor) -> Tensor:
    return conv2d(x, weight, None, STRIDE)


def _ours(x: Tensor, weight: Tensor) -> Tensor:
    return strided_conv(x, weight, STRIDE)


FORMS = {
    "spectral, fp32": Form(_spectral, torch.float32),
    "our kernel, bf16": Form(_ours, torch.bfloat16),
    "cuDNN, bf16 channels-last": Form(_direct, torch.bfloat16),
    "cuDNN, fp32": Form(_direct, torch.float32),
}


def compare(device: torch.device, batch: int = 100, maps: int = 256) -> dict[str, object]:
    """One row for each form."""
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        numbers = torch.randn(*shape, generator=generator, device=device)
        return numbers.contiguous(memory_format=torch.channels_last)

    x, weight = random(batch, maps, 20, 20).relu(), random(maps, maps, 9, 9) / (maps * 81) ** 0.5
    given = x, weight, random(batch, maps, 6, 6)
    exact = both_ways(_direct, *(tensor.double() for tensor in given))
    rows = {name: measured(form, given, exact) for name, form in FORMS.items()}
    return {"batch": batch, "ways": rows}


def measured(
    form: Form, given: tuple[Tensor, Tensor, Tensor], exact: list[Tensor]
) -> dict[str, object]:
    x, weight, upstream = (tensor.to(form.dtype) for tensor in given)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
        results, both = timed(lambda: both_ways(form.convolve, x, weight, upstream))
        with torch.no_grad():
            _, forward = timed(lambda: [form.convolve(x, weight)])
    errors = [float(f"{relative_error(got, want):.3g}") for got, want in zip(results, exact)]
    names = ("output", "dmaps", "dweight")
    return {"ms": both, "forward ms": forward, "relative error": dict(zip(names, errors))}


def both_ways(
    convolve: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor, upstream: Tensor
) -> list[Tensor]:
    """The output, and the gradients of x and of the weight."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = convolve(x, weight)
    return [y.detach(), *torch.autograd.grad(y, (x, weight), upstream)]


def timed(call: Callable[[], list[Tensor]]) -> tuple[list[Tensor], Spread]:
    """What a call returns, and ms of a replay of its kernels."""
    device = torch.device("cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    graph.replay()
    kept = [result.clone() for result in results]  # the graph's memory is used again
    taken = take_turns({"": Side(graph.replay, 20)}, 5, device)[""]
    return kept, spread([1e3 * seconds for seconds in taken], 4)


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """‖x − y‖ / ‖y‖; `wanted` is float64."""
    return float((found.double() - wanted).norm() / wanted.norm().clamp(min=1e-12))
