"""Tables of the study and of what else is measured in AUROC or false alarms; see tables.py."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from statistics import fmean
from typing import Any

from common import RESULTS, read, table

from anocaps.inspect.card import promised_range
from anocaps.study.cell import CellResult
from anocaps.study.claims.judge import Judged, judge, sensitivity
from anocaps.study.claims.quantities import looks_like
from anocaps.study.claims.rules import T
from anocaps.study.report.costs import Costs
from anocaps.study.report.field import note_of, signed
from anocaps.study.report.numbers import Numbers, Series, dataset_title, titled
from anocaps.study.report.page import count_verdicts
from anocaps.study.report.runlog import RunLog
from anocaps.study.report.statistics import Summary, summarise
from anocaps.study.reports import read_results
from anocaps.study.studies import PAPER_DATASETS
from anocaps.study.tuning import TUNED

SCORES = {"pp": "PP", "re": "RE", "pp+re": "PP+RE", "knn": "knn"}
# What the normality score of every method is, whatever its preset.
MEANING = {
    "CapsNet (PP)": "length of the longest class capsule (prediction probability)",
    "CapsNet (RE)": "minus the squared reconstruction error, divided by the image's norm",
    "CNN+OCSVM": "one-class SVM on the features of a CNN classifier",
    "VAE": "minus the reconstruction error of a variational autoencoder",
    "DBN": "minus the reconstruction error of a deep belief network",
    "CapsNet (PP+RE)": "PP and RE standardised over normal images, added (ours)",
    "CapsNet (knn)": "minus the distance to the nearest class capsules of normal images (ours)",
}
CENTRAL = {
    "pp-consistent", "capsnet-beats-benchmarks", "no-long-capsule", "nse", "digit-2-near-perfect",
    "digit-9-by-12", "digit-9-as-4", "mnist-pp-best", "fashion-footwear",
    "norb-human", "combination-robust", "kde-svdd-less", "geom-one-class",
}  # fmt: skip
HYBRIDS = ("vae-scores", "dbn-scores")  # VAE+OCSVM and DBN+OCSVM
COMPARING = {"nse", "mnist-pp-best", "kde-svdd-less"}  # their differences say enough
# Means of the paper's MNIST table that later papers quote; no others are known.
QUOTED = {("mnist", "CapsNet (PP)"): ".977", ("mnist", "CapsNet (RE)"): ".925"}


@cache
def _cells() -> list[CellResult]:
    return read_results(RESULTS / "field")


def results() -> str:
    """The paper's methods as described, then CapsNet's further scores."""
    found = Numbers(_cells())
    plain = [s for s in found.further("mnist") if s.method == "capsnet" and not s.variant]
    rows, seeds = [], set()
    for series in [*found.headlines(), *(s for s in plain if s.look.label in MEANING)]:
        name = series.look.label
        row = [name, MEANING[name]]
        for dataset in PAPER_DATASETS:
            mean = summarise(found, dataset, series)
            quoted = QUOTED.get((dataset, name))
            row.append(_mean(mean) + (f" (paper {quoted})" if quoted else ""))
            seeds.add(len(found.seeds(dataset)))
        rows.append(row)
    return (
        table(["method", "normality score", *map(dataset_title, PAPER_DATASETS)], rows)
        + "\n\nMean AUROC over the classes, each held out in turn and never trained on. AUROC is "
        "the probability that a normal test image scores higher than an anomalous one: 0.5 is a "
        "guess, 1 is perfect. ± is the standard error over the classes; another seed changes less. "
        f"{max(seeds)} seeds. Test sets are balanced; Small-NORB is read from JPEG copies. In "
        "brackets: the paper's own mean, where later papers quote it. From `anocaps study run "
        "paper`."
    )


def field() -> str:
    """The paper's five, the paper's hybrids, and the default score of every other row."""
    found = Numbers(_cells())
    rows = [
        [s.look.label, *(_mean(summarise(found, d, s)) for d in found.datasets), note_of(s)]
        for s in _shown(found)
    ]
    costs = Costs(found, RunLog.read(RESULTS / "field" / "log.jsonl"))
    return (
        table(["method", *map(dataset_title, found.datasets), "note"], rows)
        + "\n\nMean AUROC over the classes; ± is the standard error over the classes. In brackets: "
        "the score of the method; the report has its other scores. From "
        f"`anocaps study run field` (`results/field`). {costs.total()}"
    )


def _shown(found: Numbers) -> list[Series]:
    headlines = found.headlines()
    taken = {series.row for series in headlines}
    default = {(r.method, r.variant, r.settings["score"]) for r in found.results}
    return [
        s
        for s in found.every()
        if s in headlines
        or (s.row in HYBRIDS and s.score == "ocsvm")
        or (s.row not in taken and (s.method, s.variant, s.score) in default)
    ]


def _mean(found: Summary | None) -> str:
    if found is None:
        return "–"
    error = "" if found.se is None else f" ± {found.se:.3f}"
    return f"{found.mean:.3f}{error}" + ("" if found.whole else f" ({found.classes} classes)")


def claims() -> str:
    """The central claims of the paper, and all verdicts counted."""
    judged = judge([cell for cell in _cells() if not cell.variant])
    lacking = [judge.claim.key for judge in judged if "missing: the images" in judge.numbers]
    if lacking:
        raise SystemExit(f"set ANOCAPS_DATA to a folder with all datasets, for {lacking}")
    rows = [
        [j.claim.says + (" *" if j.claim.revised else ""), j.verdict, _short(j)]
        for j in judged
        if j.claim.key in CENTRAL
    ]
    counts = sorted(count_verdicts(judged), key=lambda each: -each["count"])
    told = ", ".join(f"{each['count']} {each['words']}" for each in counts)
    return table(["the paper says", "verdict", "our numbers"], rows) + (
        f"\n\n± is the standard deviation over the seeds. Of all {len(judged)} claims: {told}."
    )


def _short(judged: Judged) -> str:
    return "; ".join(
        titled(judged.differences if judged.claim.key in COMPARING else judged.numbers)
    )


def tuned() -> str:
    """Each tuned row beside the row as described."""
    found = Numbers(_cells())
    rows = []
    chosen = [series for series in _shown(found) if series.variant == TUNED]
    for series, dataset in product(chosen, found.datasets):
        plain = replace(series, variant="")
        mean, before = summarise(found, dataset, series, plain), summarise(found, dataset, plain)
        if mean is not None and mean.difference is not None:
            value, low, high = map(signed, mean.difference)
            name = series.look.label.removesuffix(f", {TUNED}")
            means = _mean(before), _mean(mean)
            rows.append([name, dataset_title(dataset), *means, f"{value} [{low}, {high}]"])
    note = (
        "Mean AUROC; ± is the standard error over the classes. In brackets: 95 % interval, paired "
        "by class."
    )
    return table(["method", "dataset", "as described", "tuned", "difference"], rows) + "\n\n" + note


def moves() -> str:
    """Verdicts of the central claims that depend on a threshold."""
    found = sensitivity([cell for cell in _cells() if not cell.variant])
    rows = [
        [claim.says, f"{name.replace('_', ' ')}: {getattr(T, name):.3g}", f"{level:.3g}", verdict]
        for claim, name, level, verdict in found
        if claim.key in CENTRAL
    ]
    return table(["the paper says", "threshold", "moved to", "verdict"], rows)


def widths() -> str:
    """CNN+OCSVM with our width of the kernel and with the usual one."""
    rows = [
        [dataset_title(cell["dataset"]), cell["held_out"],
         f"{cell['few']['auroc']:.3f}", f"{cell['few']['auroc_usual_width']:.3f}"]
        for cell in read("ocsvm.json")["cells"]
    ]  # fmt: skip
    head = ["", "held out", "AUROC, distance of neighbours", "AUROC, distance of any two points"]
    return table(head, rows) + "\n\nSVM on 5,000 points. From `results/ocsvm.json`."


def nines() -> str:
    """What reconstructions of anomalous 9s look like: by their neighbours, and to a reader."""
    seen = read("reconstructions-seen.json")
    cell = next(
        r
        for r in _cells()
        if not r.variant and r.reconstructions is not None and r.held_out == (seen["held_out"],)
    )
    near = dict(zip(cell.class_names, looks_like(cell) * len(seen["seen"])))
    eye = Counter(seen["seen"])
    digits = [name for name in cell.class_names if near[name] or eye[name]]
    rows = [
        ["its nearest training images", *(f"{near[name]:.0f}" for name in digits), "–"],
        ["a reader", *(str(eye[name]) for name in digits), str(eye["?"])],
    ]
    return (
        table(["looks like, according to", *digits, "unclear"], rows)
        + f"\n\nOf {len(seen['seen'])} reconstructions (`results/reconstructions-seen.json`)."
    )


def deep() -> str:
    cells = _cells()
    seeds = {cell.seed for cell in cells if cell.variant == "deep"}
    scores = SCORES | {"stem-knn": "stem-knn", "combined": "combined"}

    def mean(preset: str, dataset: str, score: str) -> str:
        wanted = (dataset, "capsnet", preset.removesuffix("paper"), 1)
        mine = [c for c in cells if (c.dataset, c.method, c.variant, len(c.held_out)) == wanted]
        mine = [c for c in mine if c.seed in seeds]
        if not all(score in c.metrics for c in mine):
            return "–"
        return f"{fmean(c.metrics[score].auroc for c in mine):.3f}"

    rows = [
        [dataset_title(dataset), f"`{preset}`", *(mean(preset, dataset, s) for s in scores)]
        for dataset in PAPER_DATASETS
        for preset in ("paper", "paper-tuned", "deep")
    ]
    return (
        table(["", "preset", *scores.values()], rows)
        + f"\n\nMean AUROC over the held-out classes, {len(seeds)} seeds; –: not measured with "
        "every seed. From `anocaps study run field --method capsnet-deep` and the same of the "
        "other presets (`results/field`)."
    )


def folders() -> str:
    """Every method on every folder, and what anocaps took."""
    found = read("folders.json")
    names = {
        name: f"{dataset_title(each['dataset'])} without {each['left_out']}, "
        f"{each['images']['train']:,} images"
        for name, each in found["folders"].items()
        if "photos" not in each
    }
    cells: dict[str, dict[str, str]] = {name: {} for name in names}  # [folder][method]
    took, used = [], {}  # used: folder → score function and commit of anocaps
    for row in found["rows"]:
        if row["folder"] not in names:
            continue
        cells[row["folder"]][row["method"]] = (
            f"{row['auroc']:.3f}, {100 * row['found_at_equal_rates']['0.05']:.0f} %"
        )
        if row["method"] == "anocaps":
            check, seconds = row["self_check"], row["command_seconds"]
            used[names[row["folder"]]] = row["score"], row["commit"].rstrip("+")[:7]
            tested = {  # older rows have another key
                name: {"anomalous": each.get("anomalous", each.get("odd"))} | each
                for name, each in check["tested"].items()
            }
            of = {"self_check": check | {"tested": tested}, "score_function": row["score"]}
            low, high = promised_range(of)
            alarms = {a: f"{100 * rate:.1f} %" for a, rate in row["false_alarms"].items()}
            rates = (alarms.get(alpha, "–") for alpha in ("0.01", "0.05"))
            took.append(
                [names[row["folder"]],
                 f"{check['auroc'][row['score']]:.2f} ({low:.2f} to {high:.2f})", *rates,
                 f"{seconds['train']:.0f} s", f"{seconds['score']:.0f} s", row["device"]]
            )  # fmt: skip
    methods = list(dict.fromkeys(r["method"] for r in found["rows"] if r["folder"] in names))
    return "\n\n".join([
        "AUROC, and share of anomalies found if 5 % of the normal test images are called "
        "anomalous:",
        table(["normal images", *methods],
              [[names[name], *(of.get(method, "") for method in methods)]
               for name, of in cells.items()]),
        "What the self-check expected, false alarms at two alphas, and time:",
        table(["normal images", "self-check", "false alarms at 0.01", "at 0.05",
               "`train`", "`score`", "on"], took),
        "From `python benchmarks/folders.py`. Small-NORB is an unofficial copy. An alpha of 0.01 "
        "needs more calibration images than 99 images give. anocaps used the score function that "
        "was the default at the commit in brackets: "
        + "; ".join(f"`{score}` ({commit}) on {name}" for name, (score, commit) in used.items())
        + ".",
    ])  # fmt: skip


def photos() -> str:
    """Every method on folders of real photos."""
    found = read("folders.json")
    names = [name for name, each in found["folders"].items() if "photos" in each]
    rows = {(row["folder"], row["method"]): row for row in found["rows"] if row["folder"] in names}
    lines = []
    for method in dict.fromkeys(method for _, method in rows):
        line = [method]
        for name in names:
            line += _of_photos(rows.get((name, method)))
        lines.append(line)
    head = [x for name in names for x in (f"`{name}`: AUROC", "found", "false alarms", "trained")]
    ours, cracks = rows["fruits", "photo"], rows["commutators", "photo"]
    without, dropped = cracks["without_copies"], cracks["left_out_as_copies"]
    alarms = ours["alarms_ungrouped"]
    rates = []
    for key in ("grouped", "ungrouped"):
        each = [100 * alarm[key] for alarm in alarms]
        rates.append(f"{fmean(each):.1f} % ({min(each):.1f}–{max(each):.1f})")
    tried = found["evaluations"]  # of preset photo, by folder
    return "\n\n".join([
        table(["method", *head], lines),
        "`photo` is pretrained on ImageNet, the others are not. AUROC: mean (lowest–highest) of "
        f"{len(ours['seeds'])} seeds; without brackets, of one. Found: anomalies flagged if 5 % of "
        "the normal test photos are flagged. False alarms: at alpha 0.05, as calibrated in "
        "training. Trained: seconds on two cores of a busy CPU, with the features, without a "
        "self-check. `deep` and the CNN saw photos of 32×32. "
        f"`photo` was evaluated {tried['commutators']} times on the anomalies of `commutators` and "
        f"{tried['fruits']} times on those of `fruits`. This includes runs while it was built, and "
        "[settings changed in between](decisions.md#photos).",
        f"{sum(dropped.values())} test files of `commutators` are byte copies: "
        f"{dropped['normal, in training']} of training files, "
        f"{dropped['normal, in test'] + dropped['anomalous, in test']} of other test files. "
        f"Without them the AUROC of `photo` is {without['auroc']:.3f}, and "
        f"{100 * without['found_at_equal_rates']['0.05']:.0f} % are found. The hottest place lies "
        f"within {cracks['located_within_pixels']} pixels of a labelled box in "
        f"{100 * cracks['located']['found_at_equal_rates']:.0f} % of the cracks that are found.",
        f"False alarms on `fruits` at alpha 0.05: {rates[0]} with near-copies on one side of the "
        f"calibration split, {rates[1]} without. From `python benchmarks/folders.py`.",
    ])  # fmt: skip


def _of_photos(row: dict[str, Any] | None) -> list[str]:
    if row is None:
        return ["–"] * 4
    ends = row.get("auroc_over_seeds", ())
    spread = f" ({'–'.join(f'{end:.3f}' for end in ends)})" if ends else ""
    return [
        f"{row['auroc']:.3f}{spread}",
        f"{100 * row['found_at_equal_rates']['0.05']:.0f} %",
        f"{100 * row['false_alarms']['0.05']:.1f} %",
        f"{row['training_seconds']:.0f}",
    ]


def photo_choices() -> str:
    found = read("photo-choices.json")
    several, one = found["several_classes"]["rows"], found["one_class"]["combined"]
    several = [  # routing has no part in the others
        row
        for row in several
        if row["routing"] == "shared" or row["score"] not in ("patch", "stem-knn")
    ]
    kinds, local = list(several[0]["auroc"]), [k for k in one[0] if k not in ("largest", "patch")]
    return "\n\n".join([
        "Several classes, AUROC by routing weights and score:",
        table(["routing weights", "score", *kinds],
              [[row["routing"], row["score"], *(f"{row['auroc'][kind]:.3f}" for kind in kinds)]
               for row in several]),
        "One class, AUROC and share found at 5 % false alarms:",
        table(["share of largest distances", "share of `patch`", *local],
              [[f"{row['largest']:g}", f"{row['patch']:g}",
                *(f"{row[k]['auroc']:.3f}, {100 * row[k]['found_at_equal_rates']:.0f} %"
                  for k in local)]
               for row in one]),
        "Mock anomalies made from `fruits/train` and `commutators/train`, one seed, so that "
        "differences of 0.01 may be chance. The memory had "
        f"{found['several_classes']['patches']:,} patches for several classes and "
        f"{found['one_class']['patches']:,} for one. From `python benchmarks/photo_choices.py`.",
    ])  # fmt: skip


TABLES: dict[str, Callable[[], str]] = {
    "results": results,
    "field": field,
    "claims": claims,
    "moves": moves,
    "nines": nines,
    "widths": widths,
    "tuned": tuned,
    "deep": deep,
    "folders": folders,
    "photos": photos,
    "photo-choices": photo_choices,
}
