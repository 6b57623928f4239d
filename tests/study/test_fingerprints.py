"""Which cells count as the same, and that committed cells are those of today's plan.

A fingerprint names the preset and the method, not what they contain. What they contain is pinned
here; whoever changes it raises the protocol's or the preset's version too.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from real_data import real

from anocaps.data.catalogue import dataset_entry
from anocaps.data.dataset import Dataset, Split
from anocaps.detectors import CapsNetDetector, capsnet, find_method, neighbours
from anocaps.detectors.baselines import one_class_svm, plain
from anocaps.detectors.presets import PRESETS
from anocaps.study import fingerprints
from anocaps.study.fingerprints import describe, detector_of, fingerprint_of
from anocaps.study.packed import SUFFIX, read_packed
from anocaps.study.plan import standings
from anocaps.study.protocol import PROTOCOL_VERSION, cell_data
from anocaps.study.studies import PAPER_DATASETS, PAPER_METHODS, Cell, Options, paper, whole_field

RESULTS = Path(__file__).resolve().parents[2] / "results" / "field"
SHAPES = {
    "mnist": (28, 28), "fashion-mnist": (28, 28), "small-norb": (48, 48, 2), "cifar10": (32, 32, 3),
}  # fmt: skip
PINNED_VERSION = 1
TUNED = "capsnet-paper-tuned"
PINNED = {
    ("mnist", "capsnet"): "7293332ea99e5aa6",
    ("mnist", "capsnet-paper-tuned"): "53a533f2a2bc7c42",
    ("mnist", "cnn-ocsvm"): "59fc7c7c0f707a19",
    ("mnist", "vae"): "62ea8d289fe859aa",
    ("mnist", "dbn"): "2f92453200ca7069",
    ("fashion-mnist", "capsnet"): "0e84f0c6d4beb7f6",
    ("fashion-mnist", "capsnet-paper-tuned"): "ddf9eeae52f14396",
    ("fashion-mnist", "cnn-ocsvm"): "c82fad33f35fa09b",
    ("fashion-mnist", "vae"): "4a0deb953d527c28",
    ("fashion-mnist", "dbn"): "cf216f220367db00",
    ("small-norb", "capsnet"): "9c2cfcb6756d3ef1",
    ("small-norb", "capsnet-paper-tuned"): "5434c19a4ffde5f8",
    ("small-norb", "cnn-ocsvm"): "73f6b45f3d7a390f",
    ("small-norb", "vae"): "c9e808b18816738b",
    ("small-norb", "dbn"): "17fbd25e942932fa",
}
CONSTANTS = {  # beside the settings
    # the margins, which tests of the loss hold
    "capsnet": [(0.9, 0.1, 0.5), neighbours.NEAREST, neighbours.MOST_VECTORS],
    "cnn-ocsvm": [one_class_svm.NU, one_class_svm._NEIGHBOUR_SAMPLE],
}
CELL = Cell("mnist", "capsnet", ("2",), 0, {"preset": "paper", "epochs": 20})
OWN = """
from anocaps.detectors import CapsNetDetector

class Mine(CapsNetDetector):
    method = "mine-{name}"
"""


def stand_in(name: str) -> Dataset:
    """Black images of the dataset's shape, two of each class."""
    classes = dataset_entry(name).class_names
    labels = np.arange(2 * len(classes)) % len(classes)
    split = Split(np.zeros((len(labels), *SHAPES[name]), np.uint8), labels)
    return Dataset(name, split, split, classes, {"train": "ab"}, official=False)


MNIST = stand_in("mnist")


# ── what a fingerprint depends on ────────────────────────────────────────────────────────────


