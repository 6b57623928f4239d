"""The models of a project, and how concurrent requests are joined into batches.

A batch goes through `inspect.scoring.score_images`, as in the command `score`, so that scores and
verdicts are the same.
"""

import asyncio
import io
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anocaps.base.errors import InputError
from anocaps.base.text import shown
from anocaps.images.decode import ImageError, read_header
from anocaps.images.reading import read_contents
from anocaps.inspect.judge import load_judge
from anocaps.inspect.overlays import layer, over_photo
from anocaps.inspect.scoring import Scored, default_alpha, score_batches, score_images
from anocaps.judging.heat import heatmaps
from anocaps.judging.judgement import Judge

MOST_WAITING = 2_048  # images in the queue of a model
_LONGEST_WAIT = 0.01  # seconds for others to join a batch
_ENOUGH = 256  # a batch of this many images waits no longer
_RECENT = 1.0  # seconds before the server looks again whether a model file changed
_HEAT_SIDE = 320  # pixels of the longer side of a heatmap over a photo
_WORKERS = 2  # batches at a time: one is read while the other is scored

Received = tuple[Path, bytes | None]  # an image file, with its bytes if they are in memory


class Busy(Exception):
    """The queue is full."""


class Models:
    """The models in a folder, and given ones, by name. A model is loaded when it is first used."""

    def __init__(self, folder: Path, given: Sequence[Path] = ()) -> None:
        self.folder = folder
        self.given = {path.stem: path for path in given}
        self._loaded: dict[Path, tuple[int, Batcher]] = {}
        self._recent: dict[str | None, tuple[float, str, Batcher]] = {}
        self._lock = threading.Lock()

    def paths(self) -> dict[str, Path]:
        """By name, newest first. The ONNX file is preferred: it needs no torch."""
        found: dict[str, Path] = {}
        for suffix in (".safetensors", ".onnx"):
            found |= {path.stem: path for path in self.folder.glob(f"[!.]*{suffix}")}
        ordered = sorted(found.items(), key=lambda each: -each[1].stat().st_mtime)
        return self.given | dict(ordered) | self.given  # a given one, which was verified, wins

    def recent(self, name: str | None) -> "tuple[str, Batcher] | None":
        """What `batcher` gave within the last second, without a look at the disk."""
        until, found, batcher = self._recent.get(name, (0.0, "", None))
        return None if batcher is None or time.monotonic() > until else (found, batcher)

    def batcher(self, name: str | None = None) -> "tuple[str, Batcher]":
        """A model by name, or the first one."""
        asked = name
        paths = self.paths()
        if not paths:
            raise InputError("there is no model yet; train one first")
        if name is None:
            name = next(iter(paths))
        if name not in paths:
            raise KeyError(name)
        path = paths[name]
        with self._lock:
            changed = path.stat().st_mtime_ns
            known = self._loaded.get(path)
            if known is None or known[0] != changed:
                judge = load_judge(path, "auto")  # an error leaves the old one as it is
                self._loaded[path] = changed, Batcher(judge)
                if known is not None:
                    self._recent = {k: v for k, v in self._recent.items() if v[2] is not known[1]}
                    known[1].close()
            batcher = self._loaded[path][1]
        self._recent[asked] = time.monotonic() + _RECENT, name, batcher
        return name, batcher

    def normal_photos(self, name: str) -> Path:
        """Where the page's training keeps small copies of the normal photos."""
        return self.folder / f"{name}.normal.npz"

    def waiting(self) -> int:
        """Images in all queues."""
        return sum(batcher.waiting for _, batcher in list(self._loaded.values()))

    def close(self) -> None:
        for _, batcher in self._loaded.values():
            batcher.close()


@dataclass
class _Request:
    files: list[Received]
    reconstructions: bool
    result: "asyncio.Future[list[Scored]]"


