"""The gallery: one self-contained page on many scored files, the most anomalous first.

Files are added one by one, in any order. Memory holds the text of the `rows` most anomalous files.
It holds images of the first `shown` of them, up to IMAGE_BYTES. The page also shows a few of the
most normal images, and says what it leaves out.
"""

import heapq
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from anocaps.base.files import check_writable, write_text
from anocaps.base.text import shown as printed
from anocaps.images.decode import ImageError, read_photo
from anocaps.inspect.thumbnails import address, layer_address, near_copies, small
from anocaps.judging.flagged import WINDOW, limit_of, many_flagged, rolling_share
from anocaps.judging.sentences import share_above
from anocaps.pages.charts import share_chart
from anocaps.pages.rendering import render

SHOWN = 5_000  # most anomalous files whose images are shown
IMAGE_BYTES = 24_000_000  # enough for 5,000 images of 28×28 grey, or about 500 photos
MOST_NORMAL = 24  # most normal files that are shown
ROWS = 20_000
BAD_ROWS = 1_000  # files that could not be scored
NORMAL_PHOTOS = 200  # most similar training files whose photos are shown
_NORMAL_SIDE = 256  # pixels of their longer side

_COLUMNS = ("file", "score", "p_value", "verdict", "class", "error")
_NAMES = {"p_value_class": "p-value in its class"}  # headings that differ from the name

# Of a table: file, score, p-value, verdict, class, sentence, further, error, rank, link, and the
# most similar training file.
Line = list[Any]
Item = TypeVar("Item")


@dataclass(frozen=True)
class About:
    """Facts about the model for the page."""

    model: str = ""  # its name
    date: str = ""  # of the page
    level: str = "unknown"  # result of the self-check: good, partly, bad, unknown
    verdict: str = ""  # the same in a sentence
    calibration_size: int = 0
    pretrained: str = ""  # "pretrained on ImageNet", if it is


@dataclass(frozen=True)
class Images:
    shown: list[Any]  # data addresses of photo, reconstruction and heat; width, height
    small: NDArray[np.uint8]  # to find near-copies

    @property
    def size(self) -> int:
        return sum(len(each) for each in self.shown if isinstance(each, str))


