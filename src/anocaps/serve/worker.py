"""The process that trains a model: `python -m anocaps.serve.worker SPEC.json`.

It prints a line of JSON whenever there is news, and ends when its standard input is closed: the
server closes it to stop training, and the system does so if the server dies. The checkpoint of the
last epoch stays, and the next process continues from it.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anocaps.base.errors import AnocapsError

if TYPE_CHECKING:
    from anocaps.images.folder import ImageFolder

STOPPED = 3  # exit code
_PATIENCE = 10  # seconds between the wish to stop and the end


class _Stop(BaseException):
    pass


_stop_asked = threading.Event()


def main() -> None:
    threading.Thread(target=_watch_input, daemon=True).start()
    spec = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    try:
        _say(result=_train(spec))
    except _Stop:
        sys.exit(STOPPED)
    except AnocapsError as error:
        _say(error=str(error))
        sys.exit(2)
    except MemoryError:
        _say(error="there is not enough memory; use fewer or smaller photos")
        sys.exit(2)


def _watch_input() -> None:
    while os.read(sys.stdin.fileno(), 1024):  # not of the buffer, which Python locks at its end
        pass
    _stop_asked.set()
    time.sleep(_PATIENCE)  # files are written whole or not at all, so this is safe
    os._exit(STOPPED)


def _say(**news: Any) -> None:
    if _stop_asked.is_set():
        raise _Stop
    print(json.dumps(news), flush=True)


def _train(spec: dict[str, Any]) -> dict[str, Any]:
    _say(phase="starting")
    from anocaps.detectors import CapsNetDetector
    from anocaps.export.writer import export
    from anocaps.images.decode import describe
    from anocaps.images.folder import ImageFolder
    from anocaps.inspect.card import add_files
    from anocaps.inspect.selfcheck import self_check

    out = Path(spec["out"])
    photos = ImageFolder(
        spec["folder"],
        spec["size"],
        skip_bad=True,
        progress=lambda done, total: _say(phase="reading", step=done, steps=total),
    )
    checkpoint = out.with_suffix(".checkpoint")
    detector = CapsNetDetector(preset=spec["preset"], seed=0)

    def tell(phase: str) -> Any:
        return lambda step, steps, loss, rate: _say(
            phase=phase, step=step, steps=steps, loss=round(loss, 5), rate=round(rate)
        )

    images, labels = photos.images, photos.labels
    detector.fit(
        images, labels, checkpoint=checkpoint, resume=checkpoint.exists(), progress=tell("training")
    )
    detector.card_["self_check"] = self_check(detector, images, labels, tell("self-check"))
    detector.record_["source"] = {"folder": spec["name"]}
    _add_fit(detector, photos)
    others = tuple(photos.passed.others.most_common())
    add_files(detector.card_, describe(photos.fit), photos.skipped, len(photos.duplicates), others)
    _say(phase="saving")
    detector.save(out)
    export(detector, out.with_suffix(".onnx"), images[:: max(1, len(images) // 100)])
    checkpoint.unlink(missing_ok=True)
    return {"card": detector.card_}


def _add_fit(detector: Any, photos: "ImageFolder") -> None:
    from dataclasses import asdict

    detector.record_["fit"] = asdict(photos.fit)


if __name__ == "__main__":
    main()
