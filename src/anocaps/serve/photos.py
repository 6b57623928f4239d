"""The normal photos of a project: where they are, what `check` finds, and the classes in use."""

import io
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from PIL import Image

from anocaps.base.errors import DataError
from anocaps.base.files import replacing, sync_folder
from anocaps.base.text import shown
from anocaps.images.check import FolderCheck, check_folder
from anocaps.images.decode import Fit, ImageError, Pixels, read_header, read_image
from anocaps.images.folder import FEW, FEWEST, find_classes
from anocaps.images.reading import read_images
from anocaps.serve.database import Database, Record
from anocaps.serve.jobs import Job

_SAMPLES = 6  # thumbnails of a class
_THUMBNAIL, _LARGE = 320, 1600  # pixels of the longer side
_EXACT = 64  # a smaller image is sent as PNG
_NAMED_AT_MOST = 20  # problems of a class
_LONGEST_NAME = 200  # bytes
_SMALL = 16  # pixels of a side, to compare photos


# ── checking ─────────────────────────────────────────────────────────────────────────────────


def check(job: Job) -> Record:
    """The work of a job: look through the folder, as the command `check` does."""
    folder = Path(job.spec["folder"])
    listed = find_classes(folder, follow_links=False)
    found = check_folder(listed, lambda done, total: job.tell(done=done, total=total))
    if found.fit is None:
        raise DataError(f"{shown(folder)}: there is no image here that can be read")
    unreadable = {file for file, _ in found.unreadable}
    classes = []
    for name, members in listed.classes.items():
        good = [str(file) for file in members if str(file) not in unreadable]
        classes.append(
            {
                "source": shown(name),
                "count": found.usable.get(name, 0),
                "samples": good[:: max(1, len(good) // _SAMPLES)][:_SAMPLES],
                "problems": list(_problems(found, name, set(map(str, members)))),
            }
        )
    return {
        "classes": classes, "warnings": found.warnings, "others": found.others,
        "fit": asdict(found.fit), "photo": bool(found.photo), "folder": str(folder),
    }  # fmt: skip


def _problems(found: FolderCheck, name: str, members: set[str]) -> Iterator[str]:
    """What is wrong with a class, in words."""
    usable = found.usable.get(name, 0)
    if usable < FEWEST:
        yield f"Too few photos: {FEWEST} are needed, {FEW} or more are better."
    elif usable < FEW:
        yield f"Few photos: {FEW} or more are better."
    for file, why in found.unreadable[:_NAMED_AT_MOST]:
        if file in members:
            yield f"{shown(Path(file).name)}: {why.partition(shown(file))[2].strip() or why}"
    for group in found.duplicates:
        here = [Path(file).name for file in group.files if file in members]
        if here and len(group.classes) > 1:
            others = ", ".join(shown(each) for each in group.classes if each != name)
            yield f"{shown(here[0])} is also in {others}: remove it from the wrong class."
    copies = sum(
        sum(file in members for file in group.files) - 1
        for group in found.duplicates
        if group.classes == (name,)
    )
    if copies:
        yield f"{copies:,} copies of other photos are left out."
    unusual = sum(file in members for file, _, _ in found.unusual_sizes)
    if unusual:
        yield f"{unusual:,} photos have an unusual size or shape."


def described(database: Database) -> Record | None:
    """The newest check, with the names that the user gave to its classes."""
    job = next(iter(database.jobs("check", limit=1)), None)
    if job is None:
        return None
    given = {each["source"]: each for each in database.read("SELECT * FROM classes")}
    classes = []
    for each in job["progress"].get("classes", []):
        own = given.get(each["source"], {"name": each["source"], "excluded": 0})
        shown_class = each | {"name": own["name"], "excluded": bool(own["excluded"])}
        shown_class["samples"] = len(each["samples"])  # addressed by their number
        classes.append(shown_class)
    return {
        "job": job["id"], "state": job["state"], "error": job["error"],
        "warnings": job["progress"].get("warnings", []),
        "folder": shown(job["spec"]["folder"]), "classes": classes,
        "done": job["progress"].get("done"), "total": job["progress"].get("total"),
        "fit": job["progress"].get("fit"), "photo": job["progress"].get("photo", False),
        "others": job["progress"].get("others", {}),
    }  # fmt: skip


def sample(database: Database, check: int, place: int, number: int) -> tuple[Path, Fit]:
    """A photo to show of a class in a check, and how the network sees it."""
    job = database.job(check)
    if job is None or min(place, number) < 0:
        raise LookupError
    found = job["progress"]
    return Path(found["classes"][place]["samples"][number]), Fit(**found["fit"])


# ── training on them ─────────────────────────────────────────────────────────────────────────


def gather(database: Database, folder: Path, place: Path) -> int:
    """Make a folder of links for training, one sub-folder per class; return their number."""
    shutil.rmtree(place, ignore_errors=True)
    given = {each["source"]: each for each in database.read("SELECT * FROM classes")}
    count = 0
    for source, files in find_classes(folder, follow_links=False).classes.items():
        own = given.get(shown(source), {"name": shown(source), "excluded": 0})
        if own["excluded"]:
            continue
        target = place / own["name"]
        target.mkdir(parents=True, exist_ok=True)
        for file in files:
            count += 1
            name = f"{count:06}-{file.name}"
            if len(os.fsencode(name)) > _LONGEST_NAME:
                name = f"{count:06}{file.suffix}"
            _link(file.resolve(), target / name)
    if not count:
        raise DataError(f"{shown(folder)}: there is no photo to train on; include a class")
    for made in (*place.iterdir(), place):  # a system crash must not leave some of the links
        sync_folder(made)
    return count


def _link(file: Path, name: Path) -> None:
    try:
        name.symlink_to(file)
    except OSError:  # Windows without the right to make links
        shutil.copyfile(file, name)


# ── the most similar one ─────────────────────────────────────────────────────────────────────


def remember(files: Sequence[Path], fit: Fit, out: Path) -> None:
    """Keep small copies of the normal photos, to find the most similar one."""
    small = replace(fit, height=_SMALL, width=_SMALL)
    found = [
        (file.resolve(), pixels)
        for file, pixels in read_images(files, small)
        if not isinstance(pixels, ImageError)
    ]
    names = np.frombuffer(b"\0".join(os.fsencode(file) for file, _ in found), np.uint8)
    about = np.frombuffer(json.dumps(asdict(small)).encode(), np.uint8)
    pixels = np.stack([pixels for _, pixels in found])
    with replacing(out) as temporary, open(temporary, "wb") as file:
        np.savez(file, pixels=pixels, names=names, fit=about)


def most_similar(file: Path, kept: Path) -> Path:
    """The normal photo that differs least from a photo, pixel by pixel at a small size."""
    with np.load(kept, allow_pickle=False) as found:
        pixels, names = found["pixels"], found["names"].tobytes().split(b"\0")
        small = Fit(**json.loads(found["fit"].tobytes()))
    differences = pixels.astype(np.int32) - read_image(file, small)
    return Path(os.fsdecode(names[int(np.square(differences).sum(axis=(1, 2, 3)).argmin())]))


# ── images for the page ──────────────────────────────────────────────────────────────────────


def photo(file: Path, large: bool, white: int = 65535) -> bytes:
    """A photo for the page, decoded and encoded again: the file itself is never sent."""
    header = read_header(file)
    longest = _LARGE if large else _THUMBNAIL
    scale = min(1.0, longest / max(header.width, header.height))
    height, width = (max(1, round(side * scale)) for side in (header.height, header.width))
    channels = 3 if header.colour else 1
    return fitted(file, Fit(height, width, channels, "resize", white))


def fitted(file: Path, fit: Fit) -> bytes:
    """A photo at the size of a fit."""
    return _encoded(read_image(file, fit).squeeze())


def _encoded(pixels: Pixels) -> bytes:
    image = Image.fromarray(pixels)
    buffer = io.BytesIO()
    if max(image.size) <= _EXACT:
        image.save(buffer, "PNG")
    else:
        image.save(buffer, "JPEG", quality=88)
    return buffer.getvalue()


def media_type(content: bytes) -> str:
    return "image/png" if content.startswith(b"\x89PNG") else "image/jpeg"
