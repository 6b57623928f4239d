"""How images pass through a trained network: in batches, in fp32, the same everywhere.

Memory holds one batch, whatever the number of images. TF32 and autocast are off unless another
precision is asked for by name, so that a score is one number on every device.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from anocaps.preprocessing import stored_dtype
from anocaps.training import Precision

_BATCH = {"cpu": 256, "cuda": 2048}


def batches(images: NDArray[Any], device: torch.device) -> Iterator[Tensor]:
    """Images N×H×W×C, batch by batch, on the device."""
    size = _BATCH.get(device.type, 256)
    for start in range(0, len(images), size):
        batch = np.array(images[start : start + size], dtype=stored_dtype(images), order="C")
        yield torch.from_numpy(batch).to(device)


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
        stack.enter_context(
            torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
        )
        yield


def pictures(redrawn: Iterable[Tensor], given: ArrayLike) -> NDArray[np.float32]:
    """Batches of redrawn pixels [B, C, h, w] → N×h×w×C, without C where `given` has none."""
    whole = np.concatenate([r.permute(0, 2, 3, 1).float().cpu().numpy() for r in redrawn])
    return whole[..., 0] if np.ndim(given) == 3 else whole
