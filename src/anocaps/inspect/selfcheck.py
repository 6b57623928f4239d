"""The self-check: an estimate of how well anomalies will be found, without any anomaly.

There are two estimates:

- Each class is left out in turn: the five largest, on a CPU the three largest. A network is trained
  on the other classes and scores images of the left-out class and unseen images of the others. The
  AUROC is an estimate for anomalies that differ as much as another class does.
- Synthetic anomalies are made from calibration images, and the model itself compares them with the
  calibration images. They hint at the sizes and contrasts that the model can see. One class is
  enough.

The first estimate needs 10 test images of the left-out class and 10 of the others. If no class has
so many, several classes are left out together, in groups of 20 images or, if necessary, of 10. At
least two classes stay to learn from. Images of the calibration set are not used.

A short training makes the estimate too low, above all for `re`, since reconstruction is learned
last. On a GPU, all networks are trained at once, each for as many steps as the model, but at most
3,000. On a CPU, they share half of the model's steps. Each takes at least 300 steps, or as many as
the model if it took fewer.
"""

import time
from collections.abc import Iterable, Iterator
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from anocaps.detectors.gate import indexed
from anocaps.detectors.photo.features import Features
from anocaps.detectors.photo.model import BRIEF
from anocaps.inspect.synthetic import lines_of, synthetic
from anocaps.judging.calibration import split
from anocaps.judging.metrics import auroc
from anocaps.training.preprocessing import as_images
from anocaps.training.progress import Progress

if TYPE_CHECKING:
    from anocaps.detectors.base import Detector

MOST_CLASSES, MOST_CLASSES_ON_CPU = 5, 3  # to leave out, or groups of them
_FEWEST = 5  # images; smaller classes are not used
_FEWEST_TESTED = 10  # images each of the left-out class and of the others
_FEWEST_OF_GROUP = (20, _FEWEST_TESTED)  # images of a group of classes: wanted, else enough
_FEWEST_LEFT = 2  # classes to learn from if a group is left out
_MOST_TESTED = 1000  # images each of the left-out class and of the others
_MOST_IMAGES, _MOST_BYTES = 20_000, 250_000_000  # that a network learns from
_UNSEEN, _MOST_UNSEEN = 0.2, 0.5  # share of the other images that are kept to test on
_MOST_STEPS = 3000  # of each network, on a GPU
_SHARE_ON_CPU, _FEWEST_STEPS_ON_CPU = 1 / 2, 300  # share of the model's steps; steps
MOST_SYNTHETIC = 40  # images of each kind and size; in all no more than the model was given


def self_check(
    detector: "Detector",
    images: Any,
    labels: ArrayLike,
    progress: Progress | None = None,
    prepared: Any = None,
    calibrate_on: NDArray[np.int64] | None = None,
) -> dict[str, Any]:
    """Check a detector with the images that it was fitted on, N×H×W or N×H×W×C.

    `prepared` is the result of `detector.prepare` for these images, if known. `calibrate_on` is the
    argument of `fit`.

    The result has AUROCs by left-out class (or group) and score function, their means, and the
    number of tested images. If no class was left out, `skipped` has the reason. `synthetic` has one
    entry for each kind and size of synthetic anomaly. If there are none, `synthetic_skipped` has
    the reason.
    """
    from anocaps.detectors.fitting import calibration_split

    started = time.perf_counter()
    given = detector.prepare(images, labels) if prepared is None else prepared
    array = given if isinstance(given, Features) else as_images(given)
    classes, index = indexed(labels, len(array))
    pool, kept, _ = calibration_split(detector, array, index)
    if calibrate_on is not None:
        pool, kept = np.setdiff1d(np.flatnonzero(index >= 0), calibrate_on), calibrate_on
    found = _without_classes(detector, array, classes, index, pool, progress)
    found |= _with_synthetic(detector, images, pool, kept)
    return found | {"seconds": round(time.perf_counter() - started, 1)}


