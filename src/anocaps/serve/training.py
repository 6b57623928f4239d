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

from anocaps.base.errors import InputError
from anocaps.base.files import make_folder, move, remove, write_text
from anocaps.base.text import shown
from anocaps.inspect.card import four_lines, synthetic_name, warnings_of
from anocaps.serve import photos, worker
from anocaps.serve.database import Database, Record
from anocaps.serve.jobs import Job, Stopped
from anocaps.serve.review import audits

MODES = ("quick", "full")


def settings(mode: str, photo: bool) -> Record:
    """What a button trains; None is chosen from the photos. `photo`: preset "photo" suits them."""
    if mode == "full":
        return {"preset": "auto", "size": None, "epochs": None}
    if photo:  # the smallest working size; its patches show where a photo is anomalous
        return {"preset": "photo", "size": 112, "epochs": 15}
    return {"preset": "quick", "size": 32, "epochs": None}


def available() -> bool:
    """Whether this installation can train."""
    return all(find_spec(name) is not None for name in ("torch", "sklearn", "safetensors", "onnx"))


def expected_seconds(database: Database, check: int, mode: str, images: int) -> float | None:
    """Seconds of training on the photos of a check, from a forecast or from the last training."""
    known = database.setting("seconds", {})
    return known[mode] * images if known.get("check") == check else None


class Training:
    """The work of jobs that train, and of those that estimate how long it would take."""

    def __init__(self, database: Database, folder: Path, models: Path) -> None:
        self.database, self.folder, self.models = database, folder, models

    def check(self, job: Job) -> Record:
        """Check the photos, then let a job estimate the time of training."""
        started = time.monotonic()
        found = photos.check(job)
        if available():
            used = [each["count"] for each in found["classes"] if each["count"]]
            job.runner.add(
                "forecast", check=job.id, reading=time.monotonic() - started,
                images=sum(used), classes=len(used), fit=found["fit"],
                modes={mode: settings(mode, found["photo"]) for mode in MODES},
            )  # fmt: skip
        return found

    def forecast(self, job: Job) -> Record:
        """Time a few steps of training, in a process of its own."""
        place = self.folder / str(job.id)
        make_folder(place)
        write_text(place / "spec.json", json.dumps(job.spec))
        seconds = self._run(job, place / "spec.json")["seconds"]
        images = max(1, job.spec["images"])
        each = {mode: (job.spec["reading"] + seconds[mode]) / images for mode in MODES}
        self.database.set("seconds", {"check": job.spec["check"]} | each)
        shutil.rmtree(place, ignore_errors=True)
        return {}

    def __call__(self, job: Job) -> Record:
        if not available():
            raise InputError("training needs torch and onnx: pip install 'anocaps[all]'")
        place = self.folder / str(job.id)
        name = job.spec["name"]
        out = place / f"{name}.safetensors"
        spec_file = place / "spec.json"
        if not spec_file.exists():  # else this continues a run, on the same photos
            make_folder(place)
            source = Path(job.spec["photos"])
            count = photos.gather(self.database, source, place / "photos")
            spec = settings(job.spec["mode"], job.spec["photo"]) | {
                "folder": str(place / "photos"), "out": str(out), "name": source.name,
                "images": count, **self._marked(job),
            }  # fmt: skip
            write_text(spec_file, json.dumps(spec))
        started = time.monotonic()
        resumed = out.with_suffix(".checkpoint").exists()
        card = self._run(job, spec_file)["card"]
        known = self.database.setting("seconds", {"check": None})
        if not resumed and known["check"] == job.spec.get("check", 0):
            taken = (time.monotonic() - started) / max(1, card["images"])
            self.database.set("seconds", known | {job.spec["mode"]: taken})
        make_folder(self.models)
        for suffix in (".normal.npz", ".onnx", ".safetensors"):
            if (made := out.with_suffix(suffix)).exists():
                move(made, self.models / made.name)
        remove(spec_file)  # first: no run may continue in a folder that is partly removed
        shutil.rmtree(place, ignore_errors=True)
        return {"phase": "done", "model": name, "card": card}

    def sweep(self) -> None:
        """Remove what finished jobs left."""
        for place in self.folder.glob("*"):
            job = self.database.job(int(place.name)) if place.name.isdecimal() else None
            if job is not None and job["state"] == "done":
                shutil.rmtree(place, ignore_errors=True)

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
        clock = Clock(job.spec.get("expected"), job.progress.get("share") or 0.0)
        try:
            for line in process.stdout:
                news = json.loads(line)
                if "error" in news:
                    raise InputError(news["error"])
                result = news.get("result", result)
                if "result" not in news:
                    told = clock.add(news)
                    job.tell(now=told["phase"] != job.progress.get("phase"), **told)
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


class Clock:
    """Adds to a message of the process: the finished share of training, and the seconds left."""

    def __init__(self, expected: float | None, share: float = 0.0) -> None:
        self.expected = expected  # seconds of the whole training, if they are known
        self.news: Record = {"phase": "starting", "step": None, "steps": None, "loss": None}
        self.since = time.monotonic()
        self.begun = self.since - share * (expected or 0)  # as if it had not been stopped
        self.first = 0  # the first step that was told since then

    def add(self, news: Record) -> Record:
        """Add to a message of the process. An empty one only says that it is still at work."""
        now, step = time.monotonic(), news.get("step") or 0
        if news:
            if news["phase"] != self.news["phase"] or step < (self.news["step"] or 0):
                self.first, self.since = step, now  # a new phase, or the next network of a phase
            self.news = {"step": None, "steps": None, "loss": None} | news
        step, steps = self.news["step"] or 0, self.news["steps"]
        share, left = (step / steps if steps else None), 0.0
        if steps and step > self.first:
            left = (steps - step) * (now - self.since) / (step - self.first)
        if self.expected is not None:  # later phases take their time, too
            left = max(left, self.begun + self.expected - now)
            share = (now - self.begun) / (now - self.begun + left) if left > 0 else None
        return self.news | {"share": share, "left": round(left, 1) if left > 0 else None}


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
# not: its normal photos may replace the calibration set, if every photo of it has a mark. A photo
# that is marked normal and in the audit is used for calibration only; see worker.Given.


def collect(database: Database, false_alarms: bool, audit: int | None) -> Record:
    """Ids of the marked rows that a training job uses in addition to the photos."""
    drawn = [] if audit is None else _normal_of(database, audit)
    marked = marked_normal(database) if false_alarms else []
    if false_alarms and not marked:
        raise InputError("no photo is marked normal yet")
    return {"false_alarms": marked, "audit": drawn}


def marked_normal(database: Database) -> list[int]:
    """Rows of the photos that the user marked normal, over all lists."""
    return [mark["row"] for mark in database.newest_marks() if mark["mark"] == "normal"]


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
