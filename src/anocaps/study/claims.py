"""The paper's claims, each with a rule that decides whether it holds.

Claims, rules and thresholds were written from the paper's text before the full study was run. Known
at that time were a one-seed prototype, single cells of CapsNet and tables of mock anomalies.
Numbers are AUROCs on balanced test sets unless a rule says otherwise. An image is taken for the
class of its longest capsule and reconstructed as that class.

A claim *holds* if its rule is true in the mean over the seeds and in every seed. It holds *in part*
if the rule is true in the mean only. A seed that lacks a cell is left out.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np

from anocaps.study.cell import LONG, CellResult
from anocaps.study.claim_rules import (
    DBN,
    ELBO,
    FEW,
    FIVE,
    MANY,
    MOST,
    MSE,
    NEAR_PERFECT,
    NEARLY_ALL,
    NOTICEABLE,
    OCSVM,
    PP,
    RANDOM,
    RE,
    REASONABLE,
    SEVERAL,
    SIMILAR,
    SLIGHT,
    SOME,
    VAE,
    VARY_LARGELY,
    WELL,
    CellKey,
    Cells,
    Finding,
    NotMeasured,
    Rule,
    View,
    beats,
    best,
    by_auroc,
    by_share,
    classes_of,
    counted,
    differs_by,
    in_the_range_of_normals,
    only,
    over_classes,
    plain,
    random,
    reaches,
    reconstructed,
    similar_to,
    surely_taken_for,
    text,
    with_long_capsules,
    within,
)


@dataclass(frozen=True)
class Claim:
    key: str
    where: str  # section of the paper
    datasets: tuple[str, ...]
    says: str  # what the paper says, in our words
    rule: Rule


MNIST, FASHION, NORB = ("mnist",), ("fashion-mnist",), ("small-norb",)
ALL = MNIST + FASHION + NORB
EACH = {name: (name, classes_of(name)) for name in ALL}
FOOTWEAR = ("sandal", "sneaker", "ankle boot")
TOPWEAR = ("t-shirt", "pullover", "coat", "shirt")  # a dress is neither
TOYS = classes_of("small-norb")

# fmt: off
CLAIMS: tuple[Claim, ...] = (  # in the order of the paper
    Claim(
        "pp-consistent", "Abstract", ALL,
        "PP performs consistently well on the three datasets.",
        counted(
            f"PP at least {plain(REASONABLE)} for every class of every dataset", ALL, (PP,),
            lambda a: {"PP reasonable": a[0] >= REASONABLE}, lambda shares: shares[0] == 1)),
    Claim(
        "re-sensitive", "Abstract", ALL,
        "RE is more sensitive to how similar anomalous and normal images are.",
        over_classes(
            "RE larger than PP on every dataset", ALL, (PP, RE), lambda s: np.all(s[1] > s[0]),
            spread=True)),
    Claim(
        "capsnet-beats-benchmarks", "Abstract, Section 4", ALL,
        "Both CapsNet scores beat the benchmark methods in many cases.",
        counted(
            "PP and RE both above all three benchmarks for at least a third of all classes",
            ALL, FIVE, lambda a: {"both above": a[:2].min(0) > a[2:].max(0)},
            lambda shares: shares[0] >= MANY)),

    Claim(
        "both-work", "Section 1", ALL,
        "The two normality scores work well.",
        over_classes(
            f"PP and RE at least {plain(REASONABLE)} on every dataset", ALL, (PP, RE),
            lambda m: np.all(m >= REASONABLE))),
    Claim(
        "one-long-capsule", "Section 2.1", ALL,
        "A normal image has one and only one class capsule near length 1.",
        by_share(
            f"exactly one capsule longer than {plain(LONG)} in at least {plain(NEARLY_ALL)} of the "
            "normal test images, in the mean over the classes of every dataset",
            "capsnet", EACH, lambda cell: with_long_capsules(cell, "normal", 1),
            lambda s: np.all(s >= NEARLY_ALL))),
    Claim(
        "no-long-capsule", "Section 2.1", ALL,
        "All class capsules of an anomalous image are very short.",
        by_share(
            f"no capsule longer than {plain(LONG)} in at least half of the anomalous test images, "
            "in the mean over the classes of every dataset",
            "capsnet", EACH, lambda cell: with_long_capsules(cell, "anomalous", 0),
            lambda s: np.all(s >= MOST))),
    *(
        Claim(
            f"nse-{name}", "Section 2.2", (name,),
            "The normalised squared error (RE) tells more than the plain one (MSE).",
            over_classes("RE higher than MSE", (name,), (RE, MSE), lambda m: np.all(m[0] > m[1])))
        for name in ALL
    ),
    Claim(
        "nse-digit-1", "Section 2.2", MNIST,
        "MSE makes a badly reconstructed 1 look good, as it has few bright pixels; RE does not.",
        beats(RE, MSE, "mnist", ("1",), by=SIMILAR)),
    Claim(
        "nse-background", "Section 2.2", MNIST + NORB,
        "The gain of RE over MSE is clearer where much of the image is black background.",
        over_classes(
            "RE − MSE larger on MNIST (black background) than on Small-NORB (grey)",
            MNIST + NORB, (RE, MSE), lambda m: m[0, 0] - m[1, 0] > m[0, 1] - m[1, 1])),

    Claim(
        "digit-2-near-perfect", "Section 3.1.1", MNIST,
        "With 2 anomalous, both scores are near perfect.",
        reaches(NEAR_PERFECT, (PP, RE), "mnist", ("2",))),
    Claim(
        "digit-2-pp", "Section 3.1.1", MNIST,
        "With 2 anomalous, PP reaches .9841.", similar_to(0.9841, "mnist", "2", PP)),
    Claim(
        "digit-2-re", "Section 3.1.1", MNIST,
        "With 2 anomalous, RE reaches .9699.", similar_to(0.9699, "mnist", "2", RE)),
    Claim(
        "digit-9-pp-better", "Section 3.1.1", MNIST,
        "With 9 anomalous, PP is better than RE.", beats(PP, RE, "mnist", ("9",), by=SIMILAR)),
    Claim(
        "digit-9-by-12", "Section 3.1.1", MNIST,
        "With 9 anomalous, PP beats RE by .12.", differs_by(0.12, PP, RE, "mnist", "9")),
    Claim(
        "digit-9-as-4", "Section 3.1.1", MNIST,
        "An anomalous 9 is mostly reconstructed as a 4.",
        reconstructed(
            "more than half of the 9s taken for a 4", "mnist", "9", lambda s: s["4"] > MOST)),
    Claim(
        "digit-9-re-high", "Section 3.1.1", MNIST,
        "As a 4 is so like a 9, RE takes the reconstructed 9s for quite normal.",
        by_share(
            "RE of at least half of the 9s within the central 95 % of the normal images'",
            "capsnet", {"share": ("mnist", ("9",))},
            lambda cell: in_the_range_of_normals(cell, RE.score), lambda s: s[0] >= MOST)),
    Claim(
        "digit-2-as-several", "Section 3.1.1", MNIST,
        "An anomalous 2 is reconstructed as several different digits.",
        reconstructed(
            f"at least {plain(NOTICEABLE)} of the 2s taken for each of {SEVERAL} or more digits, "
            "and more than half for none", "mnist", "2",
            lambda s: sum(share >= NOTICEABLE for share in s.values()) >= SEVERAL
            and max(s.values()) <= MOST)),
    Claim(
        "digit-2-as-1-3-6-7", "Section 3.1.1", MNIST,
        "Among them are 1, 3, 6 and 7.",
        reconstructed(
            f"at least {plain(NOTICEABLE)} of the 2s taken for each of 1, 3, 6 and 7", "mnist", "2",
            lambda s: min(s[digit] for digit in "1367") >= NOTICEABLE)),
    Claim(
        "digits-035-alike", "Section 3.1.2", MNIST,
        "With 0, 3 and 5 anomalous together, both scores are alike.",
        within(SIMILAR, (PP, RE), "mnist", ("0,3,5",))),

    Claim(
        "mnist-pp-best", "Section 3.2", MNIST,
        "PP is consistently the best on MNIST.",
        counted(
            "PP the highest of the five for every digit", MNIST, FIVE,
            lambda a: {"PP highest": a[0] > a[1:].max(0)}, lambda shares: shares[0] == 1)),
    Claim(
        "mnist-pp-best-mean", "Section 3.2", MNIST,
        "PP is the best on MNIST altogether.",
        over_classes("PP the highest of the five", MNIST, FIVE, lambda m: m[0] > m[1:].max())),
    Claim(
        "mnist-re-slightly-below", "Section 3.2", MNIST,
        "RE is in general slightly inferior to PP.",
        over_classes(
            f"RE below PP, by at most {plain(SLIGHT)}", MNIST, (PP, RE),
            lambda m: 0 < m[0] - m[1] <= SLIGHT)),
    Claim(
        "mnist-re-as-ocsvm", "Section 3.2", MNIST,
        "RE is comparable to CNN+OCSVM.",
        over_classes(
            f"RE and CNN+OCSVM within {plain(SIMILAR)} of each other", MNIST, (RE, OCSVM),
            lambda m: abs(m[0] - m[1]) <= SIMILAR)),
    Claim(
        "mnist-generative-behind", "Section 3.2", MNIST,
        "DBN and VAE cannot compete with CapsNet and CNN+OCSVM.",
        over_classes(
            f"VAE and DBN each more than {plain(SIMILAR)} below each of the others", MNIST, FIVE,
            lambda m: m[:3].min() - m[3:].max() > SIMILAR)),

    Claim(
        "fashion-lower", "Section 3.2.1", MNIST + FASHION,
        "All methods are lower on Fashion-MNIST than on MNIST.",
        over_classes(
            "each of the five lower on Fashion-MNIST", MNIST + FASHION, FIVE,
            lambda m: np.all(m[:, 1] < m[:, 0]))),
    Claim(
        "fashion-footwear", "Section 3.2.1", FASHION,
        "RE is better than PP for footwear.", beats(RE, PP, "fashion-mnist", FOOTWEAR)),
    Claim(
        "fashion-footwear-confused", "Section 3.2.1", FASHION,
        "CapsNet confidently takes anomalous footwear for another kind of footwear.",
        by_share(
            "at least half of the images taken for another footwear, by a capsule longer than "
            f"{plain(LONG)}, for each of {', '.join(FOOTWEAR)}",
            "capsnet", {name: ("fashion-mnist", (name,)) for name in FOOTWEAR},
            lambda cell: surely_taken_for(cell, FOOTWEAR), lambda s: np.all(s >= MOST))),
    Claim(
        "fashion-topwear", "Section 3.2.1", FASHION,
        "PP is better than RE for topwear.", beats(PP, RE, "fashion-mnist", TOPWEAR)),
    Claim(
        "fashion-trouser-bag-good", "Section 3.2.1", FASHION,
        "Both scores work quite well for trousers and bags.",
        reaches(WELL, (PP, RE), "fashion-mnist", ("trouser", "bag"))),
    Claim(
        "fashion-trouser-bag-alike", "Section 3.2.1", FASHION,
        "They do not differ much for trousers and bags.",
        within(SLIGHT, (PP, RE), "fashion-mnist", ("trouser", "bag"))),
    Claim(
        "fashion-vary", "Section 3.2.1", FASHION,
        "CNN+OCSVM and VAE vary largely from class to class.",
        over_classes(
            f"CNN+OCSVM and VAE each at least {plain(VARY_LARGELY)}", FASHION, (OCSVM, VAE),
            lambda s: np.all(s >= VARY_LARGELY), spread=True)),
    Claim(
        "fashion-few-alike", "Section 3.2.1", FASHION,
        "In few cases CNN+OCSVM and VAE do as well as CapsNet.",
        counted(
            f"above the better of PP and RE, or at most {plain(SIMILAR)} below it, in at least one "
            "and at most a third of the cases (CNN+OCSVM and VAE for each class)",
            FASHION, (PP, RE, OCSVM, VAE),
            lambda a: {"as good": a[2:] >= a[:2].max(0) - SIMILAR},
            lambda shares: 0 < shares[0] <= FEW)),
    Claim(
        "fashion-dbn", "Section 3.2.1", FASHION,
        "DBN is not impressive.",
        over_classes(
            f"DBN below {plain(WELL)}, and below both PP and RE", FASHION, (PP, RE, DBN),
            lambda m: m[2] < min(WELL, m[0], m[1]))),

    Claim(
        "norb-hard", "Section 3.3", NORB,
        "Small-NORB is hard for all five methods.",
        over_classes(
            f"each of the five below {plain(WELL)}", NORB, FIVE, lambda m: np.all(m < WELL))),
    Claim(
        "norb-animal-pp-only", "Section 3.3", NORB,
        "For animals, only PP is reasonably good.", only((PP,), "small-norb", "animal")),
    Claim(
        "norb-animal-others-random", "Section 3.3", NORB,
        "For animals, all but PP are random.",
        random((RE, OCSVM, VAE, DBN), "small-norb", "animal")),
    Claim(
        "norb-car-pp-only", "Section 3.3", NORB,
        "For cars, only PP is reasonably good.", only((PP,), "small-norb", "car")),
    Claim(
        "norb-car-others-random", "Section 3.3", NORB,
        "For cars, all but PP are random.",
        random((RE, OCSVM, VAE, DBN), "small-norb", "car")),
    Claim(
        "norb-truck", "Section 3.3", NORB,
        "For trucks, only PP and RE are better than random.",
        only((PP, RE), "small-norb", "truck", floor=0.5 + RANDOM)),
    Claim(
        "norb-airplane", "Section 3.3", NORB,
        "For airplanes, RE and VAE are the best.", best((RE, VAE), "small-norb", "airplane")),
    Claim(
        "norb-human", "Section 3.3", NORB,
        "For humans, only CNN+OCSVM reaches .7 (one reading of the sentence).",
        only((OCSVM,), "small-norb", "human")),
    Claim(
        "norb-ocsvm-human-only", "Section 3.3", NORB,
        "CNN+OCSVM reaches .7 for humans only (the other reading).",
        by_auroc(
            f"CNN+OCSVM at least {plain(REASONABLE)} for humans, below for every other class",
            "small-norb", TOYS, (OCSVM,),
            lambda a: np.array_equal(a[0] >= REASONABLE, [name == "human" for name in TOYS]))),

    Claim(
        "complementary", "Section 4", ALL,
        "PP and RE have complementary strengths.",
        counted(
            f"each more than {plain(SIMILAR)} above the other for at least a fifth of all classes",
            ALL, (PP, RE),
            lambda a: {"PP above": a[0] - a[1] > SIMILAR, "RE above": a[1] - a[0] > SIMILAR},
            lambda shares: np.all(shares >= SOME))),
    Claim(
        "elbo-overlap", "Appendix A.2", ALL,
        "Often the ELBOs of normal and anomalous images fall into the same range.",
        by_share(
            "ELBO of at least half of the anomalous images within the central 95 % of the normal "
            "images', in the mean over the classes of every dataset",
            "vae", EACH, lambda cell: in_the_range_of_normals(cell, ELBO.score),
            lambda s: np.all(s >= MOST))),
    Claim(
        "vae-re-for-elbo", "Appendix A.2", ALL,
        "The reconstruction error serves where the ELBO does not.",
        over_classes(
            "VAE's reconstruction error higher than its ELBO on every dataset", ALL, (VAE, ELBO),
            lambda m: np.all(m[0] > m[1]))),
    Claim(
        "increasing-difficulty", "Appendix C", ALL,
        "MNIST, Fashion-MNIST and Small-NORB are of increasing difficulty.",
        over_classes(
            "the five methods together fall from dataset to dataset", ALL, FIVE,
            lambda m: np.all(np.diff(m.mean(0)) < 0))),
)
# fmt: on


Verdict = Literal["holds", "in part", "does not hold", "not measured"]


@dataclass(frozen=True)
class Judged:
    claim: Claim
    verdict: Verdict
    numbers: str  # our mean ± standard deviation over the seeds; empty if not measured
    by_seed: dict[int, bool]  # whether the rule is true, by seed; without incomplete seeds


def judge(results: Iterable[CellResult], claims: Iterable[Claim] = CLAIMS) -> list[Judged]:
    """Judge each claim; ablations and cells trained on fewer images are left out."""
    seeds: dict[int, dict[CellKey, CellResult]] = defaultdict(dict)
    for r in results:
        if not r.variant and r.limit is None:
            seeds[r.seed][r.dataset, r.method, frozenset(r.held_out)] = r
    return [_judged(claim, dict(sorted(seeds.items()))) for claim in claims]


def _judged(claim: Claim, seeds: Mapping[int, Cells]) -> Judged:
    found: dict[int, Finding] = {}
    for seed, cells in seeds.items():
        with suppress(NotMeasured):
            found[seed] = claim.rule.check(View([cells]))
    if not found:
        return Judged(claim, "not measured", "", {})
    in_the_mean = claim.rule.check(View([seeds[seed] for seed in found]))
    by_seed = {seed: finding.true for seed, finding in found.items()}
    verdict: Verdict = "does not hold"
    if in_the_mean.true:
        verdict = "holds" if all(by_seed.values()) else "in part"
    return Judged(claim, verdict, text(in_the_mean, list(found.values())), by_seed)