class GalleryWriter:
    """Add every scored file, then close. After an error in the `with` block, nothing is written.

    The page names `alpha`, the false-alarm rate, and the score function of the verdicts.
    """

    def __init__(
        self,
        path: Path,
        title: str,
        alpha: float | None = None,
        score_function: str = "",
        about: About | None = None,
        shown: int = SHOWN,
        rows: int = ROWS,
    ) -> None:
        check_writable(path)  # before hours of scoring
        self.path, self.title, self.alpha, self.score_function = path, title, alpha, score_function
        self.about = about or About()
        self.training: Path | None = None  # the folder of training files, if it may still be there
        self._rows = _Lowest[Line](rows)
        self._anomalous = _Lowest[Images](shown, IMAGE_BYTES)
        self._normal = _Lowest[tuple[Line, Images]](min(MOST_NORMAL, shown))  # by −score
        self._bad: list[Line] = []
        self._counts = Counter[str]()  # by verdict, of all files
        self._flagged = bytearray()  # whether each scored file is anomalous, in their order
        self._further: tuple[str, ...] = ()  # names of further columns
        self._reconstructed = self._heated = False

    def add(
        self,
        file: str,
        image: NDArray[np.uint8] | None,
        reconstruction: NDArray[Any] | None,
        heat: NDArray[Any] | None,
        row: Mapping[str, Any],
        sentence: str = "",
        nearest: str = "",
    ) -> None:
        """Add a file with its photo H×W×C, reconstruction h×w×C and heat in [0, 1], if any. The
        heat may have any resolution.

        `row` is its row in the table of scores: score, p_value, verdict, class, error, further
        scores. `sentence` describes the image. `nearest` is the most similar training file.
        """
        name = printed(file)
        if row.get("error"):
            self._counts["not scored"] += 1
            if len(self._bad) < BAD_ROWS:
                line = [name, "", "", "not scored", "", "", [], _text(row["error"]), "", "", ""]
                self._bad.append(line)
            return
        self._further = self._further or tuple(key for key in row if key not in _COLUMNS)
        verdict = str(row.get("verdict") or "no verdict")
        self._counts[verdict] += 1
        score, order = _value(row.get("score")), self._counts.total()
        self._flagged.append(verdict == "anomalous")
        line = [*self._line(name, verdict, row, sentence), self._link(file), _text(nearest)]
        if self._rows.admits(score):
            self._rows.add(score, order, line)
        if image is None or not self.wants(row):
            return
        images = self._encoded(image, reconstruction, heat)
        if self._anomalous.admits(score):
            self._anomalous.add(score, order, images, images.size)
        if self._normal.admits(-score):
            self._normal.add(-score, order, (line, images))

    def wants(self, row: Mapping[str, Any]) -> bool:
        """Whether the images of this file would be kept. Others need not be made."""
        score = _value(row.get("score"))
        return not row.get("error") and (
            self._anomalous.admits(score) or self._normal.admits(-score)
        )

    def _line(self, name: str, verdict: str, row: Mapping[str, Any], sentence: str) -> Line:
        words = _sentence(_text(sentence))
        further = [_number(row.get(key)) for key in self._further]
        score, p_value = _number(row.get("score")), _number(row.get("p_value"))
        looks_like = _text(row.get("class") or "")
        rank = _rank(_value(row.get("p_value")), self.about.calibration_size)
        return [name, score, p_value, verdict, looks_like, words, further, "", rank]

    def _link(self, file: str) -> str:
        """The address of a file, relative to the page."""
        try:
            way = os.path.relpath(file, os.path.abspath(self.path.parent))
        except ValueError:  # on another drive
            return Path(os.path.abspath(file)).as_uri()
        return quote(os.fsencode(Path(way).as_posix()))

    def _encoded(
        self,
        image: NDArray[np.uint8],
        reconstruction: NDArray[Any] | None,
        heat: NDArray[Any] | None,
    ) -> Images:
        self._reconstructed |= reconstruction is not None
        self._heated |= heat is not None
        made = [
            address(image),
            None if reconstruction is None else address(reconstruction),
            None if heat is None else layer_address(heat),
        ]
        return Images([*made, image.shape[1], image.shape[0]], small(image))

    def close(self) -> None:
        """Write the page as a whole. If that fails, an old page stays."""
        normal = self._normal.ordered()[::-1]
        lines = dict(self._rows.ordered()) | {order: line for order, (line, _) in normal}
        images = {order: each for order, (_, each) in normal} | dict(self._anomalous.ordered())
        ranks = {rank: images[o] for rank, o in enumerate(lines) if o in images}
        firsts = near_copies([each.small for each in ranks.values()])
        places = list(ranks)
        name = self.score_function
        content = {
            "rows": [*lines.values(), *self._bad],
            "score": f"score ({name})" if name else "score",
            "further": [_NAMES.get(key, key) for key in self._further],
            "images": {rank: each.shown for rank, each in ranks.items()},
            "normal": self._normal_photos(line[-1] for o, line in lines.items() if o in images),
            # rank of a near-copy → rank of the photo that it resembles
            "copies": {places[k]: places[f] for k, f in enumerate(firsts) if f != k},
        }
        page = render(
            "gallery.html",
            title=_text(self.title),
            lead=self._lead(),
            about=self.about,
            many=self._many(),
            chart=self._chart(),
            notes=" ".join(self._notes()),
            heated=self._heated,
            content=content,
        )
        write_text(self.path, page)

    def _normal_photos(self, names: Iterable[str]) -> dict[str, str]:
        """Small data addresses of the training files that still exist."""
        found: dict[str, str] = {}
        for name in names:
            inside = name and not Path(name).is_absolute() and ".." not in Path(name).parts
            if self.training is None or not inside or name in found or len(found) >= NORMAL_PHOTOS:
                continue
            with suppress(ImageError):
                found[name] = address(read_photo(self.training / name, _NORMAL_SIDE))
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    # ── the texts of the page ────────────────────────────────────────────────────────────────

    def _lead(self) -> str:
        bad, anomalous = self._counts["not scored"], self._counts["anomalous"]
        scored = self._counts.total() - bad
        lead = f"{scored:,} {_plural(scored, 'image')}"
        if scored and not self._counts["no verdict"]:
            lead = f"{anomalous:,} of {lead} {'is' if anomalous == 1 else 'are'} called anomalous"
            lead += f" by the score {self.score_function}" if self.score_function else ""
            if self.alpha is not None:
                lead += f", at a false-alarm rate of {100 * self.alpha:g}\u00a0%"
        elif scored and self.score_function:
            lead += f" in the order of the score {self.score_function}"
        return f"{lead}." + (f" {bad:,} {_plural(bad, 'file')} could not be scored." if bad else "")

    def _many(self) -> str:
        """A sentence if far more files are flagged than alpha; else empty."""
        if self.alpha is None:
            return ""
        size = self.about.calibration_size
        return many_flagged(sum(self._flagged), len(self._flagged), self.alpha, size)

    def _chart(self) -> str:
        """The flagged share of every 100 files in a row."""
        size = self.about.calibration_size
        if self.alpha is None or not size or len(self._flagged) <= WINDOW:
            return ""
        shares = rolling_share(np.frombuffer(self._flagged, dtype=np.bool_))
        limit = limit_of(WINDOW, self.alpha, size)
        return share_chart(shares, WINDOW, self.alpha, limit, "Flagged share of images")

    def _notes(self) -> list[str]:
        bad = self._counts["not scored"]
        scored = self._counts.total() - bad
        notes = []
        if self._reconstructed:
            notes.append("Each photo is shown beside its reconstruction.")
        if self._heated:
            notes.append(
                "The heatmap is orange where a photo is unlike nearly all normal photos. An "
                "anomalous photo may have no orange. All heatmaps share one scale."
            )
        if scored > len(self._anomalous) > 0:
            notes.append(
                f"This page shows images of the {len(self._anomalous):,} most anomalous and the "
                f"{len(self._normal):,} most normal files only, to stay small."
            )
        if scored > len(self._rows):
            notes.append(
                f"The list has the {len(self._rows):,} most anomalous files and those with images; "
                "the table of scores has all others."
            )
        if bad > len(self._bad):
            notes.append(f"The list has the first {len(self._bad):,} files that were not scored.")
        return notes


