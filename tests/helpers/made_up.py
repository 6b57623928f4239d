"""Made-up cells of a study, on which claims are judged."""

import numpy as np

from anocaps.data import CATALOGUE
from anocaps.judging.metrics import Metrics
from anocaps.study.cell import LENGTH_BINS, CellResult
from anocaps.study.claims.paper import CLAIMS

BY_KEY = {claim.key: claim for claim in CLAIMS}
CLASSES = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        "t-shirt", "trouser", "pullover", "dress", "coat",
        "sandal", "shirt", "sneaker", "bag", "ankle boot",
    ),
    "small-norb": ("animal", "human", "airplane", "truck", "car"),
    "cifar10": tuple(CATALOGUE["cifar10"].class_names),
}  # fmt: skip


def cell(
    dataset="mnist", method="capsnet", held_out="2", seed=0, *,
    taken=None, sure=0.8, inside=0.9, one_long=95, none_long=60, variant="", limit=None,
    svm=2.0,
    **auroc,
):  # fmt: skip
    """One result with these AUROCs by score, of 100 normal and 100 anomalous images.

    taken: class → how many anomalies; sure: their longest capsule; inside: share of them with a
    score in the middle of the normals'; one_long, none_long: normal images with one long capsule,
    anomalous ones with none.
    """
    names, anomalous = CLASSES[dataset], held_out.split(",")
    normal = [name for name in names if name not in anomalous]
    given = [name for name, count in (taken or {normal[0]: 100}).items() for _ in range(count)]
    scores = {
        score: np.r_[np.linspace(0, 1, 100), np.where(np.arange(100) < inside * 100, 0.5, -1)]
        for score in auroc
    }
    if "pp" in auroc:
        scores["pp"] = np.r_[np.full(100, 0.9), np.full(100, sure)]
    capsules = method == "capsnet"
    predicted = np.array([names.index(name) for name in [normal[0]] * 100 + given])
    labels = [names.index(name) for name in [normal[0]] * 100 + [anomalous[0]] * 100]
    short, near_one = 5, 47  # bins of .1 and .94
    lengths = {
        "normal": histograms({short: 100 - one_long, near_one: one_long}),
        "anomalous": histograms({short: none_long, near_one: 100 - none_long}),
    }
    return CellResult(
        dataset=dataset, official=True, hashes={}, class_names=names, method=method,
        variant=variant, held_out=tuple(anomalous), seed=seed, limit=limit,
        metrics={name: Metrics(value, 0, 1, 0, 0) for name, value in auroc.items()},
        auroc_all={}, accuracy=None, test_images=200, settings={},
        record={"training_seconds": 1.0, "svm": {"seconds": svm}},
        lengths=lengths if capsules else None,
        index=np.arange(200), labels=np.array(labels),
        scores={name: values.astype(np.float32) for name, values in scores.items()},
        predicted=predicted if capsules else None,
        reconstructions=None,
    )  # fmt: skip


def histograms(longest, others=None):
    """The counts of CellResult.lengths: bin → capsules."""
    found = {"longest": [0] * LENGTH_BINS, "others": [0] * LENGTH_BINS}
    for name, counts in (("longest", longest), ("others", others or {})):
        for place, count in counts.items():
            found[name][place] = count
    return found
