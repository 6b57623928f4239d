"""Options that several commands share, and how a command names itself to the user."""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from anocaps.base.errors import InputError

# Titles of groups in `--help`. The options that most users need come first, under "Options".
IMAGES = "How images are read"
TRAINING = "Training"
RUNNING = "Running"

Json = Annotated[
    bool, typer.Option("--json", help="Print JSON for a program to read.", rich_help_panel=RUNNING)
]
Device = Annotated[str, typer.Option(help="'auto', 'cpu' or 'cuda'.", rich_help_panel=RUNNING)]
FollowLinks = Annotated[
    bool,
    typer.Option(
        "--follow-links/--no-follow-links",
        help="Follow symbolic links in folders. Those that you or a list name are always followed.",
        rich_help_panel=IMAGES,
    ),
]
ExpectSha256 = Annotated[
    str | None,
    typer.Option(
        "--expect-sha256",
        metavar="HEX",
        help="Refuse a model file with another SHA-256.",
        rich_help_panel=RUNNING,
    ),
]
PublicKey = Annotated[
    Path | None,
    typer.Option(
        "--public-key",
        metavar="FILE",
        help="Refuse a model file that this key's owner did not sign.",
        rich_help_panel=RUNNING,
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="Where it runs: 'local' is this computer, 'ray' a Ray cluster.",
        rich_help_panel=RUNNING,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="The address of the Ray cluster.",
        show_default="RAY_ADDRESS, or else a local cluster for this command",
        rich_help_panel=RUNNING,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="ANOCAPS_DATA",
        help="Where dataset files are.",
        rich_help_panel=RUNNING,
    ),
]
Seed = Annotated[
    int, typer.Option(min=0, help="Seed of everything random.", rich_help_panel=TRAINING)
]
Epochs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Passes over the training images.",
        show_default="the preset's",
        rich_help_panel=TRAINING,
    ),
]


def check_model(model: Path, expected: str | None, public_key: Path | None) -> None:
    """Check the bytes of a model file now, and again each time that it is loaded."""
    if expected is None and public_key is None:
        return
    if expected is not None:
        expected = expected.strip().lower()
        if len(expected) != 64 or not set(expected) <= set("0123456789abcdef"):
            raise InputError(
                "--expect-sha256 takes 64 hexadecimal digits, as sha256sum prints them"
            )
    from anocaps.base.signing import demand, read_model

    demand(model, expected, public_key)
    read_model(model)


def own_name() -> str:
    """The command to show the user: `anocaps`, or how it was started if it is not on PATH."""
    if shutil.which("anocaps"):
        return "anocaps"
    if Path(sys.argv[0]).name == "__main__.py":
        return "python -m anocaps"
    return os.path.relpath(sys.argv[0])
