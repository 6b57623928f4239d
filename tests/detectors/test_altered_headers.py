"""Model files whose header was edited and checksummed anew: they work, or are refused by name.

Every key of a good header is deleted or gets a value of another kind, one at a time.
"""

import copy
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anocaps.base import arrayfile
from anocaps.base.errors import ModelFileError
from anocaps.detectors import CapsNetDetector
from anocaps.detectors.baselines.vae import VAEDetector
from anocaps.export import runtime
from anocaps.export.runtime import OnnxModel
from anocaps.export.writer import export
from anocaps.images.decode import Fit
from anocaps.inspect.judge import load_judge

OTHERS = (None, "other", [], {}, -1, 7, 10**12, 1e30, float("nan"))
MISSING = object()


class Small(CapsNetDetector):
    def _network_config(self, config):
        config = super()._network_config(config)
        if hasattr(config, "maps"):
            return replace(config, maps=(4, 4, 8), primary_types=2, decoder=(8,))
        return replace(config, conv_maps=4, primary_types=2, decoder=(8,))


DETECTORS = {
    "quick": lambda: Small("quick", score_function="knn", epochs=1, calibration=0.5, device="cpu"),
    "deep": lambda: Small("deep", score_function="pp+re", epochs=1, calibration=0.5, device="cpu"),
    "vae": lambda: VAEDetector(epochs=1, calibration=0.5, device="cpu"),
}


@pytest.fixture(scope="module", params=DETECTORS)
def detector(request):
    images, labels = _images(), np.repeat(["left", "right"], 12)
    detector = DETECTORS[request.param]().fit(images, labels)
    detector.record_["fit"] = asdict(Fit(12, 12, 1, "crop"))
    return detector


def _images():
    images = np.random.default_rng(0).integers(0, 60, (24, 12, 12, 1), dtype=np.uint8)
    images[:12, :, :6] += 150
    images[12:, :, 6:] += 150
    return images


def edits(header: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every place in the JSON, with what to put there; of a list its first and its last."""
    if isinstance(header, dict):
        keys = list(header)
    elif isinstance(header, list):
        keys = sorted({0, len(header) - 1}) if header else []
    else:
        keys = []
    for key in keys:
        for value in (MISSING, *OTHERS):
            if value is MISSING or header[key] != value:
                yield (*place, key), value
        if key not in ("card", "record"):  # of which scoring reads nothing but the fit
            yield from edits(header[key], (*place, key))


def edited(header: Any, place: tuple[Any, ...], value: Any) -> Any:
    header = copy.deepcopy(header)
    inner = header
    for key in place[:-1]:
        inner = inner[key]
    if value is MISSING:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return header


def use(path) -> bool:
    """Whether it is accepted; if so it must work to the end, if not it must be named."""
    images = _images()
    try:
        judge = load_judge(path, "cpu")
        judged = judge.judge(images, with_heat=True)
    except ModelFileError as error:
        said = str(error)
    else:
        assert (judge.fit.height, judge.fit.width) == (12, 12)
        assert all(values.shape == (len(images),) for values in judged.scores.values())
        assert judge.score_function in judged.scores and judged.p_value.shape == (len(images),)
        assert judged.reconstructions.shape == images.shape
        assert judge.heat_scale is None or judge.heat_scale > 0
        return True
    assert said.startswith(f"{path}: ") and "\n" not in said
    return False


def test_any_edit_of_a_safetensors_header(detector, tmp_path, monkeypatch):
    path = tmp_path / "altered.safetensors"
    detector.save(path)
    arrays, header = arrayfile.read(path, "model")
    assert use(path)
    accepted: dict[Any, list[Any]] = {}
    for place, value in (*edits(header), *edits({"fit": header["record"]["fit"]}, ("record",))):
        found = arrays, edited(header, place, value)
        monkeypatch.setattr(arrayfile, "read", lambda *_, found=found: found)
        if use(path):
            accepted.setdefault(place, []).append(value)
    assert ("method",) not in accepted and ("classes",) not in accepted
    assert accepted["card",] == accepted["record",] == [{}]
    assert accepted["record", "fit"] == [MISSING, None]  # as of a model trained on arrays
    assert accepted["record", "fit", "white"][0] is MISSING  # as of one of before it was stored
    assert ("record", "fit", "height") not in accepted
    assert accepted["heat_scale",] == [None]


@pytest.mark.parametrize(
    "header",
    [None, [], "other", 7, {}, {"method": "capsnet", "params": {"score_function": ["pp"]}}],
)
def test_a_file_with_a_header_that_is_none(tmp_path, header):
    arrayfile.write(tmp_path / "altered.safetensors", "model", {}, header)
    assert not use(tmp_path / "altered.safetensors")


def test_any_edit_of_an_onnx_header(detector, tmp_path, monkeypatch):
    if not isinstance(detector, CapsNetDetector):
        pytest.skip("only capsnet is exported")
    path = tmp_path / "altered.onnx"
    export(detector, path)
    assert use(path)
    about, session = OnnxModel(path).about, runtime._session(path)
    accepted: dict[Any, list[Any]] = {}
    for place, value in (*edits(about), *edits({"fit": about["fit"]})):
        text = json.dumps(edited(about, place, value))
        monkeypatch.setattr(runtime, "_session", lambda _, text=text: Retold(session, text))
        if use(path):
            accepted.setdefault(place, []).append(value)
    assert accepted["heat_scale",] == [None] and accepted["fit", "white"][0] is MISSING
    needed = {("format",), ("images",), ("fit",), ("classes",), ("score_function",), ("scores",)}
    assert needed.isdisjoint(accepted)


class Retold:
    """A session whose file says something else of itself."""

    def __init__(self, session, text):
        self.session, self.text = session, text

    def get_modelmeta(self):
        kept = self.session.get_modelmeta().custom_metadata_map
        return SimpleNamespace(custom_metadata_map=kept | {"anocaps": self.text})

    def __getattr__(self, name):
        return getattr(self.session, name)


@pytest.mark.parametrize("key", ["height", "conv_maps", "class_size", "decoder", "iterations"])
def test_a_header_cannot_ask_for_more_memory_or_time_than_its_weights(key, tmp_path):
    detector = DETECTORS["quick"]().fit(_images(), np.repeat(["left", "right"], 12))
    detector.save(tmp_path / "altered.safetensors")
    arrays, header = arrayfile.read(tmp_path / "altered.safetensors", "model")
    size = 2**30
    header["learned"]["network"][key] = [size] if key == "decoder" else size
    arrayfile.write(tmp_path / "altered.safetensors", "model", arrays, header)
    assert not use(tmp_path / "altered.safetensors")
