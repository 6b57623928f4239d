"""Tables of crash points and of long runs; see tables.py."""

from collections.abc import Callable
from typing import Any

from common import read, table

HARM = {"kill": "killed", "tear": "killed in a write", "error": "I/O error", "full": "disk full"}


def crash_points() -> str:
    found = read("reliability.json")["crash points"]
    rows, sums = [], [0] * (len(HARM) + 2)
    for name, each in found.items():
        done = {mode: counts["points"] for mode, counts in each["outcomes"].items()}
        numbers = [each["points"], *(done.get(mode, 0) for mode in HARM), done["power"]]
        sums = [total + number for total, number in zip(sums, numbers)]
        rows.append([name, *(f"{number:,}" for number in numbers), str(each["faults"])])
    faults = sum(each["faults"] for each in found.values())
    rows.append(["**all**", *(f"**{number:,}**" for number in sums), f"**{faults}**"])
    return (
        table(["command", "points", *HARM.values(), "power cut", "faults"], rows)
        + "\n\nFrom `make crash`."
        + _unfinished(found)
    )


def _unfinished(found: dict[str, Any]) -> str:
    some = [name for name, each in found.items() if each["step"] != 1]
    return f" Not every point was taken of: {', '.join(some)}." if some else ""


def soak() -> str:
    found = read("reliability.json")["soak"]
    lines = []
    if (score := found.get("score")) is not None:
        held = score["memory of the last process"]
        halfway = held["MiB, evenly spaced"][len(held["MiB, evenly spaced"]) // 2]
        lines.append(
            f"`anocaps score` wrote {score['rows']:,} rows in {score['seconds'] / 60:.0f} minutes. "
            f"It was killed {score['kills']} times and resumed. Rows lost: {score['lost']}, "
            f"doubled: {score['doubled']}, wrong: {score['unlike the original']}. The last process "
            f"held {held['first MiB']:.0f} MiB after a tenth of its time, {halfway:.0f} MiB after "
            f"half of it and {held['last MiB']:.0f} MiB at its end."
        )
    if (serve := found.get("serve")) is not None:
        held, files = serve["memory"], serve["open files"]
        lines.append(
            f"`anocaps serve` answered {serve['requests']:,} requests of {len(serve['kinds'])} "
            f"kinds in {serve['minutes']:.0f} minutes, with {serve['jobs']:,} jobs. Wrong answers: "
            f"{serve['wrong answers']}. After the first tenth of the time it held "
            f"{held['first MiB']:.0f} MiB, at the end {held['last MiB']:.0f} MiB and "
            f"{files['last']} open files."
        )
    return "\n\n".join([*lines, "From `make soak`."])


TABLES: dict[str, Callable[[], str]] = {"crash-points": crash_points, "soak": soak}
