"""The margin loss of Sabour, Frosst and Hinton (2017)."""

import torch
from torch import Tensor


def margin_loss(
    capsule_lengths: Tensor,
    labels: Tensor,
    upper: float = 0.9,
    lower: float = 0.1,
    down: float = 0.5,
) -> Tensor:
    """Σ_c of equation L_c, averaged over the images: lengths [N, J], labels [N] → scalar."""
    present = torch.nn.functional.one_hot(labels, capsule_lengths.shape[1])
    too_short = (upper - capsule_lengths).clamp(min=0).square()
    too_long = (capsule_lengths - lower).clamp(min=0).square()
    return (present * too_short + down * (1 - present) * too_long).sum(1).mean()
