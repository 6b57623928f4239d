"""The steps between the pixels of a dataset and a network. Every model stores them.

An image is padded by `shift` pixels. The network sees a window of it: a random one in training, the
central one otherwise. This covers random shifts (window = image) and the paper's setting for
Small-NORB (window = 32×32 crop). The code of Sabour et al. also draws random brightness and
contrast. We leave this out, because the standardisation that follows undoes it.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anocaps.base.errors import InputError
from anocaps.base.rows import RowsOnDisk

Padding = Literal["black", "edge"]

_PART = 1024  # images padded at once


@dataclass(frozen=True)
class Preprocessing:
    height: int  # of the images that a user gives
    width: int
    channels: int
    crop: int | None = None  # side of the window; None: the whole image
    shift: int = 0  # largest random shift in training, in pixels
    standardize: bool = False  # encoder input to mean 0, variance 1 per image
    padding: Padding = "black"  # around a shifted image: black, or repeated edge pixels

    def __post_init__(self) -> None:
        if not isinstance(self.shift, int | np.integer) or self.shift < 0:
            raise InputError(f"shift must be 0 or more whole pixels, not {self.shift!r}")
        if self.padding not in get_args(Padding):
            raise InputError(
                f"padding must be one of {', '.join(get_args(Padding))}, not {self.padding!r}"
            )
        if self.crop is not None and not 0 < self.crop <= min(self.height, self.width):
            raise InputError(
                f"crop={self.crop} does not fit into {self.height}×{self.width} images: reduce it"
            )

    @property
    def window(self) -> tuple[int, int]:
        """Height and width of the part that the network sees."""
        return (self.crop, self.crop) if self.crop else (self.height, self.width)

    @property
    def spare(self) -> tuple[int, int]:
        """How many pixels the window can move down and right in the padded image."""
        height, width = self.window
        return self.height + 2 * self.shift - height, self.width + 2 * self.shift - width

    def padded(self, images: "Images", device: torch.device, digest: "hashlib._Hash") -> Tensor:
        """N×H×W×C → padded images [N, H + 2·shift, W + 2·shift, C] on the device.

        Images are copied in parts to save memory. The digest hashes the unpadded images.
        """
        whole = torch.empty(0)
        for start in range(0, len(images), _PART):
            part = np.ascontiguousarray(images[start : start + _PART])
            digest.update(part.data)
            padded = self.pad(torch.from_numpy(part).to(device))
            if start == 0:
                whole = padded.new_empty((len(images), *padded.shape[1:]))
            whole[start : start + _PART] = padded
        return whole

    def pad(self, images: Tensor) -> Tensor:
        """[N, H, W, C] → [N, H + 2·shift, W + 2·shift, C]."""
        if self.shift == 0:
            return images
        if self.padding == "edge":
            rows, columns = (  # torch cannot pad uint8 in this way
                torch.arange(-self.shift, side + self.shift).clamp(0, side - 1).to(images.device)
                for side in (self.height, self.width)
            )
            return images[:, rows[:, None], columns]
        around = (0, 0, self.shift, self.shift, self.shift, self.shift)
        return torch.nn.functional.pad(images, around)

    def draw_offsets(self, generator: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Random window positions [count, 2] for training."""
        down, right = self.spare
        if down == right == 0:  # do not advance the generator
            return np.zeros((count, 2), dtype=np.int64)
        return generator.integers(0, (down + 1, right + 1), size=(count, 2))

    def windows(self, padded: Tensor, index: Tensor, offsets: Tensor) -> Tensor:
        """Crop images `index` [B] at `offsets` [B, 2] → pixels in [0, 1], [B, C, h, w]."""
        height, width = self.window
        if self.spare == (0, 0):
            cut = padded[index]
        else:
            rows = offsets[:, :1] + torch.arange(height, device=offsets.device)
            columns = offsets[:, 1:] + torch.arange(width, device=offsets.device)
            cut = padded[index[:, None, None], rows[:, :, None], columns[:, None, :]]
        return _unit(cut)

    def central(self, images: Tensor) -> Tensor:
        """[N, H, W, C] → the central window as pixels in [0, 1], [N, C, h, w]."""
        height, width = self.window
        top, left = (self.height - height) // 2, (self.width - width) // 2
        return _unit(images[:, top : top + height, left : left + width])

    def encoder_input(self, pixels: Tensor) -> Tensor:
        """Pixels [N, C, h, w] → input of the encoder. The decoder reconstructs the pixels."""
        if not self.standardize:
            return pixels
        flat = pixels.flatten(1)
        count = flat.shape[1]
        spread = flat.std(1, correction=0).clamp(min=count**-0.5)
        return (pixels - flat.mean(1)[:, None, None, None]) / spread[:, None, None, None]


