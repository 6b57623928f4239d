"""Tables of speed, memory and size; see tables.py."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from common import read, table

SPREAD = "median (lowest–highest)"


def _spread(found: dict[str, float], form: str) -> str:
    middle, low, high = (format(found[name], form) for name in ("median", "lowest", "highest"))
    return f"{middle} ({low}–{high})"


def cpu() -> str:
    speed = read("speed-cpu.json")
    peak, memory = speed["peak fp32 GFLOP/s measured"], speed["peak memory MiB"]
    sides = ("ours", "textbook")
    rows = [
        [name, *(_spread(row[side], ",.0f") for side in sides), f"{row['ratio']:.1f}×",
         ", ".join(f"{100 * row['share of peak'][side]:.0f} %" for side in sides),
         ", ".join(f"{memory[name][side]:,}" for side in sides) + " MiB" if name in memory else ""]
        for name, row in speed["rates"].items()
    ]  # fmt: skip
    processor = speed["processor"]
    return "\n\n".join([
        f"Images/s, {SPREAD} of {speed['repeats']} turns, on a CPU ({processor['model']}, "
        f"{processor['cores']} cores), {speed['threads']} threads, fp32:",
        table(["", "anocaps", "textbook", "ratio", "share of peak", "memory"], rows),
        "Share of peak and memory: anocaps, textbook. The share counts the arithmetic of direct "
        "convolutions. anocaps does less arithmetic, so it can pass 100 %. The peak is that of a "
        f"large fp32 matrix product: {peak:.0f} GFLOP/s. Ratios are medians over pairs of turns.",
        f"From `make bench-cpu` with torch {speed['versions']['torch']}. The largest difference of "
        f"a score to the textbook is {speed['largest score difference']:.0e}.",
    ])  # fmt: skip


def gpu() -> str:
    speed = read("speed-gpu.json")
    share, memory = speed["share of peak"], speed["peak memory MiB"]

    def row(key: str, label: str, took: str) -> list[str]:
        held = f"{max(memory[key].values()):,} MiB" if key in memory else ""
        return [label, took, f"{100 * share[key]:.0f} %" if key in share else "", held]

    rows = [
        row(name, f"training, {step_label(name, speed)}", f"{_spread(found, '.3f')} ms a step")
        for name, found in speed["steps"].items()
    ] + [
        row(f"scoring, {name}", f"scoring PP and RE, {name}", f"{_spread(found, ',.0f')} images/s")
        for name, found in speed["scoring"].items()
    ]
    peaks = ", ".join(
        f"{speed[f'peak {kind} TFLOP/s measured']:.0f} TFLOP/s in {kind}"
        for kind in ("bf16", "TF32", "fp32")
    )
    step, scores = speed["bf16 step against float64"], speed["bf16 scores"]
    return "\n\n".join([
        f"One {speed['device']}, training steps of {speed['batch']} images, {SPREAD} of "
        f"{speed['repeats']} turns:",
        table(["", SPREAD, "share of peak", "memory"], rows),
        "The share counts the arithmetic of direct convolutions. In fp32 anocaps does less "
        f"arithmetic, so it can pass 100 %. The peak is that of a large matrix product: {peaks}. "
        "The memory of several networks is their sum.",
        f"From `make bench-gpu` with torch {speed['versions']['torch']}. It compares scores with "
        "the textbook (largest difference "
        f"{speed['largest score difference to textbook']:.0e}), a network of the fleet with the "
        "same one trained alone (largest relative difference of a weight "
        f"{speed['largest relative weight difference, fleet against alone']:.1g}) and a training "
        "step with the textbook in float64 (relative difference of the loss "
        f"{step['loss']:.0e}, of gradients at most {step['gradients']:.0e}). Scores in bf16 differ "
        f"from those in fp32 by up to {scores['largest PP difference']:.0e} in PP and "
        f"{scores['largest RE difference']:.0e} in RE on {scores['images']:,} images.",
    ])  # fmt: skip


def step_label(name: str, speed: dict[str, Any]) -> str:
    """The textbook's names tell their precision already."""
    return name if name.startswith("textbook") else f"{name}, {speed['training precision']}"


def public() -> str:
    rows, circumstances = [], {}
    for name, found in sorted(read("speed-public.json").items()):
        implementation, device = name.rsplit(", ", 1)
        at_once, torch = found["scored at once"], found["versions"]["torch"]
        circumstances[f"{at_once['anocaps']:,} and {at_once['public']:,} on {device} "
                      f"(torch {torch})"] = device  # fmt: skip
        row = [implementation, device]
        for rate in found["rates"].values():
            row.append(f"{rate['anocaps']['median']:,.0f}, {rate['public']['median']:,.0f}")
            row.append(f"{rate['ratio']:.1f}×")
        rows.append(row)
    head = ["public implementation", "on", "training", "ratio", "scoring PP and RE", "ratio"]
    return "\n\n".join([
        "Images/s, medians (anocaps, theirs):",
        table(head, rows),
        "From `python benchmarks/public.py NAME PATH [--device cuda]`, one run for each row; "
        "`results/speed-public.json` names the commits. Ratios are medians over pairs of turns. "
        f"Images scored at a time, anocaps and theirs: {'; '.join(circumstances)}. On a GPU "
        "anocaps trains in bf16 and scores in fp32; they do both in fp32 with TF32 convolutions.",
    ])  # fmt: skip


