"""Claim: training in bf16 gives the results of fp32: mean AUROC of PP and of RE over the ten MNIST
cells within 0.003 of the same code in fp32, three seeds, and no more ties in PP. The printed lines
prove it or not. `--method` asks the same of another method's scores.

The cells of a seed and precision are trained as one fleet and scored as always, in fp32. A tie is
an image of the balanced test set whose PP (first score) another one has already. A row for each
cell is kept in a file; rows that are there are not trained again, so that a run can be stopped and
continued. By default it is results/precision-mnist.json, which is refused where it has results of
other settings, as a clone may: --out names another.

    python benchmarks/precision.py --out precision.json
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from arguments import Parser, at_least, one_line, stored, writable
from gates import ties

from anocaps.base.errors import InputError
from anocaps.base.files import write_text
from anocaps.data import Dataset, load_dataset
from anocaps.detectors import find_method
from anocaps.detectors.base import Detector, fit_together
from anocaps.judging.metrics import auroc
from anocaps.study.protocol import CellData, cell_data, held_out_classes
from anocaps.study.settings import accepted, settings_for
from anocaps.training.device import Precision

PRECISIONS: tuple[Precision, ...] = ("bf16", "fp32")
SCORES = 2  # of a method, the first ones: PP and RE of CapsNet
Row = dict[str, Any]
TOLERANCE = 0.003


@one_line
def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--dataset", default="mnist", help="8×8 digits take the quick preset")
    parser.add_argument("--method", default="capsnet")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--held-out", help="classes, each a cell of its own; by default all")
    parser.add_argument("--seeds", type=at_least(1), default=3)
    parser.add_argument("--epochs", type=at_least(1), help="by default as the paper trained")
    parser.add_argument("--out", type=writable, help="by default in results/, by dataset, method")
    options = parser.parse_args()
    find_method(options.method)  # or end here
    method = "" if options.method == "capsnet" else f"-{options.method}"
    out = options.out or writable(f"results/precision-{options.dataset}{method}.json")
    dataset = load_dataset(options.dataset, options.data_dir, download=False)
    preset = "quick" if dataset.name == "digits" else "paper"
    settings = accepted(options.method, settings_for(dataset.name, preset) | {"preset": preset})
    if options.epochs is not None:
        settings["epochs"] = options.epochs
    about = {"dataset": dataset.name, "official": dataset.official, "settings": settings}
    rows = earlier(out, about)
    held_out = (
        held_out_classes(dataset, options.held_out)
        if options.held_out
        else range(len(dataset.class_names))
    )
    for seed in range(options.seeds):
        for precision in PRECISIONS:
            done = {row["held_out"] for row in rows
                    if (row["seed"], row["precision"]) == (seed, precision)}  # fmt: skip
            wanted = [c for c in held_out if dataset.class_names[c] not in done]
            if wanted:
                rows += fleet(dataset, wanted, seed, precision, options.method, settings)
                write(out, about, rows)
                print(f"seed {seed}, {precision}: {len(wanted)} cells", flush=True)
    write(out, about, rows)
    for name, row in summary(rows).items():
        print(f"{name:16} {json.dumps(row, ensure_ascii=False)}")


def earlier(out: Path, about: Row) -> list[Row]:
    """The rows of an earlier run with the same settings."""
    found = stored(out)
    if found and {name: found.get(name) for name in about} != about:
        raise InputError(f"{out}: has results of another dataset or settings; name another --out")
    rows: list[Row] = found.get("rows", [])
    return rows


def fleet(
    dataset: Dataset, held_out: list[int], seed: int, precision: Precision, method: str,
    settings: Row,
) -> list[Row]:  # fmt: skip
    """Train a network for each held-out class, all at once where a GPU helps; a row each."""
    cells = [cell_data(dataset, (c,), seed) for c in held_out]
    settings = settings | {"calibration": 0.0, "seed": seed, "precision": precision}
    detectors = [find_method(method)(**settings) for _ in cells]
    fit_together(detectors, [(cell.train_images, cell.train_labels) for cell in cells])
    return [
        {"held_out": dataset.class_names[c], "seed": seed, "precision": precision}
        | measured(detector, cell)
        for c, cell, detector in zip(held_out, cells, detectors)
    ]


def measured(detector: Detector, cell: CellData) -> Row:
    """AUROC on the balanced test set, and the ties in the first score there."""
    names = detector.score_names[:SCORES]
    scores = detector.all_scores(cell.test_images[cell.balanced], names)
    odd = cell.anomalous[cell.balanced]
    record = detector.record_
    return {
        "auroc": {name: round(auroc(s[~odd], s[odd]), 5) for name, s in scores.items()},
        "ties": ties(scores[names[0]]),
        "test_images": len(odd),
        "trained_in": record["training"]["precision"],
        "last_loss": round(record["losses"][-1], 5),
        **{name: record[name] for name in ("training_seconds", "device", "versions", "commit")},
    }


def summary(rows: list[Row]) -> dict[str, Row]:
    """Means over the cells and seeds that were run in both precisions."""
    cells = [{(row["held_out"], row["seed"]) for row in rows if row["precision"] == precision}
             for precision in PRECISIONS]  # fmt: skip
    both = cells[0] & cells[1]
    found: dict[str, Row] = {}
    names = list(rows[0]["auroc"])
    for name in names if both else ():
        means = {
            precision: float(np.mean([row["auroc"][name] for row in rows
                                      if row["precision"] == precision
                                      and (row["held_out"], row["seed"]) in both]))
            for precision in PRECISIONS
        }  # fmt: skip
        difference = means["bf16"] - means["fp32"]
        found[f"AUROC {name.upper()}"] = {
            **{precision: round(mean, 4) for precision, mean in means.items()},
            "difference": round(difference, 5),
            f"within {TOLERANCE}": abs(difference) <= TOLERANCE,
        }
    found[f"ties in {names[0].upper()}"] = {
        precision: sum(row["ties"] for row in rows if row["precision"] == precision)
        for precision in PRECISIONS
    }
    found["cells"] = {"in both precisions": len(both), "seeds": len({seed for _, seed in both})}
    return found


def write(out: Path, about: Row, rows: list[Row]) -> None:
    whole = about | {"summary": summary(rows), "rows": rows}
    write_text(out, json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
