"""The circumstances of a measurement: versions, machine, commit. Stored with every result."""

import os
import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def provenance(device: str, threads: int) -> dict[str, Any]:
    return {
        "device": device,
        "processor": {"model": _processor(), "cores": usable_cores()},
        "threads": threads,
        "versions": _versions(),
        "commit": _commit(),
    }


@cache
def _processor() -> str:
    """The name of the CPU, from /proc/cpuinfo or else from Python."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("anocaps", "torch", "numpy", "scikit-learn"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed as a package"
    return found


@cache
def _commit() -> str | None:
    """The git commit of a checkout, with a + if src/ has changes; None if installed as a package.

    ANOCAPS_COMMIT overrides it, for a copy without git history.
    """
    if said := os.environ.get("ANOCAPS_COMMIT"):
        return said
    here = Path(__file__).resolve().parents[3]
    if not (here / ".git").exists():
        return None
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(here, "status", "--porcelain", "--", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *words: str) -> str:
    answer = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
    )
    return answer.stdout.strip()
