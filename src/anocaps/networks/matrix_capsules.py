"""Matrix capsules with EM routing (Hinton, Sabour and Frosst 2018), the smaller of their networks.

image ─ 5×5, 64, stride 2, ReLU ─ 8 primary capsules a place ─ 3×3, 16, stride 2 ─ 3×3, 16 ─ classes

A capsule has a 4×4 pose and an activation. It votes for the pose of each capsule above. A vote is
its own pose times a learned 4×4 matrix. EM routing activates a capsule if the votes for it agree.
Windows overlap: all capsules above that see a capsule compete for it, also those of other places.

Differs from the original: each variance is increased by .01. Primary capsules have batch norm. The
first convolution is padded. A decoder reconstructs the image. Images below 13 pixels get a smaller
stride or kernel.
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
_NOWHERE = -1e30  # log-likelihood at a place that does not exist

Overlap = tuple[Tensor, Tensor]  # as `overlap` returns it


# ── EM routing ───────────────────────────────────────────────────────────────────────────────


def em_routing(
    votes: Tensor,
    active: Tensor,
    cost: Tensor,
    threshold: Tensor,
    windows: Overlap | None = None,
) -> tuple[Tensor, Tensor]:
    """Procedure 1 of Hinton et al. `cost` and `threshold` [J] are their β_u and β_a.

    At each of P places, J capsules above see I capsules below. `windows` is what `overlap` returns:
    which of the latter are the same capsule, seen from several places. None: no two are.

    votes [N, P, I, J, 16], activations [N, P, I] → poses [N, P, J, 16], activations [N, P, J]
    """
    votes = votes.transpose(2, 3).contiguous()  # [N, P, J, I, 16]
    active = active[:, :, None]  # [N, P, 1, I]
    share = _share_of_place(torch.zeros_like(active), windows) / votes.shape[2]
    mean, variance, chance = _m_step(share * active, votes, cost, threshold, 1)
    for step in range(2, _ITERATIONS + 1):
        share = _e_step(votes, mean, variance, chance, windows)
        mean, variance, chance = _m_step(share * active, votes, cost, threshold, step)
    return mean, chance


def _m_step(
    weight: Tensor, votes: Tensor, cost: Tensor, threshold: Tensor, step: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Fit a Gaussian for each capsule above to its votes, weighted by share and activation.

    weights [N, P, J or 1, I], votes [N, P, J, I, 16] → mean and variance [N, P, J, 16], activation
    [N, P, J]
    """
    weight = weight[..., None]
    taken = weight.sum(3)  # [N, P, J or 1, 1]
    total = taken + _SMALLEST
    mean = (weight * votes).sum(3) / total
    square = (weight * votes.square()).sum(3) / total
    variance = (square - mean.square() * (2 - taken / total)).clamp(min=0) + _NARROWEST
    bits = (cost[:, None] + variance.log() / 2) * total
    inverse = _LAMBDA * (1 - 0.95**step)
    return mean, variance, torch.sigmoid(inverse * (threshold - bits.sum(3)))


def _e_step(
    votes: Tensor, mean: Tensor, variance: Tensor, chance: Tensor, windows: Overlap | None
) -> Tensor:
    """The share [N, P, J, I] of each capsule above in a capsule below.

    The shares of a capsule below sum to 1 over all capsules above that see it, at every place.
    """
    away = ((votes - mean[..., None, :]).square() / variance[..., None, :]).sum(4)  # [N, P, J, I]
    spread = (variance.log() + math.log(2 * math.pi)).sum(3) / 2  # [N, P, J]
    likely = (chance.clamp(min=_SMALLEST).log() - spread)[..., None] - away / 2
    share = torch.softmax(likely, 2)  # among the capsules above at one place
    if windows is None:
        return share
    return share * _share_of_place(torch.logsumexp(likely, 2, keepdim=True), windows)


def _share_of_place(likely: Tensor, windows: Overlap | None) -> Tensor:
    """Softmax of log-likelihoods [N, P, 1, I] over the places that see the same capsule below."""
    if windows is None:
        return torch.ones_like(likely)
    seen, position = windows
    every = functional.pad(likely.flatten(1), (0, 1), value=_NOWHERE)  # [N, P·I + 1]
    shares = torch.softmax(every[:, seen], 2)  # [N, capsules below, their places]
    return shares.flatten(1)[:, position].view_as(likely)


def overlap(below: int, height: int, width: int, kernel: int, stride: int) -> Overlap:
    """Which windows see the same capsule, for capsules below [B, H, W].

    P windows see I capsules each, P·I in all, numbered from 0. A capsule in several windows has
    several numbers, but at most M.
    seen [B·H·W, M]: the numbers of each capsule below. P·I fills the rest.
    position [P·I]: where each number is in seen.flatten().
    """
    index = torch.arange(below * height * width, dtype=torch.float64).view(1, below, height, -1)
    child = cut(index, kernel, stride).long().flatten()  # [P·I]
    order = child.argsort(stable=True)  # numbers of one capsule are neighbours
    found = child[order]
    rank = torch.arange(len(child)) - torch.searchsorted(found, found)
    most = math.ceil(kernel / stride) ** 2
    seen = torch.full((index.numel(), most), len(child))
    seen[found, rank] = order
    position = torch.empty_like(order)
    position[order] = found * most + rank
    return seen, position


