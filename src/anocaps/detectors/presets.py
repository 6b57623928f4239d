"""Named settings of the CapsNet detector: a network for a shape of images, and how to train it."""

from collections.abc import Callable
from dataclasses import dataclass

from anocaps.errors import InputError
from anocaps.networks.capsnet import CapsNetConfig

_QUICK_MOST = 128  # pixels a side; weights grow with the square


@dataclass(frozen=True)
class Preset:
    network: Callable[[int, int, int, int], CapsNetConfig]  # height, width, channels, classes
    epochs: int
    batch_size: int
    learning_rate: float
    reconstruction_weight: float | None  # of the summed squared error; None: 1.6 / pixels
    shift: int


def _paper_network(height: int, width: int, channels: int, classes: int) -> CapsNetConfig:
    if max(height, width) > 48:
        raise InputError(
            f"preset 'paper' is made for images up to 48×48, these are {height}×{width}: its "
            "capsules would number tens of thousands; use preset='quick' or a crop"
        )
    config = CapsNetConfig(channels=channels, height=height, width=width, classes=classes)
    if min(config.primary_grid) < 1:
        raise InputError(
            f"preset 'paper' needs images of at least 17×17, these are {height}×{width}: "
            "use preset='quick'"
        )
    return config


def _quick_network(height: int, width: int, channels: int, classes: int) -> CapsNetConfig:
    """Two small convolutions that bring any image to a grid of 4×4 to 5×5 places or so."""
    if max(height, width) > _QUICK_MOST:
        raise InputError(
            f"preset 'quick' is made for images up to {_QUICK_MOST}×{_QUICK_MOST}, these are "
            f"{height}×{width}: make them smaller (on the command line: --size {_QUICK_MOST})"
        )
    stride = max(1, min(height, width) // 14)
    kernel = 2 * stride + 1
    grid = (min(height, width) - kernel) // stride + 1
    return CapsNetConfig(
        channels=channels,
        height=height,
        width=width,
        classes=classes,
        conv_maps=64,
        conv_kernel=kernel,
        conv_stride=stride,
        primary_types=8,
        primary_kernel=3 if grid < 8 else 5,
        primary_stride=1 if grid < 8 else 2,
        class_size=8,
        decoder=(128, 256),
    )


PRESETS = {
    # Appendix A of the paper; what it leaves open is argued in docs/decisions.md.
    "paper": Preset(_paper_network, 20, 100, 1e-3, 0.0005, shift=0),
    "quick": Preset(_quick_network, 15, 32, 4e-3, None, shift=0),
}


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise InputError(f"preset {name!r} is unknown: use one of {', '.join(PRESETS)}")
    return PRESETS[name]
