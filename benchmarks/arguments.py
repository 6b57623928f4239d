"""Options of the scripts of this folder: a wrong one is told in one line, with exit code 2 and
before any work, so that nothing is measured for a file that cannot be written."""

import argparse
import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

from anocaps.base.errors import AnocapsError, InputError
from anocaps.base.files import check_writable


class Parser(argparse.ArgumentParser):
    """`say` is the script's docstring, whose first line describes it."""

    def __init__(self, say: str) -> None:
        super().__init__(description=say.splitlines()[0])

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def one_line(main: Callable[[], None]) -> Callable[[], None]:
    """What a user can mend ends the script as a wrong option does."""

    @wraps(main)
    def run() -> None:
        try:
            main()
        except (AnocapsError, argparse.ArgumentTypeError) as error:
            print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
            sys.exit(2)

    return run


# ── types of options ─────────────────────────────────────────────────────────────────────────


def at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        try:
            if (found := int(text)) >= least:
                return found
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"a whole number from {least} on, not {text!r}")

    return number


def writable(text: str) -> Path:
    """A file that is written at the end."""
    try:
        check_writable(Path(text))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{error.filename}: {error.strerror}") from error
    return Path(text)


def writable_folder(text: str) -> Path:
    """In which files are written meanwhile."""
    return writable(str(Path(text) / "file")).parent


def existing(text: str) -> Path:
    """That is read."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text}: no such file")
    return Path(text)


def device_name(text: str) -> str:
    """'auto', 'cpu' or 'cuda', as far as it is here."""
    from anocaps.training.device import pick_device

    try:
        pick_device(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


# ── what an earlier run left ─────────────────────────────────────────────────────────────────


def stored(path: Path) -> dict[str, Any]:
    """The results in a file to which more are added; none where it is not there yet."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error}); name another file") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: is not what this script writes; name another file")
    return found
