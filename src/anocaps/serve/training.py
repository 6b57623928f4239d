"""Training as a job: a process of its own, so that the page stays quick and can stop it.

If the server is killed, the process ends too; the next server continues from the checkpoint.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from anocaps.base.errors import InputError
from anocaps.base.files import make_folder, move, remove, write_text
from anocaps.base.text import shown
from anocaps.images.resampling import working_size
from anocaps.inspect.card import four_lines, synthetic_name, warnings_of
from anocaps.serve import photos, worker
from anocaps.serve.database import Database, Record
from anocaps.serve.jobs import Job, Stopped
from anocaps.serve.review import audits

# What the two buttons mean. `rate` is images/s in training at 32×32 on two cores, for the time
# that is shown before the first training; afterwards the project's own times are used.
MODES: dict[str, Record] = {
    "quick": {"preset": "quick", "size": 32, "rate": 800, "epochs": 15},
    "full": {"preset": "auto", "size": None, "rate": 110, "epochs": 15},
}
_START = 8.0  # seconds to import torch and to export
_PHOTO, _PHOTO_PIXEL = 40.0, 2e-6  # seconds of preset photo: a constant, and for each pixel
_FEWEST_STEPS = 1000 * 32  # images that a full training sees at least


def available() -> bool:
    """Whether this installation can train."""
    return all(find_spec(name) is not None for name in ("torch", "sklearn", "safetensors", "onnx"))


def expected_seconds(database: Database, mode: str, images: int, found: Record) -> float:
    """Estimated seconds of training, from the last training or else from a typical machine."""
    if (known := database.setting(f"seconds-{mode}")) is not None:
        return float(_START + known * images)
    how, fit = MODES[mode], found["fit"]
    if mode == "full" and found["photo"]:  # features of a pretrained network, once for each image
        height, width = working_size(fit["height"], fit["width"])
        return float(_START + _PHOTO + _PHOTO_PIXEL * images * height * width)
    side = how["size"] or max(fit["height"], fit["width"])
    seen = how["epochs"] * images
    if mode == "full":
        seen = max(seen, _FEWEST_STEPS)
    return float(_START + 1.6 * seen / how["rate"] * (side / 32) ** 2)


class Training:
    """The work of a job that trains."""

    def __init__(self, database: Database, folder: Path, models: Path) -> None:
        self.database, self.folder, self.models = database, folder, models

    def __call__(self, job: Job) -> Record:
        if not available():
            raise InputError("training needs torch and onnx: pip install 'anocaps[all]'")
        place = self.folder / str(job.id)
        name = job.spec["name"]
        out = place / f"{name}.safetensors"
        spec_file = place / "spec.json"
        if not spec_file.exists():  # else this continues a run, on the same photos
            place.mkdir(parents=True, exist_ok=True)
            source = Path(job.spec["photos"])
            count = photos.gather(self.database, source, place / "photos")
            spec = MODES[job.spec["mode"]] | {
                "folder": str(place / "photos"), "out": str(out), "name": source.name,
                "images": count, **self._marked(job),
            }  # fmt: skip
            write_text(spec_file, json.dumps(spec))
        started = time.monotonic()
        resumed = out.with_suffix(".checkpoint").exists()
        card = self._run(job, spec_file)["card"]
        if not resumed:
            seconds = max(0.0, time.monotonic() - started - _START)
            self.database.set(f"seconds-{job.spec['mode']}", seconds / max(1, card["images"]))
        make_folder(self.models)
        for suffix in (".normal.npz", ".onnx", ".safetensors"):
            if (made := out.with_suffix(suffix)).exists():
                move(made, self.models / made.name)
        remove(spec_file)  # first: no run may continue in a folder that is partly removed
        shutil.rmtree(place, ignore_errors=True)
        return {"phase": "done", "model": name, "card": card}

    def _marked(self, job: Job) -> Record:
        """File and class of the photos that the user marked normal, by their use in training."""
        found: Record = {}
        for use in ("false_alarms", "audit"):
            rows = [self.database.row(number) for number in job.spec[use]]
            found[use] = [[os.fsdecode(row["file"]), row["class"]] for row in rows if row]
        return found

    def _run(self, job: Job, spec_file: Path) -> Record:
        """Read what the process says until it ends."""
        log = spec_file.with_name("errors.txt")
        with open(log, "wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", worker.__name__, str(spec_file)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        assert process.stdin and process.stdout
        result: Record = {}
        clock = _Clock()
        try:
            for line in process.stdout:
                news = json.loads(line)
                if "error" in news:
                    raise InputError(news["error"])
                result = news.get("result", result)
                if "phase" in news:
                    job.tell(now=news["phase"] != job.progress.get("phase"), **clock.add(news))
        except BaseException:
            process.stdin.close()
            process.wait()
            raise
        if process.wait() == worker.STOPPED:
            raise Stopped
        if process.returncode != 0 or not result:
            said = log.read_text("utf-8", "replace").splitlines() or ["it gave no reason"]
            raise InputError(f"training ended early: {said[-1]}; see {shown(log)}")
        return result


class _Clock:
    """Adds the seconds that are left in a phase."""

    def __init__(self) -> None:
        self.phase, self.first, self.since = "", 0, 0.0

    def add(self, news: Record) -> Record:
        now, step = time.monotonic(), news.get("step", 0)
        if news["phase"] != self.phase:
            self.phase, self.first, self.since = news["phase"], step, now
        left: float | None = None
        if step > self.first:
            left = (news["steps"] - step) * (now - self.since) / (step - self.first)
        empty: dict[str, Any] = {"step": None, "steps": None, "loss": None}
        return empty | news | {"left": None if left is None else round(left, 1)}


def card_lines(card: Record) -> Record:
    """A card for the page: four lines, warnings, and how well each left-out class was found."""
    check = card.get("self_check") or {}
    function = card["score_function"]
    bars = [
        {"name": name, "auroc": found[function], "kind": "class"}
        for name, found in check.get("left_out", {}).items()
        if function in found
    ]
    bars += [
        {"name": synthetic_name(line), "auroc": line["auroc"][function], "kind": "synthetic"}
        for line in check.get("synthetic", ())
    ]
    lines = four_lines(card, "drop new photos in the view Review.")
    said = [line.replace("--alpha", "alpha") for line in lines]  # the page has no options
    return {"lines": said, "warnings": warnings_of(card), "bars": bars}


# ── marked photos ────────────────────────────────────────────────────────────────────────────
# False alarms were chosen by their low score. In the calibration set they would make normal images
# look worse than they are, so they are used in training only. An audit draws at random, flagged or
# not: its normal photos may replace the calibration set, if every photo of it has a mark.


def collect(database: Database, false_alarms: bool, audit: int | None) -> Record:
    """Ids of the marked rows that a training job uses in addition to the photos."""
    chosen: Record = {"false_alarms": [], "audit": []}
    drawn = set() if audit is None else set(_normal_of(database, audit))
    if false_alarms:
        marked = [m["row"] for m in database.newest_marks() if m["mark"] == "normal"]
        chosen["false_alarms"] = [row for row in marked if row not in drawn]
        if not marked:
            raise InputError("no photo is marked normal yet")
    chosen["audit"] = sorted(drawn)
    return chosen


def _normal_of(database: Database, number: int) -> list[int]:
    """The normal photos of an audit of all photos, each of which has a mark."""
    found = database.read("SELECT * FROM audits WHERE id = ?", number)
    if not found or found[0]["among"] != "all":
        raise InputError("only an audit of all photos, flagged or not, can recalibrate")
    (audit,) = (each for each in audits(database, found[0]["job"]) if each["id"] == number)
    marks = {row["id"]: row["mark"] for row in database.rows(audit["job"])}
    if any(marks.get(row) not in ("normal", "anomalous") for row in audit["rows"]):
        raise InputError("mark every photo of the audit as normal or anomalous first")
    return [row for row in audit["rows"] if marks[row] == "normal"]