def _with_synthetic(
    detector: "Detector", images: Any, training: NDArray[np.int64], kept: NDArray[np.int64]
) -> dict[str, Any]:
    """AUROCs of synthetic anomalies against the calibration set that they are made of."""
    if len(kept) < _FEWEST_TESTED:
        why = f"Fewer than {_FEWEST_TESTED}" if len(kept) else "No"
        why += " images were kept out of training; synthetic anomalies are made from these"
        return {"synthetic": [], "synthetic_skipped": why}
    generator = np.random.default_rng([detector.seed, 0x5717])
    kept, others = (
        np.sort(generator.permutation(rows)[:MOST_SYNTHETIC]) for rows in (kept, training)
    )
    normal, textures = as_images(images[kept]), as_images(images[others])
    height, width = detector.preprocessing_.window  # the network sees no more of an image
    top, left = (normal.shape[1] - height) // 2, (normal.shape[2] - width) // 2
    seen = np.s_[:, top : top + height, left : left + width]
    each = max(_FEWEST_TESTED, len(images) // max(1, lines_of(height, width)))
    found = []
    for line in synthetic(normal[seen], textures[seen], detector.seed, each):
        whole = normal[line.rows]
        whole[seen] = line.images
        scores = detector.outputs(whole)
        found.append(
            {
                "kind": line.kind,
                "size": line.size,
                "contrast": line.contrast,
                "images": len(whole),
                "auroc": {
                    name: round(auroc(detector.calibration_scores(name), values), 4)
                    for name, values in scores.items()
                },
            }
        )
    if not found:
        return {"synthetic": [], "synthetic_skipped": "The images are too small to change a part"}
    return {"synthetic": found}


def _without_classes(
    detector: "Detector",
    array: Any,
    classes: NDArray[Any],
    index: NDArray[np.int64],
    pool: NDArray[np.int64],  # images outside the calibration set
    progress: Progress | None,
) -> dict[str, Any]:
    """AUROCs of classes that are left out of training in turn."""
    from anocaps.detectors.fitting import fit_together
    from anocaps.training.device import pick_device

    if len(classes) == 1:
        return {"skipped": "There is only one class, so none can be left out"}
    counts = np.bincount(index[pool], minlength=len(classes))
    pool = pool[counts[index[pool]] >= _FEWEST]
    if np.count_nonzero(counts >= _FEWEST) < 2:
        return {"skipped": f"Fewer than two classes have {_FEWEST} images to learn from"}

    on_cpu = pick_device(detector.device).type == "cpu"
    most = MOST_CLASSES_ON_CPU if on_cpu else MOST_CLASSES
    for groups in _groups(counts, most):
        drawn = {
            _joined(classes[group]): _Mock(array, index, pool, group, detector.seed)
            for group in groups
        }
        if mocks := {name: mock for name, mock in drawn.items() if mock.tells}:
            break
    else:
        return {
            "skipped": f"There are too few images: a test needs {_FEWEST_TESTED} of a left-out "
            f"class and {_FEWEST_TESTED} of the others"
        }
    others = [_alike(detector, len(mock.training), len(mocks), on_cpu) for mock in mocks.values()]
    fit_together(
        others,
        [(array[mock.training], index[mock.training]) for mock in mocks.values()],
        progress=progress,
    )
    found = {name: mock.measured(fitted) for (name, mock), fitted in zip(mocks.items(), others)}
    # a network with one class lacks the scores that compare classes
    names = [name for name in detector.score_names if all(name in each for each in found.values())]
    return {
        "classes": int(np.count_nonzero(counts)),
        "left_out": found,
        "tested": {  # includes classes that were too small to be left out
            name: {"anomalous": len(mock.anomalous), "normal": len(mock.normal)}
            for name, mock in drawn.items()
        },
        "auroc": {
            name: round(float(np.mean([each[name] for each in found.values()])), 4)
            for name in names
        },
    }


def _groups(counts: NDArray[np.int64], most: int) -> Iterator[list[list[int]]]:
    """Ways to leave classes out, in the order to try them: each of the largest classes alone, then
    groups of classes that have enough images together."""
    largest = [
        each for each in np.argsort(-counts, kind="stable").tolist() if counts[each] >= _FEWEST
    ]
    yield sorted([each] for each in largest[:most])
    for fewest in _FEWEST_OF_GROUP:
        groups, group = [], []
        for each in largest:
            group.append(each)
            if counts[group].sum() >= fewest:
                groups.append(sorted(group))
                group = []
        yield sorted(each for each in groups[:most] if len(largest) - len(each) >= _FEWEST_LEFT)


def _joined(names: Iterable[Any]) -> str:
    """The name of a group, "a, b and c", or of a single class."""
    *first, last = map(str, names)
    return f"{', '.join(first)} and {last}" if first else last


class _Mock:
    """The training and test images if one class or group is left out, as indices into the
    images."""

    def __init__(
        self,
        array: Any,
        index: NDArray[np.int64],
        pool: NDArray[np.int64],
        group: list[int],
        seed: int,
    ) -> None:
        self.array = array
        generator = np.random.default_rng([seed, 0x5E1F, *group])

        def some(members: NDArray[np.int64], most: int) -> NDArray[np.int64]:
            return np.sort(generator.permutation(members)[:most])

        anomalous = np.isin(index[pool], group)
        rest = pool[~anomalous]
        # one image more, because the share is rounded
        share = max(_UNSEEN, min(_MOST_UNSEEN, (_FEWEST_TESTED + 1) / len(rest)))
        training, unseen = split(index[rest], share, seed, purpose=0x5E1F)
        most = min(_MOST_IMAGES, max(1, _MOST_BYTES // prod(array.shape[1:])))
        self.training = _two_of_each(some(rest[training], most), index)
        self.normal = some(rest[unseen], _MOST_TESTED)
        self.anomalous = some(pool[anomalous], _MOST_TESTED)

    @property
    def tells(self) -> bool:
        """Whether there are enough images for an AUROC."""
        return min(len(self.normal), len(self.anomalous)) >= _FEWEST_TESTED

    def measured(self, detector: "Detector") -> dict[str, float]:
        names = set(detector._usable_scores())
        normal, anomalous = (
            detector._forward(self.array[each], names) for each in (self.normal, self.anomalous)
        )
        return {name: round(auroc(normal[name], anomalous[name]), 4) for name in sorted(names)}


def _two_of_each(members: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Leave out classes that have only one image."""
    return members[np.bincount(index[members])[index[members]] >= 2]


def _alike(detector: "Detector", images: int, networks: int, on_cpu: bool) -> "Detector":
    """An unfitted copy of the detector for the self-check, with its epochs set for the images."""
    other: Detector = clone(detector).set_params(calibration=0.0)
    other._effort = BRIEF
    if "training" in detector.record_:
        training = detector.record_["training"]

        def steps(count: int) -> int:  # of an epoch
            return -(-count // int(training["batch_size"]))

        # Fewer if training ended early. A training in stages has the losses of every stage.
        epochs = min(len(detector.record_["losses"]), training["epochs"])
        taken = epochs * steps(detector.record_["training_images"])
        other.set_params(
            epochs=max(1, round(steps_of_each(taken, networks, on_cpu) / steps(images)))
        )
    return other


def steps_of_each(taken: int, networks: int, on_cpu: bool) -> float:
    """Training steps for each network of the self-check, from the steps the model has taken."""
    if on_cpu:
        return max(_SHARE_ON_CPU * taken / networks, min(_FEWEST_STEPS_ON_CPU, taken))
    return min(_MOST_STEPS, taken)
