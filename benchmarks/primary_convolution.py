"""Claim: at a batch of 100 our bf16 kernel is the fastest way to take the primary convolution (9×9,
stride 2, 256 → 256 maps, 20×20 → 6×6) forward and backward on a GPU at bf16's accuracy, and in fp32
the spectral form is. The table proves it or not: the spectral form in bf16, TF32 and fp32, our
direct kernel, and cuDNN in bf16 and, without TF32, in fp32.

Each way is timed forward and backward, and forward alone as in scoring. It is recorded as a CUDA
graph, so that times are the device's alone. Errors are relative to the direct convolution in
float64 of the same unrounded numbers: ‖x − y‖ / ‖y‖ of the output and of both gradients. The input
is positive, as after a ReLU: its mean is what a low precision loses first in a transformed domain.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from kernel_checks import relative_error
from measuring import Side, Spread, milliseconds, optional, take_turns
from torch import Tensor
from torch.nn.functional import conv2d

from anocaps.kernels.primary import strided_conv
from anocaps.kernels.spectral import spectral_conv2d

STRIDE = 2
Convolution = Callable[[Tensor, Tensor], Tensor]
CALLS = 20  # in each of 5 repeats


@dataclass(frozen=True)
class Way:
    convolve: Convolution
    dtype: torch.dtype
    tf32: bool = False


def _spectral(x: Tensor, weight: Tensor) -> Tensor:
    return spectral_conv2d(x, weight, None, STRIDE)


def _direct(x: Tensor, weight: Tensor) -> Tensor:
    return conv2d(x, weight, None, STRIDE)


def _ours(x: Tensor, weight: Tensor) -> Tensor:
    return strided_conv(x, weight, STRIDE)


WAYS = {
    "spectral, bf16": Way(_spectral, torch.bfloat16),
    "spectral, tf32": Way(_spectral, torch.float32, tf32=True),
    "spectral, fp32": Way(_spectral, torch.float32),
    "our kernel, bf16": Way(_ours, torch.bfloat16),
    "cuDNN, bf16 channels-last": Way(_direct, torch.bfloat16),
    "cuDNN, fp32": Way(_direct, torch.float32),
}


def compare(device: torch.device, batch: int = 100, maps: int = 256) -> dict[str, object]:
    """A row for each way; one that does not run is told as such and stops no other."""
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        numbers = torch.randn(*shape, generator=generator, device=device)
        return numbers.contiguous(memory_format=torch.channels_last)

    x, weight = random(batch, maps, 20, 20).relu(), random(maps, maps, 9, 9) / (maps * 81) ** 0.5
    upstream = random(batch, maps, 6, 6)
    exact = forward_backward(_direct, x.double(), weight.double(), upstream.double())
    return {
        "batch": batch,
        "ways": {
            name: optional(partial(measured, way, x, weight, upstream, exact))
            for name, way in WAYS.items()
        },
    }


def measured(
    way: Way, x: Tensor, weight: Tensor, upstream: Tensor, exact: list[Tensor]
) -> dict[str, object]:
    given = [tensor.to(way.dtype) for tensor in (x, weight, upstream)]
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = way.tf32
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=way.tf32):
            results, both = timed(lambda: forward_backward(way.convolve, *given), x.device)
            _, forward = timed(lambda: forward_only(way.convolve, *given[:2]), x.device)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    errors = [float(f"{relative_error(got, want):.3g}") for got, want in zip(results, exact)]
    return {
        "ms": both,
        "forward ms": forward,
        "relative error": dict(zip(("output", "dmaps", "dweight"), errors)),
    }


def timed(call: Callable[[], list[Tensor]], device: torch.device) -> tuple[list[Tensor], Spread]:
    """What a call returns, and ms."""
    results, again = recorded(call) if device.type == "cuda" else (call(), call)
    return results, milliseconds(take_turns({"": Side(again, CALLS)}, 5, device)[""])


def forward_backward(
    convolve: Convolution, x: Tensor, weight: Tensor, upstream: Tensor
) -> list[Tensor]:
    """The output, and the gradients of x and of the weight."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = convolve(x, weight)
    return [y.detach(), *torch.autograd.grad(y, (x, weight), upstream)]


def forward_only(convolve: Convolution, x: Tensor, weight: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [convolve(x, weight)]


def recorded(call: Callable[[], list[Tensor]]) -> tuple[list[Tensor], Callable[[], object]]:
    """What a call returns, and a replay of its kernels."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    graph.replay()
    return [result.clone() for result in results], graph.replay  # they are the graph's memory
