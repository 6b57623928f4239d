"""What must hold before anything is timed: a figure of wrong results is none.

Each gate returns what it measured, for the results, or ends the script; nothing is written then.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from kernel_checks import relative_error
from measuring import synchronize
from numpy.typing import NDArray
from textbook import TextbookCapsNet
from workloads import SCORES, textbook_scores

from anocaps.detectors import CapsNetDetector
from anocaps.training.device import Precision
from anocaps.training.loop import Run

SCORE_BOUND = 1e-4  # of fp32 scores against the textbook
FLEET_BOUND = 1e-4  # of weights after a few steps; the same steps in the same order give 0
# Of scores in bf16 against fp32: what 8 bits of a number leave; a wrong kernel is off by more.
BF16_BOUNDS = {"pp": 0.02, "re": 0.1}
# Where two capsules are nearly as long as each other, rounding decides which one redraws the image,
# and its RE is another number: the bound is for the others, of which there must be this share.
SAME_LONGEST = 0.99
# Of a step against float64, by what it is done in. Adam is asked to do right by its gradients.
STEP_BOUNDS: dict[Precision, dict[str, float]] = {
    "bf16": {"loss": 2e-3, "gradients": 0.1, "Adam": 1e-4},
    "fp32": {"loss": 1e-5, "gradients": 1e-4, "Adam": 1e-4},
}


def check_equal(
    detector: CapsNetDetector, book: TextbookCapsNet, images: NDArray[np.uint8]
) -> float:
    """The same weights must give the same PP and RE; the largest difference."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        want = textbook_scores(book.scores, images, book.routing.device)
    got = detector.all_scores(images, SCORES)
    largest = max(float(np.abs(g - w).max()) for g, w in zip(got.values(), want))
    _end_unless(largest <= SCORE_BOUND, f"scores differ from the textbook's by {largest:.2g}")
    return largest


def check_bf16(detector: CapsNetDetector, images: NDArray[np.uint8]) -> dict[str, Any]:
    """How far scores in bf16 are from those in fp32, and whether images fall together."""
    (exact, longest), (rounded, other) = (
        judged_in(precision, detector, images) for precision in ("fp32", "bf16")
    )
    same = longest == other
    told = f"{np.count_nonzero(~same)} of {len(images)} images have another longest capsule in bf16"
    _end_unless(same.mean() >= SAME_LONGEST, told)
    off = {name: np.abs(exact[name] - rounded[name]) for name in SCORES}
    largest = {"pp": float(off["pp"].max()), "re": float(off["re"][same].max())}
    for name, bound in BF16_BOUNDS.items():
        right = largest[name] <= bound
        _end_unless(right, f"{name.upper()} in bf16 is off by {largest[name]:.2g}")
    return {
        "images": len(images),
        "another longest capsule": int(np.count_nonzero(~same)),
        **{f"largest {name.upper()} difference": largest[name] for name in SCORES},
        **{name.upper(): [float(exact[name].min()), float(exact[name].max())] for name in SCORES},
        "ties in PP": {"fp32": ties(exact["pp"]), "bf16": ties(rounded["pp"])},
    }


def judged_in(
    precision: Precision, detector: CapsNetDetector, images: NDArray[np.uint8]
) -> tuple[dict[str, NDArray[np.float64]], NDArray[Any]]:
    """PP and RE in this precision, and the class of the longest capsule."""
    with scoring_in(precision, detector):
        return detector.all_scores(images, SCORES), detector.classify(images)


def scores_in(
    precision: Precision, detector: CapsNetDetector, images: NDArray[np.uint8]
) -> dict[str, NDArray[np.float64]]:
    """PP and RE in this precision."""
    with scoring_in(precision, detector):
        return detector.all_scores(images, SCORES)


@contextmanager
def scoring_in(precision: Precision, detector: CapsNetDetector) -> Iterator[None]:
    """Afterwards the detector has its own precision again."""
    own = detector.scoring_precision
    detector.scoring_precision = precision
    try:
        yield
    finally:
        detector.scoring_precision = own


def ties(scores: NDArray[Any]) -> int:
    """Images whose score another one has already."""
    return len(scores) - len(np.unique(scores))


def check_step(run: Run) -> dict[str, Any]:
    """The first step of a run, whole as it is timed (on a GPU recorded: batch, forward, loss,
    backward, Adam), against the textbook in float64 with the same weights and images.

    Loss and gradients: relative errors, the largest of all weights' gradients. Adam: of the change
    of a weight, against torch's Adam in float64 given this step's gradients, rounded as they are.
    """
    run.begin_epoch()
    synchronize(run.device)
    book = TextbookCapsNet(run.network.get_parameter("routing").shape[1]).to(run.device).double()
    book.load_state_dict(run.network.state_dict())
    taken = run.order[: run.batch]
    pixels = run.images[taken].permute(0, 3, 1, 2).double() / 255  # [B, 1, 28, 28]
    loss = book.loss(pixels, run.labels[taken])
    loss.backward()  # type: ignore[no-untyped-call]
    run.step()
    synchronize(run.device)

    gradients, updates = {}, {}
    reference = torch.optim.Adam(book.parameters(), lr=run.config.learning_rate)
    exact = dict(book.named_parameters())
    before = {name: weight.detach().clone() for name, weight in exact.items()}
    for name, weight in run.network.named_parameters():
        wanted = exact[name].grad
        assert weight.grad is not None and wanted is not None
        gradients[name] = relative_error(weight.grad, wanted)
        exact[name].grad = weight.grad.double()
    reference.step()
    for name, weight in run.network.named_parameters():
        change = weight.detach().double() - before[name]
        updates[name] = relative_error(change, exact[name].detach() - before[name])

    largest = max(gradients, key=lambda name: np.nan_to_num(gradients[name], nan=np.inf))
    found = {
        "loss": abs(run.mean_loss(1) / loss.item() - 1),
        "gradients": gradients[largest],
        "Adam": float(np.max(list(updates.values()))),
    }
    bounds = STEP_BOUNDS[run.config.precision]
    for name, error in found.items():
        _end_unless(
            error <= bounds[name],
            f"{name} of a training step in {run.config.precision}: {error:.2g} off float64"
            + (f" ({largest})" if name == "gradients" else ""),
        )
    return {**found, "of": largest, "bounds": bounds}


def check_fleet(alone: Run, member: Run) -> float:
    """A network of a fleet against the same one alone, after the same number of steps: the largest
    relative difference of their weights."""
    synchronize(alone.device)
    pairs = zip(member.network.parameters(), alone.network.parameters())
    largest = float(np.max([relative_error(a.detach(), b.detach().double()) for a, b in pairs]))
    _end_unless(
        largest <= FLEET_BOUND, f"a network of a fleet is {largest:.2g} off the same one alone"
    )
    return largest


def _end_unless(right: bool, what: str) -> None:
    """NaN is never right."""
    if not right:
        raise SystemExit(f"{what}: nothing was timed")