def _unit(images: Tensor) -> Tensor:
    """[N, h, w, C] uint8 or float32 → float32 in [0, 1], [N, C, h, w]."""
    # always the same layout, because the rounding of a convolution depends on it
    pixels = images.permute(0, 3, 1, 2).to(
        torch.float32, copy=True, memory_format=torch.contiguous_format
    )
    return pixels.div_(255) if images.dtype == torch.uint8 else pixels


def stored_dtype(images: "Images") -> type[np.uint8] | type[np.float32]:
    """The type of images on the device: uint8, or float32 for any float."""
    return np.uint8 if images.dtype == np.uint8 else np.float32


class Chosen:
    """The images `index` of N×H×W×C. They are copied in parts to save memory."""

    def __init__(self, images: "Images", index: NDArray[np.int64]) -> None:
        self._images, self._index = images, index
        self.shape: tuple[int, ...] = (len(index), *images.shape[1:])
        self.dtype: np.dtype[Any] = np.dtype(stored_dtype(images))

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, part: slice | NDArray[np.int64]) -> NDArray[Any]:
        """A copy of a part, uint8 or float32."""
        return np.ascontiguousarray(self._images[self._index[part]], dtype=self.dtype)


Images: TypeAlias = NDArray[Any] | RowsOnDisk | Chosen


def as_images(images: object) -> NDArray[Any]:
    """Check an array of images: N×H×W or N×H×W×C, uint8 or float in [0, 1] → N×H×W×C.

    Only booleans are copied: they become 0 and 255.
    """
    try:
        array = np.asarray(images)
    except ValueError as error:
        raise InputError(f"images: all images must have the same size ({error})") from error
    if array.dtype == bool:
        array = array.astype(np.uint8) * 255
    if array.ndim not in (3, 4):
        raise InputError(f"images: expected N×H×W or N×H×W×C, got shape {array.shape}")
    if len(array) == 0:
        raise InputError("images: the array is empty; give at least one image")
    if 0 in array.shape:
        raise InputError(f"images: the images have no pixels, shape {array.shape}")
    if array.ndim == 3:
        array = array[..., None]
    elif array.shape[1] <= 4 < min(array.shape[2:]):
        raise InputError(
            f"images: shape {array.shape} has channels first; move channels last: "
            "np.moveaxis(X, 1, -1)"
        )
    if array.dtype != np.uint8:
        _check_unit_floats(array)
    return array


def _check_unit_floats(array: NDArray[Any]) -> None:
    if array.dtype.kind != "f":
        raise InputError(
            f"images: expected uint8 or float in [0, 1], got {array.dtype}; "
            "scale other integers to 0…255 and convert them to uint8"
        )
    low, high = array.min((1, 2, 3)), array.max((1, 2, 3))
    for wrong, what in (
        (~(np.isfinite(low) & np.isfinite(high)), "a pixel that is not a finite number"),
        ((low < 0) | (high > 1), "a pixel outside [0, 1]: divide by 255, or pass uint8"),
    ):
        if wrong.any():
            raise InputError(f"images: image {int(np.argmax(wrong))} has {what}")
