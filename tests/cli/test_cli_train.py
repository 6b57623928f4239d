"""`anocaps train` as a user meets it: what is printed, written, refused."""

import json
import sys
from contextlib import suppress
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image

from anocaps import CapsNetDetector, load
from anocaps.base.files import one_run
from anocaps.cli import terminal
from anocaps.cli import train as cli_train
from anocaps.images.decode import Fit
from anocaps.images.folder import ImageFolder
from anocaps.inspect.card import four_lines


@pytest.fixture
def anocaps(command):
    """Runs a command, and drops the empty lines that a bar leaves which is not shown."""

    def run(*words):
        code, said, errors = command(*words)
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
    assert code == 0
    # no terminal here, so a plain line at the end of each stage
    assert [line.split(",")[0] for line in errors.splitlines()] == [
        "training: step 18 of 18",
        "self-check: step 54 of 54",
    ]
    detector = load(out)
    card = detector.card_
    lines = said.splitlines()
    assert lines[0] == card["fit"] and str(out) in lines[1]
    assert lines[2:-1] == four_lines(card, "")[:3] and f"score {out} NEW_IMAGES" in lines[-1]
    assert list(tmp_path.iterdir()) == [out]

    assert card["classes"] == {f"digit {c}": 30 for c in range(4)}
    assert card["calibration_images"] == 24 and card["preset"] == "quick"
    assert detector.record_["fit"] == asdict(Fit(8, 8, 1, "resize"))
    assert detector.record_["source"] == {"folder": "digits"}
    found = card["self_check"]["auroc"]
    assert list(card["self_check"]["left_out"]) == list(card["classes"])[:3]
    assert detector.score_function == "auto"
    assert detector.score_function_ == card["score_function"]
    assert found[detector.score_function_] == max(found[n] for n in ("knn", "pp", "re", "pp+re"))


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_two_runs_do_not_train_one_file(anocaps, made, photos, tmp_path):
    out = tmp_path / "m.safetensors"
    with one_run(out):
        code, _, errors = anocaps("train", photos, "-o", out, *QUICK)
        assert code == 2 and f"{out} is being written by another run" in errors
        assert not made
    anocaps("train", photos, "-o", out, *QUICK)
    assert len(made) == 1 and not list(tmp_path.iterdir())


def test_a_score_function_that_is_given_stays(anocaps, photos, tmp_path):
    out = tmp_path / "m.safetensors"
    words = ("--score-function", "re", "--calibration", 0.1, "--json")
    code, said, _ = anocaps("train", photos, "-o", out, *QUICK, *words)
    card = json.loads(said)
    assert code == 0 and card.pop("model") == str(out)
    assert card == load(out).card_ and load(out).score_function_ == card["score_function"] == "re"
    assert card["self_check"]["auroc"]["re"] > 0 and card["calibration_images"] == 12


def test_one_class_has_no_self_check(anocaps, photos, tmp_path):
    out = tmp_path / "m.safetensors"
    code, said, _ = anocaps("train", photos / "digit 0", "-o", out, *QUICK)
    assert code == 0 and load(out).score_function_ == "knn"
    assert "skipped" in load(out).card_["self_check"]
    code, said, _ = anocaps("score", out, photos / "digit 1", "--json")  # 6 images: alpha is 0.15
    assert code == 0 and "anomalous" in said


def test_a_poor_self_check_is_a_warning(anocaps, photos, tmp_path, monkeypatch):
    check = {
        "classes": 4,
        "left_out": {"digit 0": {"knn": 0.6}},
        "tested": {"digit 0": {"odd": 20, "normal": 30}},
        "auroc": {"knn": 0.6},
        "seconds": 1.0,
    }
    monkeypatch.setattr("anocaps.inspect.selfcheck.self_check", lambda *_: check)
    code, _, errors = anocaps("train", photos, "-o", tmp_path / "m.safetensors", *QUICK, "--json")
    assert code == 0 and errors.startswith("Warning: ") and "0.60" in errors


def test_bad_files_are_refused_or_skipped(anocaps, digits, tmp_path):
    write_digits(tmp_path / "photos", digits, range(2), 20)
    for name in ("empty.png", "phone.HEIC"):
        (tmp_path / "photos" / "digit 0" / name).write_bytes(b"")
    out = tmp_path / "m.safetensors"
    words = ("train", tmp_path / "photos", "-o", out, *QUICK, "--no-self-check")
    code, said, errors = anocaps(*words)
    assert (code, said) == (2, "") and "empty.png" in errors and "--skip-bad" in errors
    assert not out.exists()
    assert ".heic 1" in anocaps("check", tmp_path / "photos")[1]
    code, said, errors = anocaps(*words, "--skip-bad")
    assert code == 0 and ".heic 1" in errors and "1 bad files" in said
    assert "empty.png" in anocaps("card", out, "--full")[1]
    assert load(out).card_["skipped_files"][0][0].endswith("empty.png")
    assert load(out).card_["images"] == 40


