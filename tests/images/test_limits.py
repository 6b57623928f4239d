"""Decoding is bounded: the largest images fit into memory, larger ones are refused."""

import io
import struct
import sys
import zlib
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from data_writers import png
from PIL import Image
from processes import measured

from anocaps.images import decode, limits
from anocaps.images.decode import Fit, ImageError, read_image
from anocaps.images.limits import LONGEST_SIDE, MOST_BYTES
from anocaps.images.tiff import seconds_of_scans

FIT = Fit(128, 128, 3, "letterbox", bars="border")
MEASURE = """
import sys
from anocaps.images.decode import Fit, read_image
fit = Fit(128, 128, 3, "letterbox", bars="border")
read_image(Path(sys.argv[1]), fit)
before = peak()
read_image(Path(sys.argv[2]), fit)
print(peak() - before)
"""


def zeros(width: int, height: int, colour: int, channels: int, depth: int = 8) -> bytes:
    """A whole PNG of zeros, far smaller than its pixels."""
    packer = zlib.compressobj(1)
    row = bytes(1 + width * channels * depth // 8)
    packed = b"".join([*(packer.compress(row) for _ in range(height)), packer.flush()])
    return png(width, height, colour, depth, packed)


def saved(size: tuple[int, int], mode: str, kind: str, **options) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, kind, **options)
    return file.getvalue()


LARGEST = {
    "rgba.png": lambda: zeros(8000, 8000, 6, 4),
    "deep.png": lambda: zeros(8000, 8000, 0, 1, depth=16),
    "rgba.webp": lambda: saved((4420, 4420), "RGBA", "WEBP", lossless=True, quality=0, method=0),
    "progressive.jpg": lambda: saved(
        (8000, 8000), "RGB", "JPEG", progressive=True, subsampling=0, quality=50
    ),
    "strip.tif": lambda: saved(
        (7000, 7000), "RGB", "TIFF", compression="tiff_deflate", strip_size=10**9
    ),
}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak of memory")
@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_images_fit_into_memory(tmp_path, name):
    (tmp_path / "small.png").write_bytes(zeros(8, 8, 6, 4))
    (tmp_path / name).write_bytes(LARGEST[name]())
    assert int(measured(MEASURE, tmp_path / "small.png", tmp_path / name)) < 1.05 * MOST_BYTES


SEVERAL = """
import sys
from concurrent.futures import ThreadPoolExecutor
from anocaps.cli.heap import keep_freed_memory
from anocaps.images.decode import Fit, read_image
keep_freed_memory()  # as the commands do
fit = Fit(128, 128, 3, "letterbox", bars="border")
before = peak()
with ThreadPoolExecutor(3) as threads:
    list(threads.map(lambda path: read_image(path, fit), 3 * sys.argv[1:]))
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")
def test_threads_together_keep_no_more_than_one_of_them(tmp_path):
    (tmp_path / "large.png").write_bytes(zeros(7500, 7500, 6, 4))
    assert int(measured(SEVERAL, tmp_path / "large.png")) < 1.05 * MOST_BYTES


def repeated_scan(times: int, side: int = 4000) -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    content = saved((side, side), "L", "JPEG", progressive=True)
    last = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + times * last + b"\xff\xd9"


def one_strip(side: int) -> bytes:
    """A TIFF whose only strip does not get smaller when it is compressed."""
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    file = io.BytesIO()
    options = {"compression": "tiff_deflate", "strip_size": 10**9}
    Image.fromarray(noise).save(file, "TIFF", **options)
    return file.getvalue()


def run_length_bmp(width: int, height: int) -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, 0, 0, 0, 256, 0)
    body = b"\1\7\0\0" * height + b"\0\1"
    return b"BM" + struct.pack("<IHHI", 1078 + len(body), 0, 0, 1078) + header + bytes(1024) + body


REFUSED = {
    "long.png": lambda: zeros(1, LONGEST_SIDE + 1, 0, 1),
    "rgba16.png": lambda: zeros(8000, 8000, 6, 4, depth=16),
    "rgba.webp": lambda: saved((4500, 4500), "RGBA", "WEBP", lossless=True, quality=0, method=0),
    "turned.tif": lambda: saved((7200, 7200), "RGB", "TIFF", tiffinfo={274: 6}),
    "noise.tif": lambda: one_strip(7000),
    "scans.jpg": lambda: repeated_scan(100),
    "rle.bmp": lambda: run_length_bmp(3000, 3000),
}


@pytest.mark.parametrize("name", REFUSED)
def test_images_that_take_more_are_refused_before_decoding(tmp_path, monkeypatch, name):
    (tmp_path / name).write_bytes(REFUSED[name]())
    monkeypatch.setattr(decode, "_fitted", None)
    with pytest.raises(ImageError, match=name):
        read_image(tmp_path / name, FIT)


def test_smaller_images_of_these_kinds_are_read(tmp_path):
    for name, content in {
        "scans.jpg": repeated_scan(2),
        "rle.bmp": run_length_bmp(100, 100),
        "turned.tif": saved((7, 5), "RGB", "TIFF", tiffinfo={274: 6}),
        "noise.tif": one_strip(70),
    }.items():
        (tmp_path / name).write_bytes(content)
        assert read_image(tmp_path / name, FIT).shape == (128, 128, 3)


def test_long_scans_count_as_many_scans_do(tmp_path, monkeypatch):
    """The time of a progressive JPEG grows with its bytes and with the pixels of its scans."""
    content = repeated_scan(2)
    (tmp_path / "a.jpg").write_bytes(content)
    most = seconds_of_scans(len(content), content.count(b"\xff\xda") * 4000**2)
    for seconds, accepted in ((1.01 * most, True), (0.5 * most, False)):
        monkeypatch.setattr(limits, "MOST_SECONDS", seconds)
        with nullcontext() if accepted else pytest.raises(ImageError, match="too much time"):
            read_image(tmp_path / "a.jpg", FIT)
    assert seconds_of_scans(2 * len(content), 0) > seconds_of_scans(len(content), 0) > 0


def test_scans_without_pixels_take_time_too(monkeypatch):
    content = repeated_scan(1000, side=8)
    of_pixels = seconds_of_scans(len(content), content.count(b"\xff\xda") * 8**2)
    monkeypatch.setattr(limits, "MOST_SECONDS", 1.2 * of_pixels)
    with pytest.raises(ImageError, match="too much time"):
        read_image("a.jpg", FIT, content)


@pytest.mark.parametrize("how", ["resize", "letterbox", "crop"])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "LA", "I;16"])
def test_decoding_in_strips_changes_nothing(tmp_path, monkeypatch, mode, how):
    rng = np.random.default_rng(0)
    if mode == "I;16":
        image = Image.fromarray(rng.integers(0, 65536, (61, 47), dtype=np.uint16))
    else:
        bands = len(Image.new(mode, (1, 1)).getbands())
        shape = (61, 47) if bands == 1 else (61, 47, bands)
        image = Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8), None)
        image = image.convert("P") if mode == "P" else image
    options = {"transparency": bytes(range(256))} if mode == "P" else {}
    path = Path(tmp_path / "a.png")
    image.save(path, **options)
    for fit in (Fit(16, 20, 1, how), Fit(90, 30, 3, how)):
        whole = read_image(path, fit)
        with monkeypatch.context() as patched:
            patched.setattr(decode, "_STRIP", 500)
            np.testing.assert_array_equal(read_image(path, fit), whole)
