"""The readers that are fuzzed: seeds, how to damage them, and how to read the result.

A reader accepts an input or refuses it with an AnocapsError. Whatever else happens is a fault.
Where a checksum would stop all damage, it is computed again after most changes.
"""

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from data_writers import cifar_bytes, idx_bytes, mat_bytes
from image_damage import reframed, retagged, with_crc
from mutation import as_text, damaged, damaged_json
from PIL import Image

from anocaps.base.errors import AnocapsError
from anocaps.data import cifar, idx, norb
from anocaps.images.decode import Fit, read_header, read_image

FIT = Fit(16, 16, 3, "letterbox", bars="border")


class Target:
    """Inputs of one kind. A subclass has `seeds`, `accept` and perhaps its own `damage`."""

    seeds: tuple[bytes, ...]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def mutated(self, random: Random, content: bytes) -> bytes:
        try:
            return self.damage(random, content)
        except Exception:  # its format is too damaged for more
            return damaged(random, content, self.seeds)

    def damage(self, random: Random, content: bytes) -> bytes:
        return damaged(random, content, self.seeds)

    def accept(self, content: bytes) -> None:
        raise NotImplementedError

    def accepted(self, content: bytes) -> bool:
        try:
            self.accept(content)
        except AnocapsError as error:
            if "\n" in str(error):
                raise AssertionError("a message of several lines") from error
            return False
        return True

    def file(self, content: bytes, name: str = "input") -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path

    def close(self) -> None:
        pass


class Images(Target):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seeds = tuple(_images())

    def damage(self, random: Random, content: bytes) -> bytes:
        way = random.random()
        if way < 0.15 and content.startswith(b"II*\0"):
            return retagged(random, content)
        if way < 0.3 and content.startswith((b"II*\0", b"\xff\xd8")):
            return reframed(random, content)
        found = super().damage(random, content)
        return with_crc(found) if random.random() < 0.6 else found

    def accept(self, content: bytes) -> None:
        path = self.file(content)
        read_header(path)
        image = read_image(path, FIT)
        assert image.shape == (16, 16, 3) and image.dtype == np.uint8


def _images() -> list[bytes]:
    """Small files of every format and of the kinds of pixels that cameras and scanners write."""
    grid = np.add.outer(np.arange(20), np.arange(24)).astype(np.uint8) * 5
    grey = Image.fromarray(grid)
    exif = Image.Exif()
    exif[0x0112] = 6
    deep = Image.fromarray(grid.astype(np.uint16) * 250)
    kinds: list[tuple[Image.Image, str, dict[str, object]]] = [
        (grey, "PNG", {}),
        (grey.convert("RGB"), "PNG", {"exif": exif}),
        (grey.convert("RGBA"), "PNG", {}),
        (grey.convert("P"), "PNG", {"transparency": 3}),
        (grey.convert("1"), "PNG", {}),
        (deep, "PNG", {}),
        (grey, "JPEG", {}),
        (grey.convert("RGB"), "JPEG", {"exif": exif, "progressive": True}),
        (grey.convert("CMYK"), "JPEG", {}),
        (grey.convert("RGB"), "TIFF", {}),
        (grey, "TIFF", {"compression": "tiff_lzw"}),
        (grey.convert("RGB"), "TIFF", {"compression": "jpeg"}),
        (deep, "TIFF", {"compression": "tiff_deflate"}),
        (Image.fromarray(grid.astype(np.float32) / 255), "TIFF", {}),
        (grey.convert("RGB"), "BMP", {}),
        (grey.convert("P"), "BMP", {}),
        (grey.convert("RGB"), "WEBP", {}),
        (grey.convert("RGBA"), "WEBP", {"lossless": True}),
    ]
    files = []
    for image, kind, options in kinds:
        file = io.BytesIO()
        image.save(file, kind, **options)
        files.append(file.getvalue())
    return files


