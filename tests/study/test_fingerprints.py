"""What a finished cell of the paper's study means: committed ones are recognised, and what their
settings stand for does not change unnoticed.

A fingerprint names the preset (and its version, see test_presets.py) and the method, not what they
contain. What they contain is pinned here; what the code does with it is not, so whoever changes
that raises the protocol's version too.
"""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from real_data import real

from anocaps.capsules.margin import margin_loss
from anocaps.data.catalogue import dataset_entry
from anocaps.data.dataset import Dataset, Split
from anocaps.detectors import capsnet, neighbours, one_class_svm, plain
from anocaps.detectors.presets import PRESETS
from anocaps.study import fingerprints
from anocaps.study.protocol import PROTOCOL_VERSION, cell_data
from anocaps.study.reports import read_results
from anocaps.study.resultfile import SUFFIX, read_fingerprint
from anocaps.study.studies import PAPER_DATASETS, PAPER_METHODS, UNCHANGED, Options, ablation, paper

RESULTS = Path(__file__).resolve().parents[2] / "results"
COMMITTED = RESULTS / "paper"
SHAPES = {"mnist": (28, 28), "fashion-mnist": (28, 28), "small-norb": (48, 48, 2)}
PINNED_VERSION = 1
PINNED = {
    ("mnist", "capsnet"): "53a533f2a2bc7c42",
    ("mnist", "cnn-ocsvm"): "59fc7c7c0f707a19",
    ("mnist", "vae"): "62ea8d289fe859aa",
    ("mnist", "dbn"): "2f92453200ca7069",
    ("fashion-mnist", "capsnet"): "ddf9eeae52f14396",
    ("fashion-mnist", "cnn-ocsvm"): "c82fad33f35fa09b",
    ("fashion-mnist", "vae"): "4a0deb953d527c28",
    ("fashion-mnist", "dbn"): "cf216f220367db00",
    ("small-norb", "capsnet"): "5434c19a4ffde5f8",
    ("small-norb", "cnn-ocsvm"): "73f6b45f3d7a390f",
    ("small-norb", "vae"): "c9e808b18816738b",
    ("small-norb", "dbn"): "17fbd25e942932fa",
}
CONSTANTS = {  # beside the settings
    "capsnet": [margin_loss.__defaults__, neighbours.NEAREST, neighbours.MOST_VECTORS],
    "cnn-ocsvm": [one_class_svm.NU, one_class_svm._NEIGHBOUR_SAMPLE],
}


def stand_in(name: str) -> Dataset:
    """Black images of the dataset's shape, two of each class."""
    classes = dataset_entry(name).class_names
    labels = np.arange(2 * len(classes)) % len(classes)
    split = Split(np.zeros((len(labels), *SHAPES[name]), np.uint8), labels)
    return Dataset(name, split, split, classes, {}, official=False)


def resolved(dataset: Dataset, method: str, monkeypatch: pytest.MonkeyPatch) -> dict:
    """What the study's detector is about to train, and how; nothing is trained."""
    found = {}

    class Noted:
        def __init__(self, network, loss, images, labels, preprocessing, config, device,
                     noise=None, described=None, validation=None):  # fmt: skip
            self.network = network
            found["network"] = dict(described)
            found["preprocessing"], found["training"] = asdict(preprocessing), asdict(config)
            # newer than the pins, and black as all was before
            assert found["preprocessing"].pop("padding") == "black"

    for module in (capsnet, plain):
        monkeypatch.setattr(module, "Run", Noted)
    cell = next(paper(dataset, Options(methods=(method,), seeds=1)))
    detector = fingerprints.detector_of(cell, "cpu")
    data = cell_data(dataset, (0,), cell.seed)
    images, labels, *_ = detector._begin(data.train_images, data.train_labels)
    run = next(iter(detector._training(images, labels)))
    network = getattr(detector, "network_", run.network)  # a run may train a part of it
    shapes = {name: list(weight.shape) for name, weight in network.state_dict().items()}
    return found | {"weights": shapes, "constants": CONSTANTS.get(method)}


