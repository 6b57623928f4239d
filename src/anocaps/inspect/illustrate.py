"""The gallery of a scoring run, the most anomalous images first, and a heatmap per image.

The source of heat comes with the scores, from one forward pass. Heat is computed only for images
that are shown: all images if heatmaps are written, otherwise the candidates for the gallery.
"""

import heapq
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import InputError
from anocaps.base.files import check_writable
from anocaps.base.text import shown
from anocaps.base.threads import in_order
from anocaps.images.decode import ImageError, read_photo
from anocaps.images.reading import read_images
from anocaps.inspect.card import pretrained, verdict_of
from anocaps.inspect.gallery import MOST_NORMAL, SHOWN, About, GalleryWriter
from anocaps.inspect.overlays import HeatmapWriter, over_photo
from anocaps.inspect.scoring import Scored
from anocaps.inspect.tables import Row
from anocaps.inspect.thumbnails import SIDE, layer_size
from anocaps.judging.heat import heatmaps
from anocaps.judging.judgement import Judge

_EVERY = 3.0  # seconds between two writings of the gallery during a watch
_REST = 10  # the pause is at least this many times as long as the last writing


def check_places(paths: Sequence[Path], gallery: Path | None, heatmaps: Path | None) -> None:
    """Raise an error before any image is read if gallery or heatmaps cannot be written."""
    if gallery is not None:
        if gallery.suffix.lower() not in (".html", ".htm"):
            raise InputError(f"{shown(gallery)}: the gallery is a page, name it .html")
        check_writable(gallery)
    if heatmaps is not None:
        HeatmapWriter(heatmaps, paths)


