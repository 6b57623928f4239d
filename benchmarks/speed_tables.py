"""Tables of speed for README.md and docs/decisions.md, from results/speed-cpu.json,
speed-gpu.json and speed-public.json there alone. What a file does not have is left blank or out."""

from collections import Counter
from typing import Any

from resultfiles import read, table, there

SIDES = ("ours", "textbook")
SPREAD = "median (lowest–highest)"


def spread(found: dict[str, float], form: str) -> str:
    """What SPREAD says."""
    middle, low, high = (format(found[name], form) for name in ("median", "lowest", "highest"))
    return f"{middle} ({low}–{high})"


def cpu() -> str:
    """Share and memory are 'anocaps, textbook'."""
    speed = read("speed-cpu.json")
    peak, memory = speed["peak fp32 GFLOP/s measured"], speed["peak memory MiB"]
    rows = [
        [name, *(spread(row[side], ",.0f") for side in SIDES), f"{row['ratio']:.1f}×",
         ", ".join(f"{100 * row['share of peak'][side]:.0f} %" for side in SIDES),
         ", ".join(f"{memory[name][side]:,}" for side in SIDES) + " MiB" if name in memory else ""]
        for name, row in speed["rates"].items()
    ]  # fmt: skip
    processor = speed["processor"]
    return "\n\n".join(
        [
            f"Speed of the paper's network on a CPU ({processor['model']}, {processor['cores']} "
            f"cores), {speed['threads']} threads, fp32, images/s, {SPREAD}:",
            table(["", "anocaps", "textbook PyTorch", "ratio", "share of peak", "memory"], rows),
            "Share of peak and memory are given as anocaps, textbook. The share counts the direct "
            "convolutions' arithmetic for both, although anocaps does less of it, which is how it "
            f"can pass 100 %; the peak is that of a large fp32 matrix product, {peak:.0f} GFLOP/s "
            "in the same run. Memory is the most that either took in a process of its own.",
            f"From `make bench-cpu` with torch {speed['versions']['torch']}, which first checks "
            "that both give the same scores (largest difference "
            f"{speed['largest score difference']:.0e}). Ratios are medians over pairs of turns.",
        ]
    )


def public() -> str:
    """Public implementations beside anocaps; nothing where none was timed."""
    if not there("speed-public.json"):
        return ""
    rows, circumstances = [], {}
    for name, found in sorted(read("speed-public.json").items()):
        implementation, device = name.rsplit(", ", 1)
        at_once, torch = found["scored at once"], found["versions"]["torch"]
        both = f"{at_once['anocaps']:,} and {at_once['public']:,}"
        circumstances[f"{both} on {device} (torch {torch})"] = device
        rates = found["rates"].values()
        took = [f"{row['anocaps']['median']:,.0f}, {row['public']['median']:,.0f}" for row in rates]
        ratios = [f"{row['ratio']:.1f}×" for row in rates]
        rows.append([implementation, device, took[0], ratios[0], took[1], ratios[1]])
    head = ["public implementation", "on", "training", "ratio", "scoring PP and RE", "ratio"]
    source = (
        "From `python benchmarks/public.py --repo PATH [--device cuda]`, a run of its own for each "
        "row, on files of the commits that `results/speed-public.json` names; only figures of one "
        "row were taken together. Ratios are medians over pairs of turns. Images scored at a time, "
        f"by anocaps and by them: {'; '.join(circumstances)}."
    )
    if not all(device.endswith("CPU") for device in circumstances.values()):
        source += (
            " On a GPU anocaps trains in bf16 and scores in fp32; they do both in fp32 with TF32 "
            "convolutions."
        )
    return (
        "Beside public implementations of it, images/s (anocaps, theirs), medians:\n\n"
        f"{table(head, rows)}\n\n{source}"
    )


