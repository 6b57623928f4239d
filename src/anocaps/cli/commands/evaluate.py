"""`anocaps demo` and `anocaps evaluate`: hold out classes, and measure how well they are found."""

from pathlib import Path
from typing import Annotated

import typer

from anocaps.cli.heap import keep_freed_memory
from anocaps.cli.options import DataDir, Device, Epochs, Json, Seed, own_name
from anocaps.cli.outputs import check_outputs
from anocaps.cli.terminal import (
    cells_bar,
    print_json,
    print_metrics,
    print_table,
    stop_if_asked,
    training_bar,
)

DEMO_EXAMPLE = "Example: anocaps demo --out report.html"
EVALUATE_EXAMPLE = "Example: anocaps evaluate --dataset mnist --held-out 2 --preset quick --json"


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the report goes.")] = Path(
        "runs/demo/report.html"
    ),
    epochs: Epochs = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Hold out each of ten bundled digits in turn, score them, write a report. No download."""
    from anocaps.base.errors import InputError
    from anocaps.base.files import check_writable
    from anocaps.base.text import shown
    from anocaps.study.demo import run_demo

    keep_freed_memory()
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{shown(out)}: the report is a page, name it .html")
    check_writable(out)
    with cells_bar(shown=not as_json) as progress:
        results, seconds = run_demo(out, epochs, seed, progress)
    if as_json:
        print_json(cells=[result.summary() for result in results])
        return
    print_table(results)
    print(f"Ten networks trained and measured in {seconds:.0f} s.")
    print(f"Report: {out.resolve()}")
    command = own_name()
    print("Open it in a browser. Next, try:")
    print(f"  {command} evaluate --dataset mnist --held-out 2 --preset quick")
    print(f"  {command} train YOUR_FOLDER -o model.safetensors    # YOUR_FOLDER/CLASS/*.png")


def evaluate(
    dataset: Annotated[str, typer.Option(help="A name from 'anocaps data list'.")],
    held_out: Annotated[str, typer.Option(help="Anomalous classes: '2', '0,3,5' or a name.")],
    method: Annotated[str, typer.Option(help="The detector.")] = "capsnet",
    seed: Seed = 0,
    preset: Annotated[str, typer.Option(help="'paper', 'deep' or 'quick'.")] = "paper",
    epochs: Epochs = None,
    limit: Annotated[
        int | None, typer.Option(min=2, help="Training images per class; all test images are used.")
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    save_scores: Annotated[
        Path | None, typer.Option(help="Write the result with its raw scores to this .npz file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train without the held-out classes, and measure how well the model finds them."""
    from anocaps.base.errors import InputError
    from anocaps.base.files import check_writable
    from anocaps.base.text import shown
    from anocaps.data import fetch_dataset, load_dataset
    from anocaps.detectors import find_method
    from anocaps.study.cell import run_cell
    from anocaps.study.protocol import held_out_classes
    from anocaps.study.resultfile import SUFFIX, write_result
    from anocaps.study.studies import accepted, settings_for

    keep_freed_memory()
    if save_scores is not None:
        if save_scores.suffix.lower() != SUFFIX:
            raise InputError(f"{shown(save_scores)}: name the file of scores {SUFFIX}")
        check_writable(save_scores)
        check_outputs((save_scores,), fetch_dataset(dataset, data_dir))
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
        print_json(**result.summary())
    else:
        print_metrics(result)
