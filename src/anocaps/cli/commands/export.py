"""`anocaps export`: a model file as an ONNX file that scores without torch."""

from dataclasses import asdict
from itertools import chain, islice
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anocaps.cli.commands.card import next_command
from anocaps.cli.options import ExpectSha256, Json, PublicKey, check_model
from anocaps.cli.outputs import check_outputs, inputs_of
from anocaps.cli.terminal import print_json, say, stop_if_asked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anocaps.export.writer import Exported
    from anocaps.images.decode import Fit

EXPORT_EXAMPLE = "Example: anocaps export model.safetensors model.onnx --check photos/"

_MOST_CHECKED = 256  # images; a wrong graph differs on most of them


def export(
    model: Annotated[Path, typer.Argument(help="A model file from 'anocaps train'.")],
    out: Annotated[Path, typer.Argument(help="The ONNX file to write.")],
    check: Annotated[
        Path | None, typer.Option(help="Images to check the file on, beside bundled digits.")
    ] = None,
    expect_sha256: ExpectSha256 = None,
    public_key: PublicKey = None,
    as_json: Json = False,
) -> None:
    """Write an ONNX file that gives the model's scores without torch, and check that it does."""
    from anocaps.base.errors import InputError
    from anocaps.base.extras import needing
    from anocaps.base.files import check_writable
    from anocaps.images.walk import list_images

    with needing("anocaps[export]"):
        from anocaps.detectors import load
        from anocaps.detectors.judge import DetectorJudge
        from anocaps.export.writer import export as write

    if out.suffix.lower() != ".onnx":
        raise InputError(f"{out}: name the file to write .onnx")
    check_writable(out)
    check_model(model, expect_sha256, public_key)
    check_outputs(
        (out,), chain(inputs_of(model, public_key), () if check is None else list_images([check]))
    )
    detector = load(model, device="cpu")
    images = None if check is None else _read(check, DetectorJudge(detector).fit)
    stop_if_asked()
    exported = write(detector, out, images)
    if as_json:
        print_json(out=str(out), bytes=exported.bytes, **asdict(exported.check))
        return
    own = 0 if images is None else len(images)
    say(*_sentences(model, exported, own), f"Next: {next_command(exported.path)}")


def _sentences(model: Path, exported: "Exported", own: int) -> list[str]:
    """Say what was written and how it was checked. `own` counts the user's images."""
    from anocaps.base.text import shown

    found = exported.check
    others = f"{found.images - own} bundled digits"
    on = f"{own} of your images and {others}" if own else f"{others} (your own: --check FOLDER)"
    off = ", ".join(f"{name} {value:.0e}" for name, value in found.differences.items())
    verdicts = "The model has no calibration images, so there are no verdicts to compare."
    if found.alpha is not None:
        verdicts = (
            f"Verdicts at a false-alarm rate of {100 * found.alpha:g} %: {found.same_verdicts} of "
            f"{found.images} are the same."
        )
    return [
        f"{shown(exported.path)}: {exported.bytes / 1e6:.1f} MB, for any ONNX runtime.",
        f"Checked against {shown(model)} on {on}.",
        f"Largest relative difference of each score: {off}.",
        verdicts,
    ]


def _read(folder: Path, fit: "Fit") -> "NDArray[np.uint8]":
    """Some images as the model sees them, drawn evenly from all files.

    A file that cannot be read is replaced by another one.
    """
    import numpy as np

    from anocaps.base.errors import DataError
    from anocaps.base.text import shown
    from anocaps.images.reading import read_images
    from anocaps.images.walk import list_images

    files = list(list_images([folder]))  # sorted, class by class
    step = ceil(len(files) / _MOST_CHECKED)
    drawn = chain.from_iterable(files[start::step] for start in range(step))
    found = (image for _, image in read_images(drawn, fit))
    images = list(islice((i for i in found if isinstance(i, np.ndarray)), _MOST_CHECKED))
    if not images:
        raise DataError(f"{shown(folder)}: no image here can be read; name a folder of images")
    return np.stack(images)
