"""Fill the tables of README.md and docs/ from the files under results/.

A table stands between `<!-- name -->` and `<!-- /name -->`; what is written there by hand is
lost. `--check` changes nothing and fails if a table is not what its file says.

    python benchmarks/tables.py        (make tables)
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import speed_goals
import study_tables
from study_tables import table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text("utf-8"))


def demo() -> str:
    """A column per held-out digit, so that the whole table is a few lines."""
    cells = read("demo.json")
    measured = {
        f"AUROC {name.upper()}": [cell["metrics"][name]["auroc"] for cell in cells]
        for name in ("pp", "re", "pp+re")
    }
    measured["accuracy"] = [cell["accuracy"] for cell in cells]
    rows = [
        [name, *(f"{value:.3f}"[1:] for value in values), f"**{np.mean(values):.3f}**"]
        for name, values in measured.items()
    ]
    head = ["held-out digit", *(", ".join(cell["held_out"]) for cell in cells), "mean"]
    return (
        table(head, rows)
        + "\n\nFrom `anocaps demo --json > results/demo.json`. An illustration: these test "
        "images were looked at while the demo was made (docs/decisions.md)."
    )


def figures() -> str:
    return "\n\n".join([study_tables.means(), cpu_speed(), gpu_speed()])


def cpu_speed() -> str:
    """Share and memory are 'anocaps, textbook'; a file from before they were measured has none."""
    speed = read("speed-cpu.json")
    sides = ("ours", "textbook")
    peak, memory = speed.get("peak fp32 GFLOP/s measured"), speed["peak memory MiB"]
    head = ["", "anocaps", "textbook PyTorch", "ratio"]
    rows = [
        [name, *(f"{row[side]['median']:.0f}" for side in sides), f"{row['ratio']:.1f}×"]
        for name, row in speed["rates"].items()
    ]
    notes = ""
    if peak is not None:
        head += ["share of peak", "memory"]
        for line, (name, row) in zip(rows, speed["rates"].items()):
            held = memory.get(name)  # scoring PP alone was not measured
            line += [
                ", ".join(f"{100 * row['share of peak'][side]:.0f} %" for side in sides),
                f"{held['ours']:,}, {held['textbook']:,} MiB" if held else "",
            ]
        notes = (
            "Share of peak and memory are given as anocaps, textbook. The share counts the direct "
            "convolutions' arithmetic for both, although anocaps does less of it, which is how it "
            f"can pass 100 %; the peak is that of a large fp32 matrix product, {peak:.0f} GFLOP/s "
            "in the same run. Memory is the most that either took in a process of its own.\n\n"
        )
    processor = speed.get("processor")
    on = f" ({processor['model']}, {processor['cores']} cores)" if processor else ""
    return "\n\n".join(
        [
            f"Speed of the paper's network on a CPU{on}, {speed['threads']} threads, fp32, "
            "images/s:",
            table(head, rows),
            f"{notes}From `make bench-cpu`, which first checks that both give the same scores "
            f"(largest difference {speed['largest score difference']:.0e}).",
        ]
    )


def gpu_speed() -> str:
    speed = read("speed-gpu.json")
    share, memory = speed["share of peak"], speed["peak memory MiB"]
    held = dict(zip(list(speed["steps"])[1:], memory.values()))  # the textbook's is not known

    def mib(found: dict[str, int] | None) -> str:
        return f"{max(found.values()):,} MiB" if found else ""

    steps = [
        [f"training, {name}", f"{row['median']:.3f} ms a step",
         "" if name.startswith("textbook") else f"{100 * share[name]:.0f} %", mib(held.get(name))]
        for name, row in speed["steps"].items()
    ]  # fmt: skip
    scoring = [
        [f"scoring PP and RE, {name}", f"{row['median']:,.0f} images/s", "",
         mib(memory[f"scoring, {name}"])]
        for name, row in speed["scoring"].items()
    ]  # fmt: skip
    same = speed["largest relative weight difference, fleet against alone"]
    return "\n\n".join(
        [
            f"On one {speed['device']}, training steps of 100 images (bf16 but for the textbook):",
            table(["", "median", "share of peak", "memory"], steps + scoring),
            "The peak is that of a large bf16 matrix product, measured in the same run: "
            f"{speed['peak bf16 TFLOP/s measured']:.0f} TFLOP/s.",
            "From `make bench-gpu`, which checks scores against the textbook (largest difference "
            f"{speed['largest score difference to textbook']:.0e}) and a network of the fleet "
            f"against the same one trained alone (largest relative difference of weights {same}).",
        ]
    )


def convolution() -> str:
    """Ways to take the primary convolution on a GPU."""
    speed = read("speed-gpu.json")
    found = speed["primary convolution"]
    rows = [
        [way, f"{row['ms']['median']:.3f} ms", f"{max(row['relative error'].values()):.1e}"]
        for way, row in found["ways"].items()
        if isinstance(row, dict)  # else it did not run
    ]
    return (
        table(["forward and backward", "median", "largest relative error"], rows)
        + f"\n\nOne {speed['device']}, {found['batch']} images; errors of the output and of both "
        "gradients against float64. From `make bench-gpu`."
    )


KERNELS = {  # what each is for; see the modules that docs/decisions.md names
    "forward": "primary convolution",
    "dmaps": "primary convolution, gradient of its maps",
    "dweight": "primary convolution, gradient of its weights",
    "update": "Adam",
    "sweep": "routing, forward",
    "back": "routing, backward",
    "leaves": "routing, gradient of its weights",
    "first": "first convolution",
    "first_back": "first convolution, backward",
}
CONVOLUTION_TFLOP = 0.0382  # 191 M multiply-adds for 100 images, in each of its three kernels
ADAM_BYTES = 28  # a parameter: four fp32 numbers read, three written
PARAMETERS = 8_059_920  # of the paper's network: 28×28, 9 classes


def bounds() -> str:
    """The largest kernels of a training step, and how near they are to what the device can do."""
    speed = read("speed-gpu.json")
    kernels = speed["top kernels, µs a step"]
    if not isinstance(kernels, dict):
        return ""  # could not be profiled
    peak = speed["peak bf16 TFLOP/s measured"]
    rows = []
    for key, µs in list(kernels.items())[:8]:
        name = key.split(" ×")[0].removeprefix("_")
        purpose, reached = KERNELS.get(name, ""), ""
        if purpose.startswith("primary convolution"):
            reached = f"{100 * CONVOLUTION_TFLOP / (µs * 1e-6) / peak:.0f} % of peak"
        elif purpose == "Adam":
            reached = f"{PARAMETERS * ADAM_BYTES / µs / 1e6:.1f} TB/s"
        rows.append([f"`{key}`", purpose, f"{µs:.0f}", reached])
    step = 1e3 * speed["steps"]["one network"]["median"]
    return (
        table(["kernel × launches", "for", "µs a step", "reaches"], rows)
        + f"\n\nOf a step of {step:.0f} µs on one {speed['device']}, one network, 100 images; the "
        f"peak is that of a large bf16 matrix product, {peak:.0f} TFLOP/s. From `make bench-gpu`."
    )


def choices(dataset: str, wanted: tuple[str, ...]) -> list[list[str]]:
    """A row per choice: means over the held-out classes."""
    rows = read(f"choices-{dataset}.json")
    shown = []
    for name in dict.fromkeys(row["choice"] for row in rows):
        if name != "as it is" and not any(word in name for word in wanted):
            continue
        mine = [row for row in rows if row["choice"] == name]
        values = [np.mean([row["auroc"][k] for row in mine]) for k in ("pp", "re", "pp+re")]
        values.append(np.mean([row["accuracy"] for row in mine]))
        loss = np.mean([row["losses"][-1] for row in mine])
        shown.append([dataset, name, *(f"{v:.3f}" for v in values), f"{loss:.3f}"])
    return shown


CHOICE_HEAD = ["training images of", "choice", "PP", "RE", "PP+RE", "accuracy", "last loss"]


def start() -> str:
    rows = choices("small-norb", ("start",)) + choices("mnist", ("start",))
    return (
        table(CHOICE_HEAD, rows)
        + "\n\nFrom `python benchmarks/choices.py small-norb --epochs 6 --held-out 0,1,2,3,4` (an "
        "unofficial copy of Small-NORB, made from JPEG files) and `… mnist --epochs 5`; mean AUROC "
        "over the mock anomalies, one seed. Chance accuracy on Small-NORB is 0.250."
    )


def gradient() -> str:
    names = ("mnist", "fashion-mnist", "small-norb")
    rows = [row for name in names for row in choices(name, ("gradient", "shifts"))]
    return (
        table(CHOICE_HEAD, rows)
        + "\n\nFrom `python benchmarks/choices.py DATASET`, 5 or 6 epochs, five held-out classes, "
        "one seed. The defaults are the gradient through all iterations, and no shifts."
    )


def differences() -> str:
    """What was measured of CPU, GPU, batch 1 and batch 256: a machine without a GPU has one row."""
    if not (RESULTS / "score-differences.json").exists():
        return ""
    found = read("score-differences.json")
    rows = [
        [way, *(f"{row[name]:.1e}" for name in ("pp", "re"))]
        for way, row in found["differences"].items()
    ]
    low, high = found["range"]["re"]
    return (
        table(["against CPU, batches of 256", "PP", "RE"], rows)
        + "\n\nLargest differences on 1,000 MNIST test images after a brief training, RE from "
        f"{low:.0f} to {high:.0f}; measured on: {found['device']}. From "
        "`ANOCAPS_WRITE_RESULTS=1 pytest tests/test_score_differences.py`."
    )


def precision() -> str:
    if not (RESULTS / "precision-mnist.json").exists():
        return ""
    found = read("precision-mnist.json")
    summary, epochs = found["summary"], found["settings"]["epochs"]
    rows = []
    for name, row in summary.items():
        if name.startswith("AUROC"):
            verdict = "yes" if row["within 0.003"] else "no"
            rows.append([f"mean {name}", f"{row['bf16']:.4f}", f"{row['fp32']:.4f}",
                         f"{row['difference']:+.4f}", verdict])  # fmt: skip
    ties = summary["ties in PP"]
    rows.append(["ties in PP", str(ties["bf16"]), str(ties["fp32"]), "", ""])
    cells = summary["cells"]
    return (
        table(["", "bf16", "fp32", "difference", "within 0.003"], rows)
        + f"\n\nFrom `python benchmarks/precision.py --epochs {epochs}`: "
        f"{cells['in both precisions']} MNIST cells of CapsNet, {cells['seeds']} seeds, on one "
        f"{found['rows'][0]['device']}."
    )


def folders() -> str:
    """Every method on every folder, and what anocaps took; only what was measured."""
    if not (RESULTS / "folders.json").exists():
        return ""
    found = read("folders.json")
    names = {
        name: f"{each['dataset']} without {each['left_out']}"
        + ("" if each["official"] else ", unofficial copy")
        for name, each in found["folders"].items()
    }

    def percent(rates: dict[str, float], alpha: str) -> str:
        return f"{100 * rates[alpha]:.1f} %" if alpha in rates else ""

    rivals = [
        [names[row["folder"]], row["method"], f"{row['auroc']:.3f}",
         *(percent(row["false_alarms"], alpha) for alpha in ("0.01", "0.05")),
         *(percent(row[key], "0.05") for key in ("found", "found_at_equal_rates"))]
        for row in found["rows"]
    ]  # fmt: skip
    ours = [row for row in found["rows"] if row["method"] == "anocaps"]
    took = [
        [names[row["folder"]], f"{found['folders'][row['folder']]['images']['train']:,}",
         f"{row['self_check']['auroc'][row['score']]:.2f}",
         f"{row['auroc']:.2f}", f"{row['score']}",
         f"{row['training_seconds']:.0f} s", f"{row['command_seconds']['train']:.0f} s",
         f"{row['command_seconds']['score']:.0f} s", f"{row['model_mb']:.1f} MB", row["device"]]
        for row in ours
    ]  # fmt: skip
    return "\n\n".join(
        [
            table(["normal images", "method", "AUROC", "false alarms at 0.01", "at 0.05",
                   "found at 0.05", "found at 5 % false alarms"], rivals),
            "What `anocaps train` promised, and what it took:",
            table(["normal images", "number", "self-check", "AUROC", "score chosen", "training",
                   "whole command", "scoring", "model", "on"], took),
            "From `python benchmarks/folders.py`.",
        ]
    )  # fmt: skip


BLOCKS = {
    "README.md": {"demo": demo, "figures": figures},
    "docs/decisions.md": {
        "start": start,
        "gradient": gradient,
        "differences": differences,
        "precision": precision,
        "convolution": convolution,
        "bounds": bounds,
        "goals": speed_goals.goals,
    },
    "docs/reproduction.md": {
        "datasets": study_tables.datasets,
        "prototype": study_tables.prototype,
        "ocsvm": study_tables.ocsvm,
        "claims": study_tables.claims,
        "ablation": study_tables.ablation,
    },
    "docs/your-own-images.md": {"folders": folders},
}


def main() -> None:
    stale = []
    for name, blocks in BLOCKS.items():
        path = ROOT / name
        before = after = path.read_text("utf-8")
        for mark, make in blocks.items():
            pattern = re.compile(f"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.DOTALL)
            made = make()
            filled = f"{made}\n" if made else ""
            after, count = pattern.subn(lambda m, text=filled: m[1] + text + m[2], after)
            if count != 1:
                raise SystemExit(f"{name}: no block <!-- {mark} -->")
        if after != before:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(after, "utf-8")
    if stale and "--check" in sys.argv:
        raise SystemExit(f"{', '.join(stale)}: not what results/ says; run make tables")


if __name__ == "__main__":
    main()
