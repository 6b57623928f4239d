"""The commands whose writing is tested, each with the files before it and how to run it again.

Inputs are in PLACE/given. All that a command writes is below PLACE/work, the folder that the layer
watches.
"""

import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
from brightness import Brightness, draw, draw_twelve
from image_files import write_digits

from anocaps.base import arrayfile
from anocaps.base.errors import AnocapsError, ModelFileError
from anocaps.cli import main as cli
from anocaps.cli.commands import score as score_command
from anocaps.data import load_dataset
from anocaps.inspect import arrivals, scoring

QUICK = ("--size", 8, "--preset", "quick", "--no-self-check", "--device", "cpu", "--json")


@dataclass(frozen=True)
class Case:
    prepare: Callable[[Path], None]  # writes PLACE/given, and what is in PLACE/work before
    run: Callable[[Path], None]
    again: Callable[[Path], None]  # what the user does after a crash
    check: Callable[[Path], None] = lambda place: None  # what is left, beyond old or new files
    versions: tuple[str, ...] = ()  # endings of files that have other versions than old and new


def anocaps(*words: object) -> None:
    sys.argv = ["anocaps", *map(str, words)]
    cli.main()


def _write_arrays(place: Path) -> None:
    path = place / "work" / "m.safetensors"
    try:
        arrayfile.write(path, "model", {"a": np.arange(9000.0)}, {"b": 2})
    except ModelFileError as error:
        raise SystemExit(2) from error


def _old_arrays(place: Path) -> None:
    (place / "work").mkdir()
    arrayfile.write(place / "work" / "m.safetensors", "model", {"a": np.ones(9000)}, {"b": 1})


# ── score ────────────────────────────────────────────────────────────────────────────────────


def _bright(place: Path) -> None:
    """Every ONNX model is the judge by brightness; 4 files are a batch."""
    onnx = types.SimpleNamespace(OnnxModel=lambda path, device: Brightness())
    sys.modules["anocaps.export.runtime"] = onnx
    scoring._BATCH = 4
    arrivals._EVERY = 0.01


def _images(place: Path) -> None:
    draw_twelve(place / "given" / "new")
    for k in range(3):
        draw(place / "given" / "few" / f"{k}.png", 60 + 60 * k)
    (place / "given" / "m.onnx").touch()
    (place / "work").mkdir()


def _old_table(place: Path) -> None:
    _images(place)
    (place / "work" / "s.csv").write_text("file,score\nold.png,1\n")


def _score(place: Path, *more: object, out: str = "s.csv", new: str = "new") -> None:
    _bright(place)
    given, work = place / "given", place / "work"
    words = [work / word[1:] if str(word).startswith("@") else word for word in more]
    anocaps("score", given / "m.onnx", given / new, "-o", work / out, *words)


def _score_case(prepare: Callable[[Path], None] = _images, *more: str, **options: str) -> Case:
    def run(place: Path) -> None:
        _score(place, *more, **options)

    def again(place: Path) -> None:
        _score(place, *more, "--resume", **options)

    return Case(prepare, run, again)


def _stopped_table(place: Path) -> None:
    """A table whose run was killed after 4 of 12 rows, in the middle of a line."""
    _images(place)
    whole = place / "work" / "s.csv.partial"
    take, child = scoring.add_rows, os.fork()
    if child == 0:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115

        def once(*given: object, **named: object) -> None:
            take(*given, **named)
            os._exit(0)

        scoring.add_rows = once
        _score(place)
    os.waitpid(child, 0)
    whole.write_bytes(whole.read_bytes() + b'[{"file": "')


def _watch(place: Path, *more: object) -> None:
    rows = place / "work" / "s.csv.partial"

    @contextmanager
    def until_all_are_scored() -> Iterator[Callable[[], bool]]:
        yield lambda: rows.exists() and rows.read_bytes().count(b"\n") == 13

    score_command.stop_later = until_all_are_scored
    _score(place, "--watch", *more)


def _parts(place: Path) -> None:
    """What `score --engine ray` does with the rows that its workers send: a folder of parts."""
    from anocaps.inspect.parts.folder import Part, PartsFolder, sha256

    try:
        with PartsFolder(place / "work" / "scores", {"model": "m"}, resume=True) as folder:
            for number in range(3):
                if not folder.has(number, f"shard {number}"):
                    content = bytes([number]) * 5000
                    about = (2, 0, 0, "", len(content), sha256(content))
                    folder.add(Part(number, f"shard {number}", *about), content)
            folder.finish(3)
    except (AnocapsError, OSError) as error:
        print(f"Error: {error}")
        raise SystemExit(2) from error


# ── train, export and study ──────────────────────────────────────────────────────────────────


def _photos(place: Path) -> None:
    write_digits(place / "given" / "photos", load_dataset("digits"), range(3), 12)
    (place / "work").mkdir()


def _few_photos(place: Path) -> None:
    write_digits(place / "given" / "photos", load_dataset("digits"), range(2), 6)
    (place / "work").mkdir()


def _train(place: Path, *more: object, out: str = "work/m.safetensors", epochs: int = 2) -> None:
    words = ("-o", place / out, "--epochs", epochs, *QUICK, *more)
    anocaps("train", place / "given" / "photos", *words)


