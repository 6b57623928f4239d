"""What was asked of the speed before any of it was measured, and what is reached, for
docs/decisions.md: from the files under results/, filled in by tables.py.
"""

from typing import NamedTuple

import study_tables
from resultfiles import read, table
from speed_tables import SPREAD

Spread = dict[str, float]  # median, lowest, highest


class Goal(NamedTuple):
    what: str
    asked: float
    stretch: float | None
    reached: float | Spread  # measured once, or several times
    unit: str
    at_most: bool  # else at least

    @property
    def median(self) -> float:
        return self.reached["median"] if isinstance(self.reached, dict) else self.reached

    def meets(self, wanted: float) -> bool:
        return self.median <= wanted if self.at_most else self.median >= wanted

    def verdict(self) -> str:
        """What a repeat on the other side of it would not say is said of the median."""
        wanted, met = self.asked, "yes"
        if self.stretch is not None and self.meets(self.stretch):
            wanted, met = self.stretch, "stretch"
        elif not self.meets(self.asked):
            met = f"no, by {100 * abs(self.median / self.asked - 1):.0f} %"
        within = isinstance(self.reached, dict) and (
            self.reached["lowest"] <= wanted <= self.reached["highest"]
        )
        return f"{met}, in the median" if within else met

    def row(self) -> list[str]:
        sign = "≤" if self.at_most else "≥"
        return [
            self.what,
            f"{sign} {_plain(self.asked)} {self.unit}",
            _plain(self.stretch) if self.stretch is not None else "",
            _reached(self.reached),
            self.verdict(),
        ]


def goals() -> str:
    gpu, cpu = read("speed-gpu.json"), read("speed-cpu.json")
    steps, scoring, rates = gpu["steps"], gpu["scoring"], cpu["rates"]
    fleet = next(name for name in steps if name.endswith("per network"))
    found = [
        Goal("GPU, a training step of one network", 0.7, 0.5,
             steps["one network"], "ms", at_most=True),
        Goal(f"GPU, {fleet}", 0.45, 0.3, steps[fleet], "ms", at_most=True),
        Goal("GPU, scoring PP and RE, fp32", 200_000, 400_000,
             scoring["fp32"], "images/s", at_most=False),
        Goal("GPU, scoring PP and RE, bf16", 700_000, 1_000_000,
             scoring["bf16"], "images/s", at_most=False),
        Goal("CPU, training", 180, None,
             rates["training"]["ours"], "images/s", at_most=False),
        Goal("CPU, scoring PP and RE", 900, None,
             rates["scoring PP and RE"]["ours"], "images/s", at_most=False),
    ]  # fmt: skip
    if (demo := cpu.get("demo seconds")) is not None:
        found.append(Goal("CPU, `anocaps demo`", 45, None, demo, "s", at_most=True))
    told = (
        f"One {gpu['device']}; a CPU with {cpu['threads']} threads. From `make bench-gpu`, "
        "`make bench-cpu` and `anocaps study run paper`."
    )
    if runs := study_tables.one_seed():
        seconds, networks = (sum(run[key] for run in runs) for key in ("seconds", "finished"))
        what = f"GPU, the {networks} CapsNets of the study, one seed"
        found.insert(2, Goal(what, 220, 140, seconds, "s", at_most=True))
        told += f" The study's runs: {study_tables.told_runs(runs)}."
        if (training := study_tables.training_seconds(runs)) is not None:
            told += (
                f" Of the {seconds:.0f} s of the study {training:.0f} were training "
                f"({100 * training / seconds:.0f} %), by the records of its cells."
            )
    return (
        table(["", "asked", "stretch", f"reached, {SPREAD}", "met"], [goal.row() for goal in found])
        + f"\n\n{told}"
    )


def _reached(found: float | Spread) -> str:
    if not isinstance(found, dict):
        return _plain(found)
    median, low, high = (_plain(found[name]) for name in ("median", "lowest", "highest"))
    return f"{median} ({low}–{high})"


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