def test_copies_are_left_out_and_counted(anocaps, digits, tmp_path):
    write_digits(tmp_path / "photos", digits, range(2), 20)
    first = min((tmp_path / "photos" / "digit 0").iterdir())
    for name in ("copy.png", "other.png"):
        (first.parent / name).write_bytes(first.read_bytes())
    out = tmp_path / "m.safetensors"
    code, said, _ = anocaps("train", tmp_path / "photos", "-o", out, *QUICK, "--no-self-check")
    assert code == 0 and "2 copies" in said
    assert load(out).card_["copies"] == 2 and load(out).card_["images"] == 40


def test_names_cannot_steer_the_terminal(anocaps, digits, tmp_path):
    write_digits(tmp_path, digits, [0], 20)
    evil = (tmp_path / "digit 0").rename(tmp_path / "evil\x1b[2J")
    out = tmp_path / "a model\x07.safetensors"
    code, said, errors = anocaps("train", evil, "-o", out, *QUICK)
    assert code == 0 and not {"\x1b", "\x07"} & set(said + errors)
    assert r"a model\x07.safetensors' NEW_IMAGES" in said  # quoted for a shell
    code, _, errors = anocaps("train", tmp_path / "no\x1b[2J", "-o", out)
    assert code == 2 and "\x1b" not in errors


def test_a_folder_too_large_for_memory_says_how_much_it_takes(
    anocaps, photos, tmp_path, monkeypatch
):
    def enormous(*_, **__):
        np.empty((10**9, 128, 128, 3), np.uint8)

    monkeypatch.setattr("anocaps.images.folder.ImageFolder", enormous)
    code, _, errors = anocaps("train", photos, "-o", tmp_path / "m.safetensors")
    assert code == 2 and "49,152.0 GB of memory" in errors and "smaller --size" in errors
    assert len(errors.splitlines()) == 1

    def full(*_, **__):
        raise MemoryError

    for place in ("anocaps.images.folder.ImageFolder", "anocaps.cli.train._warn_of_size"):
        with monkeypatch.context() as patched:
            patched.setattr("anocaps.images.folder.ImageFolder", ImageFolder)
            patched.setattr(place, full)
            code, _, errors = anocaps("train", photos, "-o", tmp_path / "m.safetensors", "--size", 8)
        assert code == 2 and "memory" in errors and errors.startswith("Error: ")


