"""Invented results of study cells: no network is trained."""

import numpy as np

from anocaps.judging.metrics import Metrics, auroc
from anocaps.study.cell import LENGTH_BINS, LONG, CellResult

DIGITS = tuple("0123456789")
SCORES = {
    "capsnet": ("pp", "re", "pp+re", "mse"),
    "cnn-ocsvm": ("ocsvm",),
    "vae": ("re", "nse", "elbo"),
    "dbn": ("re", "nse"),
}


def make_result(
    held_out: tuple[str, ...] = ("2",),
    seed: int = 0,
    method: str = "capsnet",
    dataset: str = "mnist",
    class_names: tuple[str, ...] = DIGITS,
    strength: float = 2.0,
    images: int = 80,
    scores: tuple[str, ...] | None = None,
    reconstructions: int = 0,
    channels: int = 1,
    official: bool = True,
    variant: str = "",
) -> CellResult:
    """One cell: `strength` is how far normal and anomalous scores lie apart."""
    described = sum(map(ord, f"{dataset} {method} {variant} {held_out}"))
    rng = np.random.default_rng([seed, described])
    unknown = [class_names.index(name) for name in held_out]
    normal = [c for c in range(len(class_names)) if c not in unknown]
    labels = np.concatenate([rng.choice(normal, images // 2), rng.choice(unknown, images // 2)])
    anomalous = np.isin(labels, unknown)
    values = {
        name: (rng.normal(size=images) - strength * anomalous * (1 - 0.1 * k)).astype(np.float32)
        for k, name in enumerate(scores or SCORES[method])
    }
    classifies = method in ("capsnet", "cnn-ocsvm")
    predicted = np.where(anomalous, rng.choice(normal[:3], images), labels)
    aurocs = {k: auroc(v[~anomalous], v[anomalous]) for k, v in values.items()}
    return CellResult(
        dataset=dataset,
        official=official,
        hashes={"train-images": "ab" * 32},
        class_names=class_names,
        method=method,
        variant=variant,
        held_out=held_out,
        seed=seed,
        limit=None,
        metrics={k: Metrics(a, a - 0.02, min(a + 0.02, 1.0), 0.5, 0.5) for k, a in aurocs.items()},
        auroc_all={k: a - 0.01 for k, a in aurocs.items()},
        accuracy=0.987 if classifies else None,
        test_images=images,
        settings={"score": next(iter(values)), "epochs": 20, "seed": seed, "crop": None},
        record={
            "training": {"epochs": 20, "batch_size": 100, "precision": "bf16"},
            "training_seconds": 12.5,
            "device": "a GPU",
            "versions": {"python": "3.11.0", "torch": "2.10.0"},
            "commit": "0123456789ab",
        },
        lengths=_lengths(rng, images // 2, len(normal)) if method == "capsnet" else None,
        index=np.arange(images, dtype=np.int64),
        labels=labels.astype(np.int64),
        scores=values,
        predicted=predicted.astype(np.int64) if classifies else None,
        reconstructions=rng.integers(0, 256, (reconstructions, 2, 12, 12, channels), dtype=np.uint8)
        if reconstructions
        else None,
    )


def _lengths(
    rng: np.random.Generator, images: int, classes: int
) -> dict[str, dict[str, list[int]]]:
    """Normal images have one long capsule. Anomalous ones often have none, sometimes several."""
    found = {}
    for kind, (a, b) in {"normal": (30.0, 1.0), "anomalous": (2.0, 2.0)}.items():
        longest, others = rng.beta(a, b, (images, 1)), rng.beta(1, 6, (images, classes - 1))
        every = np.sort(np.concatenate([longest, others], axis=1), axis=1)
        bins = np.linspace(0, 1, LENGTH_BINS + 1)
        found[kind] = {
            "longest": np.histogram(every[:, -1], bins)[0].tolist(),
            "others": np.histogram(every[:, :-1], bins)[0].tolist(),
            "long": np.bincount((every > LONG).sum(1), minlength=classes + 1).tolist(),
        }
    return found
