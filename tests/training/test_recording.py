"""Repeated steps give what a plain loop gives, also as a CUDA graph."""

import pytest
import torch

from anocaps.training.recording import repeat

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("times", [1, 2, 7])
def test_each_step_starts_where_the_last_one_ended(device, times):
    value = torch.ones(3, device=device)
    sums = torch.zeros(3, device=device)

    def step():
        sums.add_(value)
        value.mul_(2)

    repeat(step, times, torch.device(device))
    assert value.tolist() == [2.0**times] * 3
    assert sums.tolist() == [2.0**times - 1] * 3
