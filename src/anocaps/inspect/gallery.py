"""The gallery: one self-contained page on many scored files, the most anomalous first.

Files arrive one by one, in any order and any number. Memory holds `rows` lines of text of the most
anomalous files and, for the first `shown` of those, their images, as long as these take no more
than IMAGE_BYTES. The page shows a few of the most normal images too, and says what it leaves out.
"""

import base64
import heapq
import io
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from anocaps.base.files import check_writable, write_text
from anocaps.base.text import shown as printed
from anocaps.inspect.overlays import overlay
from anocaps.pages.embed import data_uri
from anocaps.pages.rendering import render

SHOWN = 5_000  # files whose images are shown, of the most anomalous
IMAGE_BYTES = 24_000_000  # enough for 5,000 images of 28×28 grey, or 800 to 2,000 of 128×128 colour
MOST_NORMAL = 24  # shown of the most normal
ROWS = 20_000
BAD_ROWS = 1_000  # files that could not be scored

_COLUMNS = ("file", "score", "p_value", "verdict", "class", "error")
_NAMES = {"p_value_class": "p-value in its class"}  # headings that differ from the name
_LARGEST = 128  # pixels of the longer side
_LARGE_PNG = 4_000  # characters: an image that would need more is a JPEG

Line = list[Any]  # of a table: file, score, p-value, verdict, class, sentence, further, error
Images = list[str | None]  # data addresses: original, reconstruction, heatmap
Item = TypeVar("Item")


class GalleryWriter:
    """Add every scored file, then close; leaving a `with` block by an error writes nothing.

    The page names `alpha`, the false-alarm rate of the verdicts, and the score function that
    decides.
    """

    def __init__(
        self,
        path: Path,
        title: str,
        alpha: float | None = None,
        score_function: str = "",
        shown: int = SHOWN,
        rows: int = ROWS,
    ) -> None:
        check_writable(path)  # before hours of scoring
        self.path, self.title, self.alpha, self.score_function = path, title, alpha, score_function
        self._rows = _Lowest[Line](rows)
        self._anomalous = _Lowest[Images](shown, IMAGE_BYTES)
        self._normal = _Lowest[tuple[Line, Images]](min(MOST_NORMAL, shown))  # by −score
        self._bad: list[Line] = []
        self._counts = Counter[str]()  # by verdict, of all files
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
    ) -> None:
        """One file: its image H×W×C, reconstruction h×w×C and heat h×w in [0, 1], if any.

        `row` is its line of the table of scores: score, p_value, verdict, class, error, further
        scores. `sentence` says what was found.
        """
        name = printed(file)
        if row.get("error"):
            self._counts["not scored"] += 1
            if len(self._bad) < BAD_ROWS:
                self._bad.append([name, "", "", "not scored", "", "", [], _text(row["error"])])
            return
        self._further = self._further or tuple(key for key in row if key not in _COLUMNS)
        verdict = str(row.get("verdict") or "no verdict")
        self._counts[verdict] += 1
        score, order = _value(row.get("score")), self._counts.total()
        line = self._line(name, verdict, row, sentence)
        if self._rows.admits(score):
            self._rows.add(score, order, line)
        if image is None or not self.wants(row):
            return
        images = self._encoded(image, reconstruction, heat)
        if self._anomalous.admits(score):
            self._anomalous.add(score, order, images, sum(len(each or "") for each in images))
        if self._normal.admits(-score):
            self._normal.add(-score, order, (line, images))

    def wants(self, row: Mapping[str, Any]) -> bool:
        """Whether the images of this file would be kept; those of others need not be made."""
        score = _value(row.get("score"))
        return not row.get("error") and (
            self._anomalous.admits(score) or self._normal.admits(-score)
        )

    def _line(self, name: str, verdict: str, row: Mapping[str, Any], sentence: str) -> Line:
        words = _sentence(_text(sentence))
        further = [_number(row.get(key)) for key in self._further]
        score, p_value = _number(row.get("score")), _number(row.get("p_value"))
        return [name, score, p_value, verdict, _text(row.get("class") or ""), words, further, ""]

    def _encoded(
        self,
        image: NDArray[np.uint8],
        reconstruction: NDArray[Any] | None,
        heat: NDArray[Any] | None,
    ) -> Images:
        self._reconstructed |= reconstruction is not None
        self._heated |= heat is not None
        return [
            _image(image),
            None if reconstruction is None else _image(_bytes(reconstruction)),
            None if heat is None else _image(overlay(image[None], heat[None])[0]),
        ]

    def close(self) -> None:
        """Write the page, wholly or not at all."""
        normal = self._normal.ordered()[::-1]
        lines = dict(self._rows.ordered()) | {order: line for order, (line, _) in normal}
        images = {order: each for order, (_, each) in normal} | dict(self._anomalous.ordered())
        name = self.score_function
        content = {
            "rows": [*lines.values(), *self._bad],
            "score": f"score ({name})" if name else "score",
            "further": [_NAMES.get(key, key) for key in self._further],
            "images": {rank: images[o] for rank, o in enumerate(lines) if o in images},
        }
        page = render(
            "gallery.html",
            title=_text(self.title),
            lead=self._lead(),
            notes=" ".join(self._notes()),
            content=content,
        )
        write_text(self.path, page)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    # ── what the page says of itself ─────────────────────────────────────────────────────────

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

    def _notes(self) -> list[str]:
        bad = self._counts["not scored"]
        scored = self._counts.total() - bad
        notes = []
        if self._reconstructed:
            notes.append("Each image is shown beside its reconstruction.")
        if self._heated:
            notes.append(
                "The heatmap is warm where the two differ more than in nearly all normal images; "
                "an anomalous image can stay grey. All heatmaps share one scale."
            )
        if scored > len(self._anomalous) > 0:
            notes.append(
                f"Images are shown of the {len(self._anomalous):,} most anomalous and the "
                f"{len(self._normal):,} most normal files, to keep this page small."
            )
        if scored > len(self._rows):
            notes.append(
                f"Listed are the {len(self._rows):,} most anomalous files and those with images; "
                "all others are in the table of scores."
            )
        if bad > len(self._bad):
            notes.append(f"Of the files not scored, the first {len(self._bad):,} are listed.")
        return notes


