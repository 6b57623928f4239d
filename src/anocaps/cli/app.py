"""All commands: each parses, calls, prints. Everything heavy is imported inside them."""

import json
from pathlib import Path
from typing import Annotated

import typer

from anocaps.cli.card import CARD_EXAMPLE, card
from anocaps.cli.export import EXPORT_EXAMPLE, export
from anocaps.cli.score import SCORE_EXAMPLE, score
from anocaps.cli.study import study_app
from anocaps.cli.terminal import cells_bar, print_metrics, print_table, stop_if_asked, training_bar
from anocaps.cli.train import CHECK_EXAMPLE, TRAIN_EXAMPLE, check, own_name, train

app = typer.Typer(
    name="anocaps",
    help="Image anomaly detection when normal images come from several labelled classes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
data_app = typer.Typer(
    help="The datasets known by name.",
    no_args_is_help=True,
    epilog="Example: anocaps data fetch mnist",
)
app.add_typer(data_app, name="data")
app.add_typer(study_app, name="study")

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", envvar="ANOCAPS_DATA", help="Where dataset files are."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
Seed = Annotated[int, typer.Option(min=0, help="Fixes everything random.")]
Preset = Annotated[str, typer.Option(help="'paper', 'deep', or 'quick' for small images.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Passes over the training images.")]
Device = Annotated[str, typer.Option(help="'auto', 'cpu' or 'cuda'.")]


@app.command(epilog="Example: anocaps demo --out report.html")
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the report goes.")] = Path(
        "runs/demo/report.html"
    ),
    epochs: Epochs = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Hold out each of ten bundled digits in turn, score them, write a report. No download."""
    from anocaps.base.files import check_writable
    from anocaps.study.demo import run_demo

    check_writable(out)
    with cells_bar(shown=not as_json) as progress:
        results, seconds = run_demo(out, epochs, seed, progress)
    if as_json:
        print(json.dumps([result.summary() for result in results]))
        return
    print_table(results)
    print(f"Ten networks trained and measured in {seconds:.0f} s.")
    print(f"Report: {out.resolve()}")
    command = own_name()
    print("Open it in a browser. Next, try:")
    print(f"  {command} evaluate --dataset mnist --held-out 2 --preset quick")
    print(f"  {command} train YOUR_FOLDER -o model.safetensors    # YOUR_FOLDER/CLASS/*.png")


@app.command(epilog="Example: anocaps evaluate --dataset mnist --held-out 2 --preset quick --json")
def evaluate(
    dataset: Annotated[str, typer.Option(help="A name from 'anocaps data list'.")],
    held_out: Annotated[str, typer.Option(help="Anomalous classes: '2', '0,3,5' or a name.")],
    method: Annotated[str, typer.Option(help="The detector.")] = "capsnet",
    seed: Seed = 0,
    preset: Preset = "paper",
    epochs: Epochs = None,
    limit: Annotated[
        int | None, typer.Option(min=2, help="Training images per class; the test is untouched.")
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    save_scores: Annotated[
        Path | None, typer.Option(help="Write the result with its raw scores to this .npz file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train with classes held out, and measure how well they are told from the others."""
    from anocaps.base.files import check_writable
    from anocaps.data import load_dataset
    from anocaps.detectors import find_method
    from anocaps.study.cell import run_cell
    from anocaps.study.protocol import held_out_classes
    from anocaps.study.resultfile import write_result
    from anocaps.study.settings import accepted, settings_for

    if save_scores is not None:
        check_writable(save_scores)
    data = load_dataset(dataset, data_dir)
    held = held_out_classes(data, held_out)
    settings = settings_for(dataset, preset) | {"preset": preset, "seed": seed, "device": device}
    if epochs is not None:
        settings["epochs"] = epochs
    detector = find_method(method)(calibration=0.0, **accepted(method, settings))
    with training_bar("training", shown=not as_json) as progress:
        result, _ = run_cell(detector, data, held, seed, limit, progress)
    stop_if_asked()
    if save_scores is not None:
        write_result(save_scores, result)
    if as_json:
        print(json.dumps(result.summary()))
    else:
        print_metrics(result)


app.command(epilog=CHECK_EXAMPLE)(check)
app.command(epilog=TRAIN_EXAMPLE)(train)
app.command(epilog=CARD_EXAMPLE)(card)
app.command(epilog=SCORE_EXAMPLE)(score)
app.command(epilog=EXPORT_EXAMPLE)(export)


@data_app.command("list", epilog="Example: anocaps data list --json")
def data_list(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show the datasets, their licences, and which are here."""
    from anocaps.data import CATALOGUE, available

    rows = [
        {
            "name": entry.name,
            "title": entry.title,
            "licence": entry.licence,
            "here": available(entry.name, data_dir),
        }
        for entry in CATALOGUE.values()
    ]
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['name']:<14} {'here' if row['here'] else 'not here':<9} {row['title']}")
        print(f"{'':<24} {row['licence']}")


@data_app.command("fetch", epilog="Example: anocaps data fetch mnist")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A name from 'anocaps data list'.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Download a dataset, checksummed, unless it is here already."""
    from anocaps.data import fetch_dataset

    paths = fetch_dataset(name, data_dir)
    if as_json:
        print(json.dumps([str(path) for path in paths]))
        return
    for path in paths:
        print(path)
    print(f"{name} is ready.")
