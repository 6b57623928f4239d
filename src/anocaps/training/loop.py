"""One training loop for every network: data on the device, Adam with decay, checkpoints.

A `Run` is one network in training. A generator on the CPU draws everything random (batch order,
window positions). Its seed is the run's seed and the epoch, so the draws are the same on every
device, in a fleet, and after a resume. A loss that needs noise (sampled latents) draws it from a
generator on the device, seeded in the same way.

On a GPU, a whole step (gather, crop, forward, loss, backward, Adam) is recorded once as a CUDA
graph and then replayed. Several runs form a fleet. Each replays its graph on its own stream, since
one small network cannot fill a GPU. On a CPU, runs are trained one after another.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anocaps.base.errors import AnocapsError, InputError
from anocaps.kernels import choose
from anocaps.training import checkpoint, memory
from anocaps.training.device import PRECISIONS, Precision
from anocaps.training.preprocessing import Images, Preprocessing
from anocaps.training.progress import Progress, Report

if TYPE_CHECKING:
    from anocaps.training.validation import Validation

T = TypeVar("T")
Loss = Callable[[Tensor, Tensor], Tensor]  # pixels [B, C, h, w], labels [B] → scalar


@dataclass(frozen=True)
class TrainingConfig:
    epochs: int
    batch_size: int
    learning_rate: float = 1e-3
    final_share: float = 0.1  # share of the learning rate at the end; the decay is exponential
    precision: Precision = "fp32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < least:
                raise InputError(f"{name} must be an integer of at least {least}, not {value!r}")
            object.__setattr__(self, name, int(value))
        if not 0 < self.learning_rate < float("inf"):
            raise InputError(f"learning_rate must be above 0, not {self.learning_rate!r}")
        if not 0 < self.final_share <= 1:
            raise InputError(f"final_share must be in (0, 1], not {self.final_share!r}")
        if self.precision not in PRECISIONS:
            raise InputError(f"precision must be 'fp32' or 'bf16', not {self.precision!r}")

    def steps(self, images: int) -> int:
        """Steps per epoch. The first images fill the last batch: recorded steps need full ones."""
        return ceil(images / min(self.batch_size, images))

    def images_seen(self, images: int) -> int:
        """Images that pass through the network in all epochs."""
        return self.epochs * self.steps(images) * min(self.batch_size, images)


class Run:
    """One network in training on one device: its data, its optimiser, its position."""

    def __init__(
        self,
        network: nn.Module,
        loss: Loss,
        images: Images,  # N×H×W×C, uint8 or float32
        labels: NDArray[np.int64],
        preprocessing: Preprocessing,
        config: TrainingConfig,
        device: torch.device,
        noise: torch.Generator | None = None,  # of the loss, on the device
        described: Mapping[str, Any] | None = None,  # other settings in the fingerprint
        validation: "Validation | None" = None,  # for early stopping
    ) -> None:
        self.network = network.to(device).train()
        for module in self.network.modules():  # not the routing weights, which also have 4 axes
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.loss = loss
        self.config = config
        self.preprocessing = preprocessing
        self.device = device
        self.noise = noise
        self.validation = validation
        digest = hashlib.sha256()
        self.images = preprocessing.padded(images, device, digest)
        self.fingerprint = _fingerprint(
            digest, labels, network, asdict(preprocessing), asdict(config), dict(described or {})
        )
        self.labels = torch.from_numpy(labels).to(device)
        self.batch = min(config.batch_size, len(images))
        self.steps = config.steps(len(images))
        self.order = torch.zeros(self.steps * self.batch, dtype=torch.int64, device=device)
        self.offsets = torch.zeros(len(self.order), 2, dtype=torch.int64, device=device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.rate = torch.tensor(config.learning_rate, device=device)
        self.decay = config.final_share ** (1 / (config.epochs * self.steps))
        self.optimizer = choose.adam(self.network.parameters(), self.rate)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.epoch = 0  # number of finished epochs
        self.losses: list[float] = []  # mean per finished epoch
        self.seconds = 0.0  # of training, with all runs that are trained at the same time
        self.at_once = self.batch  # images that pass through the network together
        self._graph: torch.cuda.CUDAGraph | None = None  # the recorded step

    def prepare(self, alone: bool = True) -> None:
        """On a GPU, record the step. If memory runs out, a run alone splits its batch. A run in a
        fleet raises the error, so that the caller can make the fleet smaller."""
        if self.stream is not None and self._graph is None:
            self._graph = self._fitting(self._recorded_step) if alone else self._recorded_step()

    def step(self) -> None:
        """Train on one batch. On a GPU, do not wait for the end."""
        if self._graph is None:
            self._fitting(self._step)
        else:
            with self.on_stream():
                self._graph.replay()

    def _fitting(self, work: Callable[[], T]) -> T:
        """The result of `work`. Halve `at_once` each time that memory runs out."""
        while True:
            try:
                return work()
            except Exception as error:
                if not memory.ran_out(error):
                    raise
                if self.at_once == 1:
                    raise AnocapsError(
                        "there is not enough memory to train with one image at a time: "
                        "free memory, use smaller images or another device"
                    ) from error
            memory.release()
            self.at_once = ceil(self.at_once / 2)
            memory.tell(
                f"a training batch of {self.batch} images does not fit into memory: continuing "
                f"with {self.at_once} at a time and the sum of their gradients"
            )

    def _step(self) -> None:
        """Train on one batch without waiting for the device.

        Weights change only at the end, so a step that runs out of memory can be repeated.

        Splitting a batch keeps mean loss and gradient the same within rounding. But batch
        normalisation then sees one part at a time, and the noise is drawn in another order.
        """
        pixels, labels = self._batch()
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        parts = zip(torch.split(pixels, self.at_once), torch.split(labels, self.at_once))
        for x, y in parts:
            with torch.autocast(
                self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"
            ):
                loss = self.loss(x, y)
            share = len(x) / self.batch
            loss.backward(torch.full_like(loss, share))  # type: ignore[no-untyped-call]
            losses.append((loss.detach(), share))
        self.optimizer.step()
        self.rate.mul_(self.decay)
        self.cursor.add_(self.batch)
        for loss, share in losses:
            self.loss_sum.add_(loss, alpha=share)

    def _batch(self) -> tuple[Tensor, Tensor]:
        """Pixels [B, C, h, w] and labels [B] of the next batch."""
        return choose.next_batch(
            self.images, self.labels, self.order, self.offsets, self.cursor, self.batch,
            self.preprocessing.window, self.preprocessing.windows,
        )  # fmt: skip

    def _recorded_step(self) -> torch.cuda.CUDAGraph:
        """Record `_step` as a CUDA graph, and undo the changes of the warm-up steps."""
        assert self.stream is not None
        self.stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        if self.noise is not None:  # each replay draws new noise
            graph.register_generator_state(self.noise)
        with self.on_stream():
            before = [tensor.clone() for tensor in self._changing()]
            try:
                for _ in range(3):
                    self.cursor.zero_()  # an epoch may have fewer than 3 steps
                    self._step()
                with torch.cuda.graph(graph, stream=self.stream):
                    self._step()
            finally:  # also if memory runs out
                for tensor, value in zip(self._changing(), before):
                    tensor.copy_(value)
                for state in self.optimizer.state.values():
                    for value in state.values():
                        value.zero_()
        return graph

    def on_stream(self) -> AbstractContextManager[object]:
        """The context for work on this run's tensors. It waits for no other run."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def _changing(self) -> list[Tensor]:
        own = [self.rate, self.cursor, self.loss_sum]
        return own + [tensor.data for tensor in self.network.state_dict(keep_vars=True).values()]

    def begin_epoch(self) -> None:
        self.prepare()
        generator = np.random.default_rng([self.config.seed, self.epoch])
        shuffled = generator.permutation(len(self.images))
        offsets = self.preprocessing.draw_offsets(generator, len(self.order))
        with self.on_stream():
            self.order.copy_(torch.from_numpy(np.resize(shuffled, len(self.order))))
            self.offsets.copy_(torch.from_numpy(offsets))
            self.cursor.zero_()
            self.loss_sum.zero_()
        if self.noise is not None:  # drawn last, so that the draws above stay the same
            self.noise.manual_seed(int(generator.integers(2**63)))

    def mean_loss(self, steps: int) -> float:
        """Mean loss of the first `steps` steps of this epoch. It waits for the device."""
        with self.on_stream():
            return float(self.loss_sum) / steps

    def end_epoch(self) -> None:
        loss = self.mean_loss(self.steps)
        if not np.isfinite(loss):
            raise AnocapsError(
                f"training diverged in epoch {self.epoch + 1} (loss {loss}): "
                "use a smaller learning_rate"
            )
        self.losses.append(loss)
        self.epoch += 1
        if self.validation is not None:
            self.validation.measure(self)

    @property
    def finished(self) -> bool:
        stopped = self.validation is not None and self.validation.stopped
        return stopped or self.epoch >= self.config.epochs


