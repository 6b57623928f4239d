"""Commands keep freed memory for reuse."""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the C library is not glibc"
)

FAULTS = """
import resource
from anocaps.cli.heap import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    b"x" * 2**26
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults(), faults()
keep_freed_memory()
print(*first, faults(), faults())
"""


def test_freed_memory_is_used_again():
    plain = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC")}
    ran = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, env=plain
    )
    before, again, _, after = (int(n) for n in ran.stdout.split())
    if min(before, again) <= 1000:
        pytest.skip("here the system hands out huge pages: there is nothing to see")
    assert after < 100


HELD = """
import resource, sys, threading
from pathlib import Path
from anocaps.cli.heap import share_memory_of_threads

def allocate():
    kept = [bytes(100_000) for _ in range(50)]
    barrier.wait()  # all threads hold their memory at some time
    del kept
    barrier.wait()

if sys.argv[1] == "shared":
    share_memory_of_threads()
barrier = threading.Barrier(8)
threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
maps = Path("/proc/self/maps").read_text().splitlines()
starts = [int(line.split("-")[0], 16) for line in maps if " rw-p " in line and line.endswith(" 0 ")]
print(sum(start % 2**26 == 0 for start in starts))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="there is no /proc here")
def test_threads_of_a_server_share_memory():
    plain = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC")}
    arenas = {
        how: int(subprocess.run(
            [sys.executable, "-c", HELD, how], capture_output=True, text=True, check=True, env=plain
        ).stdout)
        for how in ("apart", "shared")
    }  # fmt: skip
    assert arenas["shared"] <= 1 < arenas["apart"]
