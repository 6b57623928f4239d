"""Text that is safe to print in one line of a terminal."""

import os


def printable(text: str) -> str:
    """Replace control characters, which could control a terminal, by their escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(path: str | os.PathLike[str]) -> str:
    """A printable file name; bytes that are not text appear as \\x…"""
    try:
        return printable(os.fsencode(path).decode("utf-8", "backslashreplace"))
    except UnicodeEncodeError:  # half a character: JSON can hold it, a file name cannot
        return printable(os.fspath(path))