def train(
    runs: Sequence[Run],
    checkpoints: Sequence[Path | None],
    resume: bool = False,
    progress: Progress | None = None,
) -> None:
    """Train all runs. Write a checkpoint after each epoch of a run that has a path."""
    started = time.perf_counter()
    for run in runs:
        run.prepare(alone=len(runs) == 1)
    for run, path in zip(runs, checkpoints):
        if resume and path is not None and path.exists():
            checkpoint.restore(run, path)
    report = Report(runs, progress)
    together = runs[0].device.type == "cuda"
    for group in [range(len(runs))] if together else [[index] for index in range(len(runs))]:
        while active := [k for k in group if not runs[k].finished]:
            for k in active:
                runs[k].begin_epoch()
            for step in range(max(runs[k].steps for k in active)):
                for k in active:
                    if step < runs[k].steps:
                        runs[k].step()
                        report.step(runs[k], step + 1)
            for k in active:
                runs[k].end_epoch()
                report.end_epoch(runs[k])
                if (path := checkpoints[k]) is not None:
                    checkpoint.save(runs[k], path)
        for k in group:
            runs[k].seconds = time.perf_counter() - started
        started = time.perf_counter()
    for run in runs:
        if run.validation is not None:
            run.validation.give_back(run)
        if run.stream is not None:
            torch.cuda.current_stream().wait_stream(run.stream)
        # free memory
        run.optimizer.zero_grad(set_to_none=True)
        run.images = torch.empty(0)
        run.network.eval()


def _fingerprint(
    digest: "hashlib._Hash",  # of the images
    labels: NDArray[np.int64],
    network: nn.Module,
    *settings: dict[str, Any],
) -> str:
    """A hash of data, settings and network, but not of the device."""
    digest.update(np.ascontiguousarray(labels).data)
    shapes = {k: list(v.shape) for k, v in network.state_dict().items()}
    digest.update(json.dumps([shapes, repr(network), settings], default=str).encode())
    return digest.hexdigest()
