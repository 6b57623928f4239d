"""The network of Deep SVDD (Ruff et al. 2018): a LeNet without biases, and its autoencoder.

image ─ 5×5 convolutions, each with batch norm without affine part, leaky ReLU, 2×2 maximum ─ code

A network with biases could map every image to one point. Grey images get the authors' network for
MNIST: 8 and 4 maps, a code of 32 numbers. Colour and stereo images get their network for CIFAR-10:
32, 64 and 128 maps, a code of 128 numbers.

Differs from the original: the decoder starts with a linear layer and has no batch norm. Batch norm
adds 1e-5 to the variance, not 1e-4. An image that is too small for the last pooling gets fewer
layers.
"""

from torch import Tensor, nn
from torch.nn import functional


class LeNet(nn.Module):
    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        maps, self.code = ([8, 4], 32) if channels == 1 else ([32, 64, 128], 128)
        while min(height, width) >> len(maps) < 1:  # too small for so much pooling
            maps = maps[1:]
        self.grid = height >> len(maps), width >> len(maps)
        self.image = channels, height, width
        self.encoder = nn.ModuleList(map(_convolution, [channels, *maps], maps))
        self.norms = nn.ModuleList(nn.BatchNorm2d(m, affine=False) for m in maps)
        self.project = nn.Linear(maps[-1] * self.grid[0] * self.grid[1], self.code, bias=False)
        # only for pretraining
        self.expand = nn.Linear(self.code, self.project.in_features, bias=False)
        self.decoder = nn.ModuleList(map(_convolution, maps[::-1], [*maps[-2::-1], channels]))

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → code [N, D]."""
        for convolution, norm in zip(self.encoder, self.norms):
            x = functional.max_pool2d(functional.leaky_relu(norm(convolution(x))), 2)
        code: Tensor = self.project(x.flatten(1))
        return code.float()

    def decode(self, code: Tensor) -> Tensor:
        """[N, D] → pixels in [0, 1], [N, C, H, W]."""
        x = self.expand(code).view(len(code), -1, *self.grid)
        for convolution in self.decoder:
            x = convolution(functional.interpolate(functional.leaky_relu(x), scale_factor=2))
        return functional.interpolate(x.float(), self.image[1:]).sigmoid()


def _convolution(into: int, out: int) -> nn.Conv2d:
    return nn.Conv2d(into, out, 5, padding=2, bias=False)
