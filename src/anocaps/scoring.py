"""How images pass through a trained network: in batches, in fp32, the same everywhere.

Memory holds one batch, whatever the number of images. TF32 and autocast are off unless another
precision is asked for by name, so that a score is one number on every device.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from anocaps.training import Precision

_BATCH = {"cpu": 256, "cuda": 2048}


def batches(images: NDArray[Any], device: torch.device) -> Iterator[Tensor]:
    """Images N×H×W×C, batch by batch, on the device."""
    size = _BATCH.get(device.type, 256)
    for start in range(0, len(images), size):
        yield torch.from_numpy(images[start : start + size]).to(device)


@contextmanager
def exact(device: torch.device, precision: Precision = "fp32") -> Iterator[None]:
    """Inference with no rounding but that of `precision`."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        if device.type == "cuda":
            stack.enter_context(torch.backends.cudnn.flags(enabled=True, allow_tf32=False))
            allowed = torch.backends.cuda.matmul.allow_tf32
            torch.backends.cuda.matmul.allow_tf32 = False
            stack.callback(setattr, torch.backends.cuda.matmul, "allow_tf32", allowed)
        if precision == "bf16":
            stack.enter_context(torch.autocast(device.type, torch.bfloat16))
        yield
