"""Fill the tables of README.md and docs/ from the files under results/.

A table stands between `<!-- name -->` and `<!-- /name -->`; what is written there by hand is
lost. `--check` changes nothing and fails if a table is not what its file says.

    python benchmarks/tables.py        (make tables)
"""

import re
from typing import Any

import ablation_tables
import deep_tables
import numpy as np
import speed_goals
import speed_tables
import study_tables
from arguments import Parser
from precision import TOLERANCE
from resultfiles import ROOT, read, table, there
from scipy.stats import poisson

from anocaps.inspect.card import promised_range
from anocaps.study.settings import settings_for


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
    parts = [study_tables.means(), deep_tables.deep(), speed_tables.cpu(), speed_tables.public(),
             speed_tables.gpu()]  # fmt: skip
    return "\n\n".join(part for part in parts if part)


def differences() -> str:
    """What was measured of CPU, GPU, batch 1 and batch 256: a machine without a GPU has one row."""
    if not there("score-differences.json"):
        return ""
    found = read("score-differences.json")
    names = dict.fromkeys(name for row in found["differences"].values() for name in row)
    rows = [
        [way, *(f"{row[name]:.1e}" if name in row else "" for name in names)]
        for way, row in found["differences"].items()
    ]
    ranges = ", ".join(
        f"{name.upper()} from {low:.3g} to {high:.3g}"
        for name, (low, high) in found["range"].items()
    )
    return (
        table(["against CPU, batches of 256", *map(str.upper, names)], rows)
        + f"\n\nLargest differences on 1,000 MNIST test images, {ranges}; measured on: "
        f"{found['device']}. From `ANOCAPS_WRITE_RESULTS=1 pytest tests/test_score_differences.py`."
    )


def precision() -> str:
    if not there("precision-mnist.json"):
        return ""
    found = read("precision-mnist.json")
    summary, epochs = found["summary"], found["settings"]["epochs"]
    rows = []
    for name, row in summary.items():
        if name.startswith("AUROC"):
            verdict = "yes" if row[f"within {TOLERANCE}"] else "no"
            rows.append([f"mean {name}", f"{row['bf16']:.4f}", f"{row['fp32']:.4f}",
                         f"{row['difference']:+.4f}", verdict])  # fmt: skip
    equal = summary["ties in PP"]
    rows.append(["ties in PP", str(equal["bf16"]), str(equal["fp32"]), "", ""])
    cells, whole = summary["cells"], settings_for("mnist", "paper")["epochs"]
    told = (
        f"From `python benchmarks/precision.py --epochs {epochs}`: "
        f"{cells['in both precisions']} MNIST cells of CapsNet, {cells['seeds']} seeds, on one "
        f"{found['rows'][0]['device']}, after {epochs} epochs"
    )
    told += "." if epochs == whole else f"; of the study's {whole} it says nothing."
    if there("paper") and (seen := study_tables.ties("mnist")).networks:
        told += (
            " A tie is an image whose PP another one of its test set has already. In "
            f"`results/paper`, after {whole} epochs in bf16, the {seen.networks} networks whose PP "
            f"are stored with all their bits have {seen.found} among {seen.images:,} images; by "
            f"chance alone {seen.expected:.0f} are expected, half as many as pairs of PP that lie "
            "one step of fp32 apart, on average over 1 to 256 steps, and so many ties or more have "
            f"a probability of {poisson.sf(seen.found - 1, seen.expected):.2g} (Poisson)."
        )
    head = ["", "bf16", "fp32", "difference", f"within {TOLERANCE}"]
    return "\n\n".join([table(head, rows), told, _precision_of_vae(head)]).strip()


