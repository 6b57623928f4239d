"""The Ray engine. It runs tasks on a cluster, or on a local one that it starts and stops.

The package must be installed on every node. A shared file is copied to each node once, through
Ray's object store. Ray gives a task as many threads as it has CPUs (OMP_NUM_THREADS).
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from math import inf
from pathlib import Path
from socket import create_connection
from tempfile import gettempdir
from time import monotonic, sleep
from typing import Any
from unittest.mock import patch

from anocaps.base.errors import InputError
from anocaps.base.extras import needing
from anocaps.base.files import temporary_folder
from anocaps.base.provenance import usable_cores
from anocaps.engines.base import Engine, Lost

_STORE = 256 * 2**20  # bytes of the object store of a local cluster
_LONGEST = 12  # bytes: Ray's sockets have names of 91 bytes more, and macOS allows 103


@dataclass(frozen=True)
class InStore:
    """A file in Ray's object store."""

    name: str
    content: list[Any]  # one reference; in a list, Ray does not fetch it with every task

    @contextmanager
    def opened(self) -> Iterator[Path]:
        import ray

        with temporary_folder() as folder:
            path = folder / self.name
            path.write_bytes(ray.get(self.content[0]))
            yield path


class RayEngine(Engine):
    """Tasks with `threads` CPUs each, and one GPU each if `gpu`; None: if the cluster has GPUs.

    If no node has so many CPUs, a task gets all CPUs of the largest node.
    """

    def __init__(
        self, address: str | None, workers: int | None, threads: int, gpu: bool | None
    ) -> None:
        with needing("anocaps[ray]"):
            ray: Any = import_module("ray")
        self._ray = ray
        self._most = workers
        self._queue: deque[tuple[int, Any, Any]] = deque()  # number, function, description
        self._running: dict[Any, int] = {}  # reference → number of the task
        self._functions: dict[Callable[[Any], Any], Any] = {}
        self._opened = ExitStack()
        if not ray.is_initialized():
            address = address or os.environ.get("RAY_ADDRESS")
            address = None if address == "local" else address  # Ray's word for a new cluster
            threads = threads if address else min(threads, usable_cores())
            self._opened.enter_context(_connected(ray, address, workers, threads))
        nodes = (node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])
        self._cpus = min(threads, int(max(nodes, default=0)) or threads)
        has_gpus = ray.cluster_resources().get("GPU", 0) >= 1
        if gpu and not has_gpus:
            self.close()
            raise InputError("the Ray cluster has no GPU; add a node with one or use --device cpu")
        self._gpus = 1 if has_gpus and gpu is not False else 0

    @property
    def workers(self) -> int:
        """The number of tasks that the cluster has room for now."""
        there = self._ray.cluster_resources()
        room = there.get("CPU", 0) // self._cpus
        if self._gpus:
            room = min(room, there.get("GPU", 0))
        return int(max(1, min(room, self._most or room)))

    def submit(self, number: int, task: Callable[[Any], Any], description: Any) -> None:
        if task not in self._functions:
            # Lost tasks are retried by `collect`. Processes are kept, with the models they loaded.
            self._functions[task] = self._ray.remote(
                num_cpus=self._cpus, num_gpus=self._gpus, max_retries=0, max_calls=0
            )(task)
        self._queue.append((number, self._functions[task], description))
        self._feed()

    def _feed(self) -> None:
        """Give tasks to Ray, which would run all of them at once if it has room."""
        while self._queue and len(self._running) < (self._most or inf):
            number, function, description = self._queue.popleft()
            self._running[function.remote(description)] = number

    def wait(self) -> tuple[int, Any]:
        errors = self._ray.exceptions
        (done,), _ = self._ray.wait(list(self._running))
        number = self._running.pop(done)
        self._feed()
        try:
            return number, self._ray.get(done)
        except errors.RayTaskError as error:
            raise error.cause from error
        except errors.RayError as error:
            return number, Lost(str(error))

    def share(self, path: Path) -> InStore:
        return InStore(path.name, [self._ray.put(path.read_bytes())])

    def close(self) -> None:
        self._queue.clear()
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        self._opened.close()


