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
    assert min(before, again) > 1000, "here the system hands out huge pages: nothing to see"
    assert after < 100
