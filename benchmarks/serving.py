"""The server against direct batch scoring: 28×28 images, 64 clients, an ONNX model on the CPU.

Claim: with 64 clients the server holds 80 % or more of the throughput of direct batch scoring, and
at half of its own throughput 99 of 100 requests take less than 250 ms.

Direct scoring is `score_files` over image files, with all cores. The server is `anocaps serve` in a
process of its own. The clients are in another one, on the same cores, so that their processor time
counts against the server. They send bytes that were made before the measurement, and parse only the
length of an answer. A client sends its next request when it has the answer to the last one. Both
ways take turns on the same images. Requests hold 8 images, as a program sends them that has many,
or one.
"""

import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from anocaps.base.provenance import provenance

CLIENTS = 64
IMAGES = 1024  # files on disk
SIZES = (8, 1)  # images of a request
WARM_UP = 3  # seconds
TOKEN = "0" * 40


def main() -> None:
    from common import parser, write  # torch, which the clients do not need

    options = parser(__doc__, "serving.json")
    options.add_argument("--seconds", type=float, default=10, help="of each measurement")
    options.add_argument("--repeats", type=int, default=5)
    given = options.parse_args()
    busy = round(os.getloadavg()[0], 1)  # before the measurement
    with TemporaryDirectory() as name:
        folder = Path(name)
        files = prepare(folder)
        with served(folder) as port:
            result = measure(folder, files, port, given.seconds, given.repeats)
    cores = os.cpu_count() or 1
    # Other programs on the machine slow down both ways; the ratio hardly depends on them.
    circumstances = provenance("cpu", cores) | {"load_average": busy}
    write(given.out, {"clients": CLIENTS, **result, "circumstances": circumstances})


def prepare(folder: Path) -> list[Path]:
    """A model of the preset deep, and image files."""
    from common import large_digits

    from anocaps.detectors import CapsNetDetector
    from anocaps.export.writer import export

    images, labels = large_digits(IMAGES)
    detector = CapsNetDetector("deep", epochs=1, device="cpu").fit(images[:180], labels[:180])
    (folder / "project" / "models").mkdir(parents=True)
    export(detector, folder / "project" / "models" / "digits.onnx")
    (folder / "images").mkdir()
    files = [folder / "images" / f"{k:04}.png" for k in range(len(images))]
    for file, pixels in zip(files, images):
        Image.fromarray(pixels).save(file)
    return files


@contextmanager
def served(folder: Path) -> Iterator[int]:
    """The port of a running server."""
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    command = [sys.executable, "-m", "anocaps", "serve", str(folder / "project"), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--no-browser", "--token-file", str(token)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)/", process.stdout.readline())
        assert found is not None
        yield int(found[1])
    finally:
        process.terminate()
        process.wait()


def measure(
    folder: Path, files: list[Path], port: int, seconds: float, repeats: int
) -> dict[str, Any]:
    """Images/s of both ways in turns, their ratio, and latency at half of the server's rate."""
    direct: list[float] = []
    loads: dict[int, list[float]] = {size: [] for size in SIZES}
    for repeat in range(1 + repeats):  # the first turn warms up
        found = {
            0: apart("--direct", folder / "project/models/digits.onnx", folder / "images", seconds)
        }
        for size in SIZES:
            found[size] = apart("--load", port, folder / "images", size, 0, seconds)
        if repeat:
            direct.append(found[0]["rate"])
            for size in SIZES:
                loads[size].append(found[size]["rate"])
    rate = statistics.median(direct)
    result: dict[str, Any] = {"direct_images_per_second": round(rate, 1), "served": []}
    for size, rates in loads.items():
        half = statistics.median(rates) / 2
        calm = [
            apart("--load", port, folder / "images", size, half, seconds) for _ in range(repeats)
        ]
        ratios = [served / alone for served, alone in zip(rates, direct)]
        row = {
            "images_a_request": size,
            "images_per_second": round(statistics.median(rates), 1),
            "ratio": round(statistics.median(ratios), 3),
            "at_half_load": {
                "images_per_second": round(statistics.median(c["rate"] for c in calm), 1),
                "p50_ms": round(statistics.median(c["p50"] for c in calm), 1),
                "p99_ms": round(statistics.median(c["p99"] for c in calm), 1),
            },
        }
        result["served"].append(row)
    return result


def apart(*words: object) -> dict[str, float]:
    """What this script prints in a process of its own."""
    command = [sys.executable, __file__, *map(str, words)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(answer.stdout)
    return found


def direct(model: str, folder: str, seconds: str) -> dict[str, float]:
    from anocaps.inspect.judge import load_judge
    from anocaps.inspect.scoring import score_files

    judge = load_judge(Path(model))
    files = sorted(Path(folder).iterdir())
    score_files(judge, files)
    started, images = time.perf_counter(), 0
    while time.perf_counter() - started < float(seconds):
        images += len(score_files(judge, files))
    return {"rate": images / (time.perf_counter() - started)}


# ── the clients ──────────────────────────────────────────────────────────────────────────────


def load(port: str, folder: str, size: str, rate: str, seconds: str) -> dict[str, float]:
    files = sorted(Path(folder).iterdir())
    requests = [
        request(int(port), files[k : k + int(size)]) for k in range(0, len(files), int(size))
    ]
    return asyncio.run(clients(int(port), requests, int(size), float(rate), float(seconds)))


def request(port: int, files: list[Path]) -> bytes:
    body = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="images"; filename="%d.png"\r\n\r\n' % k
        + file.read_bytes() + b"\r\n"
        for k, file in enumerate(files)
    ) + b"--x--\r\n"  # fmt: skip
    lines = [
        "POST /api/score HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Authorization: Bearer {TOKEN}",
        "Content-Type: multipart/form-data; boundary=x", f"Content-Length: {len(body)}", "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + body


async def clients(
    port: int, requests: list[bytes], size: int, rate: float, seconds: float
) -> dict[str, float]:
    """64 clients, as fast as they can, or together at a rate of images; the first seconds warm up.

    At a rate, the time of a request counts from the moment when it was due.
    """
    loop = asyncio.get_running_loop()
    started = loop.time() + WARM_UP
    ended = started + seconds
    gap = CLIENTS * size / rate if rate else 0.0
    taken: list[float] = []

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        due = loop.time() + random.Random(number).random() * gap
        for turn in range(number, 10**9):
            if rate:
                await asyncio.sleep(due - loop.time())
            begun = due if rate else loop.time()
            if begun > ended:
                break
            writer.write(requests[turn % len(requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            found = re.search(rb"content-length: (\d+)", head)
            assert found is not None
            await reader.readexactly(int(found[1]))
            if started <= loop.time() <= ended:
                taken.append(loop.time() - begun)
            due += gap
        writer.close()

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    taken.sort()
    return {
        "rate": len(taken) * size / seconds,
        "p50": 1000 * taken[len(taken) // 2],
        "p99": 1000 * taken[int(0.99 * len(taken))],
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--direct"]:
        print(json.dumps(direct(*sys.argv[2:])))
    elif sys.argv[1:2] == ["--load"]:
        print(json.dumps(load(*sys.argv[2:])))
    else:
        main()
