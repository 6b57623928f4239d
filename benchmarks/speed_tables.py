"""Tables of speed, memory and size; see tables.py."""

from collections.abc import Callable
from typing import Any

from common import read, table

SPREAD = "median (lowest–highest)"


def _spread(found: dict[str, float], form: str) -> str:
    middle, low, high = (format(found[name], form) for name in ("median", "lowest", "highest"))
    return f"{middle} ({low}–{high})"


def cpu() -> str:
    speed = read("speed-cpu.json")
    sides = ("ours", "textbook")
    rows = [
        [name, *(_spread(row[side], ",.0f") for side in sides), f"{row['ratio']:.1f}×"]
        for name, row in speed["rates"].items()
    ]
    processor = speed["processor"]
    return "\n\n".join([
        table(["images/s", "anocaps", "textbook", "ratio"], rows),
        f"{SPREAD.capitalize()} of {speed['repeats']} turns, on a CPU ({processor['model']}, "
        f"{processor['cores']} cores), fp32. Ratios are medians over pairs of turns. From `make "
        f"bench-cpu` with torch {speed['versions']['torch']}. The largest difference of a score to "
        f"the textbook is {speed['largest score difference']:.0e}.",
    ])  # fmt: skip


def gpu() -> str:
    speed = read("speed-gpu.json")
    share = speed["share of peak"]

    def row(key: str, label: str, took: str) -> list[str]:
        return [label, took, f"{100 * share[key]:.0f} %"]

    rows = [
        row(name, f"training, {step_label(name, speed)}", f"{_spread(found, '.3f')} ms a step")
        for name, found in speed["steps"].items()
    ] + [
        row(f"scoring, {name}", f"scoring PP and RE, {name}", f"{_spread(found, ',.0f')} images/s")
        for name, found in speed["scoring"].items()
    ]
    step, scores = speed["bf16 step against float64"], speed["bf16 scores"]
    return "\n\n".join([
        table(["", SPREAD, "share of peak"], rows),
        f"One {speed['device']}, training steps of {speed['batch']} images, {speed['repeats']} "
        "turns. The share counts the arithmetic of direct convolutions and compares it with a "
        "large matrix product. In fp32 anocaps does less arithmetic, so it can pass 100 %.",
        f"From `make bench-gpu` with torch {speed['versions']['torch']}. The largest difference of "
        f"a score to the textbook is {speed['largest score difference to textbook']:.0e} in fp32; "
        f"bf16 changes PP by up to {scores['largest PP difference']:.0e}. Gradients of a bf16 step "
        f"differ from float64 by at most {100 * step['gradients']:.1f} %.",
    ])  # fmt: skip


def step_label(name: str, speed: dict[str, Any]) -> str:
    """The textbook's names tell their precision already."""
    return name if name.startswith("textbook") else f"{name}, {speed['training precision']}"


def public() -> str:
    devices: dict[str, dict[str, Any]] = {}  # [device][implementation]
    for name, found in sorted(read("speed-public.json").items()):
        implementation, device = name.rsplit(", ", 1)
        devices.setdefault(device, {})[implementation] = found
    head, commits = ["faster than"], []
    for device, found in devices.items():
        head += [f"{device}, training", "scoring"]
        commits.append(f"{next(iter(found.values()))['commit']} ({device})")
    rows = []
    for implementation in sorted({name for found in devices.values() for name in found}):
        row = [implementation]
        for found in devices.values():
            rates = found.get(implementation, {}).get("rates", {}).values()
            row += [f"{rate['ratio']:.1f}×" for rate in rates] or ["–", "–"]
        rows.append(row)
    return (
        table(head, rows)
        + f"\n\nMeasured at commits {' and '.join(commits)}. Ratios are medians over pairs of "
        "turns. From `python benchmarks/public.py`; `results/speed-public.json` has all rates and "
        "the versions of the others. On a GPU "
        "anocaps trains in bf16 and scores in fp32; they do both in fp32 with TF32 convolutions."
    )


def convolution() -> str:
    speed = read("speed-gpu.json")
    found = speed["primary convolution"]
    rows = [
        [way, *(f"{row[key]['median']:.3f} ms" for key in ("forward ms", "ms")),
         f"{max(row['relative error'].values()):.1e}"]
        for way, row in found["ways"].items()
        if isinstance(row, dict)  # else it failed
        and way not in ("spectral, bf16", "spectral, tf32")  # never used
    ]  # fmt: skip
    return (
        table(["median", "forward", "forward and backward", "largest relative error"], rows)
        + f"\n\nOne {speed['device']}, {found['batch']} images. Errors of the output and of both "
        "gradients against float64. From `make bench-gpu`."
    )


# ── files and packages ───────────────────────────────────────────────────────────────────────


def startup() -> str:
    machines = [read("startup.json"), read("startup-gpu.json")]
    names = list(dict.fromkeys(name for found in machines for name in found["rows"]))
    rows = []
    for name in names:
        cells = [f"`{name}`" if name == "import torch" else f"`anocaps {name}`"]
        for found in machines:
            row = found["rows"].get(name)
            cells.append(f"{row['wall']['median']:.1f} s ({row['ratio']:.2f}×)" if row else "–")
        rows.append(cells)
    on = [f"{found['device']}, {found['processor']['cores']} cores" for found in machines]
    return (
        table(["command", *on], rows)
        + "\n\nWhole commands in turns: median time, and the ratio to `import torch`. `score` "
        "judges one image, on the CPU unless it says `cuda`. From `python benchmarks/startup.py`."
    )


def many_files() -> str:
    found = read("many-files.json")
    rows = [
        [f"{row['files']:,}", f"{row['seconds']:,.0f}", f"{row['files/s']:,.0f}",
         f"{row['peak MiB']:,.0f}", f"{row['lost'] + row['doubled']}",
         str(row["unlike the original"])]
        for row in found["rows"]
    ]  # fmt: skip
    last = found["rows"][-1]
    return (
        table(["files", "seconds", "files/s", "peak MiB", "rows lost or doubled", "rows wrong"],
              rows)
        + f"\n\nFrom `python benchmarks/many_files.py` on an {found['device']}, with a small "
        f"network ({found['model']}), so that reading files takes most of the time. The run of "
        f"{last['files']:,} was stopped after {last['stopped after rows']:,} rows and resumed."
    )  # fmt: skip


TABLES: dict[str, Callable[[], str]] = {
    "speed-cpu": cpu,
    "speed-gpu": gpu,
    "speed-public": public,
    "convolution": convolution,
    "startup": startup,
    "many-files": many_files,
}
