"""A detector as a judge: how files become its images, and what it cannot judge."""

import sys
from types import SimpleNamespace

import pytest

from anocaps.base.errors import ModelFileError
from anocaps.detectors import saving
from anocaps.detectors.judge import DetectorJudge
from anocaps.images.decode import Fit
from anocaps.inspect.judge import load_judge


def fitted(record, channels=3):
    """What a judge asks a fitted detector for."""
    return SimpleNamespace(
        record_=record,
        preprocessing_=SimpleNamespace(height=20, width=30, channels=channels),
        score_function_="re",
        _usable_scores=lambda: ("re", "knn"),
        calibrated=False,
        classes_=[1, 2],
        heat_scale_=None,
        card_={},
    )


def test_files_are_read_as_in_training():
    stored = {"height": 20, "width": 30, "channels": 3, "how": "letterbox"}
    assert DetectorJudge(fitted({"fit": stored})).fit == Fit(20, 30, 3, "letterbox")


def test_a_model_trained_on_arrays_takes_their_size():
    judge = DetectorJudge(fitted({}))
    assert judge.fit == Fit(20, 30, 3, "resize")
    assert judge.classes == ["1", "2"] and judge.calibration_size == 0


@pytest.mark.parametrize(
    ("record", "channels", "says"),
    [
        ({}, 2, "2 channels"),
        ({"fit": {"height": 20, "sides": 3}}, 3, "is damaged"),
        ({"fit": [1, 2]}, 3, "is damaged"),
        ({"fit": {"height": 0, "width": 9, "channels": 1, "how": "crop"}}, 1, "height"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_name_of_the_model(
    monkeypatch, tmp_path, record, channels, says
):
    monkeypatch.setattr(saving, "load_scoring", lambda path, device: fitted(record, channels))
    with pytest.raises(ModelFileError, match=f"m.safetensors: .*{says}"):
        load_judge(tmp_path / "m.safetensors")


def test_an_exported_model_is_told_the_device(monkeypatch, tmp_path):
    told = SimpleNamespace(OnnxModel=lambda *arguments: arguments)
    monkeypatch.setitem(sys.modules, "anocaps.export.runtime", told)
    assert load_judge(tmp_path / "M.ONNX", "cuda") == (tmp_path / "M.ONNX", "cuda")
