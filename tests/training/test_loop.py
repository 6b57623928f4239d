"""The training loop: batches, learning rate, fleets, memory, progress."""

import tracemalloc
import types
from itertools import chain, pairwise

import numpy as np
import pytest

from anocaps import CapsNetDetector
from anocaps.base.errors import AnocapsError
from anocaps.detectors.baselines.vae import VAEDetector


def quick(**options):
    return CapsNetDetector(
        **({"preset": "quick", "epochs": 2, "calibration": 0.0, "device": "cpu"} | options)
    )


def test_every_image_is_seen_in_every_epoch(two_classes, monkeypatch):
    from anocaps.training.loop import Run

    seen = []
    step = Run._step

    def watched(self):
        start = int(self.cursor)
        seen.append(self.order[start : start + self.batch].tolist())
        step(self)

    monkeypatch.setattr(Run, "_step", watched)
    quick(epochs=2, batch_size=20).fit(*two_classes)  # 48 images: the last batch is filled up
    assert [len(batch) for batch in seen] == [20] * 6
    for epoch in (seen[:3], seen[3:]):
        assert set(chain(*epoch)) == set(range(48))
    assert seen[:3] != seen[3:]


def test_the_learning_rate_falls_to_its_final_share(two_classes, monkeypatch):
    from anocaps.training.loop import Run

    rates = []
    step = Run._step
    monkeypatch.setattr(Run, "_step", lambda self: (rates.append(float(self.rate)), step(self)))
    quick(epochs=4, learning_rate=0.01).fit(*two_classes)
    assert rates[0] == pytest.approx(0.01)
    assert all(later < earlier for earlier, later in pairwise(rates))
    assert rates[-1] * rates[-1] / rates[-2] == pytest.approx(0.001, rel=1e-3)


def test_divergence_is_said_plainly(two_classes):
    with pytest.raises(AnocapsError, match="diverged"):
        quick(learning_rate=1e30).fit(*two_classes)


def test_a_fleet_trains_each_as_if_alone(two_classes, digits):
    from anocaps.detectors.fitting import fit_together

    few = digits.train.images[:60], digits.train.labels[:60] % 3
    data = [two_classes, few, two_classes]
    fleet = [quick(seed=seed, epochs=epochs) for seed, epochs in ((0, 2), (1, 3), (2, 1))]
    fit_together(fleet, data)
    for member, (images, labels) in zip(fleet, data):
        alone = quick(seed=member.seed, epochs=member.epochs).fit(images, labels)
        np.testing.assert_array_equal(alone.score_samples(images), member.score_samples(images))
        assert alone.record_["losses"] == member.record_["losses"]


def test_seconds_of_training_hold_no_other_work(two_classes, monkeypatch):
    """A clock that only the work beside the training moves far."""
    from anocaps.detectors.fitting import fit_together

    class Slow(VAEDetector):
        def _training(self, images, labels):
            yield from super()._training(images, labels)
            clock.now += 1000

    clock = types.SimpleNamespace(now=0.0)

    def ticks():
        clock.now += 1
        return clock.now

    monkeypatch.setattr("anocaps.training.loop.time.perf_counter", ticks)
    fleet = [Slow(epochs=1, device="cpu") for _ in range(3)]
    fit_together(fleet, [two_classes] * 3)
    for detector in fleet:
        assert 0 < detector.record_["training_seconds"] < 1000


@pytest.mark.parametrize("make", [CapsNetDetector, VAEDetector])
def test_no_second_copy_of_all_images_but_the_padded_one(make, monkeypatch):
    """NumPy's memory is traced, torch's is not: there the padded images are."""
    monkeypatch.setattr("anocaps.training.preprocessing._PART", 50)
    options = {"preset": "deep"} if make is CapsNetDetector else {}
    detector = make(device="cpu", shift=2, batch_size=2, **options)
    images, labels = np.zeros((600, 128, 128, 3), np.uint8), np.arange(600) % 2

    def enough(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # all that this imports
        detector.fit(images[:40], labels[:40], progress=enough)
    tracemalloc.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            detector.fit(images, labels, progress=enough)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 0.4 * images.nbytes


def test_progress_counts_every_step_of_a_fleet(two_classes):
    from anocaps.detectors.fitting import fit_together

    told = []
    fleet = [quick(epochs=2, batch_size=24), quick(epochs=1, batch_size=24)]
    fit_together(fleet, [two_classes] * 2, progress=lambda *words: told.append(words))
    step, steps, loss, rate = told[-1]
    assert step == steps == 6
    assert loss > 0 and rate > 0
