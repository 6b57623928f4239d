"""Other processes: one that holds something, one that measures memory, and waiting for them."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# For the code of a process that measures itself. ru_maxrss begins with that of its parent.
PEAK = """
from pathlib import Path
def peak():
    return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


def measured(code: str, *arguments: object) -> str:
    """What `code` prints, which can ask for the `peak()` of its memory in bytes."""
    command = [sys.executable, "-c", PEAK + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# For a process that runs a command. It scores in small parts, and slowly enough to be killed.
SMALL_PARTS = """
import sys, time
from anocaps.inspect.parts import sources
from anocaps.inspect.parts.folder import PartsFolder
add = PartsFolder.add
def slowly(*given):
    time.sleep(0.05)
    add(*given)
sources.SHARD, PartsFolder.add = 4, slowly
from anocaps.cli.main import main
main()
"""


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