class _Lowest(Generic[Item]):
    """The items of the lowest scores, the first ones of equal scores: at most `limit` items, whose
    sizes add up to at most `room`."""

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
                self.limit = len(self) - 1  # higher scores than that of a removed item stay out
            self.room += heapq.heappop(self._heap)[3]

    def ordered(self) -> list[tuple[int, Item]]:
        """Order and item, the lowest score first."""
        kept = sorted(self._heap, key=lambda entry: entry[:2], reverse=True)
        return [(-order, item) for _, order, item, _ in kept]


# ── words and numbers ────────────────────────────────────────────────────────────────────────


def _text(words: Any) -> str:
    """Bytes of a file name that are no text appear as \\u…, since UTF-8 cannot hold them."""
    return str(words).encode("utf-8", "backslashreplace").decode("utf-8")


def _sentence(words: str) -> str:
    words = words.rstrip(".").replace(" %", "\u00a0%")
    return f"{words[:1].upper()}{words[1:]}." if words else ""


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"


def _value(cell: Any) -> float:
    """A cell of the table; one without a number counts as the most anomalous of all."""
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return -math.inf
    return -math.inf if math.isnan(value) else value


def _number(cell: Any) -> str:
    value = _value(cell)
    return f"{value:.4g}".replace("-", "−") if math.isfinite(value) else ""


# ── images ───────────────────────────────────────────────────────────────────────────────────


def _bytes(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    if pixels.dtype == np.uint8:
        return pixels
    return np.asarray(np.rint(255 * np.clip(pixels, 0, 1)), dtype=np.uint8)


def _image(pixels: NDArray[np.uint8]) -> str:
    """A data address: exact where the image is small, a JPEG where that saves much."""
    from PIL import Image

    if max(pixels.shape[:2]) <= _LARGEST:
        exact = data_uri(pixels)
        if len(exact) <= _LARGE_PNG:
            return exact
    image = Image.fromarray(
        np.ascontiguousarray(pixels if pixels.shape[2] == 3 else pixels[..., 0])
    )
    image.thumbnail((_LARGEST, _LARGEST))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=88, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