class _Lowest(Generic[Item]):
    """Keeps the items with the lowest scores: at most `limit` items, of at most `room` size in
    all. If scores are equal, the first ones stay."""

    def __init__(self, limit: int, room: float = math.inf) -> None:
        self.limit, self.room = limit, room
        self._heap: list[tuple[float, int, Item, int]] = []  # (−score, −order, item, size)

    def __len__(self) -> int:
        return len(self._heap)

    def admits(self, score: float) -> bool:
        return len(self) < self.limit or (self.limit > 0 and -score > self._heap[0][0])

    def add(self, score: float, order: int, item: Item, size: int = 0) -> None:
        """Add an item of an admitted score; `order` is unique and grows."""
        heapq.heappush(self._heap, (-score, -order, item, size))
        self.room -= size
        while len(self) > self.limit or (self.room < 0 and len(self) > 1):
            if self.room < 0:
                self.limit = len(self) - 1  # no later item with a higher score is added
            self.room += heapq.heappop(self._heap)[3]

    def ordered(self) -> list[tuple[int, Item]]:
        """Order and item, the lowest score first."""
        kept = sorted(self._heap, key=lambda entry: entry[:2], reverse=True)
        return [(-order, item) for _, order, item, _ in kept]


# ── words and numbers ────────────────────────────────────────────────────────────────────────


def _text(words: Any) -> str:
    """Text for UTF-8. Bytes of a file name that are not text appear as \\u…"""
    return str(words).encode("utf-8", "backslashreplace").decode("utf-8")


def _sentence(words: str) -> str:
    words = words.rstrip(".").replace(" %", "\u00a0%")
    return f"{words[:1].upper()}{words[1:]}." if words else ""


def _rank(p_value: float, calibration_size: int) -> str:
    """The p-value in words: how many normal photos are less anomalous."""
    if not (calibration_size and math.isfinite(p_value)):
        return ""
    above = share_above(p_value, calibration_size)
    if above >= 1:
        return f"more anomalous than all {calibration_size:,} normal photos"
    many = 1000 if calibration_size >= 1000 and above >= 0.99 else 100
    many = min(many, calibration_size)
    return f"more anomalous than {math.floor(many * above + 1e-9):,} of {many:,} normal photos"


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"


def _value(cell: Any) -> float:
    """A cell of the table; a missing number counts as the most anomalous."""
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return -math.inf
    return -math.inf if math.isnan(value) else value


def _number(cell: Any) -> str:
    value = _value(cell)
    return f"{value:.4g}".replace("-", "−") if math.isfinite(value) else ""
