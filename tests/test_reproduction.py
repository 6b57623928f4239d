"""Numbers in sentences of docs/reproduction.md and docs/decisions.md are those of results/."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STUDY, DECISIONS = (
    " ".join((ROOT / "docs" / name).read_text("utf-8").split())
    for name in ("reproduction.md", "decisions.md")
)
ROWS = json.loads((ROOT / "results" / "ablation.json").read_text("utf-8"))["rows"]
CHANGED = {(row["dataset"], row["choice"]): row for row in ROWS}


def by(dataset: str, choice: str, score: str) -> str:
    """How much a choice changes a score, without its sign, as the document prints it."""
    return f"{abs(CHANGED[dataset, choice]['difference'][score]):.3f}".lstrip("0")


@pytest.mark.parametrize(
    ("words", "choice", "score", "datasets"),
    [
        ("RE lose {} and {}", "shifts of 2 pixels", "re", ("mnist", "fashion-mnist")),
        ("RE by +{} on MNIST, −{} on Fashion-MNIST, +{} on Small-NORB", "reconstruction ×8", "re",
         ("mnist", "fashion-mnist", "small-norb")),
        ("as much costs {} of PP on Small-NORB", "reconstruction ×18", "pp", ("small-norb",)),
        ("on Small-NORB ({} ± .013)", "no decay", "pp", ("small-norb",)),
        ("RE {} on MNIST and {} on Fashion-MNIST", "class bias", "re", ("mnist", "fashion-mnist")),
        ("one camera costs PP {}", "one camera", "pp", ("small-norb",)),
        ("and RE {} |", "one camera", "re", ("small-norb",)),
        ("pixels as they are cost PP {}", "pixels as they are", "pp", ("small-norb",)),
    ],
)  # fmt: skip
def test_the_ablation_says_what_the_document_says(words, choice, score, datasets):
    assert words.format(*(by(name, choice, score) for name in datasets)) in STUDY


def test_a_slower_decay_is_between_the_two_that_were_tried():
    for dataset, words in (
        ("mnist", "MNIST ({} to {})"),
        ("fashion-mnist", "Fashion-MNIST ({} to {})"),
    ):
        tried = sorted(by(dataset, c, "pp") for c in ("no decay", "decay of the released code"))
        assert words.format(*tried) in STUDY


def test_the_usual_width_would_lose_the_animals():
    cells = json.loads((ROOT / "results" / "ocsvm.json").read_text("utf-8"))["cells"]
    (cell,) = (c for c in cells if c["held_out"] == "animal")
    wide, ours = cell["few"]["auroc_usual_width"], cell["ours_on_all"]["auroc"]
    assert f"animals would be at {wide:.2f} and not at {ours:.2f}".replace("0.", ".") in STUDY


def test_the_times_are_those_of_the_logs():
    def seconds(name: str) -> float:
        lines = (ROOT / "results" / name / "log.jsonl").read_text("utf-8").splitlines()
        return sum(json.loads(line)["seconds"] for line in lines)

    assert f"took {seconds('paper') / 60:.0f} minutes" in STUDY
    assert f"The 26 networks took {seconds('deep'):.0f} s" in DECISIONS