def _precision_of_vae(head: list[str]) -> str:
    if not there("precision-mnist-vae.json"):
        return ""
    found = read("precision-mnist-vae.json")
    each = {(row["held_out"], row["precision"]): row["auroc"]["re"] for row in found["rows"]}
    names = dict.fromkeys(held_out for held_out, _ in each)
    values = {f"{name} held out": (each[name, "bf16"], each[name, "fp32"]) for name in names}
    values["mean"] = tuple(np.mean(list(values.values()), axis=0))
    rows = [
        [name, f"{bf16:.4f}", f"{fp32:.4f}", f"{bf16 - fp32:+.4f}",
         "yes" if abs(bf16 - fp32) <= TOLERANCE else "no"]
        for name, (bf16, fp32) in values.items()
    ]  # fmt: skip
    return (
        "The VAE's reconstruction error, one seed, the study's epochs:\n\n"
        + table(head, rows)
        + "\n\nFrom `python benchmarks/precision.py --method vae --held-out "
        f"{','.join(names)} --seeds 1`."
    )


def folders() -> str:
    """Every method on every folder, and what anocaps took; only what was measured."""
    if not there("folders.json"):
        return ""
    found = read("folders.json")
    names = {
        name: f"{each['dataset']} without {each['left_out']}"
        + (f", {each['images']['train']} pictures" if each["images"]["train"] < 500 else "")
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
         _promised(row),
         f"{row['auroc']:.2f}", f"{row['score']}",
         f"{row['training_seconds']:.0f} s", f"{row['command_seconds']['train']:.0f} s",
         f"{row['command_seconds']['score']:.0f} s", f"{row['model_mb']:.1f} MB", row["device"]]
        for row in ours
    ]  # fmt: skip
    return "\n\n".join(
        [
            table(["normal images", "method", "AUROC", "false alarms at 0.01", "at 0.05",
                   "found at 0.05", "found at 5 % false alarms"], rivals),
            "A rate stays blank where the pictures kept aside are too few for it. What "
            "`anocaps train` promised, and what it took:",
            table(["normal images", "number", "self-check", "AUROC", "score chosen", "training",
                   "whole command", "scoring", "model", "on"], took),
            "From the steps `make`, `anocaps`, `cnn` and `pyod` of `python benchmarks/folders.py`.",
        ]
    )  # fmt: skip


def _promised(row: dict[str, Any]) -> str:
    """What the self-check said of the score that it chose."""
    check = row["self_check"]
    if "auroc" not in check:
        return "too few pictures"
    low, high = promised_range({"self_check": check, "score": row["score"]})
    return f"{check['auroc'][row['score']]:.2f} ({low:.2f} to {high:.2f})"


def many_files() -> str:
    """A row for each number of files; the last run was stopped and continued."""
    if not there("many-files.json"):
        return ""
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
        + f"\n\nFrom `python benchmarks/many_files.py`, on: {found['device']}, by a small network "
        f"({found['model']}), so that the time is that of files. Files are links to "
        f"{found['pictures']:,} small pictures, and each row is compared with that of its picture. "
        f"The run of {last['files']:,} was stopped after {last['stopped after rows']:,} rows and "
        f"continued. From the first row to the last the peak grew by {found['bytes a file']} bytes "
        f"a file; the name of a file alone has {found['bytes of a name']}."
    )  # fmt: skip


BLOCKS = {
    "README.md": {"demo": demo, "figures": figures},
    "docs/decisions.md": {
        "deep": deep_tables.deep,
        "shifts": deep_tables.shifts,
        "conformal": deep_tables.conformal,
        "differences": differences,
        "precision": precision,
        "convolution": speed_tables.convolution,
        "bounds": speed_tables.bounds,
        "goals": speed_goals.goals,
    },
    "docs/reproduction.md": {
        "datasets": study_tables.datasets,
        "premise": study_tables.premise,
        "prototype": study_tables.prototype,
        "ocsvm": study_tables.ocsvm,
        "claims": study_tables.claims,
        "ablation": ablation_tables.ablation,
        "verdicts": ablation_tables.verdicts,
        "second-look": ablation_tables.second_look,
    },
    "docs/your-own-images.md": {"many-files": many_files, "folders": folders},
}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--check", action="store_true", help="fail where a table is another one")
    check = parser.parse_args().check
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
            if not check:
                path.write_text(after, "utf-8")
    if stale and check:
        raise SystemExit(f"{', '.join(stale)}: not what results/ says; run make tables")


if __name__ == "__main__":
    main()
