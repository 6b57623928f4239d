"""How the scripts of this folder measure: seconds, in turns; their spread; memory; a device's peak.

Sides that are compared take turns in one process, so that they meet the same disturbances, and the
first turn of each is to warm up. Device times are taken between two waits for the device.
"""

import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple, TypeVar

import torch

from anocaps.training.memory import release

Spread = dict[str, float]  # median, lowest, highest
T = TypeVar("T")


# ── time ─────────────────────────────────────────────────────────────────────────────────────


class Side(NamedTuple):
    """What takes turns with others; a turn is so many calls."""

    call: Callable[[], object]
    calls: int = 1


def take_turns(
    sides: Mapping[str, Side], repeats: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds a call of each side, one number for each repeat."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(1 + repeats):
        for name, side in sides.items():
            taken = seconds_of(side, device)
            if repeat > 0:
                seconds[name].append(taken)
    return seconds


def median_seconds(call: Callable[[], object], seconds: float, device: torch.device) -> float:
    """Of 1 to 5 calls that take so many seconds together."""
    times: list[float] = []
    while not times or (sum(times) < seconds and len(times) < 5):
        times.append(seconds_of(Side(call), device))
    return statistics.median(times)


def seconds_of(side: Side, device: torch.device) -> float:
    """Of a call, over one turn."""
    synchronize(device)
    started = time.perf_counter()
    for _ in range(side.calls):
        side.call()
    synchronize(device)
    return (time.perf_counter() - started) / side.calls


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def milliseconds(seconds: Sequence[float], per: int = 1) -> Spread:
    """`per`: things that were done in a call."""
    return spread([value / per * 1e3 for value in seconds], 4)


def rates(seconds: Sequence[float], images: int) -> Spread:
    """Images a second, where a call takes so many."""
    return spread([images / value for value in seconds], 1)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How many times longer they take: the median over pairs of turns, one after the other."""
    return round(statistics.median(b / a for a, b in zip(ours, theirs)), 2)


def spread(values: Sequence[float], digits: int) -> Spread:
    return {
        "median": round(statistics.median(values), digits),
        "lowest": round(min(values), digits),
        "highest": round(max(values), digits),
    }


def product_flops(
    side: int,
    dtype: torch.dtype,
    device: torch.device,
    repeats: int,
    calls: int = 1,
    tf32: bool = False,
) -> float:
    """FLOP/s of a large matrix product of random numbers: the peak that a share is a share of."""
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        taken = take_turns({"": Side(lambda: torch.mm(a, b), calls)}, repeats, device)[""]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return 2 * side**3 / statistics.median(taken)


# ── memory ───────────────────────────────────────────────────────────────────────────────────


class Peak:
    """The most memory since it was made, beyond what there was.

    On a GPU: tensors, what they held; reserved: what the allocator took for them, recorded steps
    included. Tensors may find room in blocks that were taken before: the larger of the two counts.
    On a CPU: what the process held. It knows its peak since its start only, so that only a process
    of its own tells anything (`apart`).
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            synchronize(device)
            release()
            torch.cuda.reset_peak_memory_stats(device)
        self.before = self._most()

    def _most(self) -> dict[str, int]:
        if self.device.type == "cuda":
            return {
                "tensors": torch.cuda.max_memory_allocated(self.device),
                "reserved": torch.cuda.max_memory_reserved(self.device),
            }
        return {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}

    def parts(self) -> dict[str, int]:
        """MiB of each."""
        synchronize(self.device)
        return {name: (most - self.before[name]) // 2**20 for name, most in self._most().items()}

    def mib(self) -> int:
        return max(self.parts().values())


def with_memory(call: Callable[[], T], device: torch.device) -> tuple[T, dict[str, int]]:
    """What a call returns, and the most memory, in MiB, that it needed beside what was there."""
    peak = Peak(device)
    result = call()
    return result, peak.parts()


def apart(device: torch.device, work: Callable[..., T], *given: object) -> T:
    """What `work` returns: on a CPU in a process of its own, for the sake of its memory.

    It is forked from one that has imported everything and done nothing.
    """
    if device.type == "cuda":
        return work(*given)
    context = get_context("forkserver")
    context.set_forkserver_preload(["anocaps.detectors", "torch._dynamo"])  # Adam imports that
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(work, *given).result()


# ── beside the claim ─────────────────────────────────────────────────────────────────────────


def optional(section: Callable[[], T]) -> T | str:
    """What is not the claim itself: a failure is told in the results and loses nothing else."""
    try:
        return section()
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"[:500]
