"""Report the progress of training, a few times a second."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from anocaps.training.loop import Run

REPORT_EVERY_SECONDS = 0.2


class Progress(Protocol):
    """A callback of training. `loss` is the mean of the current epoch."""

    def __call__(self, step: int, steps: int, loss: float, images_per_second: float) -> None: ...


class Report:
    """Calls `progress` with the state of all runs together."""

    def __init__(self, runs: "Sequence[Run]", progress: Progress | None) -> None:
        self.progress = progress
        self.total = sum(run.config.epochs * run.steps for run in runs)
        self.done = sum(run.epoch * run.steps for run in runs)
        self.images = 0
        self.started = self.told = time.perf_counter()

    def step(self, run: "Run", steps_of_epoch: int) -> None:
        self.done += 1
        self.images += run.batch
        now = time.perf_counter()
        if self.progress is None or (
            self.done < self.total and now - self.told < REPORT_EVERY_SECONDS
        ):
            return
        self.told = now
        loss = run.mean_loss(steps_of_epoch)
        self.progress(self.done, self.total, loss, self.images / (now - self.started))

    def end_epoch(self, run: "Run") -> None:
        """Count the steps that early stopping skips as done."""
        spared = (run.config.epochs - run.epoch) * run.steps if run.finished else 0
        self.done += spared
        if spared and self.progress is not None:
            speed = self.images / (time.perf_counter() - self.started)
            self.progress(self.done, self.total, run.losses[-1], speed)
