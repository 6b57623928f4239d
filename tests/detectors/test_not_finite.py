"""Model files with numbers that training cannot have written: refused though checksummed anew."""

import numpy as np
import pytest

from anocaps.base import arrayfile
from anocaps.base.errors import ModelFileError
from anocaps.detectors import CapsNetDetector, load


@pytest.fixture(scope="module")
def saved(digits, tmp_path_factory):
    few = np.flatnonzero(digits.train.labels < 2)[:120]
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    detector = CapsNetDetector("quick", epochs=1, calibration=0.3, device="cpu")
    detector.fit(digits.train.images[few], digits.train.labels[few]).save(path)
    return path


def first(value):
    """Puts a value into the first place of an array."""

    def change(array):
        array = array.copy()
        array.flat[0] = value
        return array

    return change


ARRAYS = {
    "a weight": ("network.conv1.weight", first(np.nan)),
    "an infinite bias": ("network.conv1.bias", first(np.inf)),
    "a neighbour": ("neighbours", first(np.nan)),
    "calibration NaN": ("calibration.re", first(np.nan)),
    "calibration −inf": ("calibration.mse", first(-np.inf)),
    "calibration dtype": ("calibration.re", lambda a: a.astype(np.float32)),
    "calibration of two axes": ("calibration.re", lambda a: a[:, None]),
    "calibration count": ("calibration.re", lambda a: a[1:]),
    "pp above 1": ("calibration.pp", first(1.5)),
    "pp below 0": ("calibration.pp", first(-0.5)),
    "knn below −2": ("calibration.knn", first(-2.5)),
    "knn above 0": ("calibration.knn", first(0.5)),
    "re above 0": ("calibration.re", first(0.5)),
    "mse above 0": ("calibration.mse", first(0.5)),
    "mse below minus the pixels": ("calibration.mse", first(-65.0)),
    "re below all": ("calibration.re", first(-1e300)),
    "combined": ("calibration.combined", lambda a: a - 1.0),
    "all of combined": ("calibration.combined", lambda a: np.full_like(a, -1e300)),
    "pp+re": ("calibration.pp+re", lambda a: a + 0.1),
    "classes": ("calibration_classes", first(2)),
    "number of classes": ("calibration_classes", lambda a: a[1:]),
    "parts of classes": ("calibration_classes", lambda a: a + np.float32(0.3)),
}


def refused(saved, tmp_path, arrays, header):
    path = tmp_path / "edited.safetensors"
    arrayfile.write(path, "model", arrays, header)
    with pytest.raises(ModelFileError, match=r"edited\.safetensors: ") as refusal:
        load(path, "cpu")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("what", ARRAYS)
def test_an_array(saved, tmp_path, what):
    arrays, header = arrayfile.read(saved, "model")
    name, change = ARRAYS[what]
    refused(saved, tmp_path, arrays | {name: change(arrays[name])}, header)


def test_another_count_than_the_record_says(saved, tmp_path):
    arrays, header = arrayfile.read(saved, "model")
    header["record"]["calibration_images"] += 1
    refused(saved, tmp_path, arrays, header)
    others = {name: a for name, a in arrays.items() if not name.startswith("calibration")}
    refused(saved, tmp_path, others, header)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_standardisation(saved, tmp_path, place, value):
    arrays, header = arrayfile.read(saved, "model")
    header["learned"]["standard"]["re"][place] = value
    refused(saved, tmp_path, arrays, header)


def test_a_spread_of_zero(saved, tmp_path):
    arrays, header = arrayfile.read(saved, "model")
    header["learned"]["standard"]["re"][1] = 0.0
    refused(saved, tmp_path, arrays, header)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, -1.0])
def test_the_scale_of_heatmaps(saved, tmp_path, value):
    arrays, header = arrayfile.read(saved, "model")
    refused(saved, tmp_path, arrays, header | {"heat_scale": value})


def test_the_same_file_written_anew_is_accepted(saved, tmp_path):
    arrays, header = arrayfile.read(saved, "model")
    arrayfile.write(tmp_path / "same.safetensors", "model", arrays, header)
    assert load(tmp_path / "same.safetensors", "cpu").calibrated


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("card", {"self_check": np.nan}), ("card", {"calibration_images": 10**12}),
        ("record", {"loss": [1.0, np.inf]}), ("params", {"learning_rate": np.inf}),
    ],
)  # fmt: skip
def test_the_rest_of_the_header(saved, tmp_path, part, value):
    arrays, header = arrayfile.read(saved, "model")
    refused(saved, tmp_path, arrays, header | {part: header[part] | value})


@pytest.mark.parametrize("value", [5e-324, 1e308])
def test_a_scale_of_heatmaps_that_no_calibration_gives(saved, tmp_path, value):
    arrays, header = arrayfile.read(saved, "model")
    refused(saved, tmp_path, arrays, header | {"heat_scale": value})
