"""`anocaps export`: a model file as an ONNX file that scores without torch."""

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anocaps.pictures import Fit

EXPORT_EXAMPLE = "Example: anocaps export model.safetensors model.onnx --check photos/"

_MOST_CHECKED = 256  # images: a graph that differs does so on the first ones


def export(
    model: Annotated[Path, typer.Argument(help="A model file from 'anocaps train'.")],
    out: Annotated[Path, typer.Argument(help="The ONNX file to write.")],
    check: Annotated[
        Path | None, typer.Option(help="Images to check the file on, beside bundled digits.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a program.")] = False,
) -> None:
    """Write an ONNX file that gives the model's scores without torch, and check that it does."""
    from anocaps.detectors import load
    from anocaps.errors import InputError
    from anocaps.export import export as write
    from anocaps.files import check_writable
    from anocaps.judging import DetectorJudge

    if out.suffix.lower() != ".onnx":
        raise InputError(f"{out}: name the file to write .onnx")
    check_writable(out)
    detector = load(model, device="cpu")
    images = None if check is None else _read(check, DetectorJudge(detector).fit)
    exported = write(detector, out, images)
    if as_json:
        summary = {
            "out": str(out),
            "bytes": exported.bytes,
            "images": exported.images,
            "difference": exported.difference,
        }
        print(json.dumps(summary))
        return
    print(f"{out}: {exported.bytes / 1e6:.1f} MB, for anything that runs ONNX.")
    own = "" if check is not None else " (bundled digits; name your own with --check FOLDER)"
    print(
        f"Checked on {exported.images} images{own}: scores are the model's within "
        f"{exported.difference:.0e} of their size; a verdict can differ only where a score is that "
        "close to its threshold."
    )


def _read(folder: Path, fit: "Fit") -> "NDArray[np.uint8]":
    """Some images as the model sees them; files that cannot be read are left to `anocaps check`."""
    import numpy as np

    from anocaps.errors import DataError
    from anocaps.pictures import list_pictures, read_pictures, shown

    found = (image for _, image in read_pictures(list_pictures([folder]), fit))
    images = list(islice((i for i in found if isinstance(i, np.ndarray)), _MOST_CHECKED))
    if not images:
        raise DataError(f"{shown(folder)}: there is no image here that can be read")
    return np.stack(images)