@pytest.mark.parametrize("method", PAPER_METHODS)
@pytest.mark.parametrize("name", PAPER_DATASETS)
def test_what_a_cell_means_is_pinned(name, method, monkeypatch):
    contents = json.dumps(resolved(stand_in(name), method, monkeypatch), sort_keys=True)
    digest = hashlib.sha256(contents.encode()).hexdigest()[:16]
    assert (PROTOCOL_VERSION, digest) == (PINNED_VERSION, PINNED[name, method]), (
        f"what a finished cell of {name} and {method} means has changed: raise PROTOCOL_VERSION in "
        "src/anocaps/study/protocol.py, so that finished cells are run again, and pin here the new "
        f"version and the new digest, {digest}. What is trained is now {contents}"
    )


@pytest.mark.parametrize(
    ("folder", "asked"), [("paper", {}), ("deep", {"methods": ("capsnet",), "preset": "deep"})]
)
def test_committed_cells_are_those_of_today_s_plan(folder, asked, monkeypatch):
    """Else a run would refuse to go on with them, or train them once more."""
    results = read_results(RESULTS / folder)
    seeds = 1 + max(result.seed for result in results)
    plan = {
        (cell.dataset, cell.label, cell.held_out, cell.seed): cell
        for name in PAPER_DATASETS
        for cell in paper(stand_in(name), Options(seeds=seeds, **asked))
    }
    strange = []
    for result in results:
        used = result.record["training"]["precision"]
        monkeypatch.setattr(
            fingerprints,
            "pick_precision",
            lambda name, _, used=used: used if name == "auto" else name,
        )
        cell = plan[result.dataset, result.method, result.held_out, result.seed]
        dataset = replace(stand_in(result.dataset), hashes=result.hashes)
        today = fingerprints.fingerprint_of(cell, dataset, "cpu")
        if read_fingerprint(RESULTS / folder / f"{cell.name}{SUFFIX}") != today:
            strange.append(cell.name)
    assert not strange, (
        f"{len(strange)} of {len(results)} finished cells are not today's, {strange[0]} first: if "
        "that is meant, run them again; else give the settings back their old names and defaults"
    )


def test_a_preset_of_another_version_makes_other_cells(monkeypatch):
    """Of its own alone: not of another preset's, nor of methods without one."""
    dataset = stand_in("mnist")
    asked = [
        Options(methods=(method,), preset=preset)
        for method, preset in (("capsnet", "deep"), ("capsnet", "paper"), ("vae", "deep"))
    ]

    def prints() -> list[str]:
        cells = [next(paper(dataset, options)) for options in asked]
        return [fingerprints.fingerprint_of(cell, dataset, "cpu") for cell in cells]

    once, found = prints(), set()
    for version in (2, 3):
        monkeypatch.setitem(PRESETS, "deep", replace(PRESETS["deep"], version=version))
        changed, *others = prints()
        assert others == once[1:]
        found.add(changed)
    assert len(found | {once[0]}) == 3


def test_mock_tests_of_unseen_objects_are_other_cells():
    """And the study's own cells, whose test images are the real ones, are not."""
    without = stand_in("small-norb")
    known = replace(without.train, objects=np.arange(len(without.train.labels)))
    told = replace(without, train=known)
    for study, same in ((paper, True), (ablation, False)):
        cell = next(study(without, Options(seeds=1)))
        prints = {fingerprints.fingerprint_of(cell, each, "cpu") for each in (without, told)}
        assert (len(prints) == 1) == same


@pytest.mark.parametrize(
    ("name", "preset", "own"),
    [
        ("mnist", "paper", 0.0005),
        ("mnist", "quick", 1.6 / 784),
        ("small-norb", "quick", 1.6 / 2048),
    ],
)
def test_an_ablation_s_weights_are_multiples_of_the_unchanged_one(name, preset, own):
    """Small-NORB is seen through windows of 32×32×2."""
    weights = {
        cell.variant: cell.settings.get("reconstruction_weight")
        for cell in ablation(stand_in(name), Options(seeds=1, preset=preset))
    }
    assert weights[UNCHANGED] == (own if preset == "paper" else None)
    for times in (8, 18):
        assert weights[f"reconstruction ×{times}"] == pytest.approx(times * own)
    if preset == "paper":  # to the last digit: finished cells have these
        assert [weights[f"reconstruction ×{times}"] for times in (8, 18)] == [0.004, 0.009]


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_committed_cells_are_of_the_real_images(name):
    dataset = real(name)
    assert dataset.train.images.shape[1:] == SHAPES[name]
    committed = [each.hashes for each in read_results(COMMITTED) if each.dataset == name]
    assert committed and all(hashes == dataset.hashes for hashes in committed)