def gpu() -> str:
    speed = read("speed-gpu.json")
    share, memory = speed["share of peak"], speed["peak memory MiB"]

    def row(key: str, label: str, took: str) -> list[str]:
        """Share and memory have one key."""
        held = f"{max(memory[key].values()):,} MiB" if key in memory else ""
        if held and key.endswith("per network"):
            held += " in all"
        return [label, took, f"{100 * share[key]:.0f} %" if key in share else "", held]

    rows = [
        row(name, f"training, {step_label(name, speed)}", f"{spread(found, '.3f')} ms a step")
        for name, found in speed["steps"].items()
    ] + [
        row(f"scoring, {name}", f"scoring PP and RE, {name}", f"{spread(found, ',.0f')} images/s")
        for name, found in speed["scoring"].items()
    ]
    return "\n\n".join(
        [
            f"On one {speed['device']}, training steps of {speed['batch']} images:",
            table(["", SPREAD, "share of peak", "memory"], rows),
            _peaks(speed),
            _checks(speed),
        ]
    )


def step_label(name: str, speed: dict[str, Any]) -> str:
    """The textbook's rows say their precision themselves."""
    return name if name.startswith("textbook") else f"{name}, {speed['training precision']}"


def _peaks(speed: dict[str, Any]) -> str:
    measured = {
        kind: speed[key]
        for kind in ("bf16", "TF32", "fp32")
        if (key := f"peak {kind} TFLOP/s measured") in speed
    }
    told = ", ".join(f"{peak:.0f} TFLOP/s in {kind}" for kind, peak in measured.items())
    return (
        "The share counts the arithmetic of direct convolutions, of which anocaps does less in "
        "fp32: there it can pass 100 %. The peak is that of a large matrix product in the same "
        f"precision, measured in the same run: {told}."
    )


def _checks(speed: dict[str, Any]) -> str:
    """What was compared before anything was timed."""
    same = speed["largest relative weight difference, fleet against alone"]
    told = (
        f"From `benchmarks/speed_gpu.py` (`make bench-gpu`) with torch {speed['versions']['torch']}"
        ", which checks scores against the textbook (largest difference "
        f"{speed['largest score difference to textbook']:.0e}) and a network of the fleet "
        f"against the same one trained alone (largest relative difference of weights {same:.1g})"
    )
    if step := speed.get("bf16 step against float64"):
        told += (
            ", and a whole training step against the textbook in float64 (relative difference of "
            f"the loss {step['loss']:.0e}, of gradients at most {step['gradients']:.0e})"
        )
    told += "."
    if scores := speed.get("bf16 scores"):
        (low, high), (least, most) = scores["PP"], scores["RE"]
        equal = scores["ties in PP"]
        told += (
            f" Scores in bf16 differ from those in fp32 by up to "
            f"{scores['largest PP difference']:.0e} in PP (from {low:.2g} to {high:.2g}) and "
            f"{scores['largest RE difference']:.0e} in RE (from {least:.3g} to {most:.3g}) on "
            f"{scores['images']:,} images; {scores['another longest capsule']} of them, left out "
            "of that RE, have another longest capsule in bf16; images whose PP "
            f"another one has already: {equal['bf16']} in bf16, {equal['fp32']} in fp32."
        )
    return told


def convolution() -> str:
    """Ways to take the primary convolution on a GPU."""
    speed = read("speed-gpu.json")
    found = speed["primary convolution"]
    ways = {way: row for way, row in found["ways"].items() if isinstance(row, dict)}  # that ran
    timed = {"forward": "forward ms", "forward and backward": "ms"}
    timed = {head: key for head, key in timed.items() if any(key in row for row in ways.values())}
    rows = [
        [way, *(f"{row[key]['median']:.3f} ms" if key in row else "" for key in timed.values()),
         f"{max(row['relative error'].values()):.1e}"]
        for way, row in ways.items()
    ]  # fmt: skip
    return (
        table(["median", *timed, "largest relative error"], rows)
        + f"\n\nOne {speed['device']}, {found['batch']} images; errors of the output and of both "
        "gradients against float64. From `make bench-gpu`."
    )


# ── what bounds the speed ────────────────────────────────────────────────────────────────────