class Batcher:
    """Scores image files with one model; requests at the same time share a batch."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.alpha = default_alpha(judge)
        self.waiting = 0  # images
        self._closed = False
        self._count = threading.Lock()
        self._gathering = threading.Lock()
        self._scoring = threading.Lock()  # two batches at once would share the cores and the caches
        self._queue: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(_WORKERS)]
        for thread in self._threads:
            thread.start()

    async def score(self, files: list[Received], reconstructions: bool = False) -> list[Scored]:
        """Score the files in the next batch; Busy if too many images wait, or after `close`."""
        request = _Request(files, reconstructions, asyncio.get_running_loop().create_future())
        with self._count:
            if self._closed or self.waiting + len(files) > MOST_WAITING:
                raise Busy
            self.waiting += len(files)
            self._queue.put(request)
        try:
            return await request.result
        finally:
            with self._count:
                self.waiting -= len(files)

    def close(self) -> None:
        """Finish the requests that wait, and take no others."""
        with self._count:
            self._closed = True
            for _ in self._threads:
                self._queue.put(None)

    def _gathered(self) -> list[_Request]:
        """Requests of one batch; none at the end."""
        with self._gathering:
            first = self._queue.get()
            if first is None:
                return []
            batch, images = [first], len(first.files)
            until = time.monotonic() + _LONGEST_WAIT
            while images < _ENOUGH and (left := until - time.monotonic()) > 0:
                try:
                    request = self._queue.get(timeout=left)
                except queue.Empty:
                    break
                if request is None:
                    self._queue.put(None)
                    break
                batch.append(request)
                images += len(request.files)
            return batch

    def _work(self) -> None:
        while batch := self._gathered():
            found: list[list[Scored]] | BaseException
            try:
                files = [file for request in batch for file in request.files]
                wanted = any(request.reconstructions for request in batch)
                images = list(read_contents(files, self.judge.fit))
                with self._scoring:
                    parts = list(score_images(self.judge, iter(images), self.alpha, wanted))
                scored = iter([each for part in parts for each in part])
                found = [list(islice(scored, len(request.files))) for request in batch]
            except BaseException as error:  # the requests answer with it
                found = error
            with suppress(RuntimeError):  # the event loop has ended
                batch[0].result.get_loop().call_soon_threadsafe(_answer, batch, found)


def _answer(batch: list[_Request], found: list[list[Scored]] | BaseException) -> None:
    """Give all requests of a batch their results, in one turn of the event loop."""
    for k, request in enumerate(batch):
        if request.result.done():  # its client went away
            continue
        if isinstance(found, BaseException):
            request.result.set_exception(found)
        else:
            request.result.set_result(found[k])


def verdict(p_value: float | None, alpha: float) -> str | None:
    if p_value is None:
        return None
    return "anomalous" if p_value <= alpha else "normal"


def scores_of(judge: Judge, scored: Scored) -> dict[str, float | None]:
    """By score function."""
    names = judge.score_names
    return {k: scored.row["score" if k == judge.score_function else k] for k in names}


def error_of(error: str | None, file: Path, name: str) -> str | None:
    """The error with the name that the client gave the file, not the server's."""
    return None if error is None else error.replace(shown(file), name)


# ── heat ─────────────────────────────────────────────────────────────────────────────────────


def heat_image(judge: Judge, scored: Scored) -> bytes | None:
    """Where an image is anomalous: a PNG that is transparent where it is not."""
    heat = _heat(judge, scored)
    return None if heat is None else png(layer(heat))


def heat_over_photo(judge: Judge, file: Path) -> bytes | None:
    """The same in the proportions of the photo, to be shown over the photo."""
    (scored,) = next(score_batches(judge, [file], default_alpha(judge), True))
    if scored.row["error"] is not None:
        raise ImageError(scored.row["error"])
    if (heat := _heat(judge, scored)) is None:
        return None
    header = read_header(file)
    scale = _HEAT_SIDE / max(header.width, header.height)
    width, height = (max(1, round(side * scale)) for side in (header.width, header.height))
    return png(layer(over_photo(heat, judge.fit, width, height)))


def _heat(judge: Judge, scored: Scored) -> NDArray[np.float32] | None:
    """Heat h×w, where the model has it."""
    if judge.heat_scale is None or scored.image is None or scored.heat_source is None:
        return None
    image, source = scored.image[None], scored.heat_source[None]
    return np.asarray(heatmaps(image, source, judge.heat_scale)[0])


def png(pixels: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
