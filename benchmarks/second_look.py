"""What the choice of the ablation changed in the study: its CapsNets before and after it.

The choice was made on mock anomalies; this looks at test images, after it, and chooses nothing.
BEFORE is a folder of results like results/paper, from an older commit:

    git worktree add /tmp/before 2264845
    python benchmarks/second_look.py /tmp/before/results/paper --commit 2264845
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from arguments import Parser, one_line, writable
from resultfiles import RESULTS

from anocaps.base.files import write_text
from anocaps.study.ablation.rule import verdicts
from anocaps.study.cell import CellResult
from anocaps.study.claims import judge
from anocaps.study.reports import read_results
from anocaps.study.studies import UNCHANGED

SCORES = ("pp", "re", "pp+re", "knn")


@one_line
def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("--commit", required=True, help="of which BEFORE is")
    parser.add_argument("--after", type=Path, default=RESULTS / "paper")
    parser.add_argument("--out", type=writable, default=RESULTS / "second-look.json")
    options = parser.parse_args()
    found = compared(read_results(options.before), read_results(options.after))
    write_text(options.out, json.dumps({"before": options.commit} | found, indent=1) + "\n")


def compared(before: Sequence[CellResult], after: Sequence[CellResult]) -> dict[str, Any]:
    old, new = capsnets(before), capsnets(after)
    (rule,) = verdicts(
        [replace(r, variant=UNCHANGED) for r in old] + [replace(r, variant="chosen") for r in new]
    )
    datasets = dict.fromkeys(r.dataset for r in new)
    judged = list(zip(judge(before), judge(after), strict=True))
    return {
        "commits": sorted({r.record["commit"] for r in old}),
        "means": {
            name: {s: round(mean(new, name, s) - mean(old, name, s), 5) for s in SCORES}
            for name in datasets
        },
        "rule": {
            name: {part: round(value, 5) for part, value in asdict(found).items()}
            for name, found in (("both", rule.both), ("pp", rule.pp))
        },
        "claims": len(judged),
        "verdicts": [
            {"says": new.claim.says, "before": old.verdict, "after": new.verdict}
            for old, new in judged
            if old.verdict != new.verdict
        ],
        # PP and RE against all normal test images, as the prototype was judged: before, after
        "against all normals": {
            name: {
                held_out: {s: [all_normals(r, name, held_out, s) for r in (old, new)] for s in
                           ("pp", "re")}
                for held_out in sorted({r.held_out[0] for r in new if r.dataset == name})
            }
            for name in datasets
        },
    }  # fmt: skip


def capsnets(results: Sequence[CellResult]) -> list[CellResult]:
    """With a single class held out."""
    return [r for r in results if (r.method, r.variant, len(r.held_out)) == ("capsnet", "", 1)]


def mean(cells: Sequence[CellResult], dataset: str, score: str) -> float:
    return fmean(r.metrics[score].auroc for r in cells if r.dataset == dataset)


def all_normals(cells: Sequence[CellResult], dataset: str, held_out: str, score: str) -> float:
    own = [r for r in cells if (r.dataset, r.held_out) == (dataset, (held_out,))]
    return round(fmean(r.auroc_all[score] for r in own), 4)


if __name__ == "__main__":
    main()
