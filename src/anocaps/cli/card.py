"""`anocaps card`: the model card out of a model file, for whoever was handed one. No torch."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anocaps.base.text import printable
from anocaps.cli.terminal import say

if TYPE_CHECKING:
    from anocaps.inspect.card import Card

CARD_EXAMPLE = "Example: anocaps card model.onnx"


def card(
    model: Annotated[Path, typer.Argument(help="A model file, .safetensors or .onnx.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for a program to read.")
    ] = False,
) -> None:
    """Show a model's card: what it was trained on and what to expect of it."""
    from anocaps.base.errors import ModelFileError
    from anocaps.inspect.card import sentences, warnings_of

    found = _stored(model)
    try:
        lines, warned = sentences(found), warnings_of(found)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ModelFileError(
            f"{model}: its model card is not one that training makes; train the model again"
        ) from error
    for line in warned:
        print(f"Warning: {printable(line)}", file=sys.stderr)
    if as_json:
        say(json.dumps({"model": str(model)} | found))
    else:
        say(*map(printable, lines))  # somebody else may have written the file


def _stored(model: Path) -> "Card":
    """As it is in the file, which was found to be whole."""
    from anocaps.base.errors import ModelFileError
    from anocaps.base.extras import needing

    if model.suffix.lower() == ".onnx":
        from anocaps.export.runtime import OnnxModel

        about = OnnxModel(model).about
    else:
        from anocaps.base.arrayfile import read

        with needing("safetensors"):  # its extra would bring torch
            _, about = read(model, "model")
    found = about.get("card") if isinstance(about, dict) else None
    if not (isinstance(found, dict) and found):
        raise ModelFileError(
            f"{model}: there is no model card in it; train the model again to have one"
        )
    return found
