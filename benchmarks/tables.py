"""Fill the tables of README.md and docs/ from the files under results/.

A page asks for a table by name. What stands between the two markers is replaced:

    <!-- table: NAME -->
    <!-- /table -->

NAME is one of:

    results          mean AUROC of each method on each dataset, every symbol explained
    classes          AUROC of each method for each held-out class, one table per dataset
    premise          how long the longest class capsule is, normal and anomalous images
    deep             the presets `paper` and `deep` side by side
    conformal        false-alarm rates over 200 re-splits, and as calibrated in training
    speed-cpu        anocaps and the textbook network on a CPU
    speed-gpu        the same on a GPU
    speed-public     anocaps and public implementations
    convolution      forms of the primary convolution on a GPU
    startup          whole commands beside `import torch`
    folders          anocaps and other methods on folders of images
    many-files       time and memory for up to a million files

`--check` changes nothing and fails if a page differs from what results/ says.

    python benchmarks/tables.py        (make tables)
"""

import argparse
import re
import sys
from pathlib import Path

import speed_tables
import study_tables

ROOT = Path(__file__).resolve().parents[1]
MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- /table -->)", re.DOTALL)
TABLES = study_tables.TABLES | speed_tables.TABLES


def filled(page: str) -> str:
    """The page with each of its tables made from results/."""

    def fill(found: re.Match[str]) -> str:
        start, name, end = found.groups()
        if name not in TABLES:
            raise SystemExit(f"no table is named {name}; there are: {', '.join(TABLES)}")
        return f"{start}\n{TABLES[name]()}\n\n{end}"

    if page.count("<!-- table:") != len(MARKED.findall(page)):
        raise SystemExit("a marker <!-- table: NAME --> has no <!-- /table -->")
    return MARKED.sub(fill, page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail on a difference")
    check = parser.parse_args().check
    stale = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        before = path.read_text("utf-8")
        try:
            after = filled(before)
        except SystemExit as error:
            sys.exit(f"{path.relative_to(ROOT)}: {error}")
        if after != before:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(after, "utf-8")
    if stale and check:
        sys.exit(f"{', '.join(stale)}: differs from results/; run make tables")


if __name__ == "__main__":
    main()
