"""Numbers in sentences of docs/reproduction.md and docs/decisions.md are those of results/."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace

import numpy as np
import pytest

from anocaps.data.dataset import Dataset, Split
from anocaps.detectors.presets import PRESETS
from anocaps.report.study_numbers import Numbers
from anocaps.study.ablation_rule import taken, verdicts
from anocaps.study.claims import judge
from anocaps.study.reports import read_results
from anocaps.study.studies import UNCHANGED, WHOLE, Options, ablation

ROOT = Path(__file__).resolve().parents[1]
STUDY, DECISIONS = (
    " ".join((ROOT / "docs" / name).read_text("utf-8").split())
    for name in ("reproduction.md", "decisions.md")
)
ABLATION = json.loads((ROOT / "results" / "ablation.json").read_text("utf-8"))
CHANGED = {(row["dataset"], row["choice"], row["whole"]): row for row in ABLATION["rows"]}
VERDICTS = {(each["choice"], each["whole"]): each for each in ABLATION["verdicts"]}


def short(number: float, digits: int = 3) -> str:
    """Without its sign, as the documents print it."""
    return f"{abs(number):.{digits}f}".lstrip("0")


@pytest.mark.parametrize(
    ("words", "choice", "whole", "places"),
    [
        ("cost RE {} on MNIST and {} on Fashion-MNIST", "shifts of 2 pixels", False,
         [("mnist", "re"), ("fashion-mnist", "re")]),
        ("gives PP {} more and RE {} less", "one camera", False,
         [("small-norb", "pp"), ("small-norb", "re")]),
        ("pixels as they are: PP {} and RE {} less", "pixels as they are", False,
         [("small-norb", "pp"), ("small-norb", "re")]),
        ("on Fashion-MNIST RE falls by {}", "reconstruction ×8, decay to a third", True,
         [("fashion-mnist", "re")]),
    ],
)  # fmt: skip
def test_the_ablation_says_what_the_document_says(words, choice, whole, places):
    found = (CHANGED[dataset, choice, whole]["difference"][score] for dataset, score in places)
    assert words.format(*map(short, found)) in STUDY


def test_the_preset_is_what_the_ablation_takes():
    chosen = ABLATION["taken"]
    assert VERDICTS[chosen, True]["gains"]
    asked = Options(datasets=("mnist",), seeds=1, preset="paper")
    images = np.zeros((20, 28, 28), np.uint8)
    split = Split(images, np.arange(20) % 10)
    mnist = Dataset("mnist", split, split, tuple("0123456789"), {}, official=False)
    cell = next(cell for cell in ablation(mnist, asked) if cell.variant == chosen + WHOLE)
    preset = PRESETS["paper"]
    assert preset.weight_for(784) == cell.settings["reconstruction_weight"]
    assert preset.final_share == cell.settings["final_share"]


def stored_cells(*without: tuple[str, str]) -> list[SimpleNamespace]:
    """What the rule needs of the ablation's results, but for those of some classes."""
    return [
        SimpleNamespace(
            dataset=dataset, variant=variant, held_out=(held_out,), seed=seed,
            metrics={"pp": SimpleNamespace(auroc=pp), "re": SimpleNamespace(auroc=redrawn)},
        )
        for dataset, variant, held_out, seed, pp, redrawn, _ in ABLATION["cells"]
        if (dataset, held_out) not in without
    ]  # fmt: skip


def test_the_verdicts_follow_from_the_stored_cells():
    judged = verdicts(stored_cells())
    assert taken(judged) == ABLATION["taken"]
    assert len(judged) == len(VERDICTS)
    for verdict in judged:
        told = VERDICTS[verdict.choice, verdict.whole]
        assert told["gains"] == verdict.gains
        for name in ("both", "pp"):
            assert told[name] == pytest.approx(asdict(getattr(verdict, name)), abs=2e-5)


def test_what_speaks_for_caution():
    chosen = VERDICTS[ABLATION["taken"], True]["both"]
    assert f"the gain is {chosen['mean'] / chosen['error']:.1f} standard errors" in STUDY
    assert sum(whole for _, whole in VERDICTS) == 4 and "best of four" in STUDY
    alone = VERDICTS["decay to a third", True]
    assert sorted(alone["datasets"]) == ["mnist", "small-norb"]
    needed = 3 * chosen["mean"] - 2 * alone["both"]["mean"]
    assert f"would have to gain {short(needed, 2)} to be taken" in STUDY
    pixels = VERDICTS["pixels as they are", False]["both"]
    assert f"{-pixels['mean'] / pixels['error']:.1f} standard errors |" in STUDY
    classes = {(cell.dataset, *cell.held_out) for cell in stored_cells()}
    needing = [each for each in classes if taken(verdicts(stored_cells(each))) == UNCHANGED]
    assert f"without any one of {len(needing)} of the {len(classes)} classes" in STUDY


