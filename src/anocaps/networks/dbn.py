"""A deep belief network (Hinton, Osindero and Teh 2006): a stack of restricted Boltzmann machines.

image in [0, 1] ─ 500 ─ 500 ─ 500, then down again with the same weights

All units are Bernoulli variables. Each machine is trained on the output of the one below it.
"""

import math
from typing import cast

import torch
from torch import Tensor, nn

HIDDEN = (500, 500, 500)
_STEPS = 1000  # of annealed importance sampling


class RBM(nn.Module):
    def __init__(self, visible: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden, visible))
        nn.init.normal_(self.weight, std=0.01)
        self.hidden_bias = nn.Parameter(torch.zeros(hidden))
        self.visible_bias = nn.Parameter(torch.zeros(visible))

    def up(self, visible: Tensor) -> Tensor:
        """Probabilities of the hidden units, [N, V] → [N, H]."""
        return torch.sigmoid(self._field(visible))

    def down(self, hidden: Tensor) -> Tensor:
        """Probabilities of the visible units, [N, H] → [N, V]."""
        field = nn.functional.linear(hidden, self.weight.t(), self.visible_bias)
        return torch.sigmoid(field.float())

    def free_energy(self, visible: Tensor) -> Tensor:
        """−log Σ_h exp(−E(v, h)), [N, V] → [N]."""
        of_visible: Tensor = (visible * self.visible_bias).sum(1)
        return -of_visible - nn.functional.softplus(self._field(visible)).sum(1)

    def _field(self, visible: Tensor) -> Tensor:
        """The input of the hidden units: float64 for float64, otherwise float32."""
        if visible.dtype == torch.float64:
            weight, bias = self.weight.double(), self.hidden_bias.double()
            return nn.functional.linear(visible, weight, bias)
        return nn.functional.linear(visible, self.weight, self.hidden_bias).float()


class DBN(nn.Module):
    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        widths = (channels * height * width, *HIDDEN)
        self.layers = nn.ModuleList(map(RBM, widths, HIDDEN))

    @property
    def rbms(self) -> list[RBM]:
        """The machines, from the pixels upwards."""
        return [cast(RBM, layer) for layer in self.layers]

    def up(self, x: Tensor, layers: int) -> Tensor:
        """Mean-field pass up through the lowest `layers`: [N, C, H, W] → [N, units]."""
        units = x.flatten(1)
        for layer in self.rbms[:layers]:
            units = layer.up(units)
        return units

    def forward(self, x: Tensor) -> Tensor:
        """Mean-field pass up and down through all layers → pixels [N, C, H, W] in [0, 1]."""
        units = self.up(x, len(HIDDEN))
        for layer in reversed(self.rbms):
            units = layer.down(units)
        return units.view_as(x)


def log_partition(machine: RBM, seed: int, chains: int = 20) -> float:
    """log Σ exp(−E(v, h)) of a machine, by annealed importance sampling.

    The method is by Salakhutdinov and Murray (2008). Chains run from a machine without weights,
    whose sum is known, to this one. A factor that grows from 0 to 1 scales weights and hidden
    biases.
    """
    device = machine.weight.device
    noise = torch.Generator(device).manual_seed(seed)
    weight, hidden, visible = machine.weight, machine.hidden_bias, machine.visible_bias

    def field(units: Tensor) -> Tensor:
        return nn.functional.linear(units, weight, hidden)  # [chains, H]

    units = torch.bernoulli(torch.sigmoid(visible).expand(chains, -1), generator=noise)
    logs = torch.zeros(chains, dtype=torch.float64, device=device)
    softplus = nn.functional.softplus
    for step in range(_STEPS):
        before, after = step / _STEPS, (step + 1) / _STEPS
        given = field(units)
        logs += (softplus(after * given) - softplus(before * given)).double().sum(1)
        states = torch.bernoulli(torch.sigmoid(after * given), generator=noise)
        back = nn.functional.linear(states, weight.t())  # [chains, V]
        units = torch.bernoulli(torch.sigmoid(after * back + visible), generator=noise)
    start = len(hidden) * math.log(2) + float(softplus(visible).sum())
    return start + float(torch.logsumexp(logs, 0)) - math.log(chains)
