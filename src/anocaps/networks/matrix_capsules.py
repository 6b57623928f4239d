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

    votes [I, N, P, 16, J], activations [I, N, P] → poses [N, P, 16, J], activations [N, P, J]
    """
    active = active[..., None]  # [I, N, P, 1]
    share = _share_of_place(torch.zeros_like(active), windows) / votes.shape[4]
    mean, variance, chance = _m_step(share * active, votes, cost, threshold, 1)
    for step in range(2, _ITERATIONS + 1):
        share = _e_step(votes, mean, variance, chance, windows)
        mean, variance, chance = _m_step(share * active, votes, cost, threshold, step)
    return mean, chance


def _m_step(
    weight: Tensor, votes: Tensor, cost: Tensor, threshold: Tensor, step: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Fit a Gaussian for each capsule above to its votes, weighted by share and activation.

    weights [I, N, P, J or 1], votes [I, N, P, 16, J] → mean and variance [N, P, 16, J], activation
    [N, P, J]
    """
    weight = weight[..., None, :]
    taken = weight.sum(0)  # [N, P, 1, J or 1]
    total = taken + _SMALLEST
    mean = (weight * votes).sum(0) / total
    square = (weight * votes.square()).sum(0) / total
    variance = (square - mean.square() * (2 - taken / total)).clamp(min=0) + _NARROWEST
    bits = (cost + variance.log() / 2) * total
    inverse = _LAMBDA * (1 - 0.95**step)
    return mean, variance, torch.sigmoid(inverse * (threshold - bits.sum(2)))


def _e_step(
    votes: Tensor, mean: Tensor, variance: Tensor, chance: Tensor, windows: Overlap | None
) -> Tensor:
    """The share [I, N, P, J] of each capsule above in a capsule below.

    The shares of a capsule below sum to 1 over the capsules above of all places that see it.
    """
    away = ((votes - mean).square() / variance).sum(3)  # [I, N, P, J]
    spread = (variance.log() + math.log(2 * math.pi)).sum(2) / 2  # [N, P, J]
    likely = chance.clamp(min=_SMALLEST).log() - spread - away / 2
    share = torch.softmax(likely, 3)  # among the capsules above at one place
    if windows is None:
        return share
    return share * _share_of_place(torch.logsumexp(likely, 3, keepdim=True), windows)


def _share_of_place(likely: Tensor, windows: Overlap | None) -> Tensor:
    """Softmax of log-likelihoods [I, N, P, 1] over the places that see the same capsule below."""
    if windows is None:
        return torch.ones_like(likely)
    seen, position = windows
    likely = likely.transpose(0, 1)  # [N, I, P, 1]
    every = functional.pad(likely.flatten(1), (0, 1), value=_NOWHERE)  # [N, I·P + 1]
    shares = torch.softmax(every[:, seen], 2)  # [N, capsules below, their places]
    return shares.flatten(1)[:, position].view_as(likely).transpose(0, 1)


def overlap(below: int, height: int, width: int, kernel: int, stride: int) -> Overlap:
    """Which windows see the same capsule, for capsules below [B, H, W].

    P windows see I capsules each, I·P in all, numbered from 0. A capsule in several windows has
    several numbers, but at most M.
    seen [B·H·W, M]: the numbers of each capsule below. I·P fills the rest.
    position [I·P]: where each number is in seen.flatten().
    """
    index = torch.arange(below * height * width).view(1, below, height, width)
    child = cut(index, kernel, stride).flatten()  # [I·P]
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
    """Windows of maps: [..., H, W] → [..., kernel, kernel, rows, columns]. It copies nothing."""
    return maps.unfold(-2, kernel, stride).unfold(-2, kernel, stride).movedim((-2, -1), (-4, -3))


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

    def votes(self, poses: Tensor) -> Tensor:
        """Poses [I, N, P, 16] → votes [I, N, P, 16, J].

        If there are more poses than matrices, neighbours share a matrix.
        """
        # one batched product writes each vote once, in the order in which routing adds them
        matrices = self.weight.repeat_interleave(len(poses) // len(self.weight), 0)
        matrices = matrices.permute(0, 2, 3, 1).flatten(2)  # [I, 4, 4·J]
        votes = torch.bmm(poses.reshape(len(poses), -1, 4), matrices)  # [I, N·P·4, 4·J]
        return _wide(votes).view(*poses.shape, -1)

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
        poses = cut(poses, self.kernel, self.stride)  # [N, B, 16, kernel, kernel, rows, columns]
        poses = poses.permute(1, 3, 4, 0, 5, 6, 2)  # [B, kernel, kernel, N, rows, columns, 16]
        seen = cut(active, self.kernel, self.stride).permute(1, 2, 3, 0, 4, 5)  # without the 16
        found, chance = self.route(
            self.votes(poses.flatten(0, 2).flatten(2, 3)),  # of I = B·kernel² and P = rows·columns
            seen.flatten(0, 2).flatten(2),
            (self.seen, self.position),
        )
        places = len(active), -1, self.rows, self.columns
        found = found.permute(0, 3, 2, 1).reshape(*places[:2], POSE, *places[2:])
        return found, chance.transpose(1, 2).reshape(places)


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
        down = torch.linspace(0, 1, rows, device=poses.device).repeat_interleave(columns)
        right = torch.linspace(0, 1, columns, device=poses.device).repeat(rows)
        place = torch.zeros(rows * columns, POSE, device=poses.device)
        place[:, 3], place[:, 7] = down, right  # the translation of an affine matrix
        votes = self.classes.votes(poses.permute(1, 3, 4, 0, 2).flatten(0, 2)[:, :, None])
        found, chance = self.classes.route(
            votes + place.repeat(below, 1)[:, None, None, :, None],
            active.permute(1, 2, 3, 0).flatten(0, 2)[..., None],
        )
        return found[:, 0].transpose(1, 2), chance[:, 0]

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
