"""Text that is safe in one line of a terminal, or in a cell of a spreadsheet."""

import os
from itertools import dropwhile
from unicodedata import category

_CONTROLS = ("Cc", "Zl", "Zp")  # control characters, and ends of lines and paragraphs


def printable(text: str) -> str:
    """Replace control characters, which could control a terminal, by their escapes."""
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def shown(path: str | os.PathLike[str]) -> str:
    """A printable file name; bytes that are not text appear as \\x…"""
    try:
        return printable(os.fsencode(path).decode("utf-8", "backslashreplace"))
    except UnicodeEncodeError:  # half a character: JSON can hold it, a file name cannot
        return printable(os.fspath(path))


def path_cell(path: str) -> str:
    """One line that no spreadsheet takes for a formula: ./ keeps it the same path.

    It keeps unusual spaces, which names of screenshots have, and invisible signs.
    """
    line = "".join(_escape(c) if category(c) in _CONTROLS else c for c in path)
    return f"./{line}" if like_a_formula(path) else line


def text_cell(text: str) -> str:
    """One line that no spreadsheet takes for a formula: an apostrophe marks a text cell."""
    line = printable(text)
    return f"'{line}" if like_a_formula(text) else line


def like_a_formula(text: str) -> bool:
    """Also with full-width signs, which some spreadsheets take for the ASCII ones."""
    spaced = text.startswith(("\t", "\r", "\n"))
    shown = "".join(dropwhile(_is_unseen, text))
    return spaced or shown.startswith(tuple("=+-@＝＋－＠−﹢﹣﹦﹫"))


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def _is_unseen(letter: str) -> bool:
    """Whether it is a space, or a sign without width such as a byte order mark."""
    return letter.isspace() or category(letter) in ("Cc", "Cf")
