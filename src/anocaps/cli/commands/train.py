"""`anocaps train`: train on normal images, write a model file and its model card."""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from anocaps.cli.commands.card import next_command
from anocaps.cli.commands.check import warn_of_names
from anocaps.cli.heap import keep_freed_memory
from anocaps.cli.options import IMAGES, TRAINING, DataDir, Device, Epochs, FollowLinks, Json, Seed
from anocaps.cli.outputs import check_outputs, telling_of
from anocaps.cli.terminal import (
    files_bar,
    print_json,
    said_once,
    say,
    stop_if_asked,
    training_bar,
)

if TYPE_CHECKING:
    from anocaps.base.errors import InputError
    from anocaps.detectors import CapsNetDetector
    from anocaps.images.decode import Fit, How
    from anocaps.images.folder import ClassFolders
    from anocaps.inspect.card import Card

TRAIN_EXAMPLE = (
    "Examples: anocaps train photos/ -o model.safetensors   (photos/CLASS/*.png)\n\n"
    "anocaps train --dataset mnist --held-out 2 -o model.safetensors"
)
_LARGE_FILE = 54  # MB; preset deep keeps below it, and the user is warned of larger model files
_COMPARING = ("pp", "pp+re")  # score functions that need two classes


def train(
    folder: Annotated[
        Path | None, typer.Argument(help="Normal images, one sub-folder per class.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The model file to write.")] = Path(
        "model.safetensors"
    ),
    size: Annotated[
        int | None,
        typer.Option(
            min=8,
            help="Size of images in pixels: the shorter side (preset photo) or both sides.",
            show_default="chosen from the images",
        ),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out files that cannot be read.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run that was stopped.")
    ] = False,
    dataset: Annotated[
        str | None, typer.Option(help="A dataset by name instead of a folder.")
    ] = None,
    held_out: Annotated[
        str | None, typer.Option(help="Classes of the dataset to leave out.")
    ] = None,
    how: Annotated[
        str | None,
        typer.Option(
            "--fit",
            help="How images get one size: 'resize', 'letterbox' or 'crop'.",
            show_default="chosen from the images",
            rich_help_panel=IMAGES,
        ),
    ] = None,
    grey: Annotated[
        bool | None,
        typer.Option(
            "--grey/--colour",
            help="Read images in grey or in colour.",
            show_default="chosen from the images",
            rich_help_panel=IMAGES,
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            help="'photo', 'deep', 'quick', 'paper' or 'paper-tuned'; 'auto' chooses by classes "
            "and size.",
            rich_help_panel=TRAINING,
        ),
    ] = "auto",
    score_function: Annotated[
        str,
        typer.Option(
            help="'combined', 'pp', 're', 'pp+re', 'mse', 'knn', 'stem-knn' or 'patch'; 'auto' is "
            "'combined'.",
            rich_help_panel=TRAINING,
        ),
    ] = "auto",
    calibration: Annotated[
        float | None,
        typer.Option(
            help="Share of images kept out of training to set the false-alarm rate.",
            show_default="0.1, or more for few images",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    self_check: Annotated[
        bool,
        typer.Option(
            help="Estimate how well it works, with left-out classes and synthetic anomalies.",
            rich_help_panel=TRAINING,
        ),
    ] = True,
    follow_links: FollowLinks = True,
    epochs: Epochs = None,
    seed: Seed = 0,
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Train on normal images, write one model file, and say how well it works."""
    from anocaps.base.errors import InputError
    from anocaps.base.files import check_writable, one_run, remove
    from anocaps.base.text import shown
    from anocaps.data import fetch_dataset
    from anocaps.detectors import CapsNetDetector
    from anocaps.images.folder import find_classes
    from anocaps.images.names import one_class

    keep_freed_memory()
    check_writable(out)
    if out.suffix.lower() == ".onnx":
        raise InputError(
            "training writes no ONNX: train -o model.safetensors, then anocaps export "
            "model.safetensors model.onnx"
        )
    if out.suffix.lower() != ".safetensors":
        raise InputError(f"{shown(out)}: name the model file to write .safetensors")
    if (folder is None) == (dataset is None):
        raise InputError("give either a folder of images or --dataset NAME")
    checkpoint = out.with_name(out.name + ".checkpoint")
    channels = None if grey is None else 1 if grey else 3
    _check_options(preset, score_function, calibration, device, size, how, channels)
    if folder is not None:
        if held_out is not None:
            raise InputError("--held-out is for datasets; move the class out of the folder")
        found = find_classes(folder, follow_links)
        check_outputs((out, checkpoint), chain.from_iterable(found.classes.values()))
        if len(found.classes) == 1 and score_function in _COMPARING:
            raise _nothing_to_compare(score_function)
        warn_of_names(found)
        for line in (*one_class(found.classes), *found.passed.sentences()):
            print(line, file=sys.stderr)
        photo = None if preset == "auto" else preset == "photo"
        data = _from_folder(found, size, how, channels, photo, skip_bad, shown=not as_json)
        data = data._replace(others=tuple(found.passed.others.most_common()))
        data.source["path"] = Path(os.path.relpath(folder, out.parent)).as_posix()
    else:
        if skip_bad or (how, grey) != (None, None) or (size is not None and preset != "photo"):
            raise InputError(
                "--size (except with preset photo), --fit, --grey, --colour and --skip-bad are "
                "for folders: leave them out"
            )
        check_outputs((out, checkpoint), fetch_dataset(str(dataset), data_dir))
        data = _from_dataset(str(dataset), held_out, data_dir)
        if score_function in _COMPARING and len(set(data.labels)) == 1:
            raise _nothing_to_compare(score_function)
    detector = CapsNetDetector(
        preset=preset,
        score_function=score_function,
        calibration=calibration,
        size=size,
        seed=seed,
        device=device,
        **data.settings(preset) | ({} if epochs is None else {"epochs": epochs}),
    )
    _warn_of_size(detector, data)
    with one_run(out):  # a second run would write the same checkpoint
        with telling_of(checkpoint, resume), said_once():
            if not (as_json or resume):
                _tell_time(detector, data, self_check)
            prepared = detector.prepare(data.images, data.labels)
            with training_bar("training", shown=not as_json) as progress:
                detector.fit(
                    prepared, data.labels, checkpoint=checkpoint, resume=resume, progress=progress
                )
            _complete(detector, data, prepared, self_check, shown=not as_json)
            stop_if_asked()
        detector.save(out)
        remove(checkpoint)
    _tell(out, detector.card_, as_json)


# ── before training ──────────────────────────────────────────────────────────────────────────


def _check_options(
    preset: str,
    score_function: str,
    calibration: float | None,
    device: str,
    size: int | None,
    how: "How | str | None",
    channels: int | None,
) -> None:
    """Refuse impossible options before any image is read."""
    from anocaps.base.errors import InputError
    from anocaps.detectors import CapsNetDetector
    from anocaps.detectors.presets import find_preset
    from anocaps.images.decode import Fit
    from anocaps.training.device import pick_device

    known = ("auto", *CapsNetDetector.score_names)
    if score_function not in known:
        raise InputError(
            f"--score-function {score_function!r} is unknown: use one of {', '.join(known)}"
        )
    if calibration is not None and not 0 <= calibration < 1:
        raise InputError(f"--calibration must be from 0 to less than 1, not {calibration}")
    pick_device(device)
    side = size or 28
    Fit(side, side, channels or 1, how or "resize")  # type: ignore[arg-type]  # checks them
    if preset != "auto":
        chosen = find_preset(preset)
        if size is not None:
            chosen.network(side, side, channels or 1, 2)


def _nothing_to_compare(score_function: str) -> "InputError":
    from anocaps.base.errors import InputError

    return InputError(
        f"--score-function {score_function} compares classes, but there is only one: use combined"
    )


class _Data(NamedTuple):
    images: Any
    labels: Any  # class names
    source: dict[str, Any]  # where the images come from, for the model's record
    files: Sequence[str] = ()  # names inside the folder
    fit: "Fit | None" = None  # how files became images
    skipped: tuple[tuple[Path, str], ...] = ()  # file and reason
    copies: int = 0  # number of copies that were left out
    others: tuple[tuple[str, int], ...] = ()  # files that are no images: extension, number

    def settings(self, preset: str) -> dict[str, Any]:
        """The detector's settings for a named dataset."""
        from anocaps.study.studies import settings_for

        return settings_for(self.source.get("dataset", ""), preset)


def _from_folder(
    classes: "ClassFolders",
    size: int | None,
    how: "How | str | None",
    channels: int | None,
    photo: bool | None,
    skip_bad: bool,
    shown: bool,
) -> _Data:
    from anocaps.images.decode import describe
    from anocaps.images.folder import ImageFolder
    from anocaps.images.sizes import describe_size, describe_sizes

    try:
        with files_bar("reading", shown) as tell:
            found = ImageFolder(
                classes,
                size,
                skip_bad=skip_bad,
                how=how,  # type: ignore[arg-type]  # checked there
                channels=channels,
                photo=photo,
                progress=lambda done, total: tell(done, total, done),
            )
    except MemoryError as error:
        raise _too_large(classes.folder, error) from error
    if shown and found.sizes is not None:
        becomes = describe_size(found.sizes, found.fit, found.photo, size)
        say(describe_sizes(found.sizes), f"{describe(found.fit)} {becomes}")
    source = {"folder": classes.folder.resolve().name}
    files = [file.relative_to(classes.folder).as_posix() for file in found.files]
    copies = len(found.duplicates)
    return _Data(found.images, found.labels, source, files, found.fit, found.skipped, copies)


def _too_large(folder: Path, error: MemoryError) -> "InputError":
    from anocaps.base.errors import InputError
    from anocaps.base.text import shown

    needed = "more memory than there is"
    if (shape := getattr(error, "shape", None)) is not None:  # NumPy says what was asked for
        needed = f"{prod(shape) / 1e9:,.1f} GB of memory, more than there is"
    return InputError(
        f"{shown(folder)}: its images take {needed}; use a smaller --size, --grey, or fewer images"
    )


def _from_dataset(name: str, held_out: str | None, data_dir: Path | None) -> _Data:
    from anocaps.data import load_dataset
    from anocaps.study.protocol import cell_data, held_out_classes

    dataset = load_dataset(name, data_dir)
    held = held_out_classes(dataset, held_out) if held_out is not None else ()
    cell = cell_data(dataset, held, seed=0)
    source = {"dataset": dataset.name, "official": dataset.official, "hashes": dataset.hashes}
    return _Data(cell.train_images, cell.train_labels, source)


def _warn_of_size(detector: "CapsNetDetector", data: _Data) -> None:
    """Warn before training if many classes make the model file large."""
    from anocaps.inspect.forecast import expected_megabytes

    classes = len(set(data.labels))
    if (megabytes := expected_megabytes(detector, data.images, classes)) > _LARGE_FILE:
        print(
            f"Warning: the model file will have up to {megabytes:.0f} MB for {classes:,} classes. "
            "Use a smaller --size, or --preset deep, which needs at most "
            f"{_LARGE_FILE} MB up to 200 classes.",
            file=sys.stderr,
        )


def _tell_time(detector: "CapsNetDetector", data: _Data, self_check: bool) -> None:
    """Say before training how long it will take."""
    from anocaps.inspect.forecast import about, expected_seconds

    seconds = expected_seconds(detector, data.images, data.labels, self_check)
    check = " and the self-check" if self_check else ""
    print(f"Training{check} will take {about(seconds)} here.", file=sys.stderr, flush=True)


# ── training and after it ────────────────────────────────────────────────────────────────────


def _complete(
    detector: "CapsNetDetector", data: _Data, prepared: Any, wanted: bool, shown: bool
) -> None:
    """Run the self-check after training, and record where the images come from."""
    from anocaps.detectors.fitting import kept_images
    from anocaps.images.decode import describe
    from anocaps.inspect import selfcheck
    from anocaps.inspect.card import add_files

    check: dict[str, Any] = {"skipped": "It was not asked for"}
    if wanted:
        with training_bar("self-check", shown) as progress:
            check = selfcheck.self_check(detector, data.images, data.labels, progress, prepared)
    detector.card_["self_check"] = check
    detector.record_["source"] = data.source
    if data.files and (kept := kept_images(detector, prepared, data.labels)) is not None:
        detector.record_["kept_files"] = [data.files[k] for k in kept]
    if data.fit is not None:
        detector.record_["fit"] = asdict(data.fit)
        fit = describe(data.fit)
        add_files(detector.card_, fit, data.skipped, data.copies, data.others)


def _tell(out: Path, card: "Card", as_json: bool) -> None:
    from anocaps.base.text import shown
    from anocaps.inspect.card import four_lines, near_copies, warnings_of

    for poor in warnings_of(card):
        print(f"Warning: {poor}", file=sys.stderr)
    if as_json:
        print_json(**{"model": str(out)} | card)
        return
    counts = {"bad files": card["skipped"], "copies of others": card["copies"]}
    left_out = [f"{number:,} {what}" for what, number in counts.items() if number]
    say(
        *([f"Left out: {' and '.join(left_out)}; see anocaps card --full."] if left_out else []),
        *near_copies(card),
        f"Model: {shown(out)}, {out.stat().st_size / 1e6:.1f} MB, preset {card['preset']}, "
        f"score function {card['score_function']}.",
        *four_lines(card, next_command(out)),
    )
