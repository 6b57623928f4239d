"""The tables of docs/scale.md: what was measured of engines, and what many images would cost."""

from typing import Any

from common import read, table

MANY = {"10 million": 10_000_000, "1 billion": 1_000_000_000}
NODE = 64  # cores


def engines() -> str:
    found = read("engines.json")
    rows = []
    for name, side in found["sides"].items():
        memory = side["MiB by tenths of the time"]
        rows.append([
            name,
            f"{side['seconds']['median']:,.0f}",
            f"{side['seconds to the first part']['median']:,.0f}",
            f"{side['CPU seconds']['median']:,.0f}",
            f"{memory[4]:,.0f}, {memory[8]:,.0f}",
        ])  # fmt: skip
    head = ["engine", "seconds", "seconds to the first part", "CPU seconds",
            "MiB in the fifth and ninth tenth of the time"]  # fmt: skip
    overhead: dict[str, dict[str, float]] = found["overhead"]
    keys = list(dict.fromkeys(key for each in overhead.values() for key in each))
    more = [
        [name, *(f"{100 * each[key]:+.0f} %" for key in keys)] for name, each in overhead.items()
    ]
    load = found["load average"]
    return "\n\n".join([
        table(head, rows),
        table(["more than the local engine", *keys], more),
        f"{found['files']:,} small files, {found['workers']} workers, {found['turns']} turns of "
        f"each, medians; {found['processor']['model']}, {found['processor']['cores']} cores. The "
        f"load average was {load['before'][0]:.1f} before and {load['after'][0]:.1f} after. "
        "From `python benchmarks/engines.py`.",
    ])  # fmt: skip


def scale() -> str:
    """Core-hours of CPU nodes, and GPU-hours with the cores that feed the GPU."""
    return f"{_on_cpus()}\n\n{_photo_scoring()[1]}\n\n{_on_gpus()}"


def _seconds() -> dict[str, tuple[dict[str, float], float]]:
    """Kind of images → decoding as measured, seconds of one core to score an image."""
    decoding: dict[str, Any] = read("engines.json")["decoding"]
    small = read("speed-cpu.json")
    scored = small["rates"]["scoring PP and RE"]["ours"]["median"] / small["threads"]
    photos, _ = _photo_scoring()
    return {
        "28×28, preset `paper`": (decoding["PNG 28×28"], 1 / scored),
        "640×480, preset `photo`": (decoding["JPEG 640×480"], photos),
        "4000×3000, preset `photo`": (decoding["JPEG 4000×3000"], photos),
    }


def _photo_scoring() -> tuple[float, str]:
    """Seconds of one core to score a photo, and how they were measured."""
    if found := read("engines.json").get("preset photo"):
        height, width = found["height and width"]
        how = f"{width}×{height}, the default size for photos of these proportions"
        return 1 / found["photos/s"], f"Preset `photo` scores photos at {how}."
    older = read("photo-speed.json")  # until engines.py has run again
    height, width = older["image"]
    return older["threads"] * older["milliseconds"]["model"] / 1000, (
        f"Scoring with preset `photo` was measured on grey photos at {width}×{height} "
        "(`results/photo-speed.json`). The default size is smaller: 256×192 for these photos."
    )


def _on_cpus() -> str:
    rows = []
    for name, (decoding, scoring) in _seconds().items():
        reading = 1 / decoding["files/s"]
        each = reading + scoring
        rows.append([
            name, f"{1000 * reading:.2f}", f"{1000 * scoring:.2f}",
            *(f"{many * each / 3600:,.0f}" for many in MANY.values()),
            *(_time(many * each / NODE) for many in MANY.values()),
            f"{NODE / each * decoding['KiB'] / 1024:,.0f}",
        ])  # fmt: skip
    head = ["images", "ms to read and decode", "ms to score",
            *(f"core-hours, {name}" for name in MANY),
            *(f"one node of {NODE} cores, {name}" for name in MANY),
            "MiB/s that the node reads"]  # fmt: skip
    return table(head, rows)


def _on_gpus() -> str:
    speed = read("speed-gpu.json")
    decoding = read("engines.json")["decoding"]["PNG 28×28"]
    rows = []
    for precision in ("fp32", "bf16"):
        rate = speed["scoring"][precision]["median"]
        cores = rate / decoding["files/s"]
        rows.append([
            f"28×28, preset `paper`, {precision}", f"{rate:,.0f}",
            *(_time(many / rate) for many in MANY.values()),
            f"{cores:,.0f}", f"{rate * decoding['KiB'] / 1024:,.0f}",
        ])  # fmt: skip
    head = [f"one {speed['device']}", "images/s", *MANY, "cores that decode for it",
            "MiB/s that it reads"]  # fmt: skip
    return table(head, rows)


def _time(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} s"


TABLES = {"engines": engines, "scale": scale}
