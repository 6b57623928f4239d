"""`anocaps score`: what is odd among new images."""

import json
import sys
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anocaps.cli.terminal import Stopped, files_bar, say, stop_if_asked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anocaps.inspect.illustrate import Illustrations
    from anocaps.inspect.scoring import Scored, Tally
    from anocaps.judging.judgement import Judge

SCORE_EXAMPLE = (
    "Examples: anocaps score model.safetensors new/ -o scores.csv --alpha 0.01\n\n"
    "anocaps score model.onnx new/ -o scores.parquet --gallery odd.html --heatmaps maps/"
)

_SENTENCES = 20  # of odd images, where a table has them all


def score(
    model: Annotated[Path, typer.Argument(help="A model file, .safetensors or .onnx.")],
    images: Annotated[list[Path], typer.Argument(help="Image files or folders.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Write a row per file: .csv, .jsonl or .parquet. An older table is replaced.",
        ),
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
        bool,
        typer.Option(
            "--resume", help="Continue a run that was stopped. Its rows are never overwritten."
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="'auto', 'cpu' or 'cuda'.")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for a program to read.")
    ] = False,
) -> None:
    """Score new images: a p-value and a verdict for each."""
    from anocaps.base.errors import InputError
    from anocaps.base.files import check_writable
    from anocaps.base.text import shown
    from anocaps.images.walk import PassedOver
    from anocaps.inspect.illustrate import Illustrations, check_places
    from anocaps.inspect.judge import load_judge
    from anocaps.inspect.scoring import check_rate, count_files
    from anocaps.inspect.tables import check_format
    from anocaps.judging.calibration import check_alpha

    check_rate(alpha)
    if out is None and resume:
        raise InputError("--resume continues a file of scores: name it with -o")
    if out is not None:
        check_format(out)
        check_writable(out)
    check_places(images, gallery, heatmaps)
    passed = PassedOver()
    total, again = count_files(images, passed)
    if again:
        repeated = f"{again:,} repeated file{'' if again == 1 else 's'}"
        print(f"{repeated} left out: every file is scored once.", file=sys.stderr)
    for line in passed.sentences():
        print(line, file=sys.stderr)
    there = 0  # of the files counted, those that have rows
    judge = load_judge(model, device)
    stop_if_asked()
    if judge.calibration_size:
        check_alpha(alpha, judge.calibration_size)
    else:
        print(
            "The model has no calibration images: there are scores, but no verdicts.",
            file=sys.stderr,
        )
    pictures = Illustrations(judge, images, alpha, gallery, heatmaps)
    with files_bar("scoring", shown=not as_json) as tell:

        def progress(done: int, here: int) -> None:
            nonlocal there
            there = done
            tell(done, total, here)

        run = _Run(model, judge, images, alpha, pictures, progress)
        tally = run.to_terminal(as_json) if out is None else run.to_file(out, resume)
    places = [path for path in (out, gallery, heatmaps) if path is not None]
    if not as_json:
        say(*run.sentences(tally, out), run.summary(tally), *map(shown, places))
    elif out is not None:
        written = {"out": out, "gallery": gallery, "heatmaps": heatmaps}
        say(json.dumps(run.counts(tally) | {k: str(v) for k, v in written.items() if v}))
    if (gone := total - (there or tally.files)) > 0:
        gone_files = "1 file that was" if gone == 1 else f"{gone:,} files that were"
        are = "is" if gone == 1 else "are"
        print(f"{gone_files} there at the start {are} gone.", file=sys.stderr)
    _report_failures(tally, out)


def _report_failures(tally: "Tally", out: Path | None) -> None:
    from anocaps.base.errors import DataError
    from anocaps.base.text import shown

    where = "" if out is None else f": see the column 'error' of {shown(out)}"
    if tally.scored == 0:
        if tally.files == 1:
            raise DataError(f"the image could not be scored{where}: {tally.error}")
        raise DataError(
            f"none of the {tally.files:,} images could be scored{where}; the first: {tally.error}"
        )
    if tally.failed:
        print(
            f"{tally.failed:,} of {tally.files:,} files could not be scored{where}", file=sys.stderr
        )