def convolution() -> str:
    speed = read("speed-gpu.json")
    found = speed["primary convolution"]
    rows = [
        [way, *(f"{row[key]['median']:.3f} ms" for key in ("forward ms", "ms")),
         f"{max(row['relative error'].values()):.1e}"]
        for way, row in found["ways"].items()
        if isinstance(row, dict)  # else it failed
    ]  # fmt: skip
    return (
        table(["median", "forward", "forward and backward", "largest relative error"], rows)
        + f"\n\nOne {speed['device']}, {found['batch']} images. Errors of the output and of both "
        "gradients against float64. From `make bench-gpu`."
    )


def convolution_cpu() -> str:
    found = read("convolution-cpu.json")
    rows = [
        [what, f"{row['slower chosen']} of {row['shapes']}", f"{row['times slower, median']:.2f}×",
         f"{row['times slower, worst']:.2f}×"]
        for what, row in found["summary"].items()
    ]  # fmt: skip
    return (
        table(["", "shapes with the slower form chosen", "then slower by, median", "worst"], rows)
        + f"\n\nDirect and spectral form timed in turns, {found['threads']} thread(s), on one "
        f"{found['processor']['model']}. From `python benchmarks/convolution_cpu.py`."
    )


# ── kernels ──────────────────────────────────────────────────────────────────────────────────

PURPOSES = {  # of a Triton kernel by its name, of a library's by a part of it
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
LIBRARIES = {
    "gemm": "matrix products",
    "nvjet": "matrix products",
    "elementwise": "elementwise",
    "reduce": "reductions",
    "Memcpy": "copies between host and device",
}
ADAM_BYTES = 28  # for a parameter: four fp32 numbers read, three written


def kernels() -> str:
    speed = read("speed-gpu.json")
    step = speed["top kernels, µs a step"]
    rows = []
    for key, µs in list(step.items())[:8]:
        name, launches = key.rsplit(" ×", 1)
        purpose = _purpose(name)
        rows.append([f"`{name[:30]}` ×{launches}", purpose, f"{µs:.0f}", _reached(purpose, µs)])
    scored = next(key for key in speed if key.startswith("top kernels of scoring"))
    launches, took = Counter[str](), Counter[str]()
    for key, µs in speed[scored].items():
        name, times = key.rsplit(" ×", 1)
        purpose = _purpose(name).partition(",")[0] or "other"
        launches[purpose] += int(times)
        took[purpose] += µs
    shares = [
        [purpose, str(launches[purpose]), f"{µs:,.0f}", f"{100 * µs / took.total():.1f} %"]
        for purpose, µs in took.most_common()
    ]
    return "\n\n".join([
        table(["kernel × launches", "for", "µs a step", "reaches"], rows),
        f"Of a training step of {1e3 * speed['steps']['one network']['median']:.0f} µs on one "
        f"{speed['device']}, one network, {speed['batch']} images. The peak is that of a large "
        f"bf16 matrix product, {speed['peak bf16 TFLOP/s measured']:.0f} TFLOP/s.",
        f"Of {scored.removeprefix('top kernels of ').removesuffix(', µs')}:",
        table(["kernels for", "launches", "µs", "share"], shares),
        "From `make bench-gpu`.",
    ])  # fmt: skip


def _purpose(name: str) -> str:
    library = (told for part, told in LIBRARIES.items() if part in name)
    return PURPOSES.get(name.removeprefix("_")) or next(library, "")


def _reached(purpose: str, µs: float) -> str:
    speed = read("speed-gpu.json")
    if purpose.startswith("primary convolution"):
        flop = 2 * speed["multiply-adds an image"]["primary"] * speed["batch"]
        return f"{100 * flop / (µs * 1e6) / speed['peak bf16 TFLOP/s measured']:.0f} % of peak"
    return f"{speed['parameters'] * ADAM_BYTES / µs / 1e6:.1f} TB/s" if purpose == "Adam" else ""


# ── files and packages ───────────────────────────────────────────────────────────────────────


def many_files() -> str:
    found = read("many-files.json")
    rows = [
        [f"{row['files']:,}", f"{row['seconds']:,.0f}", f"{row['files/s']:,.0f}",
         f"{row['peak MiB']:,.0f}", f"{row['rows']:,}",
         *(str(row[name]) for name in ("lost", "doubled", "unlike the original"))]
        for row in found["rows"]
    ]  # fmt: skip
    last = found["rows"][-1]
    return (
        table(["files", "seconds", "files/s", "peak MiB", "rows", "lost", "doubled",
               "unlike the original"], rows)
        + f"\n\nFrom `python benchmarks/many_files.py` on: {found['device']}, with a small network "
        f"({found['model']}), so that reading files takes most of the time. Files are links to "
        f"{found['pictures']:,} small images; each row is compared with that of its image. The run "
        f"of {last['files']:,} was stopped after {last['stopped after rows']:,} rows and resumed. "
        f"Peak memory grows by {found['bytes a file']} bytes a file."
    )  # fmt: skip


def runtime_size() -> str:
    found = read("runtime-size.json")
    rows = [
        [row["package"], row["version"], f"{row['bytes'] / 1e6:.1f} MB"]
        for row in found["packages"][:5]
    ]
    return (
        table(["largest packages", "version", "size"], rows)
        + f"\n\n`pip install 'anocaps[runtime]'` installs {len(found['packages'])} packages, "
        f"{found['installed_mb']:.0f} MB ({found['downloaded_mb']:.0f} MB to download). From "
        f"`python benchmarks/runtime_size.py`, {found['machine']}, Python {found['python']}."
    )


TABLES: dict[str, Callable[[], str]] = {
    "speed-cpu": cpu,
    "speed-gpu": gpu,
    "speed-public": public,
    "convolution": convolution,
    "convolution-cpu": convolution_cpu,
    "kernels": kernels,
    "many-files": many_files,
    "runtime-size": runtime_size,
}