def _forked(work: Callable[..., None], *given: object, **named: object) -> None:
    """Prepare in a child, so that no thread of it is in the way of later forks."""
    if (child := os.fork()) == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        try:
            work(*given, **named)
        except SystemExit as ended:
            os._exit(int(ended.code or 0))
    assert os.waitpid(child, 0)[1] == 0


def _old_model(place: Path) -> None:
    _photos(place)
    _forked(_train, place, epochs=1)


def _old_export(place: Path) -> None:
    _photos(place)
    for epochs in (1, 2):
        _forked(_train, place, out=f"given/{epochs}.safetensors", epochs=epochs)
    _forked(_export, place, epochs=1)


def _export(place: Path, epochs: int = 2) -> None:
    given = place / "given" / f"{epochs}.safetensors"
    anocaps("export", given, place / "work" / "m.onnx", "--json")


def _study(place: Path) -> None:
    words = ("--method", "kde", "--seeds", 1, "--device", "cpu", "--json")
    folder = place / "work" / "study"
    photos = f"folder:{place / 'given' / 'photos'}"
    anocaps("study", "run", "paper", "--dataset", photos, "--folder", folder, *words)


def _failed_study(place: Path) -> None:
    """A study of which one cell failed and one is missing."""
    _photos(place)
    _forked(_study, place)
    first, *_, last = sorted((place / "work" / "study").rglob("*.npz"))
    first.with_suffix(".failed").write_text("an error")
    for cell in (first, last):
        cell.unlink()


def _finished_study(place: Path) -> None:
    _photos(place)
    _forked(_study, place)


def _pack(place: Path) -> None:
    anocaps("study", "pack", "paper", "--folder", place / "work" / "study", "--json")


# ── keys and signatures ──────────────────────────────────────────────────────────────────────


def _keygen(place: Path, name: str = "work/key.pem", seed: int = 1) -> None:
    """The key of a seed, so that two runs make the same."""
    kind = import_module("cryptography.hazmat.primitives.asymmetric.ed25519").Ed25519PrivateKey
    kind.generate = lambda: kind.from_private_bytes(bytes([seed]) * 32)
    anocaps("keygen", place / name)


def _keygen_again(place: Path) -> None:
    whole = (place / "work" / "key.pem.pub").exists()  # the last file that is written
    try:
        _keygen(place)
    except SystemExit as ended:
        if (ended.code or 0) != 2 * whole:  # a pair of keys is never replaced
            raise


def _secret(place: Path) -> None:
    """Only its owner can read a private key, also a temporary one."""
    for path in (place / "work").iterdir():
        assert b"PRIVATE" not in path.read_bytes() or path.stat().st_mode & 0o77 == 0, path


def _no_key(place: Path) -> None:
    (place / "work").mkdir()


def _signed_by_another(place: Path) -> None:
    _old_arrays(place)
    for seed in (2, 1):
        _forked(_keygen, place, f"given/{seed}.pem", seed)
    _forked(_sign, place, 2)


def _sign(place: Path, seed: int = 1) -> None:
    anocaps("sign", place / "work" / "m.safetensors", "--key", place / "given" / f"{seed}.pem")


# ── the page ─────────────────────────────────────────────────────────────────────────────────


def _page(name: str) -> Callable[[Path], None]:
    """A function of page.py, which imports much."""

    def call(place: Path) -> None:
        getattr(import_module("page"), name)(place)

    return call


def _page_given(place: Path) -> None:
    _images(place)
    noise = np.random.default_rng(0).bytes(3000)
    (place / "given" / "photo.png").write_bytes(noise)


CASES: dict[str, Case] = {
    "model file": Case(_old_arrays, _write_arrays, _write_arrays),
    "score, csv": _score_case(_old_table),
    "score, csv, continued": _score_case(_stopped_table, "--resume"),
    "score, jsonl": _score_case(_images, out="s.jsonl"),
    "score, parquet": _score_case(_images, out="s.parquet"),
    "score, gallery and heatmaps": _score_case(
        _images, "--gallery", "@g.html", "--heatmaps", "@maps", new="few"
    ),
    "score, watch": Case(
        _images, _watch, lambda p: _watch(p, "--resume"), versions=("s.csv",)
    ),
    "score, parts": Case(_images, _parts, _parts, versions=("_manifest.jsonl",)),
    "train": Case(
        _old_model, _train, lambda p: _train(p, "--resume"), versions=(".checkpoint",),
    ),
    "export": Case(_old_export, _export, _export),
    "study run": Case(_photos, _study, _study, versions=("log.jsonl",)),
    "study run, continued": Case(
        _failed_study, _study, _study, versions=("log.jsonl",)
    ),
    "study pack": Case(_finished_study, _pack, _pack),
    "keygen": Case(_no_key, _keygen, _keygen_again, _secret),
    "sign": Case(_signed_by_another, _sign, _sign),
    "page": Case(
        _page_given, _page("page"), _page("page"), _page("check_page"), versions=(".sqlite",)
    ),
    "page, training": Case(
        _few_photos, _page("training_job"), _page("training_job"), versions=(".sqlite",)
    ),
}  # fmt: skip