@contextmanager
def _connected(ray: Any, address: str | None, workers: int | None, threads: int) -> Iterator[None]:
    """Join the cluster at an address, or start a local one that only this computer reaches."""
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    # Ray would report lost workers on standard output, which is for results.
    ray._private.worker._worker_logs_enabled = False
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    with ExitStack() as opened:
        if address:
            _join(ray, address, quiet)
        else:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            os.environ.setdefault("RAY_worker_niceness", "0")  # as processes of the local engine
            # Ray opens the folder that it is given to all users, so it gets one inside of ours.
            folder = opened.enter_context(temporary_folder(_short_folder())) / "r"
            with _lean(ray):
                ray.init(
                    "local", num_cpus=workers and workers * threads, include_dashboard=False,
                    object_store_memory=_STORE, _node_ip_address="127.0.0.1",
                    _temp_dir=str(folder), **quiet,
                )  # fmt: skip
        opened.callback(ray.shutdown)
        yield


def _short_folder() -> Path:
    """The system's folder for temporary files, unless sockets below it had too long names."""
    folder = gettempdir()
    return Path(folder if os.name != "posix" or len(os.fsencode(folder)) <= _LONGEST else "/tmp")


def _join(ray: Any, address: str, quiet: dict[str, Any]) -> None:
    errors = ray.exceptions
    try:
        _knock(ray, address)
        ray.init(address, **quiet)
    except getattr(errors, "AuthenticationError", ()) as error:  # since Ray 2.52
        raise InputError(
            f"the Ray cluster at {address} asks for an authentication token, which is missing or "
            "wrong; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        ) from error
    except (OSError, RuntimeError, ValueError, errors.RayError) as error:
        raise InputError(
            f"no Ray cluster answers at {address} ({' '.join(str(error).split())[:200]}); "
            "check the address, or leave it out to use this computer"
        ) from error


def _knock(ray: Any, address: str) -> None:
    """Raise an error if no cluster at HOST:PORT lets this computer in. Ray would try for long."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "://" not in address:
        create_connection((host, int(port)), timeout=10).close()
        with suppress(ImportError):  # without this check, a missing token ends the process
            tokens = import_module("ray._private.authentication.authentication_token_setup")
            tokens.ensure_token_if_auth_enabled(create_token_if_missing=False)
        ray._raylet.GcsClient(address=address)


@contextmanager
def _lean(ray: Any) -> Iterator[None]:
    """Let Ray start a node that listens at 127.0.0.1, with no more processes than tasks need.

    A version of Ray that lacks one of the names starts all its processes.
    """
    private, skip = ray._private, lambda *_, **__: None
    node = private.node.Node

    def start_and_wait(self: Any) -> None:
        """Wait until the node is there. Ray looks once a second only."""
        start(self)
        until = monotonic() + 10
        with suppress(AttributeError):
            while not self.get_gcs_client().get_all_node_info() and monotonic() < until:
                sleep(0.01)

    with ExitStack() as patches:
        # On Linux, Ray would replace 127.0.0.1 by an address that the network reaches.
        patches.enter_context(patch.object(private.ray_constants, "ENABLE_RAY_CLUSTER", False))
        with suppress(AttributeError):
            # Dashboard, autoscaler and log monitor delay start and end, and serve nobody here.
            for each in (
                patch.object(private.utils, "get_dashboard_dependency_error", ImportError),
                patch.multiple(
                    node, start_api_server=skip, start_monitor=skip, start_log_monitor=skip
                ),
            ):
                patches.enter_context(each)
            start = node.start_ray_processes
            patches.enter_context(patch.object(node, "start_ray_processes", start_and_wait))
        yield
