"""Pictures of a scoring run: the gallery of the most anomalous, and a heatmap per image.

Only what is shown is redrawn: all images for heatmaps, and for the gallery those that are, so far,
among the most anomalous or the most normal.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import InputError
from anocaps.base.files import check_writable
from anocaps.base.text import shown
from anocaps.images.decode import Pixels, read_images
from anocaps.inspect.gallery import PICTURES, USUAL, GalleryWriter
from anocaps.inspect.overlays import HeatmapWriter
from anocaps.inspect.scoring import Scored
from anocaps.inspect.tables import Row
from anocaps.judging.heat import heatmaps
from anocaps.judging.judgement import Judge


def check_places(paths: Sequence[Path], gallery: Path | None, heatmaps: Path | None) -> None:
    """Say before any image is read that pictures of them cannot be written there."""
    if gallery is not None:
        if gallery.suffix.lower() not in (".html", ".htm"):
            raise InputError(f"{shown(gallery)}: the gallery is a page, name it .html")
        check_writable(gallery)
    if heatmaps is not None:
        HeatmapWriter(heatmaps, paths)


class Illustrations:
    """Add every batch, then close, which writes the gallery."""

    def __init__(
        self,
        judge: Judge,
        paths: Sequence[Path],
        alpha: float,
        gallery: Path | None,
        heatmaps: Path | None,
    ) -> None:
        if heatmaps is not None and judge.heat_scale is None:
            raise InputError("this model redraws no images, so it has no heatmaps")
        self.judge = judge
        self.heatmaps = None if heatmaps is None else HeatmapWriter(heatmaps, paths)
        self.gallery: GalleryWriter | None = None
        if gallery is not None:
            names = ", ".join(path.name or str(path) for path in paths[:3])
            title = names + (" …" if len(paths) > 3 else "")
            known = alpha if judge.calibration_size else None
            self.gallery = GalleryWriter(gallery, title, known, judge.score_function)
        self._odd, self._usual = _Lowest(PICTURES), _Lowest(USUAL)

    def add(self, batch: Sequence[Scored]) -> None:
        """Rows without an image are of a run that was stopped: their images are read again for
        the gallery, and where a heatmap is missing."""
        images = self._images(batch, [self._wants(scored) for scored in batch])
        known = [image for image in images if image is not None]
        drawn = iter(self._drawn(np.stack(known)) if known else ())
        for scored, image in zip(batch, images):
            redrawn, heat = (None, None) if image is None else next(drawn)
            if image is not None and heat is not None:
                self._write_heatmap(scored, image, heat)
            if self.gallery is not None:
                self.gallery.add(
                    str(scored.file), image, redrawn, heat, scored.row, scored.sentence
                )

    def close(self) -> None:
        if self.gallery is not None:
            with _named(self.gallery.path):
                self.gallery.close()

    def _wants(self, scored: Scored) -> bool:
        """Whether there is a place for its picture."""
        if scored.row["error"] is not None:
            return False
        return self._in_gallery(scored.row) or self._missing_heatmap(scored) is not None

    def _images(self, batch: Sequence[Scored], wanted: Sequence[bool]) -> list[Pixels | None]:
        """Of those that are wanted; one that is gone since its run was stopped has none."""
        again = [each.file for each, want in zip(batch, wanted) if want and each.image is None]
        read = dict(read_images(again, self.judge.fit)) if again else {}
        found = [each.image if each.image is not None else read.get(each.file) for each in batch]
        return [
            image if want and isinstance(image, np.ndarray) else None
            for image, want in zip(found, wanted)
        ]

    def _missing_heatmap(self, scored: Scored) -> Path | None:
        """Where it is to be written, unless the run that was stopped has done so: a file that is
        there may be of another model."""
        if self.heatmaps is None:
            return None
        try:
            place = self.heatmaps.place(scored.file)
        except InputError:  # in a folder that the stopped run was to score, and this one is not
            return None
        return None if scored.heatmap == str(place) and place.exists() else place

    def _write_heatmap(self, scored: Scored, image: Pixels, heat: NDArray[Any]) -> None:
        if self.heatmaps is not None and (place := self._missing_heatmap(scored)) is not None:
            with _named(place):
                self.heatmaps.add(scored.file, image, heat)
            scored.heatmap = str(place)

    def _in_gallery(self, row: Row) -> bool:
        if self.gallery is None:
            return False
        score = -math.inf if row["score"] is None else row["score"]
        odd, usual = self._odd.takes(score), self._usual.takes(-score)
        return (odd or usual) and self.gallery.wants(row)

    def _drawn(self, images: Pixels) -> list[tuple[NDArray[Any] | None, NDArray[Any] | None]]:
        """Redrawn h×w×C and heat h×w of each image."""
        redrawn = self.judge.redraw(images)
        if redrawn is None:
            return [(None, None)] * len(images)
        if self.judge.heat_scale is None:
            return [(each, None) for each in redrawn]
        return list(zip(redrawn, heatmaps(images, redrawn, self.judge.heat_scale)))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """A full disk does not say which file it has no room for."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise OSError(error.errno, f"cannot be written ({why})", str(path)) from error


class _Lowest:
    """The lowest of many values, at most `limit` of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._heap: list[float] = []  # of minus the values

    def takes(self, value: float) -> bool:
        """Whether a further value is one of them, so far."""
        if len(self._heap) < self.limit:
            heapq.heappush(self._heap, -value)
            return True
        return heapq.heappushpop(self._heap, -value) < -value
