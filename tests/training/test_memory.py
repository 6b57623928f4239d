"""Where memory runs out, work goes on in smaller parts, ends in the same numbers, and says so."""

import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from anocaps import CapsNetDetector
from anocaps.base.errors import AnocapsError
from anocaps.detectors import VAEDetector
from anocaps.detectors.fitting import fit_together
from anocaps.training.loop import Run, TrainingConfig, train
from anocaps.training.memory import in_parts, ran_out
from anocaps.training.preprocessing import Preprocessing


def lines(record: list[warnings.WarningMessage]) -> list[str]:
    return [str(each.message) for each in record]


def too_many(count: int, most: int) -> None:
    if count > most:
        raise torch.OutOfMemoryError(f"{count} is more than {most}")


class TestParts:
    def parts(self, count: int, size: int, most: int) -> list[list[int]]:
        def work(part: slice) -> list[int]:
            too_many(part.stop - part.start, most)
            return list(range(count))[part]

        return list(in_parts(count, size, work, "batch", "image"))

    def test_everything_is_done_once_and_in_order(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert self.parts(5, 2, 2) == [[0, 1], [2, 3], [4]]

    def test_a_part_that_does_not_fit_is_halved_and_so_are_those_after_it(self):
        with pytest.warns(UserWarning, match="does not fit into memory") as record:
            assert self.parts(11, 7, 4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
        assert lines(record) == ["a batch of 7 images does not fit into memory: continuing with 4"]

    def test_one_that_does_not_fit_is_an_error(self):
        with (
            pytest.warns(UserWarning, match="continuing with 1"),
            pytest.raises(AnocapsError, match="not even one image fits into memory"),
        ):
            self.parts(2, 2, 0)

    def test_what_a_failed_attempt_held_is_free_before_the_next(self):
        held = []

        def work(part: slice) -> None:
            assert all(tensor() is None for tensor in held)
            activations = torch.zeros(9)
            held.append(weakref.ref(activations))
            too_many(part.stop - part.start, 1)

        with pytest.warns(UserWarning, match="does not fit into memory"):
            list(in_parts(4, 4, work, "batch", "image"))
        assert len(held) == 6


def test_what_the_system_refuses_is_known():
    for allocate in (lambda: torch.empty(2**50), lambda: np.empty(2**50)):
        with pytest.raises((RuntimeError, MemoryError)) as caught:
            allocate()
        assert ran_out(caught.value)
    assert not ran_out(ValueError("out of memory"))


@pytest.mark.parametrize(
    ("detector", "layer"),
    [
        (CapsNetDetector("quick", epochs=1, calibration=0.0, device="cpu"), "primary"),
        (VAEDetector(epochs=1, calibration=0.0, device="cpu"), "encoder"),
    ],
)
def test_scores_of_split_batches_are_the_same(two_classes, detector, layer):
    images = np.concatenate([two_classes[0]] * 4)  # 192, of which 50 fit
    detector.fit(*two_classes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = detector.outputs(images)
    seen = []

    def watch(_module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        seen.append(len(given[0]))
        too_many(len(given[0]), 50)

    getattr(detector.network_, layer).register_forward_pre_hook(watch)
    with pytest.warns(UserWarning, match="does not fit into memory") as record:
        parts = detector.outputs(images)
    assert lines(record) == [
        "a batch of 192 images does not fit into memory: continuing with 96",
        "a batch of 96 images does not fit into memory: continuing with 48",
    ]
    assert seen == [192, 96, 48, 48, 48, 48]
    for name, values in whole.items():
        np.testing.assert_allclose(parts[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


def trained(images: np.ndarray, labels: np.ndarray, most=None, failing=()) -> Run:
    """A small network after two epochs; memory holds `most` images, and calls `failing` fail."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 2))
    calls = 0

    def loss(pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        too_many(calls in failing, 0)
        too_many(len(pixels), len(pixels) if most is None else most)
        return nn.functional.cross_entropy(network(pixels), labels)

    run = Run(
        network,
        loss,
        images[..., None],
        labels,
        Preprocessing(8, 8, 1),
        TrainingConfig(epochs=2, batch_size=20),
        torch.device("cpu"),
    )
    train([run], [None])
    return run


def assert_same(one: Run, other: Run) -> None:
    for a, b in zip(one.network.parameters(), other.network.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert one.losses == pytest.approx(other.losses, rel=1e-5)


@pytest.mark.filterwarnings("ignore:a training batch")
@pytest.mark.parametrize(
    ("limit", "at_once"),
    [({"most": 4}, 3), ({"failing": (1, 3)}, 5)],  # a smaller last part; the second half fails
)
def test_any_split_ends_in_the_same_weights(two_classes, limit, at_once):
    split = trained(*two_classes, **limit)
    assert split.at_once == at_once
    assert_same(split, trained(*two_classes))


@pytest.mark.filterwarnings("ignore:a training batch")
def test_not_even_one_training_image(two_classes):
    with (
        pytest.warns(UserWarning, match="1 at a time"),
        pytest.raises(AnocapsError, match="not enough memory to train with one image"),
    ):
        trained(*two_classes, most=0)


def test_a_fleet_that_does_not_fit_is_split(two_classes, monkeypatch):
    """Two networks fit at a time. Those that failed or were trained must be gone."""

    def fleet() -> list[CapsNetDetector]:
        settings = {"preset": "quick", "epochs": 1, "calibration": 0.0, "device": "cpu"}
        return [CapsNetDetector(seed=seed, **settings) for seed in range(5)]

    whole, split = fleet(), fleet()
    fit_together(whole, [two_classes] * 5)
    alive = weakref.WeakSet()
    begin = Run.prepare

    def prepare(self: Run, alone: bool = True) -> None:
        alive.add(self)
        too_many(len(alive), 2)
        begin(self, alone)

    monkeypatch.setattr(Run, "prepare", prepare)
    with pytest.warns(UserWarning, match="does not fit into memory") as record:
        fit_together(split, [two_classes] * 5)
    assert lines(record) == [
        "a fleet of 5 networks does not fit into memory: continuing with 3",
        "a fleet of 3 networks does not fit into memory: continuing with 2",
    ]
    for one, other in zip(whole, split):
        for a, b in zip(one.network_.parameters(), other.network_.parameters()):
            assert torch.equal(a, b)
        assert one.record_["losses"] == other.record_["losses"]
    assert not torch.equal(whole[0].network_.routing, whole[1].network_.routing)
    assert not alive


def test_an_error_raised_after_memory_ran_out_hides_nothing():
    """A failed CUDA graph capture, say; but not a message that was made for the user."""
    with pytest.raises(RuntimeError) as caught:  # noqa: PT012
        try:
            too_many(1, 0)
        finally:
            raise RuntimeError("capture failed")
    assert ran_out(caught.value)
    with pytest.raises(AnocapsError) as told:  # noqa: PT012
        try:
            too_many(1, 0)
        except torch.OutOfMemoryError as error:
            raise AnocapsError("for the user") from error
    assert not ran_out(told.value)
