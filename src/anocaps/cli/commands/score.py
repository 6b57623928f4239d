"""`anocaps score`: which new images are anomalous."""

import os
import sys
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anocaps.cli.commands.score_parts import ToFolder, check_folder, wants_folder
from anocaps.cli.heap import keep_freed_memory
from anocaps.cli.options import (
    RUNNING,
    Address,
    Device,
    EngineName,
    ExpectSha256,
    FollowLinks,
    Json,
    PublicKey,
    check_model,
)
from anocaps.cli.outputs import check_outputs, folder_links, inputs_of
from anocaps.cli.terminal import (
    Stopped,
    files_bar,
    print_json,
    say,
    stop_if_asked,
    stop_later,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anocaps.inspect.illustrate import Illustrations
    from anocaps.inspect.listing import Listing
    from anocaps.inspect.scoring import Also, Scored, Tally
    from anocaps.inspect.tables import UnfinishedTable
    from anocaps.judging.judgement import Judge

SCORE_EXAMPLE = (
    "Examples: anocaps score model.safetensors new/ -o scores.csv --alpha 0.01\n\n"
    "anocaps score model.onnx new/ -o scores.parquet --gallery gallery.html --heatmaps maps/\n\n"
    "anocaps score model.onnx camera/ -o scores.csv --watch\n\n"
    "anocaps score model.onnx s3://bucket/photos -o scores/ --engine ray --address auto"
)

_MOST_ANOMALOUS = 5  # images that are printed
_MOST_FOLDERS = 10  # folders that are printed
_FEW = 16  # with no more images, starting threads takes longer than they save


def score(
    model: Annotated[Path, typer.Argument(help="A model file, .safetensors or .onnx.")],
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Image files or folders. With a folder as --out also lists (.txt), Parquet tables "
            "and addresses such as s3://…"
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Write a row per file: .csv, .jsonl or .parquet. An older table is replaced. A "
            "name without an extension is a folder of Parquet files, for millions of images.",
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="The false-alarm rate you accept.",
            show_default="0.05, or more if the calibration set is small",
        ),
    ] = None,
    gallery: Annotated[
        Path | None, typer.Option(help="Write a page of images, the most anomalous first.")
    ] = None,
    heatmaps: Annotated[
        Path | None,
        typer.Option(help="Write a heatmap over each photo, and its heat, into this folder."),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Score new files as they arrive, until Ctrl-C."),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue a run that was stopped. Its rows are never overwritten.",
            rich_help_panel=RUNNING,
        ),
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of processes that fill the folder.",
            show_default="one per core; on Ray, as many as there is room for",
            rich_help_panel=RUNNING,
        ),
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    follow_links: FollowLinks = True,
    expect_sha256: ExpectSha256 = None,
    public_key: PublicKey = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Score new images: a p-value and a verdict for each."""
    from anocaps.base.errors import InputError
    from anocaps.base.files import check_writable
    from anocaps.images.walk import list_images
    from anocaps.inspect.illustrate import Illustrations, check_places
    from anocaps.inspect.judge import load_judge
    from anocaps.inspect.listing import Listing
    from anocaps.inspect.scoring import default_alpha
    from anocaps.inspect.tables import check_format, partial_path
    from anocaps.judging.flagged import far_more, many_flagged

    keep_freed_memory()
    check_model(model, expect_sha256, public_key)
    if out is None and resume:
        raise InputError("--resume continues a table of scores: name it with -o")
    to_folder = wants_folder(sources, out, engine, jobs, watch or bool(gallery or heatmaps))
    images = [Path(source) for source in sources]
    read = inputs_of(model, public_key)
    if out is not None and to_folder:
        check_folder(sources, out, read, follow_links)
    elif out is not None:
        check_format(out, live=watch)
        check_writable(out)
    check_places(images, gallery, heatmaps)
    partial = None if out is None or to_folder else partial_path(out)
    single = () if to_folder else (out, partial, gallery)
    check_outputs(single, read, (heatmaps,))  # before the images are listed
    files = None if watch or to_folder else Listing(images, follow_links)
    if not to_folder:
        there = list_images(images, follow_links=follow_links) if files is None else files
        linked = folder_links(heatmaps, (".png", ".npz"))
        check_outputs(single, chain(read, there), (heatmaps, *linked))
    if files is not None:
        if files.repeated:
            print(f"Left out files that were named again: {files.repeated:,}", file=sys.stderr)
        for line in files.passed.sentences():
            print(line, file=sys.stderr)
        if len(files) <= _FEW:
            os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it when it is imported
    judge = load_judge(model, "cpu" if to_folder else device)
    stop_if_asked()
    if not judge.calibration_size:
        print("The model has no calibration set: it gives scores, no verdicts.", file=sys.stderr)
    alpha = default_alpha(judge) if alpha is None else alpha
    illustrations = Illustrations(judge, images, alpha, gallery, heatmaps, model)
    run = _Run(judge, alpha, illustrations, as_json)
    if to_folder:
        assert out is not None
        scoring = ToFolder(judge, model, alpha, engine, address, jobs, device, quiet=as_json)
        tally = scoring.run(sources, out, resume, follow_links)
    elif files is None:
        tally = run.watch(images, follow_links, out, resume)
    else:
        with files_bar("scoring", shown=not as_json and len(files) > 1) as tell:
            count = len(files)
            run.progress = lambda done, here: tell(done, count, here)
            tally = run.to_terminal(files) if out is None else run.to_file(files, out, resume)
    places = {"out": out, "gallery": gallery, "heatmaps": heatmaps}
    written = {name: path for name, path in places.items() if path is not None}
    counted = (tally.anomalous, tally.scored, alpha, judge.calibration_size)
    if not as_json:
        say(*run.summary(tally, written, alone=files is not None and len(files) == 1))
    elif out is not None:
        counts = {"scored": tally.scored, "anomalous": tally.anomalous, "failed": tally.failed}
        named = {name: str(path) for name, path in written.items()}
        far = bool(judge.calibration_size) and far_more(*counted)
        known = {"pretrained": (judge.card or {}).get("pretrained")}
        print_json(**counts, far_more=far, score_function=judge.score_function, **known, **named)
    if (warned := many_flagged(*counted)) and not watch:
        print(f"Warning: {warned}", file=sys.stderr)
    _report_failures(tally, out)


def _report_failures(tally: "Tally", out: Path | None) -> None:
    from anocaps.base.errors import DataError
    from anocaps.base.text import shown

    where = "" if out is None else f": see the column 'error' of {shown(out)}"
    if tally.files and tally.scored == 0:
        if tally.files == 1:
            raise DataError(f"the image could not be scored{where}: {tally.error}")
        raise DataError(
            f"none of the {tally.files:,} images could be scored{where}; the first: {tally.error}"
        )
    if tally.failed:
        print(
            f"{tally.failed:,} of {tally.files:,} files could not be scored{where}", file=sys.stderr
        )


@dataclass
class _Run:
    judge: "Judge"
    alpha: float
    illustrations: "Illustrations"
    as_json: bool
    progress: "Callable[[int, int], None]" = lambda done, here: None  # after every batch
    folders: dict[Path, list[int]] = field(default_factory=dict)  # images, anomalous
    lowest: "list[Scored]" = field(default_factory=list)  # those with the lowest scores

    def to_file(self, files: "Listing", out: Path, resume: bool) -> "Tally":
        """Write a table. It is finished last, so that a failed run can be continued."""
        from anocaps.base.text import shown
        from anocaps.inspect.scoring import score_into

        with self._table(out, resume) as table:
            try:
                tally = score_into(
                    table, self.judge, files, self.alpha, self._also(table), self.progress,
                    self.illustrations.wanted,
                )  # fmt: skip
                with table.keeping():
                    self.illustrations.close()
                table.finish()
                return tally
            except Stopped:
                raise Stopped(
                    f"{table.rows:,} rows are in {shown(table.path)}; run the same command with "
                    "--resume."
                    if table.rows
                    else "No row was finished, so nothing was kept."
                ) from None

    def to_terminal(self, files: "Listing") -> "Tally":
        """Score without a table: print a line of JSON per file, or count for `summary`."""
        from anocaps.inspect.scoring import Tally, score_batches

        tally = Tally()
        for batch in score_batches(self.judge, files, self.alpha, self.illustrations.wanted):
            self._show(batch)
            tally.add(batch)
            self.progress(tally.files, tally.files)
        self.illustrations.close()
        return tally

    def watch(
        self, paths: list[Path], follow_links: bool, out: Path | None, resume: bool
    ) -> "Tally":
        """Score files as they arrive, until Ctrl-C. The table has every row at once, the gallery
        within seconds."""
        from anocaps.base.text import shown
        from anocaps.inspect.arrivals import Arrivals, score_arrivals
        from anocaps.inspect.scoring import Tally, add_rows, finished_rows, recall
        from anocaps.judging.flagged import Recent

        table, tally, arrivals = None, Tally(), Arrivals(paths, follow_links)
        recent = Recent(self.alpha, self.judge.calibration_size)
        with ExitStack() as opened:
            if out is not None:
                table = opened.enter_context(self._table(out, resume, live=True))
                tally = recall(table, self._also(table))
                arrivals.know(scored.file for scored in finished_rows(table))
            asked = opened.enter_context(stop_later())

            def stopping() -> bool:  # called after every batch and every look
                with nullcontext() if table is None else table.keeping():
                    self.illustrations.refresh()
                return asked()

            names = ", ".join(map(shown, paths))
            print(f"Watching {names}; Ctrl-C ends.", file=sys.stderr, flush=True)
            for batch in score_arrivals(
                self.judge, arrivals, self.alpha, stopping, self.illustrations.wanted
            ):
                if table is None:
                    self._show(batch)
                    tally.add(batch)
                else:
                    add_rows(table, batch, tally, self._also(table))
                flagged = [each for each in batch if each.row["verdict"] == "anomalous"]
                if flagged and not self.as_json:
                    say(*map(self._verdict, flagged))
                scored = [each.row for each in batch if each.row["error"] is None]
                if said := recent.add(row["verdict"] == "anomalous" for row in scored):
                    print(f"Warning: {said}", file=sys.stderr, flush=True)
            with nullcontext() if table is None else table.keeping():
                self.illustrations.close()
        return tally

    def _table(self, out: Path, resume: bool, live: bool = False) -> "UnfinishedTable":
        from anocaps.base.text import shown
        from anocaps.inspect.scoring import columns_of, run_of
        from anocaps.inspect.tables import UnfinishedTable, partial_path

        partial = partial_path(out)
        if resume and not partial.exists():
            print(f"There is no {shown(partial)}: starting from the beginning.", file=sys.stderr)
        run = run_of(self.judge, self.alpha)
        return UnfinishedTable(out, columns_of(self.judge), run, resume, live)

    def _also(self, table: "UnfinishedTable") -> "Also":
        def also(batch: "Sequence[Scored]") -> None:
            with table.keeping():
                self.illustrations.add(batch)
            self._count(batch)

        return also

    def _show(self, batch: "Sequence[Scored]") -> None:
        """Print the JSON or the errors of a batch."""
        self.illustrations.add(batch)
        self._count(batch)
        for row in (scored.row for scored in batch):
            if self.as_json:
                print_json(**row)
            elif row["error"] is not None:
                print(row["error"], file=sys.stderr)

    def _count(self, batch: "Sequence[Scored]") -> None:
        scored = [each for each in batch if each.row["error"] is None]
        for each in scored:
            counts = self.folders.setdefault(each.file.parent, [0, 0])
            counts[0] += 1
            counts[1] += each.row["verdict"] == "anomalous"
        self.lowest = nsmallest(_MOST_ANOMALOUS, [*self.lowest, *scored], key=_normality)
        for each in self.lowest:
            each.image = each.heat_source = None  # no longer needed

    def summary(self, tally: "Tally", written: dict[str, Path], alone: bool) -> list[str]:
        """Counts per folder, the most anomalous images, and where the files are."""
        from anocaps.base.text import shown

        titles = {"out": "Table", "gallery": "Gallery", "heatmaps": "Heatmaps"}
        places = [f"{titles[name]}: {shown(path)}" for name, path in written.items()]
        if alone:
            return [*map(self._verdict, self.lowest), *places]
        calibrated = bool(self.judge.calibration_size)
        rate = f" at a false-alarm rate of {100 * self.alpha:g} %"
        flagged = f", {tally.anomalous:,} anomalous{rate}" if calibrated else ""
        lines = [f"{tally.scored:,} images scored by {self.judge.score_function}{flagged}."]
        if len(self.folders) > 1:
            by_flagged = sorted(self.folders.items(), key=lambda each: (-each[1][1], each[0]))
            for folder, (images, anomalous) in by_flagged[:_MOST_FOLDERS]:
                of_folder = f", {anomalous:,} anomalous" if calibrated else ""
                lines.append(f"  {shown(folder)}: {images:,} images{of_folder}")
            if (more := len(self.folders) - _MOST_FOLDERS) > 0:
                lines.append(f"  and {more:,} more folders")
        told = [each for each in self.lowest if each.row["verdict"] in ("anomalous", None)]
        if told:
            lines += ["Most anomalous:", *(f"  {self._verdict(each)}" for each in told)]
        return [*lines, *places]

    def _verdict(self, scored: "Scored") -> str:
        """One line on one image."""
        from anocaps.base.text import shown

        row = scored.row
        if row["verdict"] is None:
            said = [f"score {row['score']:.4g}"] if row["score"] is not None else ["no score"]
        else:
            said = [row["verdict"], f"p-value {row['p_value']:.2g}"]
        return f"{shown(scored.file)}: {', '.join([*said, *filter(None, [scored.sentence])])}"


def _normality(scored: "Scored") -> float:
    score: float | None = scored.row["score"]
    return -inf if score is None else score
