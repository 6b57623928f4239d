"""Ctrl-C, progress on standard error, and tables on standard output.

On a terminal, progress is a bar. Elsewhere, as in a log file, it is a plain line now and then.
rich is imported inside the functions, so that commands start fast.
"""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from anocaps.study.cell import CellResult
    from anocaps.study.plan import Standing

_JSON_SCHEMA = 1  # version of the fields in all JSON that is printed
_PLAIN_EVERY_SECONDS = 30  # a line of progress, where there is no terminal
_STANDINGS = ("done", "running", "failed", "left")  # cells of a study

Told = ParamSpec("Told")


def say(*lines: str) -> None:
    """Print at once. A full disk or a closed pipe raises an InputError."""
    from anocaps.base.errors import InputError

    try:
        print(*lines, sep="\n", flush=True)
    except OSError as error:
        # At exit, Python would write the rest of the buffer and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise InputError(f"standard output cannot be written ({error.strerror})") from error


def print_json(**fields: object) -> None:
    """One object on one line; docs/json.md says what is in it."""
    say(json.dumps({"schema": _JSON_SCHEMA} | fields))


@contextmanager
def said_once() -> Iterator[None]:
    """Print what a detector logs, each line once, however many networks are trained."""
    log, seen = logging.getLogger("anocaps"), set[str]()

    def tell(record: logging.LogRecord) -> bool:
        if (said := record.getMessage()) not in seen:
            print(said, file=sys.stderr, flush=True)
        seen.add(said)
        return False

    log.addFilter(tell)
    try:
        yield
    finally:
        log.removeFilter(tell)


# ── Ctrl-C ───────────────────────────────────────────────────────────────────────────────────

_stop_asked = False


class Stopped(BaseException):
    """Ctrl-C. It is not a KeyboardInterrupt, because typer hides those."""


def hear_stop() -> None:
    """Make Ctrl-C raise Stopped, and remember it: torch and finalizers can drop the error."""
    global _stop_asked
    _stop_asked = False
    signal.signal(signal.SIGINT, _stop)


def _stop(*_: object) -> None:
    global _stop_asked
    _stop_asked = True
    sys.unraisablehook = _show_dropped
    raise Stopped


def _show_dropped(dropped: "sys.UnraisableHookArgs") -> None:
    """Show errors that Python drops in a finalizer, except Stopped, which is remembered."""
    if not isinstance(dropped.exc_value, Stopped):
        sys.__unraisablehook__(dropped)


def stop_if_asked() -> None:
    """Raise Stopped if Ctrl-C was pressed and the error was dropped. Progress callbacks call it."""
    if _stop_asked:
        raise Stopped


@contextmanager
def stop_later() -> Iterator[Callable[[], bool]]:
    """Go on after the first Ctrl-C, so that the caller can finish. A second one raises Stopped.

    Yields a function that says whether Ctrl-C was pressed.
    """
    asked = False

    def note(*_: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, _stop)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, _stop)


@contextmanager
def stop_kept() -> Iterator[None]:
    """Raise Stopped if Ctrl-C caused the error, for example during an import."""
    try:
        yield
    except Exception:
        stop_if_asked()
        raise


def _stopping(tell: Callable[Told, None]) -> Callable[Told, None]:
    def stop_or_tell(*args: Told.args, **kwargs: Told.kwargs) -> None:
        stop_if_asked()
        tell(*args, **kwargs)

    return stop_or_tell


def _say_nothing(*_: object) -> None:
    pass


# ── progress ─────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _lines(title: str, brief: bool = False) -> Iterator[Callable[[str], None]]:
    """Show progress without a terminal. Yields a callback that takes a note.

    It prints a line at most every 30 s, and the last note at the end. Shorter work prints its last
    note only if `brief`.
    """
    told, last, wanted = time.monotonic(), "", brief

    def tell(note: str) -> None:
        nonlocal told, last, wanted
        last = note
        if (now := time.monotonic()) - told >= _PLAIN_EVERY_SECONDS:
            told, last, wanted = now, "", True
            print(f"{title}: {note}", file=sys.stderr, flush=True)

    yield tell
    if wanted and last:
        print(f"{title}: {last}", file=sys.stderr, flush=True)


@contextmanager
def files_bar(title: str, shown: bool) -> Iterator[Callable[[int, int | None, int], None]]:
    """Show how many files are done, how many per second, and the time left.

    Yields a callback. It takes three numbers: files done, all files (None if unknown), and files
    done by this run.
    """
    if not shown:
        yield _stopping(_say_nothing)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    started = time.monotonic()

    def note(done: int, total: int | None, here: int) -> str:
        rate = here / max(time.monotonic() - started, 1e-9)
        if total is None:
            return f"{done:,}, {rate:,.0f} files/s"
        left = f", {_duration((total - done) / rate)} left" if rate else ""
        return f"{done:,} of {total:,}, {rate:,.0f} files/s{left}"

    if not console.is_terminal:
        with _lines(title) as say_note:
            yield _stopping(lambda done, total, here: say_note(note(done, total, here)))
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
    # On a terminal, printed lines go above the bar.
    above = sys.stdout.isatty()
    with Progress(*columns, console=console, transient=True, redirect_stdout=above) as bar:
        task = bar.add_task(title, note="", total=None)
        yield _stopping(
            lambda done, total, here: bar.update(
                task, completed=done, total=total, note=note(done, total, here)
            )
        )