class Idx(Target):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        images = idx_bytes(np.arange(2 * 6 * 5, dtype=np.uint8).reshape(2, 6, 5))
        labels = idx_bytes(np.array([1, 9], np.uint8))
        self.images, self.labels = self.file(images, "images"), self.file(labels, "labels")
        self.seeds = (images, labels, gzip.compress(images), gzip.compress(labels))

    def accept(self, content: bytes) -> None:
        path = self.file(content)
        if idx.read_idx(path).ndim == 3:
            idx.read_split(path, self.labels, 10)
        else:
            idx.read_split(self.images, path, 10)


class Norb(Target):
    """One of the three files of a split is damaged; the first byte says which."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        pair = mat_bytes(np.arange(2 * 96 * 96, dtype=np.uint8).reshape(1, 2, 96, 96))
        kinds = mat_bytes(np.array([3], np.int32)), mat_bytes(np.array([[4, 0, 0, 1]], np.int32))
        self.files = pair, *kinds
        packed = (bytes([k]) + gzip.compress(each) for k, each in enumerate(self.files))
        self.seeds = (*(bytes([k]) + each for k, each in enumerate(self.files)), *packed)

    def accept(self, content: bytes) -> None:
        damaged_one = content[0] % 3 if content else 0
        paths = [
            self.file(content[1:] if k == damaged_one else each, f"{k}.mat")
            for k, each in enumerate(self.files)
        ]
        norb.read_split(*paths)


class Cifar(Target):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        pixels = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 32, 32, 3)
        plain = cifar_bytes(pixels, np.array([0, 9]))
        self.seeds = (plain, gzip.compress(plain))

    def accept(self, content: bytes) -> None:
        cifar.read_batch(self.file(content))


class Results(Target):
    """Result files of a study; the checksum is made right again."""

    def __init__(self, folder: Path) -> None:
        from study_results import make_result

        from anocaps.study.resultfile import write_result

        super().__init__(folder)
        seeds = []
        for method in ("capsnet", "vae"):
            path = folder / "seed.npz"
            shown = 2 if method == "capsnet" else 0
            write_result(path, make_result(method=method, images=12, reconstructions=shown), "ab")
            seeds.append(path.read_bytes())
        self.seeds = tuple(seeds)

    def damage(self, random: Random, content: bytes) -> bytes:
        from anocaps.study import resultfile

        way = random.random()
        if way < 0.2:
            return super().damage(random, content)
        if way < 0.5:
            body = super().damage(random, content)[: -resultfile._CHECKSUM_BYTES]
            return body + resultfile._checksum(body)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            arrays = {name: archive.read(name) for name in archive.namelist()}
        return _packed(random, arrays)

    def accept(self, content: bytes) -> None:
        from anocaps.study.resultfile import read_both

        read_both(self.file(content, "input.npz"))


def _packed(random: Random, arrays: dict[str, bytes]) -> bytes:
    """An archive with damaged members: a summary whose JSON is changed, or changed arrays."""
    from anocaps.study.resultfile import _checksum

    name = random.choice([*arrays, "summary.npy", "summary.npy"])
    if name == "summary.npy":
        summary = json.loads(str(np.load(io.BytesIO(arrays[name]))))
        file = io.BytesIO()
        np.save(file, np.asarray(as_text(random, damaged_json(random, summary))))
        arrays[name] = file.getvalue()
    elif random.random() < 0.2:
        del arrays[name]
    else:
        arrays[name] = damaged(random, arrays[name])
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for each, data in arrays.items():
            archive.writestr(zipfile.ZipInfo(each), data)
        archive.comment = bytes(64)
    body = file.getvalue()[:-64]
    return body + _checksum(body)


class Packed(Target):
    """Parquet files of results. The JSON of their metadata is damaged too, with right checksums.

    Damage under a wrong checksum must be refused, and no damaged cell may be salvaged.
    """

    def __init__(self, folder: Path) -> None:
        from study_results import make_result

        from anocaps.study.packed import pack
        from anocaps.study.resultfile import write_result

        super().__init__(folder)
        for held_out in ("2", "7"):
            path = folder / "study" / "mnist" / "capsnet" / f"{held_out}-seed0.npz"
            made = make_result((held_out,), images=12, reconstructions=2)
            write_result(path, made, "ab")
        (path,) = pack(folder / "study")
        self.seeds = (path.read_bytes(),)
        self.cells = self._read(path)

    def damage(self, random: Random, content: bytes) -> bytes:
        import pyarrow as arrow
        from pyarrow import parquet

        from anocaps.study.packed import _KEY, _SEAL, _SEAL_KEY, sealed

        if random.random() < 0.4:
            return super().damage(random, content)
        if random.random() < 0.3:
            return _other_digit(random, content)
        file = parquet.ParquetFile(arrow.BufferReader(content))
        table, rows = file.read(), file.metadata.row_group(0).num_rows
        cells = [json.loads(line) for line in file.metadata.metadata[_KEY].split(b"\n")]
        cells = damaged_json(random, cells)
        if random.random() < 0.3 and table.num_columns > 1:
            table = table.remove_column(random.randrange(table.num_columns))
        for number, cell in enumerate(cells):
            _reseal(cell, table.slice(number * rows, rows).to_pydict())
        lines = "\n".join(as_text(random, cell) for cell in cells)
        table = table.replace_schema_metadata(
            {
                _KEY: lines.encode("utf-8", "replace"),
                _SEAL_KEY: _SEAL + bytes(64),
                b"fuzz": RESEALED,
            }
        )
        out = arrow.BufferOutputStream()
        parquet.write_table(table, out, row_group_size=max(1, rows), write_page_checksum=True)
        return sealed(out.getvalue().to_pybytes())

    def accept(self, content: bytes) -> None:
        from anocaps.study.packed import _fingerprints, _undamaged

        path = self.file(content, "input.parquet")
        names, error = _fingerprints.__wrapped__(path, 0)
        salvaged = {
            name: _as_text(result, fingerprint)
            for name, (result, fingerprint) in _undamaged(path).items()
        }
        if RESEALED not in content:
            assert salvaged.items() <= self.cells.items(), "a damaged cell was salvaged"
            assert all(self.cells[name].startswith(names[name]) for name in names)
        if error:
            raise error
        found = self._read(path)
        assert RESEALED in content or found == self.cells, "damage was read"

    def _read(self, path: Path) -> dict[str, str]:
        from anocaps.study.packed import read_packed

        return {name: _as_text(result, f) for name, result, f in read_packed(path)}


RESEALED = b"damage under a right checksum"


def _other_digit(random: Random, content: bytes) -> bytes:
    """One digit of the metadata changed: the JSON can still be read."""
    start = content.index(b'{"name"')
    place = random.choice([k for k in range(start, len(content)) if content[k : k + 1].isdigit()])
    return content[:place] + random.choice(b"0123456789").to_bytes() + content[place + 1 :]


def _reseal(cell: Any, columns: dict[str, list[Any]]) -> None:
    from anocaps.study.packed import _checksum, _result

    with suppress(Exception):  # a cell that cannot be read keeps its checksum
        made = _result(cell["summary"], columns)
        cell["sha256"] = _checksum(cell["name"], cell["summary"], made)


def _as_text(result: Any, fingerprint: str) -> str:
    """Everything of a cell."""
    arrays = (result.index, result.labels, result.predicted, result.reconstructions)
    raw = [None if array is None else array.tolist() for array in arrays]
    scores = {name: values.tolist() for name, values in result.scores.items()}
    return f"{fingerprint} {json.dumps([result.summary(), raw, scores])}"


def _lazily(module: str, name: str, folder: Path) -> Target:
    """A target that imports torch, onnxruntime or the server."""
    from importlib import import_module

    target: Target = getattr(import_module(module), name)(folder)
    return target


TARGETS: dict[str, Callable[[Path], Target]] = {
    "images": Images,
    "idx": Idx,
    "norb": Norb,
    "cifar": Cifar,
    "model file": partial(_lazily, "model_targets", "ModelFiles"),
    "onnx": partial(_lazily, "model_targets", "OnnxFiles"),
    "checkpoint": partial(_lazily, "model_targets", "Checkpoints"),
    "result file": Results,
    "packed results": Packed,
    "study status": partial(_lazily, "study_target", "Status"),
    "http": partial(_lazily, "http_target", "Http"),
}
