"""Early stopping: images never trained on choose the epoch whose weights are kept."""

import numpy as np
import pytest
import torch

from anocaps.detectors.capsnet import capsnet_loss
from anocaps.networks.deep import DeepCapsNet, DeepConfig
from anocaps.training.loop import Run, TrainingConfig, train
from anocaps.training.preprocessing import Preprocessing
from anocaps.training.validation import Validation

CONFIG = DeepConfig(
    height=8, width=8, classes=2, maps=(4, 6, 8), pools=((1, 1), (1, 1)), primary_types=2,
    decoder=(8,),
)  # fmt: skip
PREPROCESSING = Preprocessing(8, 8, 1)


def make(images, labels, patience, epochs=12, seed=0):
    """Trained on 32 of the 48 images; the labels of the rest are as given."""
    torch.manual_seed(seed)
    network = DeepCapsNet(CONFIG)
    validation = Validation(images[32:, :, :, None], labels[32:], patience)
    return Run(
        network, capsnet_loss(network, PREPROCESSING, 0.02), images[:32, :, :, None], labels[:32],
        PREPROCESSING, TrainingConfig(epochs, 8, 3e-3, seed=seed), torch.device("cpu"),
        described={"validation": validation.fingerprint}, validation=validation,
    )  # fmt: skip


def misleading(labels):
    """Validation images with the other class's labels: the better trained, the worse they do."""
    return np.where(np.arange(48) < 32, labels, 1 - labels)


def state(run):
    return {k: v.clone() for k, v in run.network.state_dict().items()}


def test_the_weights_of_the_best_epoch_are_kept(two_classes, monkeypatch):
    images, labels = two_classes
    run = make(images, misleading(labels), patience=3)
    after = []
    end_epoch = Run.end_epoch
    monkeypatch.setattr(Run, "end_epoch", lambda r: (end_epoch(r), after.append(state(r))))
    train([run], [None])
    losses = run.validation.losses
    best = int(np.argmin(losses))
    assert run.epoch == len(losses) == best + 1 + 3 < 12
    assert best < len(losses) - 1
    for name, value in run.network.state_dict().items():
        assert torch.equal(value, after[best][name]), name
    assert not torch.equal(run.network.routing, after[-1]["routing"])


def test_measuring_changes_nothing(two_classes):
    """The same weights with and without validation images, where they never stop training."""
    images, labels = two_classes
    run, plain = make(images, labels, patience=5, epochs=2), make(images, labels, 5, epochs=2)
    plain.validation = None
    run.validation.give_back = lambda _: None
    train([run], [None])
    train([plain], [None])
    for name, value in plain.network.state_dict().items():
        assert torch.equal(value, run.network.state_dict()[name]), name


def test_resumed_it_stops_at_the_same_epoch_with_the_same_weights(
    two_classes, tmp_path, monkeypatch
):
    monkeypatch.setattr("anocaps.training.progress.REPORT_EVERY_SECONDS", 0.0)
    images, labels = two_classes
    labels = misleading(labels)
    whole = make(images, labels, patience=3)
    told = []
    train([whole], [None], progress=lambda *words: told.append(words))
    assert told[-1][0] == told[-1][1] == 12 * whole.steps  # what was spared counts as done
    steps = whole.epoch * whole.steps
    for killed in (steps // 2, steps - 1):
        left = killed

        def interrupt(*_):
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        path = tmp_path / f"{killed}"
        with pytest.raises(KeyboardInterrupt):
            train([make(images, labels, patience=3)], [path], progress=interrupt)
        resumed = make(images, labels, patience=3)
        train([resumed], [path], resume=True)
        assert resumed.validation.losses == whole.validation.losses
        for name, value in whole.network.state_dict().items():
            assert torch.equal(value, resumed.network.state_dict()[name]), name


def test_other_validation_images_are_another_run(two_classes):
    images, labels = two_classes
    first, same, other = (make(images, x, 3) for x in (labels, labels, misleading(labels)))
    assert first.fingerprint == same.fingerprint != other.fingerprint
    assert make(images, labels, 4).fingerprint != first.fingerprint
