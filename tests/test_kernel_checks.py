"""The checks that `make bench-gpu` makes before it times: they cover what they say, pass with the
kernels as they are (on a small shape) and fail with wrong ones.
"""

from pathlib import Path

import pytest
import torch
from triton_interpreter import HERE, WithoutGpu, needs_triton

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


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
    products = {(c.classes, c.capsules, c.size, c.class_size, c.precision) for c in drawn}
    for precision in ("fp32", "tf32"):  # the paper's network, and large products of both ranges
        wanted = {(9, 1152), (100, 1152), (60, 4096)}
        assert {(*shape, 8, 16, precision) for shape in wanted} <= products
    numbers = (case.images * case.classes * case.capsules * case.size for case in drawn)
    assert max(numbers) <= checks.MOST_NUMBERS


@needs_triton
class TestChecks:
    __test__ = HERE

    def test_right_kernels_pass_and_wrong_ones_fail(self, checks, monkeypatch):
        rows = [
            checks.attempt(checks.Case(2, 32, 3, 4, 8, 3, "all", True, precision))
            for precision in checks.TOLERANCES
        ]
        fused, small = checks.fused_route, checks.Case(1, 32, 2, 4, 4, 2, "last", False, "tf32")
        for wrong in (
            lambda **given: fused(**given) * 1.01,
            lambda **given: fused(**given) + given["u"].sum() - given["u"].sum().detach(),
            lambda **given: fused(**given) * float("nan"),
            lambda **given: 1 / 0,
        ):
            monkeypatch.setattr(checks, "fused_route", wrong)
            rows.append(checks.attempt(small))
        assert [row["ok"] for row in rows] == [True] * 2 + [False] * 4
        assert rows[3]["of"] == "gradient of u"  # where values are right
        assert "ZeroDivisionError" in rows[-1]["failed"]
        report, good = checks.report(rows), checks.report(rows[:2])
        assert good["ok"] and not good["wrong"]
        assert 0 < good["precisions"]["fp32"]["largest relative error"] < 3e-6
        assert not report["ok"] and len(report["wrong"]) == 4


@needs_triton
class TestWithoutGpu(WithoutGpu):
    __test__ = not HERE


def test_nothing_checked_is_not_a_pass(checks):
    assert not checks.report([])["ok"]


def test_ways_of_the_primary_convolution_agree(checks):
    import primary_convolution as convolution

    torch.manual_seed(0)
    x, weight, upstream = torch.rand(2, 8, 20, 20), torch.randn(8, 8, 9, 9), torch.randn(2, 8, 6, 6)
    exact = convolution.forward_backward(
        convolution._direct, x.double(), weight.double(), upstream.double()
    )
    for name, bound in {"spectral, fp32": 1e-5, "spectral, bf16": 0.2, "cuDNN, fp32": 1e-5,
                        "cuDNN, bf16 channels-last": 0.02}.items():  # fmt: skip
        way = convolution.WAYS[name]
        given = [tensor.to(way.dtype) for tensor in (x, weight, upstream)]
        for got, want in zip(convolution.forward_backward(way.convolve, *given), exact):
            assert got.dtype == way.dtype
            assert 0 < checks.relative_error(got, want) < bound
        [forward] = convolution.forward_only(way.convolve, *given[:2])
        assert 0 < checks.relative_error(forward, exact[0]) < bound and forward.grad_fn is None


def test_ways_are_timed_forward_alone_too(checks, monkeypatch):
    import primary_convolution as convolution

    monkeypatch.setattr(convolution, "CALLS", 1)
    found = convolution.compare(torch.device("cpu"), batch=2, maps=8)
    assert found["ways"].keys() == convolution.WAYS.keys()
    del found["ways"]["our kernel, bf16"]  # which a CPU has not
    for row in found["ways"].values():
        assert row["ms"]["median"] > 0 and row["forward ms"]["median"] > 0
        assert row["relative error"].keys() == {"output", "dmaps", "dweight"}
    assert found["ways"]["cuDNN, fp32"]["relative error"]["dweight"] < 1e-5
