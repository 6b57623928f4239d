"""The command line: parses, calls, prints. Everything heavy is imported inside the commands.

Exit codes: 0 done, 2 something the user can mend, 130 stopped with Ctrl-C.
"""

import json
import os
import shutil
import signal
import sys
import warnings
from math import ceil
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from anocaps.cli_study import study_app
from anocaps.terminal import cells_bar, print_metrics, print_table, training_bar

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
Preset = Annotated[str, typer.Option(help="'paper', or 'quick' for small images and CPUs.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Passes over the training images.")]
Device = Annotated[str, typer.Option(help="'auto', 'cpu' or 'cuda'.")]


def main() -> None:
    """Run a command; turn what the user can mend into one line and exit code 2."""
    from anocaps.errors import AnocapsError

    signal.signal(signal.SIGINT, _stop)
    warnings.showwarning = _print_warning
    try:
        app()
    except AnocapsError as error:
        _fail(str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}")
    except Stopped as stopped:
        print(f"Stopped. {stopped}".strip(), file=sys.stderr)
        sys.exit(130)


class Stopped(BaseException):
    """Ctrl-C. Not a KeyboardInterrupt: typer would swallow that without a word."""


def _stop(*_: object) -> None:
    raise Stopped


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"Warning: {message}", file=sys.stderr)


def _own_name() -> str:
    """How to call this command again: by its path where the shell would not find it."""
    return "anocaps" if shutil.which("anocaps") else os.path.relpath(sys.argv[0])


def _fail(message: str) -> None:
    print(f"Error: {message}", file=sys.stderr)
    sys.exit(2)


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
    from anocaps.demo import run_demo
    from anocaps.files import check_writable

    check_writable(out)
    with cells_bar(shown=not as_json) as progress:
        results, seconds = run_demo(out, epochs, seed, progress)
    if as_json:
        print(json.dumps([result.summary() for result in results]))
        return
    print_table(results)
    print(f"Ten networks trained and measured in {seconds:.0f} s.")
    print(f"Report: {out.resolve()}")
    command = _own_name()
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
    from anocaps.data import load_dataset
    from anocaps.detectors import find_method
    from anocaps.files import check_writable
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
    if save_scores is not None:
        write_result(save_scores, result)
    if as_json:
        print(json.dumps(result.summary()))
    else:
        print_metrics(result)


