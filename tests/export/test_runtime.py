"""Scoring an exported model: refuses what is not one, agrees with the detector, needs no torch."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from anocaps.base.errors import InputError, ModelFileError
from anocaps.detectors import CapsNetDetector
from anocaps.export.runtime import OnnxModel
from anocaps.export.seal import FORMAT_VERSION, sealed
from anocaps.export.writer import export

ROOT = Path(__file__).resolve().parents[2]

# A program that runs `anocaps …` where these cannot be imported.
WITHOUT = ("torch", "sklearn", "scipy", "safetensors", "triton", "onnx", "pooch")
WITHOUT_TORCH = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {WITHOUT}:
            raise ModuleNotFoundError("No module named " + name, name=name)

sys.meta_path.insert(0, Refuse())
from anocaps.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def detector(digits):
    normal = digits.train.labels < 3
    detector = CapsNetDetector(preset="quick", epochs=6, score_function="pp+re", device="cpu")
    labels = np.array(["nought", "one", "two"])[digits.train.labels[normal]]
    return detector.fit(digits.train.images[normal], labels)


@pytest.fixture(scope="module")
def exported(detector, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    export(detector, path)
    detector.save(path.with_suffix(".safetensors"))
    return path


@pytest.fixture(scope="module")
def photos(digits, tmp_path_factory):
    """Some digits of all kinds as files, larger than the model takes them, and a broken one."""
    folder = tmp_path_factory.mktemp("new")
    for index, image in enumerate(digits.test.images[:40]):
        Image.fromarray(image).resize((24, 20)).save(folder / f"{index:02}.png")
    (folder / "broken.png").write_bytes(b"not an image")
    return folder


# ── files that are not what was exported ─────────────────────────────────────────────────────


@pytest.fixture
def no_engine(monkeypatch):
    """The engine must never see such a file."""
    import onnxruntime

    def fail(*_, **__):
        raise AssertionError("the engine got a file that must be refused first")

    monkeypatch.setattr(onnxruntime, "InferenceSession", fail)


def test_every_edit_is_refused_before_the_engine_sees_it(exported, tmp_path, no_engine):
    content = exported.read_bytes()
    path = tmp_path / "edited.onnx"
    places = [*range(0, len(content), len(content) // 60), *range(len(content) - 90, len(content))]
    for place in places:
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(ModelFileError, match=r"edited\.onnx: "):
            OnnxModel(path)


@pytest.mark.parametrize("length", [0, 1, 50, 1000, -1, -86, -87])
def test_a_file_cut_short_is_refused(exported, tmp_path, no_engine, length):
    path = tmp_path / "short.onnx"
    path.write_bytes(exported.read_bytes()[:length])
    with pytest.raises(ModelFileError, match=r"short\.onnx"):
        OnnxModel(path)


def test_a_file_with_more_at_its_end_is_refused(exported, tmp_path, no_engine):
    path = tmp_path / "long.onnx"
    path.write_bytes(exported.read_bytes() + exported.read_bytes()[-1:])
    with pytest.raises(ModelFileError, match=r"long\.onnx"):
        OnnxModel(path)


def test_what_is_no_file_of_ours_is_refused(detector, exported, tmp_path, no_engine):
    other = onnx.load(exported)
    del other.metadata_props[:]
    onnx.save(other, tmp_path / "other.onnx")
    files = tmp_path / "other.onnx", exported.with_suffix(".safetensors"), tmp_path / "none.onnx"
    for path in (*files, tmp_path):
        with pytest.raises(ModelFileError, match=path.name):
            OnnxModel(path)


def rewritten(exported, path, **changes):
    """The exported model with other metadata, and a seal that fits."""
    model = onnx.load(exported)
    about = json.loads(model.metadata_props[0].value) | changes
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {"anocaps": json.dumps(about)})
    path.write_bytes(sealed(model.SerializeToString()))
    return path


def test_a_newer_format_says_to_upgrade(exported, tmp_path):
    with pytest.raises(ModelFileError, match=r"newer anocaps.*upgrade"):
        OnnxModel(rewritten(exported, tmp_path / "newer.onnx", format=FORMAT_VERSION + 1))
    OnnxModel(rewritten(exported, tmp_path / "same.onnx", format=FORMAT_VERSION))


def test_an_older_format_says_to_train_again(exported, tmp_path):
    with pytest.raises(ModelFileError, match=r"older anocaps.*train"):
        OnnxModel(rewritten(exported, tmp_path / "older.onnx", format=1))


BAD_FIT = {"height": 8, "width": 8, "channels": 7, "how": "resize"}


@pytest.mark.parametrize(
    "changes", [{"scores": None}, {"fit": {"height": 1}}, {"images": 3}, {"fit": BAD_FIT}]
)
def test_metadata_that_do_not_fit_are_refused(exported, tmp_path, changes):
    with pytest.raises(ModelFileError, match=r"wrong\.onnx"):
        OnnxModel(rewritten(exported, tmp_path / "wrong.onnx", **changes))


def test_a_graph_that_the_engine_cannot_load_is_one_line(tmp_path):
    (tmp_path / "broken.onnx").write_bytes(sealed(b"no graph at all"))
    with pytest.raises(ModelFileError, match=r"broken\.onnx") as refusal:
        OnnxModel(tmp_path / "broken.onnx")
    assert "\n" not in str(refusal.value)


# ── images ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "tpu"])
def test_another_device_than_the_cpu_is_refused(exported, device):
    with pytest.raises(InputError, match=device):
        OnnxModel(exported, device)


def test_any_number_of_images_in_their_order(exported, digits):
    model, images = OnnxModel(exported), digits.test.images[:67, ..., None]
    whole = model.judge(images)
    for index in (0, 31, 32, 66):
        alone = model.judge(images[index : index + 1])
        for name in model.score_names:
            assert alone.scores[name][0] == pytest.approx(whole.scores[name][index], rel=1e-4)
        assert alone.predicted[0] == whole.predicted[index]


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((2, 8, 8), np.uint8),
        np.zeros((2, 8, 9, 1), np.uint8),
        np.zeros((2, 8, 8, 1), np.float32),
        np.zeros((0, 8, 8, 1), np.uint8),
    ],
    ids=["no channel axis", "another size", "floats", "none"],
)
def test_images_of_another_kind_are_refused(exported, images):
    with pytest.raises(InputError, match="takes uint8 arrays of N×8×8×1"):
        OnnxModel(exported).judge(images)


def test_a_model_of_two_channels_judges_arrays_and_refuses_files(digits, tmp_path):
    images = np.stack([digits.train.images, 255 - digits.train.images], axis=3)[:200]
    detector = CapsNetDetector(preset="quick", epochs=1, device="cpu")
    export(detector.fit(images, digits.train.labels[:200]), tmp_path / "model.onnx")
    model = OnnxModel(tmp_path / "model.onnx")
    assert len(model.judge(images[:5]).predicted) == 5
    with pytest.raises(InputError, match="2 channels"):
        _ = model.fit


# ── without torch ────────────────────────────────────────────────────────────────────────────


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def assert_same_rows(found, wanted):
    assert [row["file"] for row in found] == [row["file"] for row in wanted]
    for row, expected in zip(found, wanted):
        assert row.keys() == expected.keys()
        for name, value in expected.items():
            if name in ("file", "class", "error", "verdict") or value == "":
                assert row[name] == value
            else:
                assert float(row[name]) == pytest.approx(float(value), rel=1e-4, abs=2e-5)


@pytest.fixture(scope="module")
def wanted_rows(detector, photos):
    """What the detector itself gives for the files, by the one scoring path."""
    from anocaps.detectors.judge import DetectorJudge
    from anocaps.images.walk import list_images
    from anocaps.inspect.scoring import score_batches

    batches = score_batches(DetectorJudge(detector), list_images([photos]), alpha=0.1)
    rows = [scored.row for batch in batches for scored in batch]
    return [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows]


def command(*words):
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=300)


def test_the_command_line_scores_without_torch(exported, photos, wanted_rows, tmp_path):
    out, maps = tmp_path / "scores.csv", tmp_path / "maps"
    words = ["score", exported, photos, "-o", out, "--alpha", "0.1"]
    words += ["--gallery", tmp_path / "gallery.html", "--heatmaps", maps]
    done = command(sys.executable, "-c", WITHOUT_TORCH, *words)
    assert done.returncode == 0, done.stderr
    assert_same_rows(rows_of(out), wanted_rows)
    assert {row["verdict"] for row in wanted_rows} == {"normal", "anomalous", ""}
    assert sum(bool(row["error"]) for row in wanted_rows) == 1
    assert len(list(maps.rglob("*.png"))) == 40
    assert (tmp_path / "gallery.html").stat().st_size > 10_000


def test_the_command_line_shows_the_card_without_torch(detector, exported, tmp_path):
    done = command(sys.executable, "-c", WITHOUT_TORCH, "card", exported, "--json")
    assert json.loads(done.stdout) == {"schema": 1, "model": str(exported)} | detector.card_
    bare = rewritten(exported, tmp_path / "bare.onnx", card=None)
    done = command(sys.executable, "-c", WITHOUT_TORCH, "card", bare)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"Error: .*bare\.onnx: there is no model card in it; .*\n", done.stderr)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["score", "{model}.safetensors", "{photos}"], "'anocaps[train]'"),
        (["export", "{model}.safetensors", "{tmp}/model.onnx"], "'anocaps[export]'"),
    ],
    ids=["score", "export"],
)
def test_what_needs_more_says_what_to_install(exported, photos, tmp_path, words, wanted):
    places = {"tmp": tmp_path, "model": exported.with_suffix(""), "photos": photos}
    done = command(sys.executable, "-c", WITHOUT_TORCH, *(word.format(**places) for word in words))
    assert done.returncode == 2, done.stderr
    advice = rf"Error: this needs \S+, which is not installed: pip install {re.escape(wanted)}\n"
    assert re.fullmatch(advice, done.stderr)


@pytest.mark.parametrize("kind", ["edited", "short", "other", "retold"])
def test_the_command_line_refuses_a_bad_file_with_one_line(exported, photos, tmp_path, kind):
    content = exported.read_bytes()
    half = len(content) // 2
    bad = {"edited": content[:half] + b"?" + content[half + 1 :], "short": content[:half]}
    path, out = tmp_path / "bad.onnx", tmp_path / "scores.csv"
    path.write_bytes(bad.get(kind, b"\x08\x07\x12\x00"))
    if kind == "retold":
        rewritten(exported, path, classes={"nought": 1})
    for words in (["score", path, photos, "-o", out], ["card", path]):
        done = command(sys.executable, "-c", WITHOUT_TORCH, *words)
        assert (done.returncode, done.stdout) == (2, "") and not out.exists()
        assert re.fullmatch(r"Error: .*bad\.onnx: .*\n", done.stderr), done.stderr
