"""Text that is safe to show in one line of a terminal."""

import os


def printable(text: str) -> str:
    """Control characters, which could steer a terminal, as their escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(path: str | os.PathLike[str]) -> str:
    """A file name; bytes that are not text appear as \\x…"""
    return printable(os.fsencode(path).decode("utf-8", "backslashreplace"))
