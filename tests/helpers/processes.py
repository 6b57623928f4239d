"""Other processes: one that holds something until it is told to end, and waiting for them."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)
