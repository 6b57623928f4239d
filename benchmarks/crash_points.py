"""Claim: no write, sync or rename of a command is a point at which a crash or an error costs data.

A layer under all system calls that change files (tests/reliability/faults.c) counts the calls of a
command. Each of them is a point. At every point the command is killed, killed in the middle of a
write, given an error (EIO), and given a full disk (ENOSPC) once each. Power cuts are reckoned from
the log of the calls: what was not synced is lost, or all but the names. Then what is left is
checked, and the command is run again: tests/reliability/crash.py says what must hold.

The layer sees calls through the C library: those of Python, Arrow and SQLite (its database, journal
and WAL files). It does not see memory that is mapped; only SQLite's index of the WAL (-shm) is, and
SQLite makes that anew. strace, where there is one, counts the same calls from outside: `unseen` is
the number of calls that only strace saw. Needs Linux and a C compiler.

    python benchmarks/crash_points.py                          (make crash: an hour on 2 cores)
    python benchmarks/crash_points.py export --step 3 --out crash.json
"""

import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import common

from anocaps.base.provenance import provenance

TESTS = common.ROOT / "tests" / "reliability"
sys.path.insert(0, str(TESTS))

from faults import build, environment  # noqa: E402

# System calls that change files, as faults.c names them.
KINDS = {
    "write": "write", "pwrite64": "write", "writev": "write", "pwritev": "write",
    "pwritev2": "write", "copy_file_range": "write", "sendfile": "write", "fallocate": "write",
    "ftruncate": "truncate", "truncate": "truncate", "fsync": "sync", "fdatasync": "sync",
    "rename": "rename", "renameat": "rename", "renameat2": "rename", "unlink": "remove",
    "unlinkat": "remove", "rmdir": "remove", "mkdir": "folder", "mkdirat": "folder",
    "link": "link", "linkat": "link", "symlink": "symlink", "symlinkat": "symlink",
}  # fmt: skip
CASES = (
    "model file", "score, csv", "score, csv, continued", "score, jsonl", "score, parquet",
    "score, gallery and heatmaps", "score, watch", "score, parts", "train", "export", "study run",
    "study run, continued", "study pack", "keygen", "sign", "page", "page, training",
)  # fmt: skip


def main() -> None:
    parser = common.parser(__doc__, "reliability.json")
    parser.add_argument("case", nargs="*", metavar="CASE", choices=[*CASES, []], help="else all")
    parser.add_argument("--step", type=int, default=1, help="take every STEP-th point")
    given = parser.parse_args()
    wrong = 0
    with TemporaryDirectory(prefix="crash-points-") as name:
        library = build(Path(name))
        if library is None:
            sys.exit("crash points need Linux and a C compiler")
        for case in given.case or CASES:
            found = harmed(case, given.step, library)
            wrong += found["faults"] + (found["unseen"] or 0)
            stored = common.stored(given.out)
            all_cases = stored.get("crash points", {}) | {case: found}
            common.write(given.out, stored | {"crash points": all_cases})
            print(f"{case}: {found['points']} points, {found['faults']} faults", flush=True)
    if wrong:
        sys.exit(f"{wrong} faults")


def harmed(case: str, step: int, library: Path) -> dict[str, Any]:
    started = time.perf_counter()
    words = [sys.executable, str(TESTS / "crash.py"), case]
    answer = subprocess.run(
        [*words, str(step)], env=environment(library), stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    seconds = round(time.perf_counter() - started, 1)
    about = {"step": step, "seconds": seconds, "commit": provenance("cpu", 1)["commit"]}
    return found | {"unseen": unseen(words, library)} | about


def unseen(words: list[str], library: Path) -> int | None:
    """The number of changes that strace sees and the layer does not; None without strace."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    with TemporaryDirectory(prefix="crash-points-") as name:
        log = Path(name) / "strace"
        tracing = [strace, "-f", "-y", "-s", "0", "-o", str(log), "-e", f"trace={','.join(KINDS)}"]
        answer = subprocess.run(
            [*tracing, *words, "calls"], env=environment(library), stdout=subprocess.PIPE,
            text=True, check=True,
        )  # fmt: skip
        told = json.loads(answer.stdout.splitlines()[-1])
        seen = Counter({kind: told["calls"].get(kind, 0) for kind in KINDS.values()})
        return (traced(log, told["root"]) - seen).total()


def traced(log: Path, root: str) -> Counter[str]:
    """The calls that changed something below a folder, between two marks."""
    found: Counter[str] = Counter()
    begun: dict[str, str] = {}  # process → the first half of a call that another one interrupted
    counting = False
    for line in log.read_text("utf-8", "replace").splitlines():
        process, _, call = line.partition(" ")
        if call.rstrip().endswith("<unfinished ...>"):
            begun[process] = call.rsplit("<unfinished", 1)[0]
            continue
        if resumed := re.match(r"\s*<\.\.\. \w+ resumed>(.*)", call):
            call = begun.pop(process, "") + resumed[1]
        if f'"{root}.begin"' in call or f'"{root}.end"' in call:
            counting = ".begin" in call
        name, _, rest = call.strip().partition("(")
        done = not re.search(r"= -1 E\w+", rest)
        if counting and done and f"{root}/" in rest and name in KINDS:
            found[KINDS[name]] += 1
        elif counting and done and name in ("fsync", "fdatasync") and f"<{root}>" in rest:
            found["sync"] += 1
    return found


if __name__ == "__main__":
    common.run_script(main)
