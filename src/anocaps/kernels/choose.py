"""Which form of an operation runs, where and why. Networks and detectors ask here alone."""

import torch
from torch import Tensor

from anocaps.capsules import routing
from anocaps.kernels import routing as fused_routing


def route(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    gradient: routing.Gradient = "all",
) -> Tensor:
    """Routing by agreement [N, I, D] → [N, J, E]: Triton on a GPU, in TF32 under autocast."""
    if fused_routing.available(u, weight):
        reduced = torch.is_autocast_enabled(u.device.type)
        return fused_routing.fused_route(
            u, weight, bias, iterations, gradient, "tf32" if reduced else "fp32"
        )
    return routing.route(u, weight, bias, iterations, gradient)
