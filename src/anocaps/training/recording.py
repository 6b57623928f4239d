"""Repeat the same work on a GPU without the cost of launching each of its kernels."""

from collections.abc import Callable

import torch


def repeat(step: Callable[[], None], times: int, device: torch.device) -> None:
    """Call `step` so many times. It must change its tensors in place.

    On a GPU, the step is recorded once as a CUDA graph and then replayed.
    """
    if device.type != "cuda":
        for _ in range(times):
            step()
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()  # the first call may allocate, which a recording must not
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()  # recorded, not run
    for _ in range(times - 1):
        graph.replay()
    torch.cuda.synchronize(device)  # the recording's memory is freed on return
