"""Claim: on two cores `anocaps train` with its self-check takes at most 90 s on `commutators` and
180 s on `fruits`, and at most twice as long as without it. The printed rows prove it or not.

Whole commands, with and without the self-check, take turns; a ratio is the median over turns.

    python benchmarks/photo_training.py --data-dir DATA
"""

import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import common
from folders import command

from anocaps.training.device import circumstances, pick_device

MOST = {"commutators": 90, "fruits": 180}  # seconds
MOST_RATIO = 2


def main() -> None:
    parser = common.parser(__doc__, "photo-training.json")
    parser.add_argument("--data-dir", type=Path, required=True, help="with the two folders")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rows = {name: row(options.data_dir / name / "train", options.repeats) for name in MOST}
    for name, each in rows.items():
        print(
            f"{name:<12} {each['seconds']['median']:6.1f} s, {each['ratio']:.2f} times", flush=True
        )
    result = {"rows": rows, "most_seconds": MOST, "most_ratio": MOST_RATIO}
    common.write(
        options.out, result | {"repeats": options.repeats} | circumstances(pick_device("cpu"))
    )
    if any(
        each["seconds"]["median"] > MOST[name] or each["ratio"] > MOST_RATIO
        for name, each in rows.items()
    ):
        raise SystemExit("the claim does not hold here")


def row(photos: Path, repeats: int) -> dict[str, Any]:
    checked: list[float] = []
    unchecked: list[float] = []
    with TemporaryDirectory(prefix="photo-training-") as place:
        model = Path(place) / "model.safetensors"
        for _ in range(repeats):
            for seconds, more in ((checked, ()), (unchecked, ("--no-self-check",))):
                words = ("train", photos, "-o", model, "--device", "cpu", "--json", *more)
                card, taken = command(*words)
                seconds.append(taken)
                model.unlink()
    return {
        "preset": card["preset"],
        "seconds": common.spread(checked, 1),
        "seconds_without": common.spread(unchecked, 1),
        "ratio": round(statistics.median(a / b for a, b in zip(checked, unchecked)), 2),
    }


if __name__ == "__main__":
    common.run_script(main)
