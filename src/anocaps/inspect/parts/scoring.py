"""Score shards of images as tasks of an engine, and collect their rows in a folder.

A worker reads, decodes and scores the images of a shard and returns its rows as a Parquet file. The
command alone writes, so that a worker may be killed at any moment, and workers need no shared disk
for the results.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import count

from anocaps.base.errors import AnocapsError, DataError, ModelFileError
from anocaps.base.signing import OtherFile, demand
from anocaps.engines.base import Engine, Lost, SharedFile, collect
from anocaps.inspect.judge import load_judge
from anocaps.inspect.parts.folder import Part, PartsFolder, sha256
from anocaps.inspect.parts.sources import Shard
from anocaps.inspect.scoring import Tally, columns_of, score_images
from anocaps.inspect.tables import write_parquet
from anocaps.judging.judgement import Judge

_AHEAD = 256  # images that are read while others are scored


@dataclass(frozen=True)
class Model:
    """A model file as a part of a task."""

    file: SharedFile
    sha256: str  # of the file
    checksum: str  # of the loaded model
    device: str


@dataclass(frozen=True)
class Task:
    number: int
    shard: Shard
    model: Model
    alpha: float


def score_parts(
    engine: Engine,
    model: Model,
    shards: Iterable[Shard],
    alpha: float,
    folder: PartsFolder,
    progress: Callable[[int, int], None] = lambda done, here: None,
) -> Tally:
    """Score the shards that have no part yet.

    `progress` receives the number of images done, and the number done since this call.
    """
    tally, numbers, lost = Tally(), count(), 0
    for part in folder.parts.values():
        _add(tally, part)
    before = tally.files

    def tasks() -> Iterator[Task]:
        for shard in shards:
            number = next(numbers)
            if not folder.has(number, shard.digest, len(shard)):
                yield Task(number, shard, model, alpha)

    for _, found in collect(engine, score_shard, tasks()):
        if isinstance(found, Lost):
            lost += 1
            continue
        folder.add(*found)
        _add(tally, found[0])
        progress(tally.files, tally.files - before)
    if lost:
        raise AnocapsError(
            f"{lost:,} parts are missing, since their workers ended unexpectedly, perhaps for lack "
            "of memory; run the same command with --resume"
        )
    if not tally.files:
        raise DataError("there is no image to score")
    folder.finish(next(numbers))
    return tally


def score_shard(task: Task) -> tuple[Part, bytes]:
    """The task of a worker: score a shard and return its rows as a Parquet file."""
    judge, tally = _judge_of(task.model), Tally()
    rows = []
    images = task.shard.read(judge.fit, _AHEAD)
    for batch in score_images(judge, images, task.alpha):
        tally.add(batch)
        rows += [scored.row for scored in batch]
    written = BytesIO()
    write_parquet(written, columns_of(judge), iter(rows))
    content = written.getvalue()
    return Part(
        task.number, task.shard.digest, tally.scored, tally.anomalous, tally.failed, tally.error,
        len(content), sha256(content),
    ), content  # fmt: skip


_loaded: dict[tuple[str, str], Judge] = {}  # the model of this process


def _judge_of(model: Model) -> Judge:
    key = model.checksum, model.device
    if key not in _loaded:
        _loaded.clear()
        try:
            with model.file.opened() as path:
                demand(path, model.sha256)
                _loaded[key] = load_judge(path, model.device)
        except OtherFile as error:
            raise ModelFileError(
                "the model file was changed during the run; score into a new folder"
            ) from error
    return _loaded[key]


def _add(tally: Tally, part: Part) -> None:
    tally.scored += part.scored
    tally.anomalous += part.anomalous
    tally.failed += part.failed
    tally.error = tally.error or part.error