def test_two_seeds_are_no_measure_of_chance():
    """PP and RE of two nearly equal decays in short trainings of Small-NORB, seed by seed."""
    both = {
        (variant, held_out, seed): (pp + redrawn) / 2
        for dataset, variant, held_out, seed, pp, redrawn, _ in ABLATION["cells"]
        if dataset == "small-norb"
    }
    gains = {
        decay: [
            fmean(
                value - both[UNCHANGED, held_out, seed]
                for (variant, held_out, seed), value in both.items()
                if (variant, seed) == (decay, number)
            )
            for number in (0, 1)
        ]
        for decay in ("no decay", "decay of the released code")
    }
    apart = fmean(gains["no decay"]) - fmean(gains["decay of the released code"])
    said = short(max(map(stdev, gains.values())))
    told = f"differ by {short(apart)} in short trainings of Small-NORB where it said {said}."
    assert told in STUDY


def test_findings_are_counted_in_the_results():
    results = read_results(ROOT / "results/paper")
    capsnets = [r for r in results if r.method == "capsnet" and len(r.held_out) == 1]

    def all_normals(dataset: str, score: str) -> list[float]:
        return [
            fmean(r.auroc_all[score] for r in capsnets if (r.dataset, r.seed) == (dataset, seed))
            for seed in range(3)
        ]

    fashion = all_normals("fashion-mnist", "re")
    below, apart = 0.732 - fmean(fashion), max(fashion) - min(fashion)
    told = f"{short(below, 4)} lower on Fashion-MNIST (our seeds differ by {short(apart, 4)})"
    assert told in STUDY
    assert round(fmean(all_normals("mnist", "re")), 3) == 0.962  # "as high"

    numbers = {each.claim.says: each.numbers for each in judge(results)}
    best = re.search(r"highest (\d+ of 10)", numbers["PP is consistently the best on MNIST."])
    assert f"five for {best[1]} digits" in STUDY
    nine = re.search(r"difference (\.\d+)", numbers["With 9 anomalous, PP beats RE by .12."])
    assert f"a 9 costs RE {nine[1]}, not .12" in STUDY
    many = numbers["Both CapsNet scores beat the benchmark methods in many cases."]
    ahead = re.search(r"above (\d+ of 25)", many)
    assert f"for {ahead[1]} classes, none of them on Small-NORB" in STUDY
    found = Numbers(results)
    for held_out in found.cells("small-norb"):
        pp, redrawn, *others = (
            found.auroc("small-norb", held_out, series).mean for series in found.headlines()
        )
        assert min(pp, redrawn) < max(others)


def test_the_second_look_is_of_today_s_results():
    told = json.loads((ROOT / "results/second-look.json").read_text("utf-8"))["against all normals"]
    cells = [r for r in read_results(ROOT / "results/paper") if r.method == "capsnet"]
    for dataset, classes in told.items():
        for name, scores in classes.items():
            own = [r for r in cells if (r.dataset, r.held_out) == (dataset, (name,))]
            for score, (_, after) in scores.items():
                assert after == pytest.approx(fmean(r.auroc_all[score] for r in own), abs=1e-4)
    before, after = told["small-norb"]["car"]["pp"]
    assert f"before the ablation was nearer, at {short(before)})" in STUDY and before > after


def test_another_start_helps_only_the_redrawing_of_digits():
    start = CHANGED["mnist", "start flat", False]["difference"]["re"]
    assert f"PP loses nothing by it, RE up to {short(start)} on MNIST" in DECISIONS


def test_the_usual_width_would_lose_the_animals():
    cells = json.loads((ROOT / "results" / "ocsvm.json").read_text("utf-8"))["cells"]
    (cell,) = (c for c in cells if c["held_out"] == "animal")
    wide, ours = cell["few"]["auroc_usual_width"], cell["ours_on_all"]["auroc"]
    assert f"animals would be at {wide:.2f} and not at {ours:.2f}".replace("0.", ".") in STUDY


def test_the_times_are_those_of_the_logs(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import study_tables

    def runs(name: str) -> list[dict]:
        lines = (ROOT / "results" / name / "log.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]

    others = sum(run["seconds"] for run in runs("paper") if run["methods"] != ["capsnet"])
    capsnet = sum(run["seconds"] for run in study_tables.one_seed())
    assert 25 < (others + 3 * capsnet) / 60 < 35 and "about half an hour on one NVIDIA" in STUDY
    assert f"The 26 networks took {sum(run['seconds'] for run in runs('deep')):.0f} s" in DECISIONS
