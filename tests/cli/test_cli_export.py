"""`anocaps export`: what it writes, checks and refuses."""

import json

import numpy as np
import pytest
from PIL import Image

from anocaps.base.errors import DataError, InputError, ModelFileError
from anocaps.cli.commands import export as cli_export
from anocaps.detectors import CapsNetDetector
from anocaps.export.runtime import OnnxModel
from anocaps.images.decode import Fit


@pytest.fixture(scope="module")
def detector(digits):
    few = digits.train.labels < 3
    detector = CapsNetDetector("quick", epochs=3, calibration=0.3, device="cpu")
    return detector.fit(digits.train.images[few], digits.train.labels[few])


@pytest.fixture
def model(detector, tmp_path):
    path = tmp_path / "model.safetensors"
    detector.save(path)
    return path


@pytest.fixture
def photos(digits, tmp_path):
    """Files of another size than the model's, one of them broken."""
    (tmp_path / "photos").mkdir()
    for index, image in enumerate(digits.test.images[:5]):
        Image.fromarray(image).resize((20, 20)).save(tmp_path / "photos" / f"{index}.png")
    (tmp_path / "photos" / "broken.png").write_bytes(b"?")
    return tmp_path / "photos"


def test_the_command_exports_and_checks_the_scores(model, photos, capsys):
    out = model.with_suffix(".onnx")
    cli_export.export(model, out, photos)
    assert str(out) in capsys.readouterr().out
    assert OnnxModel(out).classes == ["0", "1", "2"]
    cli_export.export(model, out, photos, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["images"] == told["same_verdicts"] == 105 and told["alpha"] == 0.05
    assert told["bytes"] == out.stat().st_size and 0 < max(told["differences"].values()) < 1e-4


def test_a_model_without_calibration_has_no_verdicts_to_compare(tmp_path, capsys, two_classes):
    detector = CapsNetDetector("quick", epochs=1, calibration=0.0, device="cpu")
    detector.fit(*two_classes).save(tmp_path / "model.safetensors")
    cli_export.export(tmp_path / "model.safetensors", tmp_path / "model.onnx")
    assert "no verdicts" in capsys.readouterr().out


def test_images_to_check_with_come_from_every_class(tmp_path, monkeypatch):
    monkeypatch.setattr(cli_export, "_MOST_CHECKED", 6)
    for kind in range(3):
        (tmp_path / str(kind)).mkdir()
        for number in range(10):
            image = Image.fromarray(np.full((8, 8), 10 * kind + number, np.uint8))
            image.save(tmp_path / str(kind) / f"{number}.png")
    drawn = cli_export._read(tmp_path, Fit(8, 8, 1, "resize"))[:, 0, 0, 0].tolist()
    assert drawn == [0, 5, 10, 15, 20, 25]
    (tmp_path / "1" / "5.png").write_bytes(b"?")  # another takes its place
    drawn = cli_export._read(tmp_path, Fit(8, 8, 1, "resize"))[:, 0, 0, 0].tolist()
    assert drawn == [0, 5, 10, 20, 25, 1]


def test_the_command_refuses_and_writes_nothing(model, photos, tmp_path, monkeypatch):
    out = tmp_path / "new" / "model.onnx"
    with pytest.raises(InputError, match=r"\.onnx"):
        cli_export.export(model, out.with_suffix(".bin"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty"):
        cli_export.export(model, out, tmp_path / "empty")
    content = model.read_bytes()
    model.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ModelFileError, match=str(model)):
        cli_export.export(model, out)
    assert not out.parent.exists()


def test_a_full_disk_leaves_nothing(model, tmp_path, monkeypatch):
    def full(path, content):
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(model), "write_bytes", full)
    with pytest.raises(ModelFileError, match=r"model\.onnx"):
        cli_export.export(model, tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == [model.name]
