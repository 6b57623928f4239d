"""`anocaps train` as a user meets it: what is printed, written, refused."""

import json
import signal
import sys
import warnings

import numpy as np
import pytest
from PIL import Image

from anocaps import CapsNetDetector, cli, load, terminal
from anocaps.card import sentences


@pytest.fixture
def anocaps(capsys, monkeypatch):
    """Runs a command here: code, output, errors."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # put back afterwards

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["anocaps", *map(str, words)])
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code or 0
        said, errors = capsys.readouterr()
        # a bar that is not shown leaves empty lines
        return code, said, "\n".join(line for line in errors.splitlines() if line)

    return run


def write_digits(folder, digits, classes, count):
    """PNG files of 8×8 pixels, a sub-folder per digit."""
    for digit in classes:
        place = folder / f"digit {digit}"
        place.mkdir(parents=True)
        for index in np.flatnonzero(digits.train.labels == digit)[:count]:
            Image.fromarray(digits.train.images[index]).save(place / f"{index:04}.png")


@pytest.fixture(scope="module")
def photos(tmp_path_factory, digits):
    folder = tmp_path_factory.mktemp("photos") / "digits"
    write_digits(folder, digits, range(4), 30)
    return folder


QUICK = ("--size", 8, "--epochs", 6, "--device", "cpu")  # below 28 pixels: the quick preset


def test_it_ends_with_the_card_and_the_next_command(anocaps, photos, tmp_path):
    out = tmp_path / "m.safetensors"
    code, said, errors = anocaps("train", photos, "-o", out, *QUICK)
    assert (code, errors) == (0, "")
    lines = said.splitlines()
    assert lines[0] == "Images are read in grey and resized to 8×8 pixels."  # before training
    detector = load(out)
    card = detector.card_
    assert lines[1:-2] == sentences(card)
    assert lines[-2].startswith(f"Model: {out} (0.") and f"score {out} NEW_IMAGES" in lines[-1]
    assert list(tmp_path.iterdir()) == [out]

    assert card["classes"] == {f"digit {c}": 30 for c in range(4)}
    assert card["calibration_images"] == 24 and "--alpha" not in lines[-1]
    assert detector.preset == "quick" and detector.record_["fit"] == {
        "height": 8, "width": 8, "channels": 1, "how": "resize",
    }  # fmt: skip
    assert detector.record_["source"] == {"folder": "digits"}
    found = card["self_check"]["auroc"]
    assert set(card["self_check"]["left_out"]) == set(card["classes"])
    choices = ("knn", "pp", "re", "pp+re")
    assert found[detector.score] == max(found[name] for name in choices)
    assert detector.score == card["score"] and "best in the self-check" in card["score_reason"]


def test_a_score_that_is_given_stays(anocaps, photos, tmp_path):
    out = tmp_path / "m.safetensors"
    words = ("--score", "re", "--calibration", 0.1, "--json")
    code, said, _ = anocaps("train", photos, "-o", out, *QUICK, *words)
    card = json.loads(said)
    assert code == 0 and card.pop("model") == str(out)
    assert card == load(out).card_
    assert load(out).score == card["score"] == "re" and card["score_reason"] == "it was asked for"
    assert card["self_check"]["auroc"]["re"] > 0 and card["calibration_images"] == 12


def test_without_a_self_check_the_score_is_the_usual_one(anocaps, photos, tmp_path):
    out = tmp_path / "m.safetensors"
    code, said, _ = anocaps("train", photos, "-o", out, *QUICK, "--no-self-check")
    assert code == 0 and load(out).score == "knn"
    assert "Score: knn; the usual one." in said and "Self-check: none." in said


def test_one_class_has_no_self_check(anocaps, photos, tmp_path):
    out = tmp_path / "m.safetensors"
    code, said, errors = anocaps("train", photos / "digit 0", "-o", out, *QUICK)
    assert code == 0 and "one class, digit 0" in said and "none can be left out" in said
    assert errors.splitlines() == [
        "Warning: only one normal class (digit 0): scores that compare classes cannot be used"
    ]
    assert load(out).score == "knn"
    # 6 images cannot resolve the usual 0.05
    assert "--alpha can be 0.15 or more; 0.05, the usual one, needs 19" in said
    assert said.splitlines()[-1].endswith("--alpha 0.15")
    code, _, errors = anocaps("train", photos / "digit 0", "-o", out, *QUICK, "--score", "pp")
    assert code == 2 and "use knn or re" in errors


def test_a_poor_self_check_is_told_in_plain_words(anocaps, photos, tmp_path, monkeypatch):
    def poor(*_):
        return {"classes": 4, "left_out": {"digit 0": {"knn": 0.6}}, "auroc": {"knn": 0.6}}

    monkeypatch.setattr("anocaps.selfcheck.self_check", poor)
    code, said, errors = anocaps("train", photos, "-o", tmp_path / "m", *QUICK)
    assert code == 0 and "AUROC 0.60 to expect" in said
    assert errors.startswith("Warning: the self-check was poor: AUROC 0.60")
    assert anocaps("train", photos, "-o", tmp_path / "m", *QUICK, "--json")[2] == errors


def test_bad_files_are_refused_or_skipped(anocaps, digits, tmp_path):
    write_digits(tmp_path / "photos", digits, range(2), 20)
    (tmp_path / "photos" / "digit 0" / "empty.png").write_bytes(b"")
    out = tmp_path / "m.safetensors"
    words = ("train", tmp_path / "photos", "-o", out, *QUICK, "--no-self-check")
    code, said, errors = anocaps(*words)
    assert (code, said) == (2, "") and "empty.png" in errors and "--skip-bad" in errors
    assert not out.exists()
    code, said, errors = anocaps(*words, "--skip-bad")
    assert code == 0 and "One file was skipped:" in said and "empty.png is empty" in said
    assert load(out).card_["skipped_files"][0][0].endswith("empty.png")
    assert load(out).card_["images"] == 40


@pytest.fixture
def made(monkeypatch):
    """The detector that would be trained, and the images; nothing is trained."""
    seen = []

    def fit(detector, images, labels, **_):
        seen.append((detector, images, labels))
        raise terminal.Stopped

    monkeypatch.setattr(CapsNetDetector, "fit", fit)
    return seen


def test_settings_arrive(anocaps, made, photos, tmp_path):
    out = tmp_path / "m"
    for words, shape, preset in (
        ((), (120, 32, 32, 1), "deep"),
        (("--size", 40, "--colour"), (120, 40, 40, 3), "deep"),
        (("--preset", "quick"), (120, 32, 32, 1), "quick"),
        (("--size", 20), (120, 20, 20, 1), "quick"),
        (("--size", 64, "--preset", "paper"), (120, 64, 64, 1), "paper"),
        (("--fit", "letterbox", "--grey"), (120, 32, 32, 1), "deep"),
    ):
        code, _, errors = anocaps("train", photos, "-o", out, *words)
        assert code == 130 and "nothing was kept" in errors
        detector, images, labels = made[-1]
        assert images.shape == shape and detector.preset == preset, words
        assert len(set(labels)) == 4 and detector.epochs is None
        assert detector.calibration == 0.2  # of 120 images
    anocaps("train", photos, "-o", out, "--calibration", 0.3, "--seed", 7, "--epochs", 3)
    detector = made[-1][0]
    assert (detector.calibration, detector.seed, detector.epochs) == (0.3, 7, 3)


def test_how_files_are_fitted_is_the_users_choice(anocaps, made, tmp_path):
    for index in range(6):
        (tmp_path / "wide").mkdir(exist_ok=True)
        Image.new("L", (80, 40), 255).save(tmp_path / "wide" / f"{index}.png")
    corners = {}
    for how in ("resize", "letterbox", "crop"):
        anocaps("train", tmp_path / "wide", "-o", tmp_path / "m", "--size", 32, "--fit", how)
        corners[how] = int(made[-1][1][0, 0, 0, 0])
    assert corners == {"resize": 255, "letterbox": 0, "crop": 255}
    code, _, errors = anocaps("train", tmp_path / "wide", "-o", tmp_path / "m", "--fit", "melt")
    assert code == 2 and "resize, letterbox, crop" in errors


def test_datasets_by_name_work_too(anocaps, made, tmp_path):
    anocaps("train", "--dataset", "digits", "--held-out", "3,4", "-o", tmp_path / "m")
    detector, images, labels = made[-1]
    assert detector.preset == "quick" and images.shape[1:] == (8, 8)
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
        (("PHOTOS", "--score", "magic"), "magic"),
        (("PHOTOS", "--calibration", "1.5"), "calibration"),
        (("PHOTOS", "--size", 300), "--size 128"),
        (("PHOTOS", "--device", "mps"), "mps"),
    ],
)
def test_what_cannot_be_is_refused(anocaps, photos, tmp_path, words, says):
    words = [photos if word == "PHOTOS" else word for word in words]
    code, _, errors = anocaps("train", *words, "-o", tmp_path / "m.safetensors")
    assert code == 2 and says in errors and errors.startswith("Error: ")
    assert len(errors.splitlines()) == 1 and not list(tmp_path.iterdir())


def test_stopped_in_the_self_check_the_training_is_kept(anocaps, photos, tmp_path, monkeypatch):
    out = tmp_path / "m.safetensors"

    def stop(*_):
        raise terminal.Stopped

    with monkeypatch.context() as patched:
        patched.setattr("anocaps.selfcheck.self_check", stop)
        code, _, errors = anocaps("train", photos, "-o", out, *QUICK)
    assert code == 130 and f"{out}.checkpoint; run the same command with --resume" in errors
    assert not out.exists()

    steps = []
    step = "anocaps.training.Run._step"
    from anocaps.training import Run

    whole = Run._step
    with monkeypatch.context() as patched:
        patched.setattr(step, lambda run: steps.append(run) or whole(run))
        code, _, _ = anocaps("train", photos, "-o", out, *QUICK, "--resume", "--no-self-check")
    assert code == 0 and not steps  # nothing was trained again
    assert list(tmp_path.iterdir()) == [out]