@contextmanager
def training_bar(title: str, shown: bool) -> Iterator[Any]:
    """Show the progress of training. Yields its callback."""
    if not shown:
        yield _stopping(_say_nothing)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        started = time.monotonic()
        first: tuple[int, float] | None = None  # step and time: a run may continue an earlier one
        with _lines(title, brief=True) as say_note:

            def tell_plainly(step: int, steps: int, loss: float, rate: float) -> None:
                nonlocal first
                now = time.monotonic()
                first = first or (step, now)
                done, taken = step - first[0], now - first[1]
                left = f", {_duration((steps - step) * taken / done)} left" if done > 0 else ""
                say_note(
                    f"step {step:,} of {steps:,}, loss {loss:.4f}, {rate:,.0f} images/s, "
                    f"{_duration(now - started)} so far{left}"
                )

            yield _stopping(tell_plainly)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, note="", total=None)

        def tell(step: int, steps: int, loss: float, rate: float) -> None:
            note = f"loss {loss:.4f}  {rate:,.0f} images/s"
            bar.update(task, completed=step, total=steps, note=note)

        yield _stopping(tell)


@contextmanager
def cells_bar(shown: bool) -> Iterator[Callable[[int, int], None]]:
    """Show how many cells are finished. Yields the callback."""
    if not shown:
        yield _stopping(_say_nothing)
        return
    from rich.console import Console
    from rich.progress import Progress

    title, console = "training ten networks", Console(stderr=True)
    if not console.is_terminal:
        with _lines(title) as say_note:
            yield _stopping(lambda done, count: say_note(f"{done} of {count} done"))
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield _stopping(lambda done, count: bar.update(task, completed=done, total=count))


@contextmanager
def study_table(shown: bool) -> Iterator[Any]:
    """Show the progress of a study, on a terminal as a live table. Yields the runner's callback."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    started = time.monotonic()
    done_before: int | None = None

    def time_left(rows: "list[Standing]") -> str:
        nonlocal done_before
        done = sum(row.done for row in rows)
        done_before = done if done_before is None else done_before
        left = sum(row.running + row.left for row in rows)
        finished, seconds = done - done_before, time.monotonic() - started
        return f"about {_duration(seconds / finished * left)}" if finished else "unknown yet"

    if not console.is_terminal:
        with _lines("cells") as say_note:

            def tell(rows: "list[Standing]") -> None:
                counts = ", ".join(
                    f"{sum(getattr(row, name) for row in rows)} {name}" for name in _STANDINGS
                )
                say_note(f"{counts}, time left: {time_left(rows)}")

            yield tell
        return
    with Live(console=console, transient=True) as live:
        yield lambda rows: live.update(_standings(rows, f"time left: {time_left(rows)}"))


# ── tables ───────────────────────────────────────────────────────────────────────────────────


def print_table(results: "list[CellResult]") -> None:
    """One row per held-out class, and the mean."""
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    from anocaps.study.report.demo import SCORES

    names = list(SCORES)
    table = Table("held out", *(f"AUROC {name}" for name in SCORES.values()), "accuracy")
    values = [
        [r.metrics[name].auroc for name in names]
        + [float("nan") if r.accuracy is None else r.accuracy]
        for r in results
    ]
    for result, row in zip(results, values):
        table.add_row(_name(", ".join(result.held_out)), *(f"{v:.3f}" for v in row))
    table.add_section()
    table.add_row("mean", *(f"{v:.3f}" for v in np.mean(values, axis=0)))
    Console().print(table)


def print_metrics(result: "CellResult") -> None:
    from rich.console import Console
    from rich.table import Table

    note = "" if result.official else ", unofficial copy"
    title = f"{result.dataset}{note}: held out {', '.join(result.held_out)}, {result.method}"
    titles = ("score", "AUROC", "95 % interval", "all normals", "AUPR", "FPR95")
    table = Table(*titles, title=_name(title))
    for name, m in result.metrics.items():
        table.add_row(
            _name(name.upper()),
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


def print_standings(rows: "list[Standing]") -> None:
    from rich.console import Console

    Console().print(_standings(rows, None))


def _standings(rows: "list[Standing]", caption: str | None) -> "Table":
    from rich.table import Table

    table = Table("dataset", "method", *_STANDINGS, caption=caption)
    for row in rows:
        counts = (str(getattr(row, name)) for name in _STANDINGS)
        table.add_row(_name(row.dataset), _name(row.method), *counts)
    table.add_section()
    table.add_row("all", "", *(str(sum(getattr(row, name) for row in rows)) for name in _STANDINGS))
    return table


def _name(text: str) -> "Text":
    """Text without markup: a class or a method can be named [/bold]."""
    from rich.text import Text

    from anocaps.base.text import printable

    return Text(printable(text))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
