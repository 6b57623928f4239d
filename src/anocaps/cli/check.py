"""`anocaps check`: look through a folder before training."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from anocaps.cli.options import FollowLinks, Json
from anocaps.cli.terminal import files_bar, print_json, say

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

    with files_bar("checking", shown=not as_json) as tell:
        found = check_folder(folder, lambda done, total: tell(done, total, done), follow_links)
    if as_json:
        print_json(**asdict(found))
    else:
        say(*sentences(found))
    if found.fit is None:
        raise DataError(f"{shown(folder)}: there is no image here that can be read")
    if found.refused:
        raise DataError(f"{shown(folder)}: training would refuse it; mend what is listed above")
