"""`anocaps card`: the model card from a model file. No torch."""

import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from anocaps.base.text import printable, shown
from anocaps.cli.options import Json, PublicKey, check_model, own_name
from anocaps.cli.terminal import print_json, say

if TYPE_CHECKING:
    from anocaps.inspect.card import Card

CARD_EXAMPLE = "Example: anocaps card model.onnx"


def card(
    model: Annotated[Path, typer.Argument(help="A model file, .safetensors or .onnx.")],
    full: Annotated[
        bool, typer.Option("--full", help="Also what the model was trained on and how.")
    ] = False,
    public_key: PublicKey = None,
    as_json: Json = False,
) -> None:
    """Show what to expect of a model, in four lines."""
    from anocaps.base.errors import ModelFileError
    from anocaps.inspect.card import four_lines, sentences, warnings_of

    check_model(model, None, public_key)
    found = _stored(model)
    try:
        lines = four_lines(found, next_command(model))
        lines += ["", *sentences(found)] if full else []
        warned = warnings_of(found)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ModelFileError(
            f"{model}: its model card cannot be read; train the model again"
        ) from error
    for line in warned:
        print(f"Warning: {printable(line)}", file=sys.stderr)
    if as_json:
        print_json(**{"model": str(model)} | found)
    else:
        say(*map(printable, lines))  # somebody else may have written the file


def next_command(model: Path) -> str:
    """How to score with this model."""
    return f"{own_name()} score {quote(shown(model))} NEW_IMAGES -o scores.csv"


def _stored(model: Path) -> "Card":
    """The card in a model file, after a check that the file is whole."""
    from anocaps.base.errors import ModelFileError
    from anocaps.base.extras import needing

    if model.suffix.lower() == ".onnx":
        from anocaps.export.runtime import OnnxModel

        about = OnnxModel(model).about
    else:
        from anocaps.base.arrayfile import read

        with needing("safetensors"):  # not the extra, which would install torch
            _, about = read(model, "model")
    found = about.get("card") if isinstance(about, dict) else None
    if not (isinstance(found, dict) and found):
        raise ModelFileError(f"{model}: there is no model card in it; train the model again")
    return found
