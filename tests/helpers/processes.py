"""Another process that holds something until it is told to end."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def holding(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Runs `code`, which prints a line when it holds the thing and ends after a line of input."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as running:
        assert running.stdout.readline()
        yield running
        running.kill()
