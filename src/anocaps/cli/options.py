"""Options that several commands share, and how a command names itself to the user."""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

# Titles of groups in `--help`: what most need comes first, under "Options".
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
        help="Follow symbolic links to files and folders.",
        rich_help_panel=IMAGES,
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
    int, typer.Option(min=0, help="Fixes everything random.", rich_help_panel=TRAINING)
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


def own_name() -> str:
    """How to call this command again: as it was called where the shell would not find it."""
    if shutil.which("anocaps"):
        return "anocaps"
    if Path(sys.argv[0]).name == "__main__.py":
        return "python -m anocaps"
    return os.path.relpath(sys.argv[0])
