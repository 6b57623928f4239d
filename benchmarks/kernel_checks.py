"""Claim: on a GPU the fused routing kernels give the values and gradients of the plain path, for
any number of classes from 2 to 100, of capsules from 32 to 4096 and of iterations from 1 to 5,
through all iterations or the last. The largest relative error of each precision proves it or not.

Some shapes are fixed: the paper's network, and many classes with many capsules. The others are
drawn with a fixed seed. The plain path runs in float64; a relative error is
‖x − y‖ / ‖y‖ of a whole tensor, and the tolerances are those of tests/test_fused_routing.py.
Compiling kernels for a new shape takes most of the time, so cases run in several processes; and an
illegal access in one of them spoils that process alone.

    python benchmarks/kernel_checks.py        (make bench-gpu runs it first)
"""

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any, Literal

import numpy as np
import torch
from arguments import Parser, at_least
from torch import Tensor

from anocaps.capsules.routing import route
from anocaps.kernels.routing import fused_route

SHAPES = 12  # that are drawn
# Images, capsules, classes, numbers of an input and of a class capsule.
FIXED = ((100, 1152, 9, 8, 16), (8, 1152, 100, 8, 16), (4, 4096, 60, 8, 16))
MOST_PROCESSES = 12
PROCESS_GIB = 6  # of the GPU's memory, for a process
TOLERANCES: dict[Literal["fp32", "tf32"], float] = {"fp32": 3e-6, "tf32": 3e-3}
MOST_NUMBERS = 2**25  # of J·N·I·D, which the plain path holds several times: images follow


@dataclass(frozen=True)
class Case:
    images: int
    capsules: int
    classes: int
    size: int  # numbers of an input capsule, D
    class_size: int  # of a class capsule, E
    iterations: int
    gradient: str
    bias: bool
    precision: Literal["fp32", "tf32"]  # tf32: of training in bf16; fp32: of all else


def cases(shapes: int = SHAPES, seed: int = 0) -> list[Case]:
    """Every shape in both precisions; every number of iterations with both kinds of gradient."""
    generator = np.random.default_rng(seed)
    drawn = [
        Case(*shape, iterations=3, gradient="all", bias=False, precision=precision)
        for shape in FIXED
        for precision in TOLERANCES
    ]
    for k in range(shapes):
        classes = round(float(np.exp(generator.uniform(np.log(2), np.log(100)))))
        capsules = round(float(np.exp(generator.uniform(np.log(32), np.log(4096)))))
        if k < 2:  # the ends of both ranges, crosswise
            classes, capsules = ((2, 4096), (100, 32))[k]
        size, class_size = int(generator.choice([4, 8])), int(generator.choice([8, 16]))
        room = MOST_NUMBERS // (classes * capsules * size)
        images = int(generator.integers(1, max(1, min(room, 130)) + 1))
        gradient, bias = ("all", "last")[k // 5 % 2], bool(generator.integers(2))
        for precision in TOLERANCES:
            drawn.append(
                Case(images, capsules, classes, size, class_size, 1 + (k + 2) % 5, gradient, bias,
                     precision)
            )  # fmt: skip
    return drawn


def relative_error(got: Tensor, want: Tensor) -> float:
    """NaN if anything is."""
    difference = (got.double() - want).norm() / want.norm().clamp(min=1e-12)
    return float(difference)


def check(case: Case) -> dict[str, float]:
    """Relative errors of the class capsules and of each gradient."""
    device = "cuda" if torch.cuda.is_available() else "cpu"  # there in Triton's interpreter
    g = torch.Generator().manual_seed(case.capsules * 101 + case.classes)
    n, i, j, d, e = case.images, case.capsules, case.classes, case.size, case.class_size
    u = torch.randn(n, i, d, generator=g)
    u = u / u.norm(dim=-1, keepdim=True) * torch.rand(n, i, 1, generator=g)  # as squashed ones
    weight = torch.randn(i, j, e, d, generator=g) * 0.5
    leaves = {"u": u, "weight": weight}
    if case.bias:
        leaves["bias"] = torch.randn(j, e, generator=g) * 0.1
    upstream = torch.randn(n, j, e, generator=g).to(device)

    plain = {name: leaf.to(device).double().requires_grad_() for name, leaf in leaves.items()}
    fused = {name: leaf.to(device).requires_grad_() for name, leaf in leaves.items()}
    settings: dict[str, Any] = {"iterations": case.iterations, "gradient": case.gradient}
    got = fused_route(**fused, **settings, precision=case.precision)
    want = route(**plain, **settings)  # float64 is never fused
    errors = {"values": relative_error(got.detach(), want.detach())}
    torch.autograd.backward(got, upstream)
    torch.autograd.backward(want, upstream.double())
    for name in leaves:
        errors[f"gradient of {name}"] = relative_error(fused[name].grad, plain[name].grad)
    return errors


def attempt(case: Case) -> dict[str, Any]:
    """A row of the report: the case, its largest error, and whether it is within tolerance."""
    try:
        errors = check(case)
    except Exception as error:
        return asdict(case) | {"ok": False, "failed": f"{type(error).__name__}: {error}"[:500]}
    largest = max(errors, key=lambda name: np.nan_to_num(errors[name], nan=np.inf))
    ok = errors[largest] <= TOLERANCES[case.precision]  # not so if it is NaN
    return asdict(case) | {"ok": ok, "largest error": errors[largest], "of": largest}


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the results keep: by precision the largest error, and every case that is not right."""
    by_precision = {}
    for precision, tolerance in TOLERANCES.items():
        errors = [r["largest error"] for r in rows
                  if r["precision"] == precision and "largest error" in r]  # fmt: skip
        by_precision[precision] = {
            "cases": sum(r["precision"] == precision for r in rows),
            "largest relative error": float(f"{np.max(errors):.3g}") if errors else None,
            "tolerance": tolerance,
        }
    wrong = [row for row in rows if not row["ok"]]
    return {"ok": bool(rows) and not wrong, "precisions": by_precision, "wrong": wrong}


def run_checks(shapes: int = SHAPES) -> dict[str, Any]:
    room = torch.cuda.get_device_properties(0).total_memory // (PROCESS_GIB * 2**30)
    processes = max(1, min(MOST_PROCESSES, room, os.cpu_count() or 1))
    drawn = cases(shapes)
    rows: list[dict[str, Any]] = []
    try:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            rows.extend(pool.map(attempt, drawn))
    except Exception as error:  # a process is gone altogether, and with it what was not yet told
        told = {"ok": False, "failed": type(error).__name__}
        rows += [asdict(case) | told for case in drawn[len(rows) :]]
    return report(rows)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--shapes", type=at_least(1), default=SHAPES)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs an NVIDIA GPU, and none is usable here")
    found = run_checks(options.shapes)
    print(json.dumps(found, indent=1))
    sys.exit(not found["ok"])


if __name__ == "__main__":
    main()
