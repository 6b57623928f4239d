"""Embed an array in a page, as a PNG in a data URI."""

import base64
import io
from typing import Any

import numpy as np
import numpy.typing as npt


def data_uri(pixels: npt.NDArray[Any]) -> str:
    """PNG of uint8 H×W or H×W×C. Of a stereo pair (two channels), it shows the first."""
    from PIL import Image

    if pixels.ndim == 3 and pixels.shape[2] < 3:
        pixels = pixels[:, :, 0]
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
