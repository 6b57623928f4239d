"""`anocaps study …`: run the paper's study or an ablation, see how far it is, make its report."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from anocaps.cli.terminal import print_standings, study_table

study_app = typer.Typer(
    help="The paper's study: run it, see how far it is, make its report.",
    no_args_is_help=True,
    epilog="Example: anocaps study run paper --dataset mnist --seeds 1",
)

Name = Annotated[str, typer.Argument(help="'paper' or 'ablation'.")]
Folder = Annotated[
    Path | None, typer.Option("--folder", help="Where results are kept [runs/STUDY].")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


@study_app.command(
    epilog="Examples: anocaps study run paper --dataset mnist --method capsnet --seeds 1\n\n"
    "anocaps study run paper --dataset folder:photos --method my_method.py"
)
def run(
    name: Name,
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="A dataset, or folder:PATH; again for more [the paper's three]."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method, or a Python file with one; again for more [all four]."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of every cell, seeds 0, 1, …")] = 3,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the study's.")] = None,
    limit: Annotated[int | None, typer.Option(min=2, help="Training images per class.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="Of CapsNet [paper, or quick where that does not fit].")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Cells at work at a time, each a process.")] = 1,
    device: Annotated[str, typer.Option(help="'auto', 'cpu' or 'cuda'.")] = "auto",
    replace: Annotated[
        bool, typer.Option("--replace", help="Run cells again that have other settings.")
    ] = False,
    folder: Folder = None,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", envvar="ANOCAPS_DATA", help="Where dataset files are."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train and measure every cell that is not finished yet. Stop and repeat it at any time."""
    from anocaps.study.runner import Work, run_study
    from anocaps.study.studies import PAPER_DATASETS, Options

    options = Options(
        tuple(dataset or PAPER_DATASETS), tuple(method or ()), seeds, epochs, limit, preset
    )
    work = Work(name, options, folder or Path("runs", name), data_dir, device)
    with study_table(shown=not as_json) as watch:
        rows = run_study(work, jobs, watch, replace)
    _show(rows, work.folder, as_json)
    if any(row.failed for row in rows):
        raise typer.Exit(1)


@study_app.command(epilog="Example: anocaps study status paper")
def status(name: Name = "paper", folder: Folder = None, as_json: Json = False) -> None:
    """How many cells are done, running, failed and left."""
    from anocaps.study.runner import standings

    place = folder or Path("runs", name)
    _show(standings(place), place, as_json)


@study_app.command(epilog="Example: anocaps study report paper --folder results/paper")
def report(
    name: Name,
    folder: Folder = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where the report goes [FOLDER/report].")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make tables, figures, claims and one page from the results alone; nothing is trained."""
    from anocaps.study.reports import write_study

    place = folder or Path("runs", name)
    written = write_study(name, place, out or place / "report")
    if as_json:
        print(json.dumps([str(path) for path in written]))
        return
    print(f"{len(written)} files. Report: {written[0].resolve()}")


def _show(rows: list, folder: Path, as_json: bool) -> None:  # type: ignore[type-arg]
    """Of `Standing`s, whose module is not imported for `--help`."""
    if as_json:
        print(json.dumps([vars(row) for row in rows]))
        return
    print_standings(rows)
    for path in _failures(rows, folder):
        print(f"Failed: {path}: {path.read_text().strip().splitlines()[-1]}")
    print(f"Results: {folder}")


def _failures(rows: list, folder: Path) -> Iterator[Path]:  # type: ignore[type-arg]
    """The files of cells that failed."""
    from anocaps.study.studies import as_file_name

    for row in rows:
        if row.failed:
            place = folder / as_file_name(row.dataset) / as_file_name(row.method)
            yield from sorted(place.glob("*.failed"))
