"""`anocaps check`: look through a folder before training."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anocaps.cli.options import FollowLinks, Json, own_name
from anocaps.cli.terminal import files_bar, print_json, say

if TYPE_CHECKING:
    from anocaps.images.folder import ClassFolders

CHECK_EXAMPLE = "Example: anocaps check photos/"


def check(
    folder: Annotated[Path, typer.Argument(help="Images, one sub-folder per class, or one class.")],
    follow_links: FollowLinks = True,
    as_json: Json = False,
) -> None:
    """Look through a folder before training: classes, sizes, bad files and copies."""
    from anocaps.base.errors import DataError
    from anocaps.base.text import shown
    from anocaps.images.check import check_folder, sentences
    from anocaps.images.folder import find_classes

    classes = find_classes(folder, follow_links)
    warn_of_names(classes)
    with files_bar("checking", shown=not as_json) as tell:
        found = check_folder(classes, lambda done, total: tell(done, total, done))
    if as_json:
        print_json(**asdict(found))
    else:
        say(*sentences(found))
    if found.fit is None:
        raise DataError(f"{shown(folder)}: no image here can be read; name a folder of images")
    if found.refused:
        raise DataError(f"{shown(folder)}: training would refuse this; correct the problems above")


def warn_of_names(found: "ClassFolders") -> None:
    """Warn of classes that look like splits or verdicts, before any work."""
    from anocaps.images.names import name_warnings

    for line in name_warnings(found, own_name()):
        print(line if line.startswith(" ") else f"Warning: {line}", file=sys.stderr)