@app.command(
    epilog="Examples: anocaps train photos/ -o model.safetensors   (photos/CLASS/*.png)\n\n"
    "anocaps train --dataset mnist --held-out 2 --preset quick -o model.safetensors"
)
def train(
    folder: Annotated[
        Path | None, typer.Argument(help="Normal images, one sub-folder per class.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The model file to write.")] = Path(
        "model.safetensors"
    ),
    dataset: Annotated[
        str | None, typer.Option(help="A dataset by name instead of a folder.")
    ] = None,
    held_out: Annotated[
        str | None, typer.Option(help="Classes of the dataset to leave out.")
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(help="The default score: pp, re or pp+re (one class: re)."),
    ] = None,
    calibration: Annotated[
        float, typer.Option(help="Share of images kept out of training to set false alarms.")
    ] = 0.1,
    size: Annotated[
        int | None, typer.Option(min=8, help="Resize folder images to SIZE×SIZE pixels.")
    ] = None,
    preset: Preset = "quick",
    epochs: Epochs = None,
    seed: Seed = 0,
    device: Device = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run that was stopped.")
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Train on normal images and write one model file."""
    from anocaps.detectors import CapsNetDetector
    from anocaps.files import check_writable

    check_writable(out)
    data = _training_data(folder, dataset, held_out, size, preset, data_dir)
    settings = data.settings | ({} if epochs is None else {"epochs": epochs})
    if score is None:
        score = "pp+re" if len(set(data.labels)) > 1 else "re"
    detector = CapsNetDetector(
        preset=preset, score=score, calibration=calibration, seed=seed, device=device, **settings
    )
    checkpoint = out.with_name(out.name + ".checkpoint")
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else None
    if resume and before is None:
        print(f"There is no {checkpoint} to continue from: starting anew.", file=sys.stderr)
    if before is not None and not resume:
        print(f"Replacing {checkpoint} of an earlier run.", file=sys.stderr)
    try:
        with training_bar("training", shown=not as_json) as progress:
            detector.fit(
                data.images, data.labels, checkpoint=checkpoint, resume=resume, progress=progress
            )
    except Stopped:
        written = checkpoint.exists() and (resume or checkpoint.stat().st_mtime_ns != before)
        raise Stopped(
            f"The last finished epoch is in {checkpoint}; run the same command with --resume."
            if written
            else "No epoch was finished, so nothing was kept."
        ) from None
    detector.record_["source"] = data.source
    detector.save(out)
    checkpoint.unlink(missing_ok=True)
    record = detector.record_
    smallest = ceil(1000 / (record["calibration_images"] + 1)) / 1000
    summary = {
        "model": str(out),
        "classes": detector.classes_.tolist(),
        "training_images": record["training_images"],
        "calibration_images": record["calibration_images"],
        "seconds": record["training_seconds"],
        "loss": record["losses"][-1],
        "smallest_alpha": smallest if record["calibration_images"] else None,
    }
    if as_json:
        print(json.dumps(summary))
        return
    print(
        f"Trained on {record['training_images']} images of {len(detector.classes_)} classes in "
        f"{record['training_seconds']:.0f} s."
    )
    if record["calibration_images"]:
        print(
            f"{record['calibration_images']} more images set the false-alarm rate: "
            f"--alpha can be {smallest:.3f} or more."
        )
    print(f"Model: {out}")
    alpha = (
        "" if smallest <= 0.05 or not record["calibration_images"] else f" --alpha {smallest:.2g}"
    )
    print(f"Next: {_own_name()} score {out} NEW_IMAGES -o scores.csv{alpha}")


class TrainingData(NamedTuple):
    images: Any
    labels: Any  # class names
    settings: dict[str, Any]  # of the detector
    source: dict[str, Any]  # where the images come from, for the model's record


def _training_data(
    folder: Path | None,
    dataset: str | None,
    held_out: str | None,
    size: int | None,
    preset: str,
    data_dir: Path | None,
) -> TrainingData:
    """From a folder or from a dataset."""
    import numpy as np

    from anocaps.data import load_dataset, load_folder
    from anocaps.errors import InputError
    from anocaps.study.protocol import cell_data, held_out_classes
    from anocaps.study.settings import settings_for

    if (folder is None) == (dataset is None):
        raise InputError("give either a folder of images or --dataset NAME")
    if dataset is not None:
        if size is not None:
            raise InputError("--size is for folders; a dataset has its own size")
        data = load_dataset(dataset, data_dir)
        held = held_out_classes(data, held_out) if held_out is not None else ()
        cell = cell_data(data, held, seed=0)
        source = {"dataset": data.name, "official": data.official, "hashes": data.hashes}
        settings = settings_for(dataset, preset)
        return TrainingData(cell.train_images, cell.train_labels, settings, source)
    if held_out is not None:
        raise InputError("--held-out is for datasets; leave the class out of the folder instead")
    assert folder is not None
    found = load_folder(folder, size)
    labels = np.asarray(found.class_names)[found.labels]
    return TrainingData(found.images, labels, {}, {"folder": folder.name, "size": size})


@app.command(epilog="Example: anocaps score model.safetensors new/ -o scores.csv --alpha 0.01")
def score(
    model: Annotated[Path, typer.Argument(help="A model file from 'anocaps train'.")],
    images: Annotated[list[Path], typer.Argument(help="Image files or folders.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write a CSV file instead of printing.")
    ] = None,
    alpha: Annotated[float, typer.Option(help="The false-alarm rate you accept.")] = 0.05,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Score new images: a p-value and a verdict for each."""
    from anocaps.detectors import load
    from anocaps.files import check_writable
    from anocaps.scorefiles import score_files, write_csv

    if out is not None:
        check_writable(out)
    detector = load(model, device)
    rows = score_files(detector, images, alpha)
    if out is not None:
        scored, failed = write_csv(rows, out)
        if as_json:
            print(json.dumps({"scored": scored, "failed": failed, "out": str(out)}))
        else:
            print(f"{scored} images scored: {out}")
            if failed:
                print(f"{failed} could not be: see the column 'error'", file=sys.stderr)
    elif as_json:
        for row in rows:
            print(json.dumps(row))
    else:
        write_csv(rows, None)


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
