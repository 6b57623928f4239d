"""One kernel makes the next training batch on a GPU: gather, crop, scale to [0, 1].

It computes the same as `Preprocessing.windows`. The order of the images and the position in it lie
on the device, so that a CUDA graph can record the kernel.
"""

import torch
from torch import Tensor

from anocaps.kernels.triton.support import jit, tl, triton

NUMBERS = 1024  # per program


@jit
def _take(cursor, order, offsets, images, labels, pixels, taken, HEIGHT: tl.constexpr,
          WIDTH: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
          WHITE: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """B numbers of image `program_id(0)` of the batch; images [·, HEIGHT, WIDTH, C] are padded."""
    n = tl.program_id(0)
    place = tl.load(cursor) + n
    index = tl.load(order + place)
    top, left = tl.load(offsets + 2 * place), tl.load(offsets + 2 * place + 1)
    i = tl.program_id(1) * B + tl.arange(0, B)  # (channel, row, column) of the window
    inside = i < C * ROWS * COLUMNS
    row, column = top + i % (ROWS * COLUMNS) // COLUMNS, left + i % COLUMNS
    at = ((index * HEIGHT + row) * WIDTH + column) * C + i // (ROWS * COLUMNS)
    value = tl.load(images + at, mask=inside, other=0).to(tl.float32)
    tl.store(pixels + n * (C * ROWS * COLUMNS) + i, tl.div_rn(value, WHITE), mask=inside)
    if tl.program_id(1) == 0:
        tl.store(taken + n, tl.load(labels + index))


def take(
    images: Tensor,
    labels: Tensor,
    order: Tensor,
    offsets: Tensor,
    cursor: Tensor,
    batch: int,
    window: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """The images order[cursor : cursor + batch], cropped at their offsets, and their labels.

    images [N, H, W, C] padded, uint8 or float32; offsets [·, 2], one per entry of order [·]; cursor
    is on the device → pixels float32 in [0, 1], [batch, C, *window], and labels [batch].
    """
    _, height, width, channels = images.shape
    rows, columns = window
    pixels = images.new_empty((batch, channels, rows, columns), dtype=torch.float32)
    taken = labels.new_empty(batch)
    with torch.cuda.device_of(images):
        _take[(batch, triton.cdiv(pixels[0].numel(), NUMBERS))](
            cursor, order, offsets, images, labels, pixels, taken, HEIGHT=height, WIDTH=width,
            C=channels, ROWS=rows, COLUMNS=columns,
            WHITE=255.0 if images.dtype == torch.uint8 else 1.0, B=NUMBERS,
        )  # fmt: skip
    return pixels, taken
