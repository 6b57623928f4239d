"""Pass images through a trained network in batches, in fp32.

Memory holds one batch of images. TF32 and autocast are off, so that an image gets the same score on
every device. Only precision "bf16" turns autocast on.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anocaps.training.device import Precision
from anocaps.training.memory import in_parts
from anocaps.training.preprocessing import Images, stored_dtype

T = TypeVar("T")

_BATCH = {"cpu": 256, "cuda": 4096}


def in_batches(
    images: Images, device: torch.device, work: Callable[[Tensor], T], size: int | None = None
) -> Iterator[T]:
    """The results of `work` on batches [B, H, W, C] on the device, of at most `size` images.

    A batch that does not fit into memory is halved. Scores do not depend on the batch.
    """

    def on_device(part: slice) -> T:
        batch = torch.from_numpy(np.array(images[part], dtype=stored_dtype(images), order="C"))
        if device.type == "cuda":  # copied in the background
            batch = batch.pin_memory()
        return work(batch.to(device, non_blocking=True))

    return in_parts(
        len(images), size or _BATCH[device.type], on_device, whole="batch", thing="image"
    )


def gathered(batches: Iterable[Mapping[str, Tensor]], count: int) -> dict[str, NDArray[Any]]:
    """Join the named values [B, …] of batches: [count, …], floats as float64, pixels as float32.

    Each batch is copied into one buffer. Many small tensors would fragment the memory.
    """
    whole: dict[str, Tensor] = {}
    done = 0
    for batch in batches:
        size = 0
        for name, values in batch.items():
            if name not in whole:
                whole[name] = torch.empty(
                    (count, *values.shape[1:]), dtype=values.dtype, device=values.device
                )
            size = len(values)
            whole[name][done : done + size] = values
        done += size
    return {name: _widened(values.cpu()).numpy() for name, values in whole.items()}


def _widened(values: Tensor) -> Tensor:
    if not values.is_floating_point():
        return values
    return values.float() if values.ndim == 4 else values.double()  # pixels are [B, h, w, C]


@contextmanager
def inference(device: torch.device, precision: Precision = "fp32") -> Iterator[None]:
    """Inference mode without TF32, in the given precision."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        if device.type == "cuda":
            stack.enter_context(torch.backends.cudnn.flags(enabled=True, allow_tf32=False))
            allowed = torch.backends.cuda.matmul.allow_tf32
            torch.backends.cuda.matmul.allow_tf32 = False
            stack.callback(setattr, torch.backends.cuda.matmul, "allow_tf32", allowed)
        stack.enter_context(
            torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
        )
        yield
