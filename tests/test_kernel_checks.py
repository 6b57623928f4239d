"""The checks that `make bench-gpu` makes before it times: they cover what they say, pass with the
kernels as they are (here in Triton's interpreter, on a small shape) and fail with wrong ones.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
SCRIPT = """
import json
import kernel_checks as k

right = [k.Case(2, 32, 3, 4, 8, 3, "all", True, p) for p in k.TOLERANCES]
rows = [k.attempt(case) for case in right]
fused, small = k.fused_route, k.Case(1, 32, 2, 4, 4, 2, "last", False, "tf32")
k.fused_route = lambda **given: fused(**given) * 1.01
rows.append(k.attempt(small))
k.fused_route = lambda **given: fused(**given) + given["u"].sum() - given["u"].sum().detach()
rows.append(k.attempt(small))
k.fused_route = lambda **given: fused(**given) * float("nan")
rows.append(k.attempt(small))
k.fused_route = lambda **given: 1 / 0
rows.append(k.attempt(small))
print(json.dumps([rows, k.report(rows), k.report(rows[:2])]))
"""


@pytest.fixture
def checks(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import kernel_checks

    return kernel_checks


def test_cases_cover_the_ranges_and_stay_the_same(checks):
    drawn = checks.cases()
    assert drawn == checks.cases()
    assert {case.iterations for case in drawn} == {1, 2, 3, 4, 5}
    assert {case.gradient for case in drawn} == {"all", "last"}
    assert {case.precision for case in drawn} == {"fp32", "tf32"}
    classes, capsules = ({getattr(c, name) for c in drawn} for name in ("classes", "capsules"))
    assert (min(classes), max(classes), min(capsules), max(capsules)) == (2, 100, 32, 4096)
    assert len(classes) > 8
    numbers = (case.images * case.classes * case.capsules * case.size for case in drawn)
    assert max(numbers) <= checks.MOST_NUMBERS


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_right_kernels_pass_and_wrong_ones_fail():
    env = os.environ | {
        "TRITON_INTERPRET": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), *(p for p in sys.path if p)]),
    }
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    rows, report, good = json.loads(done.stdout)
    assert [row["ok"] for row in rows] == [True] * 2 + [False] * 4
    assert rows[3]["of"] == "gradient of u"  # where values are right
    assert "ZeroDivisionError" in rows[-1]["failed"]
    assert good["ok"] and not good["wrong"]
    assert 0 < good["precisions"]["fp32"]["largest relative error"] < 3e-6
    assert not report["ok"] and len(report["wrong"]) == 4


def test_nothing_checked_is_not_a_pass(checks):
    assert not checks.report([])["ok"]


def test_ways_of_the_primary_convolution_agree(checks):
    import primary_convolution as convolution

    torch.manual_seed(0)
    x, weight, upstream = torch.rand(2, 8, 20, 20), torch.randn(8, 8, 9, 9), torch.randn(2, 8, 6, 6)
    exact = convolution.forward_backward(
        convolution._direct, x.double(), weight.double(), upstream.double()
    )
    for name, bound in {"spectral, fp32": 1e-5, "spectral, bf16": 0.2, "cuDNN, bf16 channels-last":
                        0.02}.items():  # fmt: skip
        way = convolution.WAYS[name]
        given = [tensor.to(way.dtype) for tensor in (x, weight, upstream)]
        for got, want in zip(convolution.forward_backward(way.convolve, *given), exact):
            assert got.dtype == way.dtype
            assert 0 < checks.relative_error(got, want) < bound
