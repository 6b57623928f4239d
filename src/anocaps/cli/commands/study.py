"""`anocaps study …`: run a study, show its progress, make its report."""

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from anocaps.cli.heap import keep_freed_memory
from anocaps.cli.options import TRAINING, Address, DataDir, Device, EngineName, Json
from anocaps.cli.outputs import check_outputs, folder_links
from anocaps.cli.terminal import print_json, print_standings, study_table

study_app = typer.Typer(
    help="The paper's study: run it, show its progress, make its report.",
    no_args_is_help=True,
    epilog="Example: anocaps study run paper --dataset mnist --seeds 1",
)

Name = Annotated[str, typer.Argument(help="'paper', 'field' or 'tuning'.")]
Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="Where results are kept.", show_default="runs/STUDY"),
]


@study_app.command(
    epilog="Examples: anocaps study run paper --dataset mnist --method capsnet --seeds 1\n\n"
    "anocaps study run paper --dataset folder:photos --method my_method.py\n\n"
    "anocaps study run field --engine ray --address auto --folder /shared/field"
)
def run(
    name: Name,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            help="A dataset, or folder:PATH. Can be repeated.", show_default="the study's"
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A method, or a Python file with one. Can be repeated.",
            show_default="the study's",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="At most this many seeds: 0, 1, …")] = 3,
    folder: Folder = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of processes, one cell or fleet each.",
            show_default="1; on Ray, as many as there is room for",
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Repeat cells finished with other settings."),
    ] = False,
    preset: Annotated[
        str | None,
        typer.Option(
            help="The preset of CapsNet.",
            show_default="paper, or quick where that does not fit",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Passes over the training images.",
            show_default="the study's",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Training images per class.",
            show_default="all",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    choices: Annotated[
        Path | None,
        typer.Option(
            help="A file from 'study report tuning': adds tuned rows.", rich_help_panel=TRAINING
        ),
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Train and measure every unfinished cell. Stop it at any time; the same command continues."""
    from anocaps.engines.choose import open_engine, threads_of
    from anocaps.study.plan import Work
    from anocaps.study.reports import read_choices
    from anocaps.study.runner import run_study
    from anocaps.study.studies import Options

    keep_freed_memory()
    place = folder or Path("runs", name)
    folder_links(place, (".npz", ".failed", ".running", ".json", ".jsonl"))  # refuses them
    options = Options(
        tuple(dataset or ()), tuple(method or ()), seeds, epochs, limit, preset,
        read_choices(choices) if choices else {},
    )  # fmt: skip
    work = Work(name, options, place, data_dir, device)
    gpu = {"cpu": False, "auto": None}.get(device, True)
    running = open_engine(engine, address, jobs, threads_of(engine, jobs), gpu)
    with study_table(shown=not as_json) as watch:
        rows = run_study(work, running, watch, replace)
    _show(rows, work.folder, as_json)
    if any(row.failed for row in rows):
        raise typer.Exit(1)


@study_app.command(epilog="Example: anocaps study status paper")
def status(name: Name = "paper", folder: Folder = None, as_json: Json = False) -> None:
    """Show how many cells are done, running, failed and left."""
    from anocaps.study.plan import standings

    place = folder or Path("runs", name)
    _show(standings(place), place, as_json)


@study_app.command(epilog="Example: anocaps study report field --folder results/field")
def report(
    name: Name,
    folder: Folder = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where the report goes.", show_default="FOLDER/report"),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Make tables, figures, claims and one page from the results; nothing is trained.

    Claims about reconstructions and similar classes need the images in --data-dir, too.
    """
    from anocaps.base.files import check_writable
    from anocaps.study.packed import SUFFIX as PACKED
    from anocaps.study.reports import write_study
    from anocaps.study.resultfile import SUFFIX

    place = folder or Path("runs", name)
    out = out or place / "report"
    results = chain(place.rglob(f"*{SUFFIX}"), place.glob(f"*{PACKED}"), [place / "log.jsonl"])
    linked = folder_links(out, (".html", ".csv", ".tex", ".svg", ".png", ".json"))
    check_outputs((), results, (out, *linked))
    check_writable(out / "index.html")
    written = write_study(name, place, out, data_dir)
    if as_json:
        print_json(files=[str(path) for path in written])
        return
    print(f"{len(written)} files. Report: {written[0].resolve()}")


@study_app.command(epilog="Example: anocaps study pack field --folder results/field")
def pack(name: Name, folder: Folder = None, as_json: Json = False) -> None:
    """Move finished cells into one Parquet file per method, to keep and to publish."""
    from anocaps.study.packed import pack as pack_cells

    place = folder or Path("runs", name)
    folder_links(place, (".parquet", ".damaged"))  # refuses them
    written = pack_cells(place)
    if as_json:
        print_json(files=[str(path) for path in written])
        return
    print(f"{len(written)} files written.")


def _show(rows: list, folder: Path, as_json: bool) -> None:  # type: ignore[type-arg]
    """Print the progress of a study. `rows` are `Standing`s."""
    from anocaps.base.text import printable, shown
    from anocaps.study.plan import failures

    if as_json:
        print_json(rows=[vars(row) for row in rows])
        return
    print_standings(rows)
    for row in rows:
        for path, error in failures(folder, row) if row.failed else ():
            print(f"Failed: {shown(path)}: {error}")
    for row in rows:
        for line in row.damaged:
            print(printable(line))
    print(f"Results: {shown(folder)}")