class Illustrations:
    """Add every batch, then call `close`, which writes the gallery. `refresh` writes it earlier."""

    def __init__(
        self,
        judge: Judge,
        paths: Sequence[Path],
        alpha: float,
        gallery: Path | None,
        heatmaps: Path | None,
        model: Path | None = None,  # its file
    ) -> None:
        if heatmaps is not None and judge.heat_scale is None:
            raise InputError("this model has no heatmaps")
        self.judge = judge
        self.heatmaps = None if heatmaps is None else HeatmapWriter(heatmaps, paths)
        self.gallery: GalleryWriter | None = None
        if gallery is not None:
            names = ", ".join(path.name or str(path) for path in paths[:3])
            title = names + (" …" if len(paths) > 3 else "")
            known = alpha if judge.calibration_size else None
            name = "" if model is None else shown(model.name)
            size, label = judge.calibration_size, pretrained((judge.card or {}).get("pretrained"))
            about = About(name, str(date.today()), *_verdict(judge), size, label)
            self.gallery = GalleryWriter(gallery, title, known, judge.score_function, about)
            if model is not None and isinstance(judge.source, dict):
                self.gallery.training = model.parent / str(judge.source.get("path", ""))
        self._lowest, self._highest = _Lowest(SHOWN), _Lowest(MOST_NORMAL)
        self._changed, self._due = False, 0.0  # since the last writing; earliest next one

    @property
    def wanted(self) -> bool:
        """Whether scoring should keep the source of heat."""
        return self.gallery is not None or self.heatmaps is not None

    def add(self, batch: Sequence[Scored]) -> None:
        """Add a batch. A row of a stopped run has no image: the image is read and reconstructed
        again if the gallery needs it or its heatmap is missing."""
        self._changed |= bool(batch)
        wanted = [self._wants(each) for each in batch]
        shown = [each for each, want in zip(batch, wanted) if want]
        self._read_again([each for each in shown if each.image is None])
        heats = self._heats(shown)
        photos = {} if self.gallery is None else dict(in_order(self._photo, shown))
        for scored in batch:
            photo, heat = photos.get(scored.file), heats.get(scored.file)
            if heat is not None:
                self._write_heatmap(scored, heat)
            if self.gallery is not None:
                source = None if photo is None else scored.heat_source
                reconstruction = source if source is not None and source.ndim == 3 else None
                if photo is not None and heat is not None:
                    size = layer_size(photo.shape[1], photo.shape[0])
                    heat = over_photo(heat, self.judge.fit, *size)
                self.gallery.add(
                    str(scored.file), photo, reconstruction, heat, scored.row, scored.sentence,
                    scored.nearest,
                )  # fmt: skip

    def _photo(self, scored: Scored) -> tuple[Path, NDArray[np.uint8] | None]:
        """A file and its photo for the gallery, or the network's input if the file is gone."""
        if scored.image is None:
            return scored.file, None
        try:
            return scored.file, read_photo(scored.file, SIDE, self.judge.fit.white)
        except ImageError:
            return scored.file, scored.image

    def close(self) -> None:
        if self.gallery is not None:
            with _named(self.gallery.path):
                self.gallery.close()

    def refresh(self) -> None:
        """Write the gallery so far, unless nothing has changed or it was written lately."""
        if not self._changed or (started := time.monotonic()) < self._due:
            return
        self.close()
        self._changed, ended = False, time.monotonic()
        self._due = ended + max(_EVERY, _REST * (ended - started))

    def _wants(self, scored: Scored) -> bool:
        """Whether the gallery or the heatmaps show this image."""
        if scored.row["error"] is not None:
            return False
        return self._in_gallery(scored.row) or self._missing_heatmap(scored) is not None

    def _read_again(self, batch: Sequence[Scored]) -> None:
        """Read and score images again; a file that is gone stays without an image."""
        read = zip(batch, read_images([each.file for each in batch], self.judge.fit))
        found = [(each, image) for each, (_, image) in read if isinstance(image, np.ndarray)]
        if not found:
            return
        images = np.stack([image for _, image in found])
        sources = self.judge.judge(images, with_heat=True).heat_source
        for k, (each, image) in enumerate(found):
            each.image = image
            each.heat_source = None if sources is None else sources[k]

    def _missing_heatmap(self, scored: Scored) -> Path | None:
        """The path of the heatmap to write; None if the stopped run wrote it.

        An existing file is not enough: it may be of another model.
        """
        if self.heatmaps is None:
            return None
        try:
            place = self.heatmaps.place(scored.file)
        except InputError:  # the file is in a folder that only the stopped run scores
            return None
        return None if scored.heatmap == str(place) and place.exists() else place

    def _write_heatmap(self, scored: Scored, heat: NDArray[Any]) -> None:
        if self.heatmaps is not None and (place := self._missing_heatmap(scored)) is not None:
            with _named(place):
                written = self.heatmaps.add(scored.file, heat, self.judge.fit)
            scored.heatmap = "" if written is None else str(written)

    def _in_gallery(self, row: Row) -> bool:
        if self.gallery is None:
            return False
        score = -math.inf if row["score"] is None else row["score"]
        lowest, highest = self._lowest.takes(score), self._highest.takes(-score)
        return (lowest or highest) and self.gallery.wants(row)

    def _heats(self, batch: Sequence[Scored]) -> dict[Path, NDArray[Any]]:
        """Heat h×w of the images whose source of heat is known."""
        known = [
            (each.file, each.image, each.heat_source)
            for each in batch
            if each.image is not None and each.heat_source is not None
        ]
        if not known or self.judge.heat_scale is None:
            return {}
        files, images, sources = zip(*known)
        heats = heatmaps(np.stack(images), np.stack(sources), self.judge.heat_scale)
        return dict(zip(files, heats))


def _verdict(judge: Judge) -> tuple[str, str]:
    """The result of the self-check, or a note if the model card cannot be read."""
    try:
        return ("unknown", "") if judge.card is None else verdict_of(judge.card)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        return "unknown", "The model card cannot be read."


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Add the path to an OSError: the error of a full disk does not name the file."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise OSError(error.errno, f"cannot be written ({why})", str(path)) from error


class _Lowest:
    """Keeps the `limit` lowest of many values."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._heap: list[float] = []  # of minus the values

    def takes(self, value: float) -> bool:
        """Add a value, and return whether it is among the lowest so far."""
        if len(self._heap) < self.limit:
            heapq.heappush(self._heap, -value)
            return True
        return heapq.heappushpop(self._heap, -value) < -value
