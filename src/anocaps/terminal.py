"""What the command line shows: progress bars on standard error, tables on standard output.

rich is imported inside: `anocaps --help` needs none of this.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from anocaps.study.cell import CellResult
    from anocaps.study.runner import Standing

_PLAIN_EVERY_SECONDS = 30  # a line of progress, where there is no terminal


class Stopped(BaseException):
    """Ctrl-C. Not a KeyboardInterrupt: typer would swallow that without a word."""


def say(*lines: str) -> None:
    """Print now; a full disk or a closed pipe is an error like any other."""
    from anocaps.errors import InputError

    try:
        print(*lines, sep="\n", flush=True)
    except OSError as error:
        # What is left in the buffer would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise InputError(f"standard output cannot be written ({error.strerror})") from error


@contextmanager
def files_bar(title: str, shown: bool) -> Iterator[Callable[[int, int, int], None] | None]:
    """How many files are done, how many a second and how long the rest will take, on standard
    error: a bar on a terminal, elsewhere a line now and then.

    The callback takes the numbers of files done, of all files, and of those done by this run.
    """
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    started = told = time.monotonic()

    def note(done: int, total: int, here: int) -> str:
        rate = here / max(time.monotonic() - started, 1e-9)
        left = f", {_duration((total - done) / rate)} left" if rate else ""
        return f"{done:,} of {total:,}, {rate:,.0f} files/s{left}"

    def tell(done: int, total: int, here: int) -> None:
        nonlocal told
        if (now := time.monotonic()) - told >= _PLAIN_EVERY_SECONDS:
            told = now
            print(f"{title}: {note(done, total, here)}", file=sys.stderr, flush=True)

    if not console.is_terminal:
        yield tell
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
    # What is printed goes above the bar, but only if it goes to a terminal at all.
    above = sys.stdout.isatty()
    with Progress(*columns, console=console, transient=True, redirect_stdout=above) as bar:
        task = bar.add_task(title, note="", total=None)
        yield lambda done, total, here: bar.update(
            task, completed=done, total=total, note=note(done, total, here)
        )


@contextmanager
def training_bar(title: str, shown: bool) -> Iterator[Any]:
    """A progress bar on standard error, as a callback for training."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, note="", total=None)

        def tell(step: int, steps: int, loss: float, rate: float) -> None:
            note = f"loss {loss:.4f}  {rate:,.0f} images/s"
            bar.update(task, completed=step, total=steps, note=note)

        yield tell


@contextmanager
def cells_bar(shown: bool) -> Iterator[Any]:
    """A progress bar that counts finished cells."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training ten networks", total=None)
        yield lambda done, count: bar.update(task, completed=done, total=count)


def print_table(results: "list[CellResult]") -> None:
    """One row per held-out class, and the mean."""
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    from anocaps.report.page import SCORES

    names = list(SCORES)
    table = Table("held out", *(f"AUROC {name}" for name in SCORES.values()), "accuracy")
    values = [
        [r.metrics[name].auroc for name in names]
        + [float("nan") if r.accuracy is None else r.accuracy]
        for r in results
    ]
    for result, row in zip(results, values):
        table.add_row(", ".join(result.held_out), *(f"{v:.3f}" for v in row))
    table.add_section()
    table.add_row("mean", *(f"{v:.3f}" for v in np.mean(values, axis=0)))
    Console().print(table)


def print_metrics(result: "CellResult") -> None:
    from rich.console import Console
    from rich.table import Table

    note = "" if result.official else ", unofficial copy"
    title = f"{result.dataset}{note}: held out {', '.join(result.held_out)}, {result.method}"
    table = Table("score", "AUROC", "95 % interval", "all normals", "AUPR", "FPR95", title=title)
    for name, m in result.metrics.items():
        table.add_row(
            name.upper(),
            f"{m.auroc:.4f}",
            f"{m.auroc_low:.4f}–{m.auroc_high:.4f}",
            f"{result.auroc_all[name]:.4f}",
            f"{m.aupr:.4f}",
            f"{m.fpr95:.4f}",
        )
    Console().print(table)
    if result.accuracy is not None:
        print(f"Accuracy on the normal classes: {result.accuracy:.4f}")
    print(
        f"{result.test_images} balanced test images, trained on "
        f"{result.record['training_images']} images in {result.record['training_seconds']:.0f} s"
    )


@contextmanager
def study_table(shown: bool) -> Iterator[Any]:
    """A live table on standard error of how far a study is, as a callback for its runner."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.live import Live

    started = time.monotonic()
    done_before: int | None = None
    with Live(console=Console(stderr=True), transient=True) as live:

        def show(rows: "list[Standing]") -> None:
            nonlocal done_before
            done = sum(row.done for row in rows)
            done_before = done if done_before is None else done_before
            left = sum(row.running + row.left for row in rows)
            finished, seconds = done - done_before, time.monotonic() - started
            caption = "time left: unknown yet"
            if finished:
                caption = f"time left: about {_duration(seconds / finished * left)}"
            live.update(_standings(rows, caption))

        yield show


def print_standings(rows: "list[Standing]") -> None:
    from rich.console import Console

    Console().print(_standings(rows, None))


def _standings(rows: "list[Standing]", caption: str | None) -> "Table":
    from rich.table import Table

    counts = ("done", "running", "failed", "left")
    table = Table("dataset", "method", *counts, caption=caption)
    for row in rows:
        table.add_row(row.dataset, row.method, *(str(getattr(row, name)) for name in counts))
    table.add_section()
    table.add_row("all", "", *(str(sum(getattr(row, name) for row in rows)) for name in counts))
    return table


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
