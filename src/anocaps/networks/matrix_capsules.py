"""Matrix capsules with EM routing (Hinton, Sabour and Frosst 2018), the smaller of their networks.

image ─ 5×5, 64, stride 2, ReLU ─ 8 primary capsules a place ─ 3×3, 16, stride 2 ─ 3×3, 16 ─ classes

A capsule has a 4×4 pose and an activation. It votes for the pose of each capsule above. A vote is
its own pose times a learned 4×4 matrix. EM routing activates a capsule if the votes for it agree.

Differs from the original: the shares of a capsule sum to 1 over the capsules above at one place. In
the original they sum to 1 over all capsules above that see it, at every place. Primary capsules
have batch norm. The first convolution is padded. Each variance is increased by .01. A decoder
reconstructs the image. Images below 13 pixels get a smaller stride or kernel.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from anocaps.kernels import choose

POSE = 16  # numbers of a 4×4 pose
_MAPS, _PRIMARY = 64, 8
_ITERATIONS = 3
_LAMBDA = 0.01  # limit of the inverse temperature, which grows with each iteration
_NARROWEST = 0.01  # added to a variance, which is 0 for a capsule with a single vote
_SMALLEST = 1e-6


def em_routing(
    votes: Tensor, active: Tensor, cost: Tensor, threshold: Tensor
) -> tuple[Tensor, Tensor]:
    """Votes [N, I, J, 16] and activations [N, I] → poses [N, J, 16] and activations [N, J].

    This is procedure 1 of Hinton et al. `cost` and `threshold` [J] are their β_u and β_a.
    """
    votes = votes.transpose(1, 2).contiguous()  # [N, J, I, 16]
    share = torch.full_like(votes[..., 0], 1 / votes.shape[1])  # [N, J, I]
    mean, chance = votes[:, :, 0], active[:, :1]
    for step in range(_ITERATIONS):
        # M step: fit a Gaussian for each capsule above
        weight = (share * active[:, None])[..., None]  # [N, J, I, 1]
        taken = weight.sum(2)  # [N, J, 1]
        total = taken + _SMALLEST
        mean = (weight * votes).sum(2) / total  # [N, J, 16]
        square = (weight * votes.square()).sum(2) / total
        variance = (square - mean.square() * (2 - taken / total)).clamp(min=0) + _NARROWEST
        bits = (cost[:, None] + variance.log() / 2) * total
        inverse = _LAMBDA * (1 - 0.95 ** (step + 1))
        chance = torch.sigmoid(inverse * (threshold - bits.sum(2)))
        # E step: assign votes to capsules
        away = ((votes - mean[:, :, None]).square() / variance[:, :, None]).sum(3)  # [N, J, I]
        spread = (variance.log() + math.log(2 * math.pi)).sum(2)
        likely = -(away + spread[..., None]) / 2
        share = torch.softmax(likely + chance.clamp(min=_SMALLEST).log()[..., None], 1)
    return mean, chance


def votes_of(poses: Tensor, weight: Tensor) -> Tensor:
    """Poses [N, I, 4, 4] times matrices [I, J, 4, 4] → votes [N, I, J, 16]."""
    # I products [N·4, 4] × [4, J·4] are faster than N·I·J products of 4×4 matrices
    return torch.einsum("nimk,ijkl->nijml", poses, weight).flatten(3).float()


class CapsuleLayer(nn.Module):
    """Convolutional capsules: each sees a window of the capsules below."""

    def __init__(self, below: int, above: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride
        self.weight = nn.Parameter(torch.empty(kernel * kernel * below, above, 4, 4))
        nn.init.normal_(self.weight, std=0.5)  # votes are as large as poses
        self.cost = nn.Parameter(torch.zeros(above))
        self.threshold = nn.Parameter(torch.zeros(above))

    def forward(self, poses: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        """Poses [N, B, 16, H, W] and activations [N, B, H, W] → those of the capsules above."""
        count, below, _, height, width = poses.shape
        rows, columns = ((side - self.kernel) // self.stride + 1 for side in (height, width))

        def windows(maps: Tensor) -> Tensor:  # [N, X, H, W] → [N · places, X, kernel²]
            cut = functional.unfold(maps, self.kernel, stride=self.stride)
            cut = cut.view(count, -1, self.kernel**2, rows * columns)
            return cut.permute(0, 3, 1, 2).flatten(0, 1)

        seen = windows(poses.flatten(1, 2)).view(-1, below, POSE, self.kernel**2)
        seen = seen.transpose(2, 3).reshape(len(seen), -1, 4, 4)  # [P, I, 4, 4]
        found, chance = choose.fused(
            em_routing,
            votes_of(seen, self.weight),
            windows(active).flatten(1).float(),
            self.cost,
            self.threshold,
        )
        above = found.shape[1]
        found = found.view(count, rows, columns, above, POSE).permute(0, 3, 4, 1, 2)
        return found, chance.view(count, rows, columns, above).permute(0, 3, 1, 2)


class MatrixCapsNet(nn.Module):
    def __init__(
        self, channels: int, height: int, width: int, classes: int, capsules: int = 16
    ) -> None:
        super().__init__()
        self.image = channels, height, width
        self.register_buffer("trained", torch.zeros(()))  # finished share of training
        self.trained: Tensor
        self.conv = nn.Conv2d(channels, _MAPS, 5, stride=2, padding=2)
        self.poses = nn.Sequential(
            nn.Conv2d(_MAPS, _PRIMARY * POSE, 1), nn.BatchNorm2d(_PRIMARY * POSE)
        )
        self.active = nn.Sequential(nn.Conv2d(_MAPS, _PRIMARY, 1), nn.BatchNorm2d(_PRIMARY))
        side = (min(height, width) + 1) // 2
        stride = 2 if side >= 7 else 1  # images below 13 pixels have few places
        second = 3 if (side - 3) // stride >= 2 else 1
        self.layers = nn.ModuleList(
            [
                CapsuleLayer(_PRIMARY, capsules, 3, stride),
                CapsuleLayer(capsules, capsules, second, 1),
            ]
        )
        self.classes = CapsuleLayer(capsules, classes, 1, 1)
        self.decoder = nn.Sequential(
            nn.Linear(classes * POSE, 512), nn.ReLU(), nn.Linear(512, 1024), nn.ReLU(),
            nn.Linear(1024, channels * height * width), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, C, H, W] → class poses [N, J, 16] and activations [N, J]."""
        maps = torch.relu(self.conv(x))
        poses = self.poses(maps).unflatten(1, (_PRIMARY, POSE))
        active = torch.sigmoid(self.active(maps))
        for layer in self.layers:
            poses, active = layer(poses, active)
        return self._class_capsules(poses, active)

    def _class_capsules(self, poses: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        """All places share their matrices. Each vote adds the coordinates of its place."""
        count, below, _, rows, columns = poses.shape
        seen = poses.permute(0, 1, 3, 4, 2).reshape(count, -1, 4, 4)  # [N, B·H·W, 4, 4]
        weight = self.classes.weight.repeat_interleave(rows * columns, 0)
        down = torch.linspace(0, 1, rows, device=poses.device).repeat_interleave(columns)
        right = torch.linspace(0, 1, columns, device=poses.device).repeat(rows)
        place = torch.zeros(rows * columns, POSE, device=poses.device)
        place[:, 3], place[:, 7] = down, right  # the translation of an affine matrix
        votes = votes_of(seen, weight) + place.repeat(below, 1)[:, None]
        layer = self.classes
        return choose.fused(
            em_routing, votes, active.flatten(1).float(), layer.cost, layer.threshold
        )

    def decode(self, poses: Tensor, index: Tensor) -> Tensor:
        """Reconstruct each image from the pose of one class: [N, J, 16] → pixels [N, C, H, W]."""
        mask = functional.one_hot(index, poses.shape[1]).to(poses.dtype)[..., None]
        pixels: Tensor = self.decoder((poses * mask).flatten(1))
        return pixels.float().view(-1, *self.image)


def spread_loss(active: Tensor, labels: Tensor, margin: Tensor) -> Tensor:
    """Σ over wrong classes of max(0, margin − (a_true − a_wrong))², mean over the batch."""
    true = active.gather(1, labels[:, None])
    wrong = 1 - functional.one_hot(labels, active.shape[1]).to(active.dtype)
    misses = (margin - (true - active)).clamp(min=0).square() * wrong
    return misses.sum(1).mean()
