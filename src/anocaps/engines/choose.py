"""Find an engine by its name."""

from anocaps.base.errors import InputError
from anocaps.base.provenance import usable_cores
from anocaps.base.threads import wanted_threads
from anocaps.engines.base import Engine
from anocaps.engines.local import Processes, ThisProcess

ENGINES = ("local", "ray")


def open_engine(
    name: str,
    address: str | None = None,
    workers: int | None = None,
    threads: int = 1,
    gpu: bool | None = None,
) -> Engine:
    """Open an engine that runs `workers` tasks at once, with `threads` threads each.

    Without `workers`, the local engine runs one task at once and Ray uses the whole cluster. The
    other arguments are for Ray. `address` is that of a cluster; None starts a local one. With
    `gpu`, each task gets a GPU; None means: if the cluster has GPUs.
    """
    if name not in ENGINES:
        raise InputError(f"engine {name!r} is unknown: use one of {', '.join(ENGINES)}")
    if name == "ray":
        from anocaps.engines.cluster import RayEngine

        return RayEngine(address, workers, threads, gpu)
    if address is not None:
        raise InputError("--address names a Ray cluster: add --engine ray")
    return ThisProcess() if workers in (None, 1) else Processes(workers, threads)


def threads_of(name: str, workers: int | None) -> int:
    """Threads per task: OMP_NUM_THREADS, or else one on Ray and an equal share of cores here."""
    if name == "ray":
        return wanted_threads() or 1
    return max(1, (wanted_threads() or usable_cores()) // (workers or 1))
