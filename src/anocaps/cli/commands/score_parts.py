"""`anocaps score … -o FOLDER`: many images, in several processes or on a cluster."""

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from anocaps.base.errors import DataError, InputError
from anocaps.base.text import shown
from anocaps.cli.outputs import check_outputs, folder_links
from anocaps.cli.terminal import Stopped, files_bar

if TYPE_CHECKING:
    from anocaps.engines.base import Engine
    from anocaps.inspect.scoring import Tally
    from anocaps.judging.judgement import Judge


def wants_folder(
    sources: Sequence[str], out: Path | None, engine: str, jobs: int | None, others: bool
) -> bool:
    """Whether the scores go into a folder. Without one, options that need it raise an error."""
    from anocaps.inspect.parts.sources import is_plain

    if out is not None and not out.suffix:
        if others:
            raise InputError(
                f"{shown(out)} is a folder of scores: --watch, --gallery and --heatmaps need a "
                "single table; name it .csv, .jsonl or .parquet"
            )
        return True
    needs = next((s for s in sources if not is_plain(s)), None)
    if engine != "local" or jobs is not None:
        needs = "--engine ray" if engine != "local" else "--jobs"
    if needs is not None:
        raise InputError(f"{shown(needs)} writes scores into a folder: name one, as in -o scores/")
    return False


@dataclass(frozen=True)
class ToFolder:
    """Score into a folder of Parquet files."""

    judge: "Judge"
    model: Path
    alpha: float
    engine: str
    address: str | None
    jobs: int | None
    device: str
    quiet: bool

    def run(self, sources: list[str], out: Path, resume: bool, follow_links: bool) -> "Tally":
        from anocaps.base.files import make_folder
        from anocaps.base.signing import read_model
        from anocaps.images.walk import PassedOver
        from anocaps.inspect.parts.folder import PartsFolder, sha256
        from anocaps.inspect.parts.scoring import Model, score_parts
        from anocaps.inspect.parts.sources import begin_of, shards_of
        from anocaps.inspect.scoring import columns_of, run_of
        from anocaps.judging.calibration import check_alpha

        check_alpha(self.alpha, self.judge.calibration_size)
        run = run_of(self.judge, self.alpha)
        run |= {"columns": columns_of(self.judge), "sources": sources, "begin": begin_of(sources)}
        passed = PassedOver()
        make_folder(out)
        with (
            PartsFolder(out, run, resume) as folder,
            self._engine() as engine,
            files_bar("scoring", shown=not self.quiet) as tell,
        ):
            if folder.changed:
                print(
                    f"{shown(out / folder.changed[0])} is missing or has changed; parts that are "
                    f"scored again: {len(folder.changed):,}",
                    file=sys.stderr,
                )
            try:
                digest = sha256(read_model(self.model))
                model = Model(engine.share(self.model), digest, self.judge.checksum, self.device)
                tally = score_parts(
                    engine,
                    model,
                    shards_of(sources, passed, follow_links),
                    self.alpha,
                    folder,
                    lambda done, here: tell(done, None, here),
                )
            except Stopped:
                parts = f"{len(folder.parts):,} parts are in {shown(out)}"
                raise Stopped(f"{parts}; run the same command with --resume.") from None
        for line in passed.sentences():
            print(line, file=sys.stderr)
        return tally

    def _engine(self) -> "Engine":
        from anocaps.base.provenance import usable_cores
        from anocaps.engines.choose import open_engine, threads_of

        jobs = self.jobs or (usable_cores() if self.engine == "local" else None)
        gpu = {"cpu": False, "auto": None}.get(self.device, True)
        if self.model.suffix.lower() == ".onnx":
            gpu = False
        return open_engine(self.engine, self.address, jobs, threads_of(self.engine, jobs), gpu)


def check_folder(
    sources: Sequence[str], out: Path, read: Iterable[Path], follow_links: bool
) -> None:
    """Check that local sources exist and that the output folder holds none of them.

    `read` are the other files that the run reads.
    """
    from anocaps.images.walk import list_images
    from anocaps.inspect.parts.addresses import is_address
    from anocaps.inspect.parts.sources import is_plain

    here = [Path(source) for source in sources if not is_address(source)]
    for source in here:
        if not os.path.lexists(source):
            raise DataError(f"{shown(source)} does not exist; give images, a folder or a list")
    if out.exists() and not out.is_dir():
        raise InputError(f"{shown(out)} is a file; name a folder, or a file with an extension")
    plain = [source for source in here if is_plain(str(source))]
    lists = [source for source in here if source not in plain]
    folder_links(out, (".parquet", ".jsonl"))
    check_outputs((), chain(read, lists, list_images(plain, follow_links=follow_links)), (out,))
