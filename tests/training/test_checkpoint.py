"""Checkpoints: a run killed at any moment is continued, and a forged file is refused."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from anocaps import CapsNetDetector
from anocaps.base import arrayfile
from anocaps.base.errors import ModelFileError
from anocaps.training.loop import Run, TrainingConfig, train
from anocaps.training.preprocessing import Preprocessing
from anocaps.training.validation import Validation

SCRIPT = """
import sys, time
import numpy as np
from anocaps import CapsNetDetector

data = np.load(sys.argv[1])
detector = CapsNetDetector(preset="quick", epochs=6, calibration=0.0, shift=1, device="cpu")
detector.fit(
    data["images"], data["labels"], checkpoint=sys.argv[2],
    progress=lambda *_: time.sleep(0.3),  # slow enough to be killed in the middle
)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_killed_and_resumed_ends_in_the_same_weights(two_classes, tmp_path):
    images, labels = two_classes
    np.savez(tmp_path / "data.npz", images=images, labels=labels)
    path = tmp_path / "checkpoint"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, tmp_path / "data.npz", path])
    deadline = time.monotonic() + 120
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert 1 <= arrayfile.read(path, "checkpoint")[1]["epoch"] < 6

    resumed = quick(epochs=6, shift=1).fit(images, labels, checkpoint=path, resume=True)
    whole = quick(epochs=6, shift=1).fit(images, labels)
    for name, weights in whole.network_.state_dict().items():
        assert torch.equal(weights, resumed.network_.state_dict()[name]), name
    assert whole.record_["losses"] == resumed.record_["losses"]


def quick(**options):
    return CapsNetDetector(
        **({"preset": "quick", "epochs": 2, "calibration": 0.0, "device": "cpu"} | options)
    )


def test_a_checkpoint_of_another_run_is_refused(two_classes, tmp_path):
    images, labels = two_classes
    path = tmp_path / "c"
    quick().fit(images, labels, checkpoint=path)
    for other, data in (
        (quick(seed=1), images),
        (quick(epochs=3), images),
        (quick(), 255 - images),
        (quick(gradient="last"), images),
        (quick(reconstruction_weight=5.0), images),
    ):
        with pytest.raises(ModelFileError, match="other data or settings"):
            other.fit(data, labels, checkpoint=path, resume=True)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelFileError, match="truncated"):
        quick().fit(images, labels, checkpoint=path, resume=True)


def test_without_resume_a_checkpoint_is_written_anew(two_classes, tmp_path):
    quick().fit(*two_classes, checkpoint=tmp_path / "c")
    quick(epochs=1).fit(*two_classes, checkpoint=tmp_path / "c")
    assert arrayfile.read(tmp_path / "c", "checkpoint")[1]["epoch"] == 1


# ── forged files, whose checksum is right ────────────────────────────────────────────────────


def make(two_classes) -> Run:
    images, labels = two_classes[0][..., None], two_classes[1]
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 2)
    )
    return Run(
        network, lambda x, y: torch.nn.functional.cross_entropy(network(x), y), images[:32],
        labels[:32], Preprocessing(8, 8, 1), TrainingConfig(2, 8), torch.device("cpu"),
        validation=Validation(images[32:], labels[32:], 3),
    )  # fmt: skip


FORGED_HEADERS = {
    "epoch beyond the plan": {"epoch": 3, "losses": [1.0] * 3, "validation_losses": [1.0] * 3},
    "an epoch that is no number": {"epoch": "2"},
    "too many losses": {"losses": [1.0] * 3},
    "losses that are text": {"losses": ["1", "1"]},
    "validation losses that are not finite": {"validation_losses": [float("nan"), 1.0]},
}


@pytest.mark.parametrize("name", FORGED_HEADERS)
def test_a_forged_header_is_refused(two_classes, tmp_path, name):
    refused(two_classes, tmp_path / "c", lambda arrays, header: header.update(FORGED_HEADERS[name]))


def without(name):
    return lambda arrays, header: arrays.pop(name)


def replaced(name, change):
    return lambda arrays, header: arrays.update({name: change(arrays[name])})


FORGED_ARRAYS = {
    "a weight is missing": without("network.2.weight"),
    "one array more": lambda arrays, header: arrays.update(extra=np.zeros(1)),
    "another shape": replaced("network.2.weight", np.transpose),
    "another type": replaced("network.2.weight", lambda a: a.astype(np.float64)),
    "infinity in a moment": replaced("adam.exp_avg_sq.2.bias", lambda a: a + np.inf),
    "a negative rate": replaced("rate", np.negative),
    "a rate above the first": replaced("rate", lambda a: a + 1e30),
    "a negative square": replaced("adam.exp_avg_sq.2.bias", lambda a: a - 1),
    "a moment above its square": replaced("adam.exp_avg.2.bias", lambda a: a + 1e10),
    "a negative step": replaced("adam.step.2.bias", lambda a: a * 0 - 1),
    "a step that was not taken": replaced("adam.step.2.bias", lambda a: a + 1),
    "weights that no step reaches": replaced("network.2.weight", lambda a: a + 3e38),
    "best weights that no step reaches": replaced("best.2.weight", lambda a: a + 1e5),
    "a negative variance": replaced("network.1.running_var", np.negative),
    "a header that is none": lambda arrays, header: header.clear(),
}


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e-12, 1.0, 1e6, 1e15])
def test_no_size_or_rarity_of_gradients_is_refused(size, two_classes, tmp_path):
    """Moments of gradients that underflow, explode or come once, and the largest steps."""
    chance = np.random.default_rng(0)

    def loss(x, _):
        shares = torch.from_numpy(chance.random(network[2].weight.shape) < 0.01)
        return size * (network[2].weight * shares).sum()

    run = make(two_classes)
    network, run.loss, run.validation = run.network, loss, None
    train([run], [tmp_path / "c"])
    again = make(two_classes)
    again.validation = None
    train([again], [tmp_path / "c"], resume=True)
    for name, weights in network.state_dict().items():
        assert torch.equal(weights, again.network.state_dict()[name])


@pytest.mark.parametrize("name", FORGED_ARRAYS)
def test_forged_arrays_are_refused(two_classes, tmp_path, name):
    refused(two_classes, tmp_path / "c", FORGED_ARRAYS[name])


def refused(two_classes, path, forge):
    train([make(two_classes)], [path])
    arrays, header = arrayfile.read(path, "checkpoint")
    forge(arrays, header)
    arrayfile.write(path, "checkpoint", arrays, header)
    with pytest.raises(ModelFileError) as caught:
        train([make(two_classes)], [path], resume=True)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)