def cut(maps: Tensor, kernel: int, stride: int) -> Tensor:
    """Windows of maps: [N, X, H, W] → [N, P, X, kernel²]."""
    windows = functional.unfold(maps, kernel, stride=stride)  # [N, X·kernel², P]
    return windows.view(*maps.shape[:2], kernel**2, -1).permute(0, 3, 1, 2)


def votes_of(poses: Tensor, weight: Tensor) -> Tensor:
    """Poses [N, P, I, 4, 4] times matrices [I, J, 4, 4] → votes [N, P, I, J, 16]."""
    # I products [N·P·4, 4] × [4, J·4] are faster than N·P·I·J products of 4×4 matrices
    return _wide(torch.einsum("npimk,ijkl->npijml", poses, weight).flatten(4))


def _wide(x: Tensor) -> Tensor:
    """At least fp32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# ── layers ───────────────────────────────────────────────────────────────────────────────────


class Capsules(nn.Module):
    """What J capsules above learn of I capsules below."""

    def __init__(self, below: int, above: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(below, above, 4, 4))
        nn.init.normal_(self.weight, std=0.5)  # votes are as large as poses
        self.cost = nn.Parameter(torch.zeros(above))
        self.threshold = nn.Parameter(torch.zeros(above))

    def route(
        self, votes: Tensor, active: Tensor, windows: Overlap | None = None
    ) -> tuple[Tensor, Tensor]:
        return choose.fused(em_routing, votes, _wide(active), self.cost, self.threshold, windows)


class CapsuleLayer(Capsules):
    """Convolutional capsules: each sees a window of the capsules below, [B, H, W]."""

    def __init__(
        self, below: int, above: int, kernel: int, stride: int, height: int, width: int
    ) -> None:
        super().__init__(below * kernel**2, above)
        self.kernel, self.stride = kernel, stride
        self.rows, self.columns = ((x - kernel) // stride + 1 for x in (height, width))
        for name, index in zip(("seen", "position"), overlap(below, height, width, kernel, stride)):
            self.register_buffer(name, index, persistent=False)
        self.seen: Tensor
        self.position: Tensor

    def forward(self, poses: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        """Poses [N, B, 16, H, W] and activations [N, B, H, W] → those of the capsules above."""
        count, below = active.shape[:2]
        seen = cut(poses.flatten(1, 2), self.kernel, self.stride)  # [N, P, B·16, kernel²]
        seen = seen.reshape(count, -1, below, POSE, self.kernel**2).transpose(3, 4)
        found, chance = self.route(
            votes_of(seen.reshape(count, seen.shape[1], -1, 4, 4), self.weight),
            cut(active, self.kernel, self.stride).flatten(2),
            (self.seen, self.position),
        )
        places = count, self.rows, self.columns, -1
        found = found.reshape(*places, POSE).permute(0, 3, 4, 1, 2)
        return found, chance.reshape(places).permute(0, 3, 1, 2)


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
        height, width = (height + 1) // 2, (width + 1) // 2
        side = min(height, width)
        stride = 2 if side >= 7 else 1  # images below 13 pixels have few places
        second = 3 if (side - 3) // stride >= 2 else 1
        first = CapsuleLayer(_PRIMARY, capsules, 3, stride, height, width)
        layer = CapsuleLayer(capsules, capsules, second, 1, first.rows, first.columns)
        self.layers = nn.ModuleList([first, layer])
        self.classes = Capsules(capsules, classes)
        self.decoder = nn.Sequential(
            nn.Linear(classes * POSE, 512), nn.ReLU(), nn.Linear(512, 1024), nn.ReLU(),
            nn.Linear(1024, math.prod(self.image)), nn.Sigmoid(),
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
        """All places share their matrices. Each vote adds the coordinates of its place, 0 to 1."""
        below, _, rows, columns = poses.shape[1:]
        seen = poses.permute(0, 1, 3, 4, 2).reshape(len(poses), 1, -1, 4, 4)  # [N, 1, B·H·W, 4, 4]
        weight = self.classes.weight.repeat_interleave(rows * columns, 0)
        down = torch.linspace(0, 1, rows, device=poses.device).repeat_interleave(columns)
        right = torch.linspace(0, 1, columns, device=poses.device).repeat(rows)
        place = torch.zeros(rows * columns, POSE, device=poses.device)
        place[:, 3], place[:, 7] = down, right  # the translation of an affine matrix
        votes = votes_of(seen, weight) + place.repeat(below, 1)[:, None]
        found, chance = self.classes.route(votes, active.flatten(1)[:, None])
        return found[:, 0], chance[:, 0]

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