def test_a_large_model_file_is_told_before_training(anocaps, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("anocaps.cli.train._LARGE_FILE", 1)
    out = tmp_path / "m.safetensors"
    words = ("--size", 28, "--epochs", 1, "--device", "cpu", "--no-self-check")
    code, _, errors = anocaps("train", photos, "-o", out, *words)
    first = errors.splitlines()[0]
    assert code == 0 and first.startswith("Warning: the model file will have up to ")
    told = int(first.split("up to ")[1].split(" MB")[0])
    assert told == pytest.approx(out.stat().st_size / 1e6, abs=1)


def test_up_to_200_classes_the_file_is_not_large(capsys):
    for classes, warned in ((200, False), (1000, True)):
        images = np.broadcast_to(np.uint8(0), (5000, 128, 128, 3))
        labels = np.arange(5000) % classes
        cli_train._warn_of_size(cli_train._Data(images, labels, {}), "deep", None)
        assert bool(capsys.readouterr().err) == warned


def test_progress_without_a_terminal_is_a_line_now_and_then(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock[0])
    with terminal.training_bar("training", shown=True) as tell:
        for step, seconds in ((100, 10), (200, 31), (300, 45), (400, 62), (450, 70)):
            clock[0] = seconds
            tell(step, 1000, 0.5, 1234.0)
    assert capsys.readouterr().err.splitlines() == [
        "training: step 200 of 1,000, loss 0.5000, 1,234 images/s, 31 s so far, 3 min left",
        "training: step 400 of 1,000, loss 0.5000, 1,234 images/s, 62 s so far, 2 min left",
        "training: step 450 of 1,000, loss 0.5000, 1,234 images/s, 70 s so far, 2 min left",
    ]
    with terminal.cells_bar(shown=True) as tell:  # over in no time: nothing to say
        tell(3, 10)
    with suppress(KeyError), terminal.training_bar("training", shown=True) as tell:
        tell(1, 10, 0.5, 1.0)
        raise KeyError  # which has a line of its own
    assert capsys.readouterr().err == ""


def test_check_says_what_is_in_a_folder(anocaps, photos, tmp_path):
    code, said, errors = anocaps("check", photos)
    assert (code, errors) == (0, "") and "120 images in 4 classes: digit 0 30, digit 1 30" in said
    assert said.splitlines()[-1].startswith("For training: Images are read in grey")
    code, said, _ = anocaps("check", photos, "--json")
    assert code == 0 and json.loads(said)["classes"] == {f"digit {c}": 30 for c in range(4)}
    code, said, errors = anocaps("check", tmp_path)
    assert (code, said) == (2, "") and "no images and no sub-folders" in errors
    (tmp_path / "a.png").touch()
    code, said, errors = anocaps("check", tmp_path)
    assert code == 2 and "a.png is empty" in said and "no image here that can be read" in errors


def test_check_exits_with_2_where_training_would_refuse(anocaps, digits, tmp_path):
    write_digits(tmp_path, digits, range(2), 20)
    assert anocaps("check", tmp_path)[0] == 0
    (tmp_path / "digit 0" / "empty.png").write_bytes(b"")
    code, said, errors = anocaps("check", tmp_path)
    assert code == 2 and "empty.png is empty" in said and "For training" in said
    assert errors.startswith("Error: ") and "training would refuse it" in errors
    code, said, _ = anocaps("check", tmp_path, "--json")
    assert code == 2 and json.loads(said)["refused"] is True


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
    out = tmp_path / "m.safetensors"
    for words, shape, preset in (
        ((), (120, 32, 32, 1), "auto"),
        (("--size", 40, "--colour"), (120, 40, 40, 3), "auto"),
        (("--preset", "quick"), (120, 32, 32, 1), "quick"),
        (("--size", 48, "--preset", "paper"), (120, 48, 48, 1), "paper"),
        (("--fit", "letterbox", "--grey"), (120, 32, 32, 1), "auto"),
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


def test_how_files_are_fitted_is_the_users_choice(anocaps, made, tmp_path):
    for index in range(6):
        (tmp_path / "wide").mkdir(exist_ok=True)
        image = Image.new("L", (80, 40), 255)
        image.paste(20 * index, (30, 10, 50, 30))  # in the middle: no two are alike
        image.save(tmp_path / "wide" / f"{index}.png")
    dark = {}  # pixels of the first one's middle
    for how in ("resize", "letterbox", "crop"):
        anocaps("train", tmp_path / "wide", "-o", tmp_path / "m.safetensors", "--size", 32, "--fit", how)
        dark[how] = int(np.sum(made[-1][1][0] < 128))
    assert dark == {"resize": 8 * 16, "letterbox": 8 * 8, "crop": 16 * 16}
    code, _, errors = anocaps("train", tmp_path / "wide", "-o", tmp_path / "m.safetensors", "--fit", "melt")
    assert code == 2 and "resize, letterbox, crop" in errors


def test_datasets_by_name_work_too(anocaps, made, tmp_path):
    anocaps("train", "--dataset", "digits", "--held-out", "3,4", "-o", tmp_path / "m.safetensors")
    _, images, labels = made[-1]
    assert images.shape[1:] == (8, 8)
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
        (("PHOTOS", "--size", 300), "--size 128"),
        (("PHOTOS", "--device", "mps"), "mps"),
        (("PHOTOS", "--fit", "melt"), "resize, letterbox, crop"),
        (("PHOTOS/digit 0", "--score-function", "pp"), "use knn or re"),
        (("PHOTOS", "-o", "m.onnx"), "train -o model.safetensors, then anocaps export"),
        (("PHOTOS", "-o", "PHOTOS"), "is a folder"),
        (("PHOTOS", "-o", "/dev/null/m"), "/dev/null"),
    ],
)
def test_what_cannot_be_is_refused_before_reading(
    anocaps, photos, tmp_path, monkeypatch, words, says
):
    def read(*_):
        raise AssertionError("an image is read")

    monkeypatch.setattr("anocaps.images.decode.read_headers", read)
    monkeypatch.setattr("anocaps.images.decode.read_images", read)
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
