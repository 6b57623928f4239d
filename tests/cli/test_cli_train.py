"""`anocaps train` and `check`: what they print, write and refuse."""

import json
import sys
from dataclasses import asdict

import numpy as np
import pytest
from image_files import write_digits

from anocaps import CapsNetDetector, load
from anocaps.base.files import one_run
from anocaps.cli import terminal
from anocaps.images.decode import Fit
from anocaps.images.folder import ImageFolder
from anocaps.inspect.card import four_lines


@pytest.fixture
def anocaps(command):
    """Runs a command and drops the empty lines of a hidden progress bar."""

    def run(*words):
        code, said, errors = command(*words)
        return code, said, "\n".join(line for line in errors.splitlines() if line)

    return run


@pytest.fixture(scope="module")
def photos(tmp_path_factory, digits):
    return write_digits(tmp_path_factory.mktemp("photos") / "digits", digits, range(4), 30)


QUICK = ("--size", 8, "--epochs", 6, "--device", "cpu")  # below 28 pixels: the quick preset


def test_training_ends_with_the_card_and_the_next_command(anocaps, photos, tmp_path):
    out = tmp_path / "m.safetensors"
    code, said, errors = anocaps("train", photos, "-o", out, *QUICK)
    assert code == 0
    # without a terminal, progress is one plain line at the end of each stage
    time, *stages = errors.splitlines()
    assert "seconds" in time
    assert [line.split(":")[0] for line in stages] == ["training", "self-check"]
    detector = load(out)
    card = detector.card_
    lines = said.splitlines()
    assert "8×8" in lines[0] and lines[1].startswith(card["fit"]) and str(out) in lines[2]
    assert lines[3:-1] == four_lines(card, "")[:3] and f"score {out} NEW_IMAGES" in lines[-1]
    assert list(tmp_path.iterdir()) == [out]

    assert card["classes"] == {f"digit {c}": 30 for c in range(4)}
    assert card["calibration_images"] == 24 and card["preset"] == "quick"
    assert detector.record_["fit"] == asdict(Fit(8, 8, 1, "resize"))
    assert detector.record_["source"]["folder"] == "digits"
    found = card["self_check"]["auroc"]
    assert list(card["self_check"]["left_out"]) == list(card["classes"])[:3]
    assert detector.score_function == "auto"
    assert detector.score_function_ == card["score_function"]
    assert detector.score_function_ == "combined" and "combined" in found
    assert card["self_check"]["synthetic"]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_two_runs_cannot_write_one_file(anocaps, made, photos, tmp_path):
    out = tmp_path / "m.safetensors"
    with one_run(out):
        code, _, errors = anocaps("train", photos, "-o", out, *QUICK)
        assert code == 2 and f"{out} is being written by another run" in errors
        assert not made
    anocaps("train", photos, "-o", out, *QUICK)
    assert len(made) == 1 and not list(tmp_path.iterdir())


def test_a_given_score_function_is_kept(anocaps, photos, tmp_path):
    out = tmp_path / "m.safetensors"
    words = ("--score-function", "re", "--calibration", 0.1, "--json")
    code, said, _ = anocaps("train", photos, "-o", out, *QUICK, *words)
    card = json.loads(said)
    assert code == 0 and (card.pop("schema"), card.pop("model")) == (1, str(out))
    assert card == load(out).card_ and load(out).score_function_ == card["score_function"] == "re"
    assert card["self_check"]["auroc"]["re"] > 0 and card["calibration_images"] == 12


def test_one_class_is_checked_with_synthetic_anomalies(anocaps, photos, tmp_path):
    out = tmp_path / "m.safetensors"
    words = (*QUICK, "--preset", "quick", "--calibration", 0.4)
    code, said, _ = anocaps("train", photos / "digit 0", "-o", out, *words)
    assert code == 0 and load(out).score_function_ == "combined"
    check = load(out).card_["self_check"]
    assert "skipped" in check and check["synthetic"] and "How well: AUROC" in said
    code, said, _ = anocaps("score", out, photos / "digit 1", "--json")  # 6 images: alpha is 0.15
    assert code == 0 and "anomalous" in said


def test_a_poor_self_check_is_a_warning(anocaps, photos, tmp_path, monkeypatch):
    check = {
        "classes": 4,
        "left_out": {"digit 0": {"combined": 0.6}},
        "tested": {"digit 0": {"anomalous": 20, "normal": 30}},
        "auroc": {"combined": 0.6},
        "seconds": 1.0,
    }
    monkeypatch.setattr("anocaps.inspect.selfcheck.self_check", lambda *_: check)
    code, _, errors = anocaps("train", photos, "-o", tmp_path / "m.safetensors", *QUICK, "--json")
    assert code == 0 and errors.startswith("Warning: ") and "0.60" in errors


