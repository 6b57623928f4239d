"""`anocaps check` and `anocaps score`: what is in a folder, and what is odd in it."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anocaps.terminal import Stopped, files_bar, say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anocaps.judging import Judge
    from anocaps.scorefiles import Scored, Tally

CHECK_EXAMPLE = "Example: anocaps check photos/"
SCORE_EXAMPLE = (
    "Examples: anocaps score model.safetensors new/ -o scores.csv --alpha 0.01\n\n"
    "anocaps score model.onnx new/ -o scores.parquet --gallery odd.html --heatmaps maps/"
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


def check(
    folder: Annotated[Path, typer.Argument(help="Images, one sub-folder per class, or one flat.")],
    as_json: Json = False,
) -> None:
    """Look through a folder before training: classes, sizes, bad, odd and double files."""
    from anocaps.data.check import check_folder, sentences
    from anocaps.errors import DataError
    from anocaps.pictures import shown

    with files_bar("checking", shown=not as_json) as tell:
        found = check_folder(folder, tell and (lambda done, total: tell(done, total, done)))
    say(json.dumps(asdict(found)) if as_json else "\n".join(sentences(found)))
    if found.fit is None:
        raise DataError(f"{shown(folder)}: there is no image here that can be read")


def score(
    model: Annotated[Path, typer.Argument(help="A model file, .safetensors or .onnx.")],
    images: Annotated[list[Path], typer.Argument(help="Image files or folders.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write a row per file: .csv, .jsonl or .parquet."),
    ] = None,
    alpha: Annotated[float, typer.Option(help="The false-alarm rate you accept.")] = 0.05,
    gallery: Annotated[
        Path | None, typer.Option(help="Write a page of pictures, the most anomalous first.")
    ] = None,
    heatmaps: Annotated[
        Path | None,
        typer.Option(help="Write where each image is odd, as pictures in this folder."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run that was stopped.")
    ] = False,
    device: Annotated[str, typer.Option(help="'auto', 'cpu' or 'cuda'.")] = "auto",
    as_json: Json = False,
) -> None:
    """Score new images: a p-value and a verdict for each."""
    from anocaps.calibration import check_alpha
    from anocaps.errors import InputError
    from anocaps.files import check_writable
    from anocaps.judging import load_judge
    from anocaps.scorefiles import count_files
    from anocaps.scorepictures import Illustrations
    from anocaps.scoretables import check_format

    if out is None and resume:
        raise InputError("--resume continues a file of scores: name it with -o")
    if out is not None:
        check_format(out)
        check_writable(out)
    total = count_files(images)
    judge = load_judge(model, device)
    if judge.calibration_size:
        check_alpha(alpha, judge.calibration_size)
    else:
        print(
            "The model has no calibration images: there are scores, but no verdicts.",
            file=sys.stderr,
        )
    with (
        Illustrations(judge, images, alpha, gallery, heatmaps) as pictures,
        files_bar("scoring", shown=not as_json) as tell,
    ):
        run = _Run(
            model,
            judge,
            images,
            alpha,
            also=pictures.add if gallery or heatmaps else None,
            progress=tell and (lambda done, here: tell(done, total, here)),
        )
        tally = run.to_terminal(as_json) if out is None else run.to_file(out, resume)
    written = {"out": out, "gallery": gallery, "heatmaps": heatmaps}
    places = {name: str(path) for name, path in written.items() if path is not None}
    if as_json and out is not None:
        counts = {"scored": tally.scored, "anomalous": tally.anomalous, "failed": tally.failed}
        say(json.dumps(counts | places))
    elif not as_json:
        say(_summary(tally, alpha if judge.calibration_size else None), *places.values())
    if tally.failed:
        where = "" if out is None else ": see the column 'error'"
        print(
            f"{tally.failed:,} of {tally.files:,} files could not be scored{where}", file=sys.stderr
        )


def _summary(tally: "Tally", alpha: float | None) -> str:
    scored = f"{tally.scored:,} image{'' if tally.scored == 1 else 's'} scored"
    if alpha is None:
        return f"{scored}."
    return f"{scored}, {tally.anomalous:,} anomalous at a false-alarm rate of {100 * alpha:g} %."


@dataclass(frozen=True)
class _Run:
    model: Path
    judge: "Judge"
    paths: list[Path]
    alpha: float
    also: "Callable[[Sequence[Scored]], None] | None"
    progress: "Callable[[int, int], None] | None"

    def to_file(self, out: Path, resume: bool) -> "Tally":
        from anocaps.scorefiles import columns_of, run_of, score_into
        from anocaps.scoretables import UnfinishedTable, partial_path

        partial = partial_path(out)
        if resume and not partial.exists():
            print(f"There is no {partial} to continue from: starting anew.", file=sys.stderr)
        if partial.exists() and not resume:
            print(f"Replacing {partial} of an earlier run.", file=sys.stderr)
        run = run_of(self.model, self.alpha)
        with UnfinishedTable(out, columns_of(self.judge), run, resume) as table:
            try:
                return score_into(
                    table, self.judge, self.paths, self.alpha, self.also, self.progress
                )
            except Stopped:
                raise Stopped(
                    f"{table.rows:,} rows are in {partial}; run the same command with --resume."
                    if table.rows
                    else "No row was finished, so nothing was kept."
                ) from None

    def to_terminal(self, as_json: bool) -> "Tally":
        """A sentence per anomalous image, or a line of JSON per file."""
        from anocaps.pictures import list_pictures
        from anocaps.scorefiles import Tally, none_scored, score_files

        tally = Tally()
        for batch in score_files(self.judge, list_pictures(self.paths), self.alpha):
            if self.also is not None:
                self.also(batch)
            for scored in batch:
                _show(scored, as_json)
            tally.add(batch)
            if self.progress is not None:
                self.progress(tally.files, tally.files)
        if tally.scored == 0:
            raise none_scored(tally)
        return tally


def _show(scored: "Scored", as_json: bool) -> None:
    from anocaps.pictures import shown

    row = scored.row
    if as_json:
        say(json.dumps(row))
    elif row["error"] is not None:
        print(row["error"], file=sys.stderr)
    elif row["verdict"] == "anomalous":
        say(f"{shown(scored.file)}: {scored.sentence}")
    elif row["verdict"] is None:
        say(f"{shown(scored.file)}: score {row['score']}")
