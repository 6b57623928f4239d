"""`--expect-sha256`: another model file than the expected one is never opened."""

import hashlib

import pytest

from anocaps.detectors import saving


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"a graph")
    return path


@pytest.fixture
def image(tmp_path):
    from PIL import Image

    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    return tmp_path / "image.png"


def test_the_expected_model_scores(anocaps, model, image):
    expected = hashlib.sha256(b"a graph").hexdigest()
    for written in (expected, expected.upper()):
        assert anocaps("score", model, image, "--expect-sha256", written)[0] == 0


@pytest.mark.parametrize("name", ["model.onnx", "model.safetensors"])
def test_another_model_is_refused_before_it_is_opened(command, image, tmp_path, name):
    model, out = tmp_path / name, tmp_path / "s.csv"
    model.write_bytes(b"another model")
    expected = hashlib.sha256(b"a graph").hexdigest()
    said = command("score", model, image, "-o", out, "--expect-sha256", expected)
    assert said[:2] == (2, "") and not out.exists()
    found = hashlib.sha256(b"another model").hexdigest()
    assert said[2].startswith(f"Error: {model}: its SHA-256 is {found}, not the expected one")


def test_an_export_of_another_model(command, monkeypatch, tmp_path):
    monkeypatch.setattr(saving, "_loaded", None)
    (tmp_path / "m.safetensors").write_bytes(b"another model")
    words = ("export", tmp_path / "m.safetensors", tmp_path / "m.onnx", "--expect-sha256")
    code, out, errors = command(*words, "0" * 64)
    assert (code, out) == (2, "") and "not the expected one" in errors


@pytest.mark.parametrize("wrong", ["", "0" * 63, "x" * 64])
def test_what_is_no_checksum(anocaps, model, image, wrong):
    code, out, errors = anocaps("score", model, image, "--expect-sha256", wrong)
    assert (code, out) == (2, "") and "64 hexadecimal digits" in errors


def test_a_model_that_is_not_there(command, image, tmp_path):
    code, out, errors = command("score", tmp_path / "m.onnx", image, "--expect-sha256", "0" * 64)
    assert (code, out) == (2, "") and errors.count("\n") == 1 and "m.onnx" in errors
