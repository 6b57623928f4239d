"""Signed model files: made by `sign`, checked by `--public-key` before a file is opened."""

import errno
import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anocaps.base import signing
from anocaps.base.errors import ModelFileError
from anocaps.detectors import CapsNetDetector
from anocaps.export.writer import export as write_onnx
from anocaps.serve.scoring import Models

pytest.importorskip("cryptography")


@pytest.fixture
def signed(command, tmp_path):
    """A model that its own signature follows, with the keys: model, private key, public key."""
    model, key = tmp_path / "model.onnx", tmp_path / "key.pem"
    model.write_bytes(b"a graph")
    assert command("keygen", key)[0] == 0
    assert command("sign", model, "--key", key)[0] == 0
    return model, key, tmp_path / "key.pem.pub"


@pytest.fixture
def image(tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    return tmp_path / "image.png"


def test_a_signed_model_scores(anocaps, signed, image):
    model, _, public = signed
    assert anocaps("score", model, image, "--public-key", public)[0] == 0
    assert model.read_bytes() == b"a graph"  # the signature stands beside it


def test_the_private_key_is_its_owners_alone_and_is_never_replaced(command, signed):
    _, key, public = signed
    assert key.stat().st_mode & 0o077 == 0
    before = key.read_bytes(), public.read_bytes()
    code, out, errors = command("keygen", key)
    assert (code, out) == (2, "") and "is kept" in errors
    assert (key.read_bytes(), public.read_bytes()) == before


def _no_room(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("which", ["key.pem", "key.pem.pub"])
def test_a_key_that_could_not_be_written_is_made_by_the_same_command(
    command, tmp_path, monkeypatch, which
):
    """The public key is computed from the private one, which is kept."""
    key, write = tmp_path / "key.pem", Path.write_bytes
    modes = []

    def fail(path, content):
        modes.append(path.stat().st_mode & 0o777)
        return _no_room() if path.name == f".{which}.tmp" else write(path, content)

    before = os.umask(0)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", fail)
            code, out, errors = command("keygen", key)
        assert (code, out, errors.count("\n")) == (2, "", 1) and which in errors
        assert modes[0] == 0o600  # also while it is written
        left = [path.read_bytes() for path in tmp_path.iterdir()]
        assert len(left) == (which == "key.pem.pub")
        code, out, _ = command("keygen", key)
    finally:
        os.umask(before)
    assert code == 0
    assert key.stat().st_mode & 0o777 == 0o600 and left in ([], [key.read_bytes()])
    (tmp_path / "m.onnx").write_bytes(b"a graph")
    assert command("sign", tmp_path / "m.onnx", "--key", key)[0] == 0
    signing.demand(tmp_path / "m.onnx", None, tmp_path / "key.pem.pub")
    assert signing.read_model(tmp_path / "m.onnx") == b"a graph"


def test_what_is_no_key_gets_no_public_key(command, tmp_path):
    (tmp_path / "photo.png").write_bytes(b"a photo")
    (tmp_path / "gone.pem").symlink_to(tmp_path / "nowhere")
    for name in ("photo.png", "gone.pem"):
        code, out, errors = command("keygen", tmp_path / name)
        assert (code, out) == (2, "") and f"{name} exists and is kept" in errors
    assert {path.name for path in tmp_path.iterdir()} == {"photo.png", "gone.pem"}


def _altered(model, other):
    model.write_bytes(b"A graph")


def _without_signature(model, other):
    model.with_name("model.onnx.sig").unlink()


def _cut(model, other):
    path = model.with_name("model.onnx.sig")
    path.write_bytes(path.read_bytes()[:-1])


def _longer(model, other):
    with open(model.with_name("model.onnx.sig"), "ab") as file:
        file.write(b"\n")


def _of_another_file(model, other):
    shutil.copy(other, model.with_name("model.onnx.sig"))


@pytest.mark.parametrize("spoil", [_altered, _without_signature, _cut, _longer, _of_another_file])
@pytest.mark.parametrize("verb", ["score", "test", "card", "serve", "export"])
def test_a_file_that_the_owner_did_not_sign_is_never_opened(
    command, signed, image, tmp_path, spoil, verb
):
    model, key, public = signed
    other = tmp_path / "other.onnx"
    other.write_bytes(b"another graph")
    command("sign", other, "--key", key)
    spoil(model, tmp_path / "other.onnx.sig")
    words = {
        "score": (model, image, "-o", tmp_path / "new.csv"),
        "test": (model, "--normal", image, "-o", tmp_path / "new.html"),
        "card": (model,),
        "serve": (tmp_path / "project", "--model", model, "--no-browser"),
        "export": (model, tmp_path / "new.onnx"),
    }
    before = set(tmp_path.iterdir())
    code, out, errors = command(verb, *words[verb], "--public-key", public)
    assert (code, out, errors.count("\n")) == (2, "", 1) and "signature" in errors
    assert set(tmp_path.iterdir()) == before


@pytest.fixture(scope="module")
def two_models(tmp_path_factory):
    """The contents of two models, by extension."""
    folder = tmp_path_factory.mktemp("models")
    generator = np.random.default_rng(0)
    for number in range(2):
        images = generator.integers(0, 256, (16, 8, 8), dtype=np.uint8)
        detector = CapsNetDetector("quick", epochs=1, calibration=0.5, device="cpu")
        detector.fit(images, np.arange(16) % 2).save(folder / f"{number}.safetensors")
        write_onnx(detector, folder / f"{number}.onnx")
    return {
        suffix: [(folder / f"{number}{suffix}").read_bytes() for number in range(2)]
        for suffix in (".safetensors", ".onnx")
    }


@pytest.mark.parametrize("check", ["--public-key", "--expect-sha256"])
@pytest.mark.parametrize("suffix", [".safetensors", ".onnx"])
@pytest.mark.parametrize("verb", ["score", "score parts", "test", "export"])
def test_a_model_that_is_replaced_after_its_check_is_not_loaded(
    command, signed, two_models, image, tmp_path, monkeypatch, verb, suffix, check
):
    model = tmp_path / f"model{suffix}"
    right, wrong = two_models[suffix]
    model.write_bytes(right)
    command("sign", model, "--key", signed[1])
    words = {
        "score": ("score", model, image),
        "score parts": ("score", model, image, "-o", tmp_path / "parts"),
        "test": ("test", model, "--normal", image),
        "export": ("export", model, tmp_path / "new.onnx"),
    }[verb]
    given = signed[2] if check == "--public-key" else hashlib.sha256(right).hexdigest()
    read = signing.read_model

    def replaced_after(path):
        content = read(path)
        path.write_bytes(wrong)
        return content

    monkeypatch.setattr(signing, "read_model", replaced_after)  # the first check reads it from here
    code, out, errors = command(*words, check, given)
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert model.read_bytes() == wrong
    assert ("no signature of this file" if check == "--public-key" else "SHA-256") in errors


@pytest.mark.parametrize("suffix", [".safetensors", ".onnx"])
def test_the_server_checks_a_model_whenever_it_loads_it(signed, two_models, tmp_path, suffix):
    model = tmp_path / f"model{suffix}"
    right, wrong = two_models[suffix]
    model.write_bytes(right)
    signing.sign(model, signed[1])
    signing.demand(model, None, signed[2])
    models = Models(tmp_path / "models", [model])
    models.batcher()
    model.write_bytes(wrong)
    with pytest.raises(ModelFileError, match="no signature of this file"):
        models.batcher()


def test_a_signature_by_another_key(command, signed, image, tmp_path):
    model, *_ = signed
    command("keygen", tmp_path / "stranger.pem")
    code, out, errors = command(
        "score", model, image, "--public-key", tmp_path / "stranger.pem.pub"
    )
    assert (code, out) == (2, "") and "no signature of this file by the key" in errors


def test_what_is_no_key(command, signed, image, tmp_path):
    model, private, public = signed
    junk = tmp_path / "junk.pem"
    junk.write_bytes(b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")
    for wrong in (private, junk, image):
        code, out, errors = command("score", model, image, "--public-key", wrong)
        assert (code, out) == (2, "") and "no public Ed25519 key" in errors
    for wrong in (public, junk, image):
        code, out, errors = command("sign", model, "--key", wrong)
        assert (code, out) == (2, "") and "no private Ed25519 key" in errors
    code, out, errors = command("score", model, image, "--public-key", tmp_path / "none.pub")
    assert (code, out) == (2, "") and "none.pub" in errors


def test_only_model_files_are_signed(command, signed, image):
    code, out, _ = command("sign", image, "--key", signed[1])
    assert (code, out) == (2, "") and not image.with_name("image.png.sig").exists()


def test_serve_needs_a_model_to_check(command, signed, tmp_path):
    code, _, errors = command("serve", tmp_path / "project", "--public-key", signed[2])
    assert code == 2 and "--model" in errors


def test_a_demand_holds_for_every_name_of_the_file(tmp_path):
    model, other, link = (tmp_path / name for name in ("model", "other", "link"))
    model.write_bytes(b"checked")
    other.write_bytes(b"put there later")
    link.symlink_to(model)
    signing.demand(link, hashlib.sha256(b"checked").hexdigest())
    assert signing.read_model(model) == signing.read_model(link) == b"checked"
    model.write_bytes(b"changed")
    link.unlink()
    link.symlink_to(other)
    for name in (model, link):
        with pytest.raises(ModelFileError, match="SHA-256"):
            signing.read_model(name)