def test_bad_files_are_refused_or_skipped_and_copies_left_out(anocaps, digits, tmp_path):
    write_digits(tmp_path / "photos", digits, range(2), 20)
    folder = tmp_path / "photos" / "digit 0"
    for name in ("empty.png", "phone.HEIC"):
        (folder / name).write_bytes(b"")
    (folder / "copy.png").write_bytes((folder / "00.png").read_bytes())
    out = tmp_path / "m.safetensors"
    words = ("train", tmp_path / "photos", "-o", out, *QUICK, "--no-self-check")
    code, said, errors = anocaps(*words)
    assert (code, said) == (2, "") and "empty.png" in errors and "--skip-bad" in errors
    assert not out.exists()
    code, said, errors = anocaps(*words, "--skip-bad")
    assert code == 0 and ".heic 1" in errors and "1 bad files" in said
    assert "empty.png" in anocaps("card", out, "--full")[1]
    assert load(out).card_["skipped_files"][0][0].endswith("empty.png")
    assert load(out).card_["images"] == 40 and load(out).card_["copies"] == 1


def test_names_are_escaped_for_a_terminal(anocaps, digits, tmp_path):
    write_digits(tmp_path, digits, [0], 20)
    evil = (tmp_path / "digit 0").rename(tmp_path / "evil\x1b[2J")
    out = tmp_path / "a model\x07.safetensors"
    code, said, errors = anocaps("train", evil, "-o", out, *QUICK, "--preset", "quick")
    assert code == 0 and not {"\x1b", "\x07"} & set(said + errors)
    assert r"a model\x07.safetensors' NEW_IMAGES" in said  # quoted for a shell
    code, _, errors = anocaps("train", tmp_path / "no\x1b[2J", "-o", out)
    assert code == 2 and "\x1b" not in errors


def test_a_folder_too_large_for_memory_is_one_line_of_error(anocaps, photos, tmp_path, monkeypatch):
    def enormous(*_, **__):
        np.empty((10**9, 128, 128, 3), np.uint8)

    monkeypatch.setattr("anocaps.images.folder.ImageFolder", enormous)
    code, _, errors = anocaps("train", photos, "-o", tmp_path / "m.safetensors")
    assert code == 2 and "49,152.0 GB of memory" in errors and "smaller --size" in errors
    assert len(errors.splitlines()) == 1

    def full(*_, **__):
        raise MemoryError

    for place in ("anocaps.images.folder.ImageFolder", "anocaps.cli.commands.train._warn_of_size"):
        with monkeypatch.context() as patched:
            patched.setattr("anocaps.images.folder.ImageFolder", ImageFolder)
            patched.setattr(place, full)
            words = ("train", photos, "-o", tmp_path / "m.safetensors", "--size", 8)
            code, _, errors = anocaps(*words)
        assert code == 2 and "memory" in errors and errors.startswith("Error: ")