def test_a_new_option_with_a_default_changes_no_fingerprint(monkeypatch):
    before = fingerprint_of(CELL, MNIST, "cpu")

    @dataclass(frozen=True)
    class NewerCell(Cell):
        rotation: int = 0

    class NewerDetector(CapsNetDetector):
        def __init__(self, preset="auto", epochs=None, calibration=None, seed=0, device="auto",
                     precision="auto", rotation=0, flips=None):  # fmt: skip
            super().__init__(preset, epochs=epochs, seed=seed, device=device, precision=precision)
            self.rotation, self.flips = rotation, flips

    NewerDetector.__module__ = CapsNetDetector.__module__  # not a method of your own
    monkeypatch.setattr(fingerprints, "find_method", lambda name: NewerDetector)
    newer = NewerCell(**vars(CELL))
    assert fingerprint_of(newer, MNIST, "cpu") == before
    assert fingerprint_of(replace(newer, rotation=90), MNIST, "cpu") != before
    rotated = replace(newer, settings=CELL.settings | {"rotation": 90})
    assert fingerprint_of(rotated, MNIST, "cpu") != before


def test_what_changes_training_or_testing_changes_the_fingerprint(monkeypatch):
    changed = [
        {"dataset": "fashion-mnist"}, {"method": "vae", "settings": {"epochs": 20}},
        {"held_out": ("3",)}, {"held_out": ("2", "3")}, {"seed": 1},
        {"mock": True}, {"balanced_only": True}, {"limit": 100}, {"reconstructions": 50},
        *({"settings": CELL.settings | {name: value}} for name, value in (
            ("epochs", 21), ("preset", "deep"), ("batch_size", 64), ("crop", 20),
            ("standardize", True), ("start", "flat"), ("final_share", 0.5),
        )),
    ]  # fmt: skip
    found = [fingerprint_of(CELL, MNIST, "cpu")]
    found += [fingerprint_of(replace(CELL, **each), MNIST, "cpu") for each in changed]
    found.append(fingerprint_of(CELL, replace(MNIST, hashes={"train": "cd"}), "cpu"))
    with monkeypatch.context() as patch:
        patch.setattr(fingerprints, "PROTOCOL_VERSION", PROTOCOL_VERSION + 1)
        found.append(fingerprint_of(CELL, MNIST, "cpu"))
    with monkeypatch.context() as patch:
        patch.setattr(fingerprints, "pick_precision", lambda name, device: "bf16")
        found.append(fingerprint_of(CELL, MNIST, "cpu"))
    assert len(set(found)) == len(found) == len(changed) + 4


def test_a_preset_of_another_version_makes_other_cells(monkeypatch):
    """Only its own cells: not those of another preset, nor of methods without a preset."""
    cells = [
        next(paper(MNIST, Options(methods=(method,), preset=preset)))
        for method, preset in (("capsnet", "deep"), ("capsnet", "paper"), ("vae", "deep"))
    ]
    before = [fingerprint_of(cell, MNIST, "cpu") for cell in cells]
    newer = replace(PRESETS["deep"], version=PRESETS["deep"].version + 1)
    monkeypatch.setitem(PRESETS, "deep", newer)
    after = [fingerprint_of(cell, MNIST, "cpu") for cell in cells]
    assert [a == b for a, b in zip(before, after)] == [False, True, True]


def test_the_source_of_a_method_of_your_own_counts(tmp_path):
    file, found = tmp_path / "own.py", set()
    for text in ("", "# another version"):
        file.write_text(OWN.format(name=tmp_path.name) + text)
        cell = replace(CELL, method=find_method(str(file)).method)
        found.add(fingerprint_of(cell, MNIST, "cpu"))
    assert len(found) == 2


def test_device_order_and_score_function_do_not_count():
    base = fingerprint_of(CELL, MNIST, "cpu")
    assert fingerprint_of(CELL, MNIST, "auto") == base or "bf16" in str(
        describe(CELL, MNIST, "auto")
    )
    dbn = replace(CELL, method="dbn", settings={})  # always in fp32
    assert fingerprint_of(dbn, MNIST, "cpu") == fingerprint_of(dbn, MNIST, "auto")
    shuffled = replace(CELL, settings=dict(reversed(CELL.settings.items())))
    assert fingerprint_of(shuffled, MNIST, "cpu") == base
    assert not {"score", "score_function", "device"} & set(describe(CELL, MNIST, "cpu")["settings"])