KERNELS = {  # what each is for; see the modules that docs/decisions.md names
    "forward": "primary convolution",
    "dmaps": "primary convolution, gradient of its maps",
    "dweight": "primary convolution, gradient of its weights",
    "update": "Adam",
    "sweep": "routing, forward",
    "back": "routing, backward",
    "leaves": "routing, gradient of its weights",
    "close": "routing, end of an iteration",
    "bend": "routing, start of an iteration backward",
    "first": "first convolution",
    "first_back": "first convolution, backward",
}
LIBRARIES = {  # in their long names
    "gemm": "matrix products",
    "nvjet": "matrix products",
    "elementwise": "number by number",
    "reduce": "sums and largest numbers",
    "Memcpy": "copies from and to the computer's memory",
}
ADAM_BYTES = 28  # a parameter: four fp32 numbers read, three written
SHOWN = 8  # kernels
LONGEST = 30  # letters of a name


def bounds() -> str:
    """The largest kernels, and how near they are to what the device can do."""
    speed = read("speed-gpu.json")
    µs = {name: 1e3 * row["median"] for name, row in speed["steps"].items()}
    fleet = next(name for name in µs if name.endswith("per network"))
    parts = []
    if kernels := _profile(speed, "top kernels, µs a step"):
        parts.append(_kernels(kernels, "µs a step", speed))
        parts.append(
            f"Of a step of {µs['one network']:.0f} µs on one {speed['device']}, one network, "
            f"{speed['batch']} images; the peak is that of a large bf16 matrix product, "
            f"{speed['peak bf16 TFLOP/s measured']:.0f} TFLOP/s. The {len(kernels)} largest kernels"
            f" take {sum(kernels.values()):.0f} µs."
        )
    if kernels := _profile(speed, "top kernels of a fleet, µs a step and network"):
        parts.append(f"Of {fleet}:")
        parts.append(_kernels(kernels, "µs a step and network"))
        parts.append(
            f"A step takes {µs[fleet]:.0f} µs. Kernels of several networks run at the same "
            "time, each then longer than alone, so that these times add up to more."
        )
    scored = next((key for key in speed if key.startswith("top kernels of scoring")), "")
    if kernels := _profile(speed, scored):
        parts.append(f"Of {scored.removeprefix('top kernels of ').removesuffix(', µs')}:")
        parts.append(_purposes(kernels))
    return "\n\n".join([*parts, "From `make bench-gpu`."]) if parts else ""


def _profile(speed: dict[str, Any], key: str) -> dict[str, float] | None:
    found = speed.get(key)
    return found if isinstance(found, dict) else None  # else it could not be profiled


def _kernels(kernels: dict[str, float], unit: str, speed: dict[str, Any] | None = None) -> str:
    """With the whole results, also what each reaches: it had the device to itself."""
    rows = []
    for key, µs in list(kernels.items())[:SHOWN]:
        name, launches = key.rsplit(" ×", 1)
        purpose = _purpose(name)
        row = [f"`{_short(name)} ×{launches}`", purpose, f"{µs:.0f}"]
        rows.append(row if speed is None else [*row, _reached(purpose, µs, speed)])
    head = ["kernel × launches", "for", unit]
    return table(head if speed is None else [*head, "reaches"], rows)


def _purposes(kernels: dict[str, float]) -> str:
    """Kernels of one purpose joined: libraries have several for matrices of other shapes."""
    launches, took = Counter(), Counter()
    for key, µs in kernels.items():
        name, times = key.rsplit(" ×", 1)
        purpose = _purpose(name).partition(",")[0] or "other"
        launches[purpose] += int(times)
        took[purpose] += µs
    rows = [
        [purpose, str(launches[purpose]), f"{µs:,.0f}", f"{100 * µs / took.total():.1f} %"]
        for purpose, µs in took.most_common()
    ]
    rows.append(["together", str(launches.total()), f"{took.total():,.0f}", ""])
    return table(["kernels for", "launches", "µs", "share"], rows)


def _purpose(name: str) -> str:
    return KERNELS.get(name.removeprefix("_")) or next(
        (told for part, told in LIBRARIES.items() if part in name), ""
    )


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _reached(purpose: str, µs: float, speed: dict[str, Any]) -> str:
    if purpose.startswith("primary convolution"):
        flop = 2 * speed["multiply-adds an image"]["primary"] * speed["batch"]
        return f"{100 * flop / (µs * 1e6) / speed['peak bf16 TFLOP/s measured']:.0f} % of peak"
    if purpose == "Adam":
        return f"{speed['parameters'] * ADAM_BYTES / µs / 1e6:.1f} TB/s"
    return ""
