"""The process that trains a model: `python -m anocaps.serve.worker SPEC.json`.

It prints a line of JSON whenever there is news, an empty object every second, and ends when its
standard input is closed: the server closes it to stop training, and the system does so if the
server dies. The checkpoint of the last epoch stays, and the next process continues from it.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import AnocapsError
from anocaps.images.decode import ImageError, Pixels
from anocaps.images.folder import fingerprint
from anocaps.images.reading import read_images
from anocaps.images.resampling import working_size
from anocaps.serve.photos import remember

if TYPE_CHECKING:
    from anocaps.detectors import CapsNetDetector
    from anocaps.images.folder import ImageFolder

Indices = NDArray[np.int64]

STOPPED = 3  # exit code
_PATIENCE = 10  # seconds that training has to stop by itself
_BEAT = 1.0  # seconds between two empty objects


class _Stop(BaseException):
    pass


_stop_asked = threading.Event()


def main() -> None:
    for each in (signal.SIGINT, signal.SIGTERM):  # meant for the server, which closes our input
        signal.signal(each, signal.SIG_IGN)
    for work in (_watch_input, _beat):
        threading.Thread(target=work, daemon=True).start()
    spec = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    try:
        _say(result=_forecast(spec) if "modes" in spec else _train(spec))
    except _Stop:
        sys.exit(STOPPED)
    except AnocapsError as error:
        _say(error=str(error))
        sys.exit(2)
    except MemoryError:
        _say(error="there is not enough memory; use fewer or smaller photos")
        sys.exit(2)


def _watch_input() -> None:
    while os.read(sys.stdin.fileno(), 1024):  # not sys.stdin.read: Python locks its buffer at exit
        pass
    _stop_asked.set()
    time.sleep(_PATIENCE)  # files are written whole or not at all, so this is safe
    os._exit(STOPPED)


def _beat() -> None:
    """Print an empty object, so that the server updates the time left: a step may take minutes."""
    while not _stop_asked.wait(_BEAT):
        _print({})


def _say(**news: Any) -> None:
    if _stop_asked.is_set():
        raise _Stop
    _print(news)


def _print(news: dict[str, Any]) -> None:
    print(f"{json.dumps(news)}\n", end="", flush=True)  # in one write, as two threads do it


def _forecast(spec: dict[str, Any]) -> dict[str, Any]:
    """The seconds that training takes in each mode, from a few steps with random images."""
    started = time.perf_counter()
    from anocaps.inspect.forecast import seconds_for

    start = time.perf_counter() - started  # training has to import torch, too
    fit, seconds = spec["fit"], {}
    for mode, how in spec["modes"].items():
        sides, size = (fit["height"], fit["width"]), how["size"]
        if how["preset"] == "photo":
            sides = min(sides, working_size(*sides, size))
        elif size is not None:
            sides = size, size
        shape = *sides, fit["channels"]
        taken = seconds_for(spec["images"], spec["classes"], shape, how["preset"], how["epochs"])
        seconds[mode] = start + taken
    return {"seconds": seconds}


def _train(spec: dict[str, Any]) -> dict[str, Any]:
    """Train as the command `train` does, and export."""
    _say(phase="starting")
    from anocaps.detectors import CapsNetDetector
    from anocaps.export.writer import export
    from anocaps.images.decode import describe
    from anocaps.images.folder import ImageFolder
    from anocaps.inspect.card import add_files
    from anocaps.inspect.selfcheck import self_check

    def tell(phase: str) -> Any:
        return lambda step, steps, loss, rate: _say(
            phase=phase, step=step, steps=steps, loss=round(loss, 5), rate=round(rate)
        )

    out = Path(spec["out"])
    photos = ImageFolder(
        spec["folder"],
        spec["size"],
        skip_bad=True,
        photo=None if spec["preset"] == "auto" else spec["preset"] == "photo",
        progress=lambda done, total: _say(phase="reading", step=done, steps=total),
    )
    given = Given(photos, spec["false_alarms"], spec["audit"])
    checkpoint = out.with_suffix(".checkpoint")
    detector = CapsNetDetector(preset=spec["preset"], epochs=spec["epochs"], seed=0)
    _say(phase="training")
    prepared = detector.prepare(given.images, given.labels)
    kept = given.calibration(detector, prepared)
    detector.fit(
        prepared,
        given.labels,
        checkpoint=checkpoint,
        resume=checkpoint.exists(),
        progress=tell("training"),
        calibrate_on=kept,
    )
    detector.card_["self_check"] = self_check(
        detector, given.images, given.labels, tell("self-check"), prepared, kept
    )
    detector.record_ |= {"source": {"folder": spec["name"]}, "fit": asdict(photos.fit)}
    others = tuple(photos.passed.others.most_common())
    add_files(detector.card_, describe(photos.fit), photos.skipped, len(photos.duplicates), others)
    _say(phase="saving")
    detector.save(out)
    try:
        export(
            detector, out.with_suffix(".onnx"), photos.images[:: max(1, len(photos.images) // 50)]
        )
    except Exception as error:
        if isinstance(error.__cause__, OSError):  # a full disk: the user can continue the job
            raise
        traceback.print_exc()  # training is not lost: the model is served with torch
    remember(photos.files, photos.fit, out.with_suffix(".normal.npz"))
    checkpoint.unlink(missing_ok=True)
    return {"card": detector.card_}


class Given:
    """The images to train and to calibrate on.

    Photos marked normal were chosen by their score, so they are used in training only. The normal
    photos of an audit are a random draw: if there are some, they are the calibration set.
    """

    def __init__(
        self, photos: "ImageFolder", false_alarms: list[list[str]], audit: list[list[str]]
    ) -> None:
        self.photos = len(photos.labels)
        self.images: Any = photos.images  # an array, or rows on disk
        self.labels = photos.labels
        known: set[int] = set()
        if false_alarms or audit:
            known = {fingerprint(self.images[k : k + 1][0]) for k in range(self.photos)}
        # The audit comes first: without its false alarms it would not be a random draw.
        drawn = _read(audit, photos, known)
        self._add(*_read(false_alarms, photos, known))
        self.trained = len(self.labels)
        self._add(*drawn)

    def _add(self, images: list[Pixels], labels: list[str]) -> None:
        if images:
            self.images = np.concatenate([self.images[:], np.stack(images)])
            self.labels = np.concatenate([self.labels, np.array(labels, dtype=np.str_)])

    def calibration(self, detector: "CapsNetDetector", prepared: Any) -> "Indices | None":
        """Indices of the calibration set; None: it is drawn as usual."""
        from anocaps.detectors.fitting import calibration_split

        if self.trained < len(self.labels):
            return np.arange(self.trained, len(self.labels))
        if self.trained == self.photos:
            return None
        _, index = np.unique(self.labels[: self.photos], return_inverse=True)
        return calibration_split(detector, prepared[: self.photos], index.astype(np.int64))[1]


def _read(
    group: list[list[str]], photos: "ImageFolder", known: set[int]
) -> tuple[list[Pixels], list[str]]:
    """Images and classes of files that are not `known`. Their fingerprints are added to `known`."""
    classes, images, labels = dict(group), [], []
    for file, pixels in read_images(map(Path, classes), photos.fit):
        name = _class_of(classes[str(file)], photos.class_names)
        if isinstance(pixels, ImageError) or fingerprint(pixels) in known or name is None:
            continue
        known.add(fingerprint(pixels))
        images.append(pixels)
        labels.append(name)
    return images, labels


def _class_of(name: str | None, classes: tuple[str, ...]) -> str | None:
    """The class of a photo marked normal: the predicted one; None if it is no longer in use."""
    return classes[0] if len(classes) == 1 else name if name in classes else None


if __name__ == "__main__":
    main()
