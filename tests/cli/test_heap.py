"""Commands keep freed memory for its next use; Python code that fits a detector does not."""

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

FIT = """
import os, sys
import numpy as np
from anocaps import CapsNetDetector

before = set(os.environ)
images = np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8)
detector = CapsNetDetector(preset="quick", epochs=1, device="cpu")
detector.fit(images, np.arange(40) % 2).score_samples(images)
assert not any(name.startswith("anocaps.cli") for name in sys.modules)
assert {n for n in set(os.environ) - before if n.startswith("MALLOC")} == set()
"""


def test_freed_memory_is_used_again():
    plain = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC")}
    ran = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, env=plain
    )
    before, again, _, after = (int(n) for n in ran.stdout.split())
    assert min(before, again) > 1000, "here the system hands out huge pages: nothing to see"
    assert after < 100


def test_fit_changes_nothing_in_the_host_process():
    subprocess.run([sys.executable, "-c", FIT], check=True)
