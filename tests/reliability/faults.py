"""The layer of faults.c, seen from Python: build it, run work in a child under it, read its log."""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")
# What can happen at a point, as faults.c numbers it.
MODES = {"record": 1, "kill": 2, "tear": 3, "error": 4, "full": 5}


def build(folder: Path) -> Path | None:
    """The layer as a library; None where it cannot be built or loaded."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        return None
    library = folder / "faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True)
    return library


def environment(library: Path) -> dict[str, str]:
    """Of a process that runs work under the layer: one thread, so that it can fork safely."""
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    own = {"LD_PRELOAD": str(library), "FAULTS": str(library)}
    own |= {"ANOCAPS_COMMIT": "none"}  # else every child asks git
    path = [str(SOURCE.parents[1] / "helpers"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | single | own | {"PYTHONPATH": os.pathsep.join(path)}


@dataclass(frozen=True)
class Call:
    """One change of a file or folder."""

    what: (
        str  # create, cut, write, truncate, sync, rename, remove, folder, symlink, link, mode, map
    )
    inode: int
    offset: int
    path: str
    other: str
    data: bytes


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    code: int  # minus the signal if it was killed
    said: str
    points: int


class Layer:
    """In a process started with `environment`: harms children of it, below one folder."""

    def __init__(self, root: Path) -> None:
        self._library = ctypes.CDLL(os.environ["FAULTS"])
        self._root = os.fsencode(root)

    def run(
        self, work: Callable[[], None], mode: str = "", at: int = 0, log: Path | None = None
    ) -> Ended:
        """Run `work` in a child; without a mode nothing happens to it."""
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if child == 0:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                target = -1 if log is None else os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
                if mode:
                    start = self._library.faults_start
                    start(self._root, MODES[mode], ctypes.c_long(at), target)
                os._exit(_code_of(work))
            _, status = os.waitpid(child, 0)
            said.seek(0)
            text = said.read().decode("utf-8", "replace")
        points = self._library.faults_count()
        return Ended(os.waitstatus_to_exitcode(status), text, points)


def _code_of(work: Callable[[], None]) -> int:
    code = 0
    try:
        work()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 99
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code


def read_log(log: Path) -> Iterator[Call]:
    with open(log, "rb") as file:
        while line := file.readline():
            what, inode, offset, length, path, other = line.decode()[:-1].split("\t")
            data = file.read(int(length))
            yield Call(what, int(inode), int(offset), path, other, data)
