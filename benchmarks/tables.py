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
    speed = read("speed-cpu.json")
    speeds = [
        [name, f"{row['ours']['median']:.0f}", f"{row['textbook']['median']:.0f}",
         f"{row['ratio']:.1f}×"]
        for name, row in speed["rates"].items()
    ]  # fmt: skip
    return "\n\n".join(
        [
            study_tables.means(),
            f"Speed of the paper's network on a CPU, {speed['threads']} threads, fp32, images/s:",
            table(["", "anocaps", "textbook PyTorch", "ratio"], speeds),
            "From `make bench-cpu`, which first checks that both give the same scores (largest "
            f"difference {speed['largest score difference']:.0e}).",
            gpu_speed(),
        ]
    )


def gpu_speed() -> str:
    speed = read("speed-gpu.json")
    share, memory = speed["share of peak"], speed["peak memory MiB"]
    held = dict(zip(list(speed["steps"])[1:], list(memory.values())))  # the textbook's is not known
    steps = [
        [f"training, {name}", f"{row['median']:.3f} ms a step", f"{100 * share[name]:.0f} %",
         f"{held[name]['reserved']:,} MiB" if name in held else ""]
        for name, row in speed["steps"].items()
    ]  # fmt: skip
    scoring = [
        [f"scoring PP and RE, {name}", f"{row['median']:,.0f} images/s", "",
         f"{memory[f'scoring, {name}']['reserved']:,} MiB"]
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
        + f"\n\nFrom `python benchmarks/precision.py`: {cells['in both precisions']} MNIST cells, "
        f"{cells['seeds']} seeds, {epochs} epochs, on one {found['rows'][0]['device']}."
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
    },
    "docs/reproduction.md": {
        "datasets": study_tables.datasets,
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
