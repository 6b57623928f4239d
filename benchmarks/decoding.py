"""Claim: no image file that is accepted takes more than 3 s of one core or 400 MB to decode.

Writes the costliest files of each format that the limits accept (images/limits.py): the largest
images, in formats and with contents that are slow to decode. Scans of progressive JPEG files are
repeated until one more would be refused. Each file is read by `read_image` in a process of its own,
which reports its CPU seconds, and how much its memory grows beyond that of a small image (Linux).

    python benchmarks/decoding.py
"""

import io
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import common
import numpy as np
from PIL import Image, ImageFile, __version__

from anocaps.base.provenance import provenance
from anocaps.images.limits import MOST_BYTES
from anocaps.images.tiff import MOST_SECONDS, seconds_of_scans, seconds_to_inflate

_SIDE = 8000  # 64 million pixels
_SCAN, _TABLES = b"\xff\xda", b"\xff\xc4"
_FOUR_BLOCKS = bytes.fromhex(  # of deflate; each has its own Huffman tables
    "04c0810800000000a0fda93f0170200200000000687fea4f001c880000000000da9ffa130007220000000080f6a7fe"
)
_READ = """
import json, sys, time
from pathlib import Path
from anocaps.images.decode import Fit, read_image
fit = Fit(128, 128, 3, "letterbox", bars="border")
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
read_image(Path(sys.argv[1]), fit)
before = peak()
begun = time.process_time()
read_image(Path(sys.argv[2]), fit)
seconds = time.process_time() - begun
print(json.dumps([seconds, peak() - before]))
"""


def image(noise: bool, bands: int, side: int = _SIDE) -> Image.Image:
    shape = (side, side) if bands == 1 else (side, side, bands)
    if not noise:
        return Image.fromarray(np.zeros(shape, np.uint8))
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def repeated(quality: int, scan: int) -> bytes:
    """A progressive JPEG of noise, one of whose scans is repeated as often as is accepted."""
    ImageFile.MAXBLOCK = 1 << 29  # so that Pillow writes large progressive files
    content = saved(image(True, 3), "JPEG", progressive=True, quality=quality, subsampling=0)
    places = [found.start() for found in re.finditer(_SCAN, content)]
    begin = places[scan]
    end = places[scan + 1] if scan + 1 < len(places) else len(content) - 2
    tables = content.find(_TABLES, begin, end)  # of the next scan
    again = content[begin : tables if tables > 0 else end]

    def seconds(copies: int) -> float:
        stored, scans = len(content) + copies * len(again), len(places) + copies
        return seconds_of_scans(stored, scans * _SIDE**2)

    copies = 0
    while seconds(copies + 1) <= MOST_SECONDS:
        copies += 1
    return content[:begin] + copies * again + content[begin:]


def without_content() -> bytes:
    """A PNG with as many deflate blocks as are accepted that have tables, but no content."""
    sys.path[:0] = [str(common.ROOT / "tests" / "helpers")]
    from data_writers import png

    pixels = zlib.compress((b"\4" + bytes(4 * _SIDE)) * _SIDE, 1)  # 4: the slowest filter
    count = 0
    while seconds_to_inflate(len(pixels) + count + 50_000, 4 * _SIDE**2) <= MOST_SECONDS:
        count += 50_000
    blocks = count // len(_FOUR_BLOCKS) * _FOUR_BLOCKS
    return png(_SIDE, _SIDE, colour=6, packed=pixels[:2] + blocks + pixels[2:])


FILES: dict[str, Callable[[], bytes]] = {
    "PNG, RGBA, black": lambda: saved(image(False, 4), "PNG", compress_level=1),
    "PNG, RGBA, noise": lambda: saved(image(True, 4, 3860), "PNG", compress_level=1),
    "PNG, blocks without content": without_content,
    "WebP, RGBA, noise": lambda: saved(
        image(True, 4, 4420), "WEBP", lossless=True, quality=0, method=0
    ),
    **{
        f"TIFF, RGB, deflate, {what}": (
            lambda noise=noise, side=side: saved(
                image(noise, 3, side), "TIFF", compression="tiff_deflate", strip_size=10**9
            )
        )
        for what, noise, side in (("black", False, 7500), ("noise", True, 4460))
    },
    "TIFF, RGB, JPEG, noise": lambda: saved(
        image(True, 3, 6300), "TIFF", compression="jpeg", quality=90, strip_size=10**9
    ),
    "BMP, RGB": lambda: saved(image(True, 3), "BMP"),
    "JPEG, noise": lambda: saved(image(True, 3), "JPEG", quality=100, subsampling=0),
    **{
        f"JPEG, progressive, quality {quality}, scan {scan} repeated": (
            lambda quality=quality, scan=scan: repeated(quality, scan)
        )
        for quality, scan in ((25, 0), (25, 9), (50, 4), (50, 9), (75, 9))
    },
}


def measured(path: Path, small: Path) -> tuple[float, float]:
    """CPU seconds and bytes of memory."""
    command = [sys.executable, "-c", _READ, str(small), str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{path.name} is refused: {done.stderr.splitlines()[-1]}")
    seconds, grown = json.loads(done.stdout)
    return seconds, grown


def main() -> None:
    parser = common.parser(__doc__, "decoding.json")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    rows = {}
    with TemporaryDirectory() as folder:
        small, large = Path(folder, "small.png"), Path(folder, "large")
        image(False, 4, 8).save(small)
        for name, make in FILES.items():
            large.write_bytes(make())
            turns = [measured(large, small) for _ in range(given.repeats)]
            seconds, grown = zip(*turns)
            rows[name] = {
                "file MB": round(large.stat().st_size / 1e6, 1),
                "CPU seconds": common.spread(seconds, 2),
                "MB": round(max(grown) / 1e6),
            }
            print(name, rows[name], flush=True)
    circumstances = provenance("cpu", 1)
    circumstances["versions"]["pillow"] = __version__  # its decoders set the factors
    result = {
        "limits": {"seconds": MOST_SECONDS, "MB": MOST_BYTES / 1e6},
        "rows": rows,
        "circumstances": circumstances,
    }
    common.write(given.out, result)


if __name__ == "__main__":
    common.run_script(main)
