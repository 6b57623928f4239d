"""Named settings of the CapsNet detector: a network for a shape of images, and how to train it."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from anocaps.base.errors import InputError
from anocaps.base.extras import pretrained_available
from anocaps.detectors.photo.weights import INSTALL
from anocaps.images.fitting import SMALLEST_PHOTO, suits_photo
from anocaps.images.resampling import working_size
from anocaps.networks.capsnet import CapsNetConfig
from anocaps.networks.deep import DeepConfig, deep_config
from anocaps.networks.photo import PhotoConfig
from anocaps.training.preprocessing import Padding

_MOST = 128  # pixels a side; weights or time grow with the square
_SMALLEST_DEEP = 28  # pixels of the longer side
_FEW = 5000  # images: below, steps are worth more than the images in each


Config = CapsNetConfig | DeepConfig | PhotoConfig


@dataclass(frozen=True)
class Preset:
    # of height, width, channels, classes
    network: Callable[[int, int, int, int], Config]
    schedule: Callable[[int], tuple[int, int]]  # epochs and batch size for a number of images
    learning_rate: float
    reconstruction_weight: float | None  # of the summed squared error; None: 1.6 / pixels
    shift: float  # in training, each way, of the shorter side
    padding: Padding = "black"  # around a shifted image
    # of the learning rate is left at the end of training; None: the decay of the released code
    final_share: float | None = 0.1
    validation: float = 0.0  # share of the images kept back to choose the best epoch
    version: int = 1  # raised with every change of the above: a study then runs its cells again

    def shift_for(self, height: int, width: int) -> int:
        """Random shifts in training, pixels each way."""
        return round(self.shift * min(height, width))

    def weight_for(self, pixels: int) -> float:
        """The weight of the reconstruction; every channel counts as pixels."""
        return 1.6 / pixels if self.reconstruction_weight is None else self.reconstruction_weight

    def share_for(self, images: int) -> float:
        """The share of the learning rate that is left after so many images, repeats counted.

        The code of Sabour et al. multiplies it by .96 every 2,000 steps of 128 images.
        """
        return 0.96 ** (images / (2000 * 128)) if self.final_share is None else self.final_share


def _paper_network(height: int, width: int, channels: int, classes: int) -> CapsNetConfig:
    if max(height, width) > 48:
        raise InputError(
            f"preset 'paper' is made for images up to 48×48, these are {height}×{width}: it "
            "would have tens of thousands of capsules; use preset='deep' or a crop"
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
        raise InputError(f"preset 'photo' takes grey or colour images, not {channels} channels")
    return PhotoConfig((height, width), working_size(height, width), classes)


def _check_size(name: str, height: int, width: int) -> None:
    if max(height, width) > _MOST:
        raise InputError(
            f"preset {name!r} is made for images up to {_MOST}×{_MOST}, these are "
            f"{height}×{width}: make them smaller (on the command line: --size {_MOST})"
        )


def _always(epochs: int, batch_size: int) -> Callable[[int], tuple[int, int]]:
    return lambda images: (epochs, batch_size)


def _by_number(images: int) -> tuple[int, int]:
    """15 epochs, but no fewer than 1,000 steps and no more than 12,000."""
    batch_size = 32 if images < _FEW else 128
    steps = ceil(images / batch_size)  # of an epoch
    return max(1, round(min(max(15 * steps, 1000), 12_000) / steps)), batch_size


def _by_steps(images: int) -> tuple[int, int]:
    """15 epochs, but no fewer than 300 steps and no more than 8,000."""
    batch_size = 64
    steps = ceil(images / batch_size)
    return max(1, round(min(max(15 * steps, 300), 8000) / steps)), batch_size


PRESETS = {
    # Appendix A of the paper, with the constants of Sabour et al. and of their released code.
    "paper": Preset(
        _paper_network, _always(20, 100), 1e-3, 0.0005, shift=0, final_share=None, version=3
    ),
    # The same with weight and decay chosen on mock anomalies: see docs/reproduction.md.
    "paper-tuned": Preset(
        _paper_network, _always(20, 100), 1e-3, 0.004, shift=0, final_share=0.33, version=2
    ),
    "quick": Preset(_quick_network, _always(15, 32), 4e-3, None, shift=0),
    "deep": Preset(
        _deep_network, _by_number, 1e-3, None, shift=1 / 32, padding="edge", validation=0.1
    ),
    # Capsules on a frozen pretrained stem, with a memory of patches; nothing is reconstructed.
    "photo": Preset(_photo_network, _by_steps, 3e-3, 0.0, shift=0),
}


AUTO_SCORE_FUNCTION = "combined"  # what `score_function="auto"` stands for


def choose_preset(height: int, width: int, channels: int, classes: int) -> str:
    """What `preset="auto"` stands for, for images of this shape."""
    if channels in (1, 3) and suits_photo(classes, height, width):
        return "photo"
    return "deep" if max(height, width) >= _SMALLEST_DEEP else "quick"


def advice(preset: str, height: int, width: int, classes: int) -> str | None:
    """What to say where "auto" would have chosen "photo", had its weights been installed."""
    if (
        preset == "photo"
        or pretrained_available()
        or (classes > 1 and min(height, width) < SMALLEST_PHOTO)
    ):
        return None
    little = " With one class little will be found without it." if classes == 1 else ""
    return f"Preset photo suits these images better: {INSTALL}.{little}"


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise InputError(f"preset {name!r} is unknown: use one of {', '.join(PRESETS)}")
    return PRESETS[name]