# ── committed cells ──────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def committed():
    """Cell name → result and fingerprint."""
    paths = RESULTS.glob(f"*{SUFFIX}")
    return {name: (r, f) for path in paths for name, r, f in read_packed(path)}


def test_committed_cells_are_those_of_today_s_plan(committed, monkeypatch):
    """Otherwise a run would refuse to go on with them, or train them once more."""
    today, other = set(), []
    for name in SHAPES:
        for cell in whole_field(stand_in(name), Options()):
            if cell.name not in committed:
                continue
            result, fingerprint = committed[cell.name]
            used = result.record.get("training", {}).get("precision", "fp32")
            if cell.variant == "photo":  # picked on the GPU, but its capsules train in fp32
                used = "bf16"
            monkeypatch.setattr(
                fingerprints,
                "pick_precision",
                lambda name, _, used=used: used if name == "auto" else name,
            )
            dataset = replace(stand_in(cell.dataset), hashes=result.hashes)
            today.add(cell.name)
            if fingerprint_of(cell, dataset, "cpu") != fingerprint:
                other.append(cell.name)
    assert not other, f"{len(other)} finished cells are not today's, {other[0]} first"
    tuned = {name for name in committed if name.split("/")[1].endswith("-tuned")}
    assert set(committed) <= today | tuned
    assert len({n for n in today if n.split("/")[1] in PAPER_METHODS}) >= 300
    rows = standings(RESULTS)
    assert sum(row.done for row in rows) == len(committed)
    assert not any(row.running or row.failed or row.damaged for row in rows)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_committed_cells_are_of_the_real_images(name, committed):
    dataset = real(name)
    assert dataset.train.images.shape[1:] == SHAPES[name]
    results = [r for r, _ in committed.values() if r.dataset == name and r.seed == 0]
    assert {str(result.hashes) for result in results} == {str(dataset.hashes)}
    held_out = tuple(map(dataset.class_names.index, results[0].held_out))
    np.testing.assert_array_equal(results[0].index, cell_data(dataset, held_out, 0).balanced)


# ── what a cell means ────────────────────────────────────────────────────────────────────────


class Stopped(Exception):
    """Before training."""


def resolved(dataset: Dataset, row: str, monkeypatch: pytest.MonkeyPatch) -> dict:
    """What the study's detector is about to train, and how; nothing is trained."""
    method, preset = ("capsnet", "paper-tuned") if row == TUNED else (row, None)
    cell = next(paper(dataset, Options(methods=(method,), seeds=1, preset=preset)))
    detector, found = detector_of(cell, "cpu"), {}

    def noted(network, loss, images, labels, preprocessing, config, device, noise=None,
              described=None, validation=None):  # fmt: skip
        whole = getattr(detector, "network_", network)  # a run may train a part of it
        found["weights"] = {name: list(w.shape) for name, w in whole.state_dict().items()}
        found["network"] = dict(described)
        found["preprocessing"], found["training"] = asdict(preprocessing), asdict(config)
        # newer than the pins, and black as all was before
        assert found["preprocessing"].pop("padding") == "black"
        raise Stopped

    for module in (capsnet, plain):
        monkeypatch.setattr(module, "Run", noted)
    data = cell_data(dataset, (0,), cell.seed)
    with pytest.raises(Stopped):
        detector.fit(data.train_images, data.train_labels)
    return found | {"constants": CONSTANTS.get(method)}


@pytest.mark.parametrize("row", [*PAPER_METHODS, TUNED])
@pytest.mark.parametrize("name", PAPER_DATASETS)
def test_what_a_cell_means_is_pinned(name, row, monkeypatch):
    contents = json.dumps(resolved(stand_in(name), row, monkeypatch), sort_keys=True)
    digest = hashlib.sha256(contents.encode()).hexdigest()[:16]
    assert (PROTOCOL_VERSION, digest) == (PINNED_VERSION, PINNED[name, row]), (
        f"what a finished cell of {name} and {row} means has changed: raise PROTOCOL_VERSION in "
        "src/anocaps/study/protocol.py, so that finished cells are run again, and pin here the new "
        f"version and the new digest, {digest}. What is trained is now {contents}"
    )
