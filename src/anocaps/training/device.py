"""The device and precision of a network, and the circumstances that a result records."""

import platform
from typing import Any, Literal

import torch

from anocaps.base.errors import InputError
from anocaps.base.provenance import provenance

Precision = Literal["fp32", "bf16"]
PRECISIONS = ("fp32", "bf16")


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or not (number == "" or number.isdecimal()):
        raise InputError(f"device {name!r} is unknown: use 'auto', 'cpu', 'cuda' or 'cuda:1'")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise InputError(f"device {name!r}: this NVIDIA GPU is not available; use device='cpu'")
    return torch.device(name)


def pick_precision(name: Literal["auto", "fp32", "bf16"], device: torch.device) -> Precision:
    if name != "auto":
        return name
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return "bf16" if fast else "fp32"


def circumstances(device: torch.device) -> dict[str, Any]:
    """The circumstances of a measurement: device, threads, versions, commit."""
    cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else f"{platform.machine()} CPU"
    return provenance(name, torch.get_num_threads())
