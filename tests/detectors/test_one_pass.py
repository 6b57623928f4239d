"""One forward pass per image serves scores, class, reconstruction and heatmap."""

from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anocaps import CapsNetDetector
from anocaps.base import arrayfile
from anocaps.detectors import fitting
from anocaps.detectors.judge import DetectorJudge
from anocaps.export.runtime import OnnxModel
from anocaps.export.writer import export
from anocaps.inspect import listing, scoring
from anocaps.inspect.illustrate import Illustrations
from anocaps.inspect.listing import Listing
from anocaps.inspect.scoring import columns_of, score_into
from anocaps.inspect.tables import UnfinishedTable
from anocaps.study.cell import measure_cell
from anocaps.study.protocol import cell_data


@contextmanager
def counted(network):
    """How many images go through a network, in inference."""
    passed = [0]

    def count(module, inputs, _):
        passed[0] += 0 if module.training else len(inputs[0])

    handle = network.primary.register_forward_hook(count)
    try:
        yield passed
    finally:
        handle.remove()


@pytest.fixture(scope="module")
def detector(digits):
    few = digits.train.labels < 3
    detector = CapsNetDetector("quick", epochs=1, device="cpu")
    return detector.fit(digits.train.images[few], digits.train.labels[few].astype(str))


@pytest.fixture
def photos(tmp_path, digits) -> Path:
    (tmp_path / "photos").mkdir()
    for k in range(20):
        Image.fromarray(digits.test.images[k]).save(tmp_path / "photos" / f"{k:02}.png")
    return tmp_path / "photos"


def scored_with_everything(judge, photos):
    """As the command does with a table, a gallery and heatmaps."""
    shown = Illustrations(
        judge, [photos], 0.1, photos.parent / "gallery.html", photos.parent / "maps"
    )
    with UnfinishedTable(photos.parent / "s.csv", columns_of(judge), {}, resume=False) as table:
        score_into(table, judge, Listing([photos]), 0.1, shown.add, with_heat=shown.wanted)
        shown.close()
        table.finish()
    assert len(list((photos.parent / "maps").rglob("*.png"))) == 20


def test_scoring_with_heatmaps_and_gallery(detector, photos):
    with counted(detector.network_) as passed:
        scored_with_everything(DetectorJudge(detector), photos)
    assert passed == [20]


def test_scoring_with_heatmaps_and_gallery_from_onnx(detector, photos, tmp_path):
    export(detector, tmp_path / "model.onnx")
    model = OnnxModel(tmp_path / "model.onnx")
    session, passed = model._session, [0]

    class Counting:
        def run(self, outputs, inputs):
            passed[0] += len(inputs["images"])
            return session.run(outputs, inputs)

        def __getattr__(self, name):
            return getattr(session, name)

    model._session = Counting()
    scored_with_everything(model, photos)
    assert passed == [20]


@pytest.mark.parametrize("reconstructions", [0, 5])
def test_a_study_cell(detector, digits, reconstructions):
    data = cell_data(digits, tuple(range(3, 10)), seed=0)
    with counted(detector.network_) as passed:
        result = measure_cell(
            detector, digits, data, tuple(range(3, 10)), seed=0, reconstructions=reconstructions
        )
    assert passed == [len(data.test_images)]
    assert result.lengths is not None and result.predicted is not None
    assert (result.reconstructions is None) == (reconstructions == 0)


@pytest.mark.parametrize("most", [500, 10])
def test_the_calibration_set(detector, digits, monkeypatch, most):
    """Its scores, its classes and the scale of heatmaps, which fewer images may set."""
    monkeypatch.setattr(fitting, "_MOST_HEATED", most)
    images = digits.train.images[..., None]
    kept, training = np.arange(3, 50, 2), np.arange(100)
    before = detector.calibration_scores_, detector.calibration_classes_, detector.heat_scale_
    try:
        with counted(detector.network_) as passed:
            fitting._calibrate(detector, images, training, kept)
        assert passed == [len(kept)]
        wanted = detector.outputs(images[kept], (*detector._usable_scores(), "class"))
        for name, scores in detector.calibration_scores_.items():
            np.testing.assert_allclose(scores, wanted[name], atol=1e-5, rtol=1e-5)
        np.testing.assert_array_equal(detector.calibration_classes_, wanted["class"])
        assert detector.heat_scale_ > 0
    finally:
        (
            detector.calibration_scores_,
            detector.calibration_classes_,
            detector.heat_scale_,
        ) = before


def test_one_call_of_a_method_is_one_pass(detector, digits):
    images = digits.test.images[:30]
    for use in (
        detector.score_samples, detector.predict, detector.p_values, detector.class_p_values,
        detector.heatmaps, detector.reconstruct, detector.classify, detector.outputs,
        lambda x: detector.judge(x, with_heat=True),
    ):  # fmt: skip
        with counted(detector.network_) as passed:
            use(images)
        assert passed == [30]


def test_the_command_walks_checks_alpha_and_hashes_once(
    detector, photos, tmp_path, command, monkeypatch
):
    model = tmp_path / "m.safetensors"
    detector.save(model)
    calls = Counter()

    def count(place, name):
        whole = getattr(place, name)

        def counting(*given, **options):
            calls[name] += 1
            return whole(*given, **options)

        monkeypatch.setattr(place, name, counting)

    count(listing, "list_images")
    count(scoring, "check_alpha")
    count(arrayfile, "_checksum")
    code, _, _ = command("score", model, photos, "-o", tmp_path / "s.csv", "--alpha", 0.1)
    assert code == 0 and calls == {"list_images": 1, "check_alpha": 1, "_checksum": 1}
