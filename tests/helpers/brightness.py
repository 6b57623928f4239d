"""A judge that needs no network: bright images are normal."""

import numpy as np
from PIL import Image

from anocaps.images.decode import Fit
from anocaps.judging.calibration import p_values
from anocaps.judging.judgement import Judgement

CALIBRATION = np.arange(100, 199)  # brightness of 99 normal images
NORMAL, DARK = 180, 20


class Brightness:
    fit = Fit(4, 4, 1, "resize")
    score_function = "mean"
    score_names = ("mean", "largest")
    classes = ("grey", "white")
    heat_scale: float | None = 0.25
    checksum = "bright"
    card = None
    source = None

    def __init__(self, calibrated: bool = True) -> None:
        self.calibration_size = len(CALIBRATION) if calibrated else 0
        self.judged = self.reconstructed = 0  # images so far

    def judge(self, images: np.ndarray, with_heat: bool = False) -> Judgement:
        """Everything is reconstructed as white."""
        assert images.dtype == np.uint8 and images.shape[1:] == (4, 4, 1)
        self.judged += len(images)
        mean = images.mean((1, 2, 3))
        unknown = np.full(len(images), np.nan)
        p = p_values(mean, CALIBRATION) if self.calibration_size else unknown
        return Judgement(
            scores={"largest": images.max((1, 2, 3)).astype(float), "mean": mean},
            p_value=p,
            p_value_class=np.where(mean > 200, 0.5, np.nan),
            predicted=["white" if value > 150 else "grey" for value in mean],
            reconstructions=self._white(images) if with_heat else None,
        )

    def _white(self, images: np.ndarray) -> np.ndarray | None:
        self.reconstructed += len(images)
        return np.ones(images.shape, np.float32)


def draw(path, brightness: int):
    """An image file of one brightness."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), brightness).save(path)
    return path


def draw_twelve(folder):
    """12 images, two of them dark."""
    for k in range(12):
        draw(folder / f"{k:02}.png", DARK if k in (3, 7) else NORMAL + k)
    return folder