def test_a_large_model_file_is_a_warning_before_training(anocaps, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("anocaps.cli.commands.train._LARGE_FILE", 1)
    out = tmp_path / "m.safetensors"
    words = ("--size", 28, "--epochs", 1, "--device", "cpu", "--no-self-check")
    code, _, errors = anocaps("train", photos, "-o", out, *words)
    first = errors.splitlines()[0]
    assert code == 0 and first.startswith("Warning: the model file will have up to ")
    told = int(first.split("up to ")[1].split(" MB")[0])
    assert told == pytest.approx(out.stat().st_size / 1e6, abs=1)


def test_check_exits_with_2_if_training_would_refuse(anocaps, digits, tmp_path):
    write_digits(tmp_path, digits, range(2), 20)
    code, said, errors = anocaps("check", tmp_path)
    assert (code, errors) == (0, "") and "digit 0 20" in said
    (tmp_path / "digit 0" / "empty.png").write_bytes(b"")
    code, said, errors = anocaps("check", tmp_path)
    assert code == 2 and "empty.png" in said and errors.startswith("Error: ")
    code, said, _ = anocaps("check", tmp_path, "--json")
    assert code == 2 and json.loads(said)["refused"] is True


def test_check_tells_the_time_of_training(anocaps, digits, tmp_path):
    write_digits(tmp_path, digits, range(2), 20)
    _, said, _ = anocaps("check", tmp_path, "--json")
    assert json.loads(said)["training_seconds"] > 0
    (tmp_path / "digit 0" / "empty.png").write_bytes(b"")  # training refuses the folder
    _, said, _ = anocaps("check", tmp_path, "--json")
    assert json.loads(said)["training_seconds"] is None


@pytest.fixture
def made(monkeypatch):
    """Collects the detector and the images; nothing is trained."""
    seen = []

    def fit(detector, images, labels, **_):
        seen.append((detector, images, labels))
        raise terminal.Stopped

    monkeypatch.setattr(CapsNetDetector, "fit", fit)
    return seen


def test_options_reach_the_detector(anocaps, made, photos, tmp_path):
    out = tmp_path / "m.safetensors"
    for words, shape, preset in (
        ((), (120, 8, 8, 1), "auto"),
        (("--size", 40, "--colour"), (120, 40, 40, 3), "auto"),
        (("--preset", "quick"), (120, 8, 8, 1), "quick"),
        (("--size", 48, "--preset", "paper"), (120, 48, 48, 1), "paper"),
        (("--fit", "letterbox", "--grey"), (120, 8, 8, 1), "auto"),
    ):
        code, _, errors = anocaps("train", photos, "-o", out, *words)
        assert code == 130 and "nothing was kept" in errors
        detector, images, labels = made[-1]
        assert images.shape == shape and detector.preset == preset, words
        assert len(set(labels)) == 4 and detector.epochs is None
        assert detector.calibration is None  # chosen by the number of images
    anocaps("train", photos, "-o", out, "--calibration", 0.3, "--seed", 7, "--epochs", 3)
    detector = made[-1][0]
    assert (detector.calibration, detector.seed, detector.epochs) == (0.3, 7, 3)


def test_a_dataset_can_be_named(anocaps, made, tmp_path):
    anocaps("train", "--dataset", "digits", "--held-out", "3,4", "-o", tmp_path / "m.safetensors")
    _, images, labels = made[-1]
    assert images.shape[1:] == (8, 8, 1)
    assert set(labels) == set("01256789")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "either a folder"),
        (("PHOTOS", "--dataset", "digits"), "either a folder"),
        (("PHOTOS", "--held-out", "1"), "--held-out is for datasets"),
        (("--dataset", "digits", "--size", 9), "for folders"),
        (("--dataset", "digits", "--grey"), "for folders"),
        (("--dataset", "digits", "--skip-bad"), "for folders"),
        (("PHOTOS", "--preset", "huge"), "huge"),
        (("PHOTOS", "--preset", "paper", "--size", 64), "preset='deep'"),
        (("PHOTOS", "--score-function", "magic"), "magic"),
        (("PHOTOS", "--calibration", "1.5"), "calibration"),
        (("PHOTOS", "--size", 300, "--preset", "deep"), "--size 128"),
        (("PHOTOS", "--device", "mps"), "mps"),
        (("PHOTOS", "--fit", "melt"), "resize, letterbox, crop"),
        (("PHOTOS/digit 0", "--score-function", "pp"), "use combined"),
        (("PHOTOS", "-o", "m.onnx"), "train -o model.safetensors, then anocaps export"),
        (("PHOTOS", "-o", "PHOTOS"), "is a folder"),
        (("PHOTOS", "-o", "/dev/null/m"), "/dev/null"),
    ],
)
def test_impossible_requests_are_refused_before_an_image_is_read(
    anocaps, photos, tmp_path, monkeypatch, words, says
):
    def read(*_):
        raise AssertionError("an image is read")

    monkeypatch.setattr("anocaps.images.reading.read_headers", read)
    monkeypatch.setattr("anocaps.images.reading.read_images", read)
    words = [str(word).replace("PHOTOS", str(photos)) for word in words]
    code, _, errors = anocaps("train", "-o", tmp_path / "m.safetensors", *words)
    assert code == 2 and says in errors and errors.startswith("Error: ")
    assert len(errors.splitlines()) == 1 and not list(tmp_path.iterdir())


def test_stopped_in_the_self_check_the_training_is_kept(anocaps, photos, tmp_path, monkeypatch):
    out = tmp_path / "m.safetensors"

    def stop(*_):
        raise terminal.Stopped

    with monkeypatch.context() as patched:
        patched.setattr("anocaps.inspect.selfcheck.self_check", stop)
        code, _, errors = anocaps("train", photos, "-o", out, *QUICK)
    assert code == 130 and f"{out}.checkpoint; run the same command with --resume" in errors
    assert not out.exists()

    steps = []
    step = "anocaps.training.loop.Run._step"
    from anocaps.training.loop import Run

    whole = Run._step
    with monkeypatch.context() as patched:
        patched.setattr(step, lambda run: steps.append(run) or whole(run))
        code, _, _ = anocaps("train", photos, "-o", out, *QUICK, "--resume", "--no-self-check")
    assert code == 0 and not steps  # nothing was trained again
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("words", [("check",), ("train", "--no-self-check", *QUICK)])
def test_splits_taken_for_classes_are_warned_of_before_any_work(anocaps, tmp_path, words):
    """The files are no images: reading them would fail."""
    for name in ("train/good", "test/good", "test/crack"):
        for k in range(5):
            file = tmp_path / "photos" / name / f"{k}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    code, _, errors = anocaps(words[0], tmp_path / "photos", *words[1:])
    lines = errors.splitlines()
    assert code == 2 and lines[0].startswith("Warning: ") and lines[-1].startswith("Error: ")
    assert f"train {tmp_path}/photos/train -o" in lines[1]
    assert f"--anomalous {tmp_path}/photos/test/crack" in lines[2]


def test_advice_is_printed_once(anocaps, photos, tmp_path, monkeypatch):
    """The extra with the pretrained weights is missing."""
    monkeypatch.delenv("ANOCAPS_WEIGHTS", raising=False)
    for place in ("base.extras", "images.fitting", "detectors.presets"):
        monkeypatch.setattr(f"anocaps.{place}.pretrained_available", lambda: False)
    words = (photos / "digit 0", "-o", tmp_path / "m.safetensors", *QUICK)
    code, _, errors = anocaps("train", *words)
    assert code == 0 and errors.count("anocaps[photo]") == 1
