"""A 2-D convolution without padding, in the form that `kernels.choose` picks for its shape."""

from collections.abc import Callable
from typing import Any, Self

from torch import Tensor, nn

from anocaps.kernels import choose


class Convolution(nn.Conv2d):
    """As nn.Conv2d, for maps of a known height and width."""

    bias: Tensor  # never None

    def __init__(
        self, channels: int, maps: int, kernel: int, stride: int, height: int, width: int
    ) -> None:
        super().__init__(channels, maps, kernel, stride)
        self.form = choose.convolution_form(channels, maps, kernel, stride, height, width)
        self._memory: dict[str, Any] = {}  # the transformed weight, for scoring

    def train(self, mode: bool = True) -> Self:
        """Clear the memory: training may change the weight without a new version number."""
        self._memory.clear()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Clear the memory: device, precision or memory format may change."""
        self._memory.clear()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → [N, maps, h, w]."""
        memory = None if self.training else self._memory
        return choose.convolution(self.form, x, self.weight, self.bias, self.stride[0], memory)
