"""Claim: at a batch of 100 our bf16 kernel is the fastest way to take the primary convolution (9×9,
stride 2, 256 → 256 maps, 20×20 → 6×6) forward and backward on a GPU at bf16's accuracy. The table
proves it or not: the spectral form in bf16, TF32 and fp32, our direct kernel, and cuDNN.

Each way is recorded as a CUDA graph, so that times are the device's alone. Errors are relative to
the direct convolution in float64 of the same unrounded numbers: ‖x − y‖ / ‖y‖ of the output and of
both gradients. The input is positive, as after a ReLU: its mean is what a low precision loses first
in a transformed domain.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from kernel_checks import relative_error
from torch import Tensor
from torch.nn.functional import conv2d

from anocaps.fused_convolution import strided_conv
from anocaps.spectral import spectral_conv2d

STRIDE = 2
Convolution = Callable[[Tensor, Tensor], Tensor]
Clock = Callable[[Callable[[], None], int, int], dict]  # of a call: repeats, calls in each → ms


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
}


def compare(milliseconds: Clock, batch: int = 100) -> dict[str, object]:
    """A row for each way; one that does not run is told as such and stops no other."""
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int) -> Tensor:
        numbers = torch.randn(*shape, generator=generator, device="cuda")
        return numbers.contiguous(memory_format=torch.channels_last)

    x, weight = random(batch, 256, 20, 20).relu(), random(256, 256, 9, 9) / (256 * 81) ** 0.5
    upstream = random(batch, 256, 6, 6)
    exact = forward_backward(_direct, x.double(), weight.double(), upstream.double())
    rows: dict[str, object] = {}
    for name, way in WAYS.items():
        try:
            rows[name] = measured(way, x, weight, upstream, exact, milliseconds)
        except Exception as error:
            rows[name] = f"failed: {type(error).__name__}: {error}"[:500]
    return {"batch": batch, "ways": rows}


def measured(
    way: Way, x: Tensor, weight: Tensor, upstream: Tensor, exact: list[Tensor], milliseconds: Clock
) -> dict[str, object]:
    given = [tensor.to(way.dtype) for tensor in (x, weight, upstream)]
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = way.tf32
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=way.tf32):
            results, replay = recorded(lambda: forward_backward(way.convolve, *given))
            time = milliseconds(replay, 5, 20)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    errors = [float(f"{relative_error(got, want):.3g}") for got, want in zip(results, exact)]
    return {"ms": time, "relative error": dict(zip(("output", "dmaps", "dweight"), errors))}


def forward_backward(
    convolve: Convolution, x: Tensor, weight: Tensor, upstream: Tensor
) -> list[Tensor]:
    """The output, and the gradients of x and of the weight."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = convolve(x, weight)
    return [y.detach(), *torch.autograd.grad(y, (x, weight), upstream)]


def recorded(call: Callable[[], list[Tensor]]) -> tuple[list[Tensor], Callable[[], None]]:
    """What a call returns, and a replay of its kernels that fills it again."""
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
    return results, graph.replay