@dataclass(frozen=True)
class _Run:
    model: Path
    judge: "Judge"
    paths: list[Path]
    alpha: float
    pictures: "Illustrations"
    progress: "Callable[[int, int], None]"  # after every batch
    odd: list[str] = field(default_factory=list)  # sentences to be printed at the end

    def to_file(self, out: Path, resume: bool) -> "Tally":
        """The table is finished last: until then a run that fails can be continued.

        The first odd images are remembered: a closed pipe must not end a run with a table.
        """
        from anocaps.base.text import shown
        from anocaps.inspect.scoring import columns_of, run_of, score_into
        from anocaps.inspect.tables import UnfinishedTable, partial_path

        partial = partial_path(out)
        if resume and not partial.exists():
            print(f"There is no {shown(partial)} to continue from: starting anew.", file=sys.stderr)

        def also(batch: "Sequence[Scored]") -> None:
            with table.keeping():
                self.pictures.add(batch)
            anomalous = (each for each in batch if each.row["verdict"] == "anomalous")
            self.odd.extend(map(_line, islice(anomalous, _SENTENCES - len(self.odd))))

        run = run_of(self.model, self.alpha)
        with UnfinishedTable(out, columns_of(self.judge), run, resume) as table:
            try:
                tally = score_into(table, self.judge, self.paths, self.alpha, also, self.progress)
                with table.keeping():
                    self.pictures.close()
                table.finish()
                return tally
            except Stopped:
                raise Stopped(
                    f"{table.rows:,} rows are in {shown(partial)}; run the same command with "
                    "--resume."
                    if table.rows
                    else "No row was finished, so nothing was kept."
                ) from None

    def to_terminal(self, as_json: bool) -> "Tally":
        """A sentence per anomalous image, or a line of JSON per file."""
        from anocaps.inspect.scoring import Tally, list_files, score_files

        tally = Tally()
        for batch in score_files(self.judge, list_files(self.paths), self.alpha):
            self.pictures.add(batch)
            for scored in batch:
                _show(scored, as_json)
            tally.add(batch)
            self.progress(tally.files, tally.files)
        self.pictures.close()
        return tally

    def sentences(self, tally: "Tally", out: Path | None) -> list[str]:
        """The first of them, where a table has the others."""
        from anocaps.base.text import shown

        more = tally.anomalous - len(self.odd)
        return self.odd + ([f"and {more:,} more in {shown(out)}"] if out and more else [])

    def summary(self, tally: "Tally") -> str:
        scored = f"{tally.scored:,} image{'' if tally.scored == 1 else 's'} scored"
        scored += f" by {self.judge.score_function}"
        if not self.judge.calibration_size:
            return f"{scored}."
        rate = f"a false-alarm rate of {100 * self.alpha:g} %"
        return f"{scored}, {tally.anomalous:,} anomalous at {rate}."

    def counts(self, tally: "Tally") -> dict[str, object]:
        return {
            "scored": tally.scored,
            "anomalous": tally.anomalous,
            "failed": tally.failed,
            "score_function": self.judge.score_function,
        }


def _show(scored: "Scored", as_json: bool) -> None:
    from anocaps.base.text import shown

    row = scored.row
    if as_json:
        say(json.dumps(row))
    elif row["error"] is not None:
        print(row["error"], file=sys.stderr)
    elif row["verdict"] == "anomalous":
        say(_line(scored))
    elif row["verdict"] is None:
        say(f"{shown(scored.file)}: score {row['score']}")


def _line(scored: "Scored") -> str:
    from anocaps.base.text import shown

    return f"{shown(scored.file)}: {scored.sentence}"
