"""`anocaps keygen` and `anocaps sign`: show who made a model file."""

from pathlib import Path
from typing import Annotated

import typer

from anocaps.cli.terminal import say

KEYGEN_EXAMPLE = "Example: anocaps keygen ~/keys/anocaps.pem"
SIGN_EXAMPLE = "Example: anocaps sign model.onnx --key ~/keys/anocaps.pem"


def keygen(
    path: Annotated[Path, typer.Argument(help="The private key to write. Keep it secret.")],
) -> None:
    """Make a key to sign model files with, and the public key that checks them."""
    from anocaps.base.signing import new_key
    from anocaps.base.text import shown

    kept = ", kept as it was" if path.exists() else ""
    public = new_key(path)
    say(
        f"{shown(path)}: the private key, which signs{kept}. Keep it secret.",
        f"{shown(public)}: the public key, which checks. Give it to everyone who uses your models.",
    )


def sign(
    model: Annotated[Path, typer.Argument(help="A model file, .safetensors or .onnx.")],
    key: Annotated[Path, typer.Option(help="The private key of 'anocaps keygen'.")],
) -> None:
    """Sign a model file: others check with --public-key that it is yours and unchanged."""
    from anocaps.base.errors import InputError
    from anocaps.base.signing import sign as write
    from anocaps.base.signing import signature_path
    from anocaps.base.text import shown
    from anocaps.cli.outputs import check_outputs

    if model.suffix.lower() not in (".safetensors", ".onnx"):
        raise InputError(f"{shown(model)}: name a .safetensors or .onnx file to sign")
    check_outputs((signature_path(model),), (model, key))
    say(f"{shown(write(model, key))}: the signature. Keep it beside the model file.")
