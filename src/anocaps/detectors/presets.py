"""Presets of the CapsNet detector: a network for a shape of images, and how to train it."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from anocaps.base.errors import InputError
from anocaps.base.extras import pretrained_available
from anocaps.detectors.photo.weights import INSTALL
from anocaps.images.fitting import suits_photo
from anocaps.images.resampling import working_size
from anocaps.networks.capsnet import CapsNetConfig
from anocaps.networks.deep import DeepConfig, deep_config
from anocaps.networks.photo import PhotoConfig
from anocaps.training.preprocessing import Padding

_MOST = 128  # pixels per side; weights or time grow with the square
_SMALLEST_DEEP = 28  # pixels of the longer side
_FEW = 5000  # images; with fewer, more steps are worth more than larger batches


Config = CapsNetConfig | DeepConfig | PhotoConfig


@dataclass(frozen=True)
class Preset:
    network: Callable[[int, int, int, int], Config]  # from height, width, channels, classes
    schedule: Callable[[int], tuple[int, int]]  # number of images → epochs and batch size
    learning_rate: float
    reconstruction_weight: float | None  # of the summed squared error; None: 1.6 / pixels
    shift: float  # largest random shift in training, as a share of the shorter side
    padding: Padding = "black"  # around a shifted image
    # share of the learning rate at the end of training; None: the decay of the released code
    final_share: float | None = 0.1
    validation: float = 0.0  # share of the images that choose the best epoch
    version: int = 1  # raised with every change, so that a study runs its cells again

    def shift_for(self, height: int, width: int) -> int:
        """The largest random shift in training, in pixels."""
        return round(self.shift * min(height, width))

    def weight_for(self, pixels: int) -> float:
        """The weight of the reconstruction. `pixels` counts every channel."""
        return 1.6 / pixels if self.reconstruction_weight is None else self.reconstruction_weight

    def share_for(self, images: int) -> float:
        """The share of the learning rate after `images` images; each counts once per epoch.

        The code of Sabour et al. multiplies it by 0.96 every 2,000 steps of 128 images.
        """
        return 0.96 ** (images / (2000 * 128)) if self.final_share is None else self.final_share


def _paper_network(height: int, width: int, channels: int, classes: int) -> CapsNetConfig:
    if max(height, width) > 48:
        raise InputError(
            f"preset 'paper' takes images up to 48×48, not {height}×{width}, which would need "
            "tens of thousands of capsules: use preset='deep' or a crop"
        )
    config = CapsNetConfig(channels=channels, height=height, width=width, classes=classes)
    if min(config.primary_grid) < 1:
        raise InputError(
            f"preset 'paper' takes images of 17×17 or more, not {height}×{width}: "
            "use preset='quick'"
        )
    return config


def _quick_network(height: int, width: int, channels: int, classes: int) -> CapsNetConfig:
    """Two small convolutions that reduce any image to a grid of about 4×4 to 5×5 places."""
    _check_size("quick", height, width)
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


def _deep_network(height: int, width: int, channels: int, classes: int) -> DeepConfig:
    _check_size("deep", height, width)
    return deep_config(height, width, channels, classes)


def _photo_network(height: int, width: int, channels: int, classes: int) -> PhotoConfig:
    if channels not in (1, 3):
        raise InputError(f"preset 'photo' takes 1 or 3 channels, not {channels}: use preset='deep'")
    return PhotoConfig((height, width), working_size(height, width), classes)


def _check_size(name: str, height: int, width: int) -> None:
    if max(height, width) > _MOST:
        raise InputError(
            f"preset {name!r} takes images up to {_MOST}×{_MOST}, not {height}×{width}: "
            f"make them smaller (on the command line: --size {_MOST})"
        )


def _always(epochs: int, batch_size: int) -> Callable[[int], tuple[int, int]]:
    return lambda images: (epochs, batch_size)


def _by_number(images: int) -> tuple[int, int]:
    """15 epochs, but at least 1,000 and at most 12,000 steps."""
    batch_size = 32 if images < _FEW else 128
    steps = ceil(images / batch_size)  # per epoch
    return max(1, round(min(max(15 * steps, 1000), 12_000) / steps)), batch_size


def _by_steps(images: int) -> tuple[int, int]:
    """15 epochs, but at least 300 and at most 8,000 steps."""
    batch_size = 64
    steps = ceil(images / batch_size)
    return max(1, round(min(max(15 * steps, 300), 8000) / steps)), batch_size


PRESETS = {
    # Appendix A of the paper, with the constants of Sabour et al. and of their released code
    "paper": Preset(
        _paper_network, _always(20, 100), 1e-3, 0.0005, shift=0, final_share=None, version=3
    ),
    # the same, but with weight and decay chosen on mock anomalies: docs/reproduction.md
    "paper-tuned": Preset(
        _paper_network, _always(20, 100), 1e-3, 0.004, shift=0, final_share=0.33, version=2
    ),
    "quick": Preset(_quick_network, _always(15, 32), 4e-3, None, shift=0),
    "deep": Preset(
        _deep_network,
        _by_number,
        1e-3,
        None,
        shift=1 / 32,
        padding="edge",
        validation=0.1,
        version=2,
    ),
    # capsules on a frozen pretrained stem, with a memory of patches and no decoder
    "photo": Preset(_photo_network, _by_steps, 3e-3, 0.0, shift=0),
}


AUTO_SCORE_FUNCTION = "combined"  # the choice of `score_function="auto"`


def choose_preset(height: int, width: int, channels: int, classes: int) -> str:
    """The choice of `preset="auto"` for images of this shape."""
    if channels in (1, 3) and pretrained_available() and suits_photo(classes, height, width):
        return "photo"
    return "deep" if max(height, width) >= _SMALLEST_DEEP else "quick"


def advice(preset: str, height: int, width: int, classes: int) -> str | None:
    """A message if "auto" would choose "photo" but its weights are not installed."""
    if preset == "photo" or pretrained_available() or not suits_photo(classes, height, width):
        return None
    little = " Without it, one class gives poor results." if classes == 1 else ""
    return f"Preset photo suits these images better: {INSTALL}.{little}"


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise InputError(f"preset {name!r} is unknown: use one of {', '.join(('auto', *PRESETS))}")
    return PRESETS[name]
