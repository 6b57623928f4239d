"""The command line as a user meets it: a process, its output, its exit code."""

import csv
import json
import os
import signal
import struct
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
from PIL import Image

from anocaps.cli import train as cli_train


def anocaps(*words, **options):
    """Run `anocaps …`; no stack trace may ever be shown."""
    done = subprocess.run(
        [sys.executable, "-m", "anocaps", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        **options,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def refused(*words, says):
    """The command must fail with exit code 2 and one line that says what is wrong."""
    done = anocaps(*words)
    assert done.returncode == 2, done
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("Error: "), done.stderr
    for part in [says] if isinstance(says, str) else says:
        assert part in lines[0]


@pytest.fixture(scope="module")
def photos(tmp_path_factory, digits):
    """Digits 0 to 2 as a folder of PNG files, and a folder of new images, some of them 7s."""
    root = tmp_path_factory.mktemp("photos")
    for index, (image, label) in enumerate(zip(digits.train.images, digits.train.labels)):
        if label < 3:
            folder = root / "normal" / f"digit {label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{index:04}.png")
    (root / "new").mkdir()
    test = digits.test
    for wanted in (0, 1, 2, 7):
        for index in np.flatnonzero(test.labels == wanted)[:12]:
            Image.fromarray(test.images[index]).save(root / "new" / f"{wanted}-{index:04}.png")
    return root


@pytest.fixture(scope="module")
def model(photos, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    words = ("--size", 8, "--score", "pp+re", "--epochs", 12, "--calibration", 0.2)
    done = anocaps("train", photos / "normal", "-o", path, *words, "--no-self-check")
    assert done.returncode == 0, done.stderr
    assert str(path) in done.stdout and "3 classes" in done.stdout
    return path


def test_help_shows_commands_and_examples_and_imports_nothing_heavy():
    commands = ("demo", "evaluate", "train", "card", "check", "score", "data list", "data fetch")
    for command in commands:
        done = anocaps(*command.split(), "--help")
        assert done.returncode == 0 and "Example" in done.stdout, command
    code = (
        "import sys; sys.argv = ['anocaps', '--help']\n"
        "from anocaps.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'sklearn', 'PIL', 'pooch'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_train_then_score_tells_the_odd_ones(model, photos, tmp_path):
    out = tmp_path / "scores.csv"
    done = anocaps("score", model, photos / "new", "-o", out, "--alpha", 0.1)
    assert done.returncode == 0 and "48 images" in done.stdout
    rows = list(csv.DictReader(out.open()))
    assert list(rows[0])[:6] == ["file", "score", "p_value", "verdict", "class", "error"]
    assert len(rows) == 48 and not any(row["error"] for row in rows)
    odd = ["/7-" in row["file"] for row in rows]
    flagged = [row["verdict"] == "anomalous" for row in rows]
    assert np.mean(np.array(flagged)[odd]) > 0.7
    assert np.mean(np.array(flagged)[~np.array(odd)]) < 0.4
    assert {row["class"] for row in rows} <= {"digit 0", "digit 1", "digit 2"}
    assert list(tmp_path.iterdir()) == [out]


def test_one_class_trains_and_scores_by_redrawing(photos, tmp_path):
    out = tmp_path / "one.safetensors"
    done = anocaps("train", photos / "normal" / "digit 0", "-o", out, "--size", 8, "--epochs", 2)
    assert done.returncode == 0
    assert done.stderr.splitlines()[0] == (
        "Warning: only one normal class (digit 0): scores that compare classes cannot be used"
    )
    assert "--alpha can be 0.05 or more" in done.stdout  # 19 of 89 images are kept
    done = anocaps("score", out, photos / "new", "--json")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 48


def test_a_size_given_in_training_holds_in_scoring(tmp_path):
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(30):
            pixels = generator.integers(0, 255, (30, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{index}.png")
    out = tmp_path / "m.safetensors"
    anocaps("train", tmp_path / "photos", "--size", 16, "-o", out, "--epochs", 1)
    done = anocaps("score", out, tmp_path / "photos", "--alpha", 0.2, "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 60 and not any(row["error"] for row in rows)


def test_what_a_terminal_cannot_show_is_escaped(photos):
    plain = os.environ | {"PYTHONIOENCODING": "ascii:strict"}
    done = anocaps("check", photos / "normal", env=plain)
    assert done.returncode == 0 and r"8\xd78 pixels" in done.stdout
    done = anocaps("check", photos / "ﬁ", env=plain)
    assert done.returncode == 2 and r"\ufb01 is not a folder" in done.stderr


def test_evaluate_prints_json_and_a_table(tmp_path):
    words = ("evaluate", "--dataset", "digits", "--held-out", "0,3", "--preset", "quick")
    short = (*words, "--epochs", 1, "--limit", 20, "--device", "cpu")
    done = anocaps(*short, "--json", "--save-scores", tmp_path / "raw.npz")
    result = json.loads(done.stdout)
    assert result["held_out"] == ["0", "3"] and result["record"]["training_images"] == 160
    assert set(result["metrics"]) == {"pp", "re", "pp+re", "mse", "knn"}
    assert (tmp_path / "raw.npz").exists()
    done = anocaps(*short)
    assert "AUROC" in done.stdout and "Accuracy" in done.stdout


def test_demo_writes_its_report_and_says_where(tmp_path):
    out = tmp_path / "deep" / "report.html"
    done = anocaps("demo", "--epochs", 1, "--out", out)
    assert done.returncode == 0, done.stderr
    assert str(out) in done.stdout and "mean" in done.stdout
    page = out.read_text()
    for digit in range(10):
        assert f"Held out: {digit}" in page


def test_data_list(tmp_path):
    rows = json.loads(anocaps("data", "list", "--json", "--data-dir", tmp_path).stdout)
    assert {row["name"] for row in rows} == {"digits", "mnist", "fashion-mnist", "small-norb"}
    assert "licence" in rows[0]
    assert anocaps("data", "list").returncode == 0


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "anocaps", *map(str, words)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def interrupt(process, ready):
    """Ctrl-C once `ready()` is true."""
    deadline = time.monotonic() + 120
    while not ready() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=60)


def test_ctrl_c_says_where_the_checkpoint_is(photos, tmp_path):
    out = tmp_path / "m.safetensors"
    checkpoint = tmp_path / "m.safetensors.checkpoint"
    words = ["train", photos / "normal", "-o", out, "--size", 8, "--epochs", 400]
    process = start(*words)
    _, errors = interrupt(process, checkpoint.exists)
    assert process.returncode == 130
    assert str(checkpoint) in errors and "--resume" in errors and "Traceback" not in errors
    assert checkpoint.exists() and not out.exists()
    refused(*words[:6], "--epochs", 3, "--resume", says=["other data or settings"])


def test_a_stopped_run_goes_on_with_resume(photos, tmp_path):
    out = tmp_path / "m.safetensors"
    checkpoint = tmp_path / "m.safetensors.checkpoint"
    words = ["train", photos / "normal", "-o", out, "--size", 8, "--epochs", 60, "--no-self-check"]
    process = start(*words)
    _, errors = interrupt(process, checkpoint.exists)
    assert process.returncode == 130, errors
    done = anocaps(*words, "--resume", "--json")
    assert done.returncode == 0, done.stderr
    assert out.exists() and not checkpoint.exists()
    assert anocaps(*words, "--epochs", 1, "--resume").stderr.count("starting anew") == 1


def test_ctrl_c_in_evaluate_says_so():
    process = start("evaluate", "--dataset", "digits", "--held-out", 1, "--preset", "quick",
                    "--epochs", 5000, "--device", "cpu")  # fmt: skip
    time.sleep(6)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Stopped." in errors and "Traceback" not in errors


def png_header(width, height):
    """A PNG file that claims a size and holds next to nothing."""

    def chunk(kind, body):
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0"))


def bad_folders(root):
    """Folders that cannot be trained on, and what the error must say."""
    (root / "empty").mkdir()
    (root / "hollow" / "a").mkdir(parents=True)
    for name, content in (
        ("zero", b""),
        ("noise", b"not an image"),
        ("bomb", png_header(50000, 50000)),
    ):
        folder = root / name / "a"
        folder.mkdir(parents=True)
        for k in range(5):
            Image.new("L", (8, 8)).save(folder / f"good{k}.png")
        (folder / "bad.png").write_bytes(content)
    (root / "single" / "a").mkdir(parents=True)
    (root / "single" / "b").mkdir(parents=True)
    for place in (*(f"a/{k}.png" for k in range(5)), "b/1.png"):
        Image.new("L", (8, 8)).save(root / "single" / place)
    return {
        "empty": "empty", "hollow": "a", "zero": "bad.png", "noise": "bad.png", "bomb": "bad.png",
        "single": "has 1 image", "missing": "missing",
    }  # fmt: skip


def test_bad_folders_are_named_and_leave_nothing(tmp_path):
    for name, says in bad_folders(tmp_path).items():
        out = tmp_path / "out" / name / "model.safetensors"
        refused("train", tmp_path / name, "-o", out, says=says)
        assert not (tmp_path / "out").exists(), name


def test_bad_words_are_named(photos, tmp_path):
    refused("train", photos / "normal", "-o", tmp_path, says=str(tmp_path))
    refused("evaluate", "--dataset", "digits", "--held-out", "x", says="'x'")
    refused("evaluate", "--dataset", "moon", "--held-out", "1", says="moon")
    refused("evaluate", "--dataset", "digits", "--held-out", "1", "--method", "tea", says="tea")
    refused("evaluate", "--dataset", "digits", "--held-out", "1", says="quick")
    refused("data", "fetch", "moon", says="moon")
    refused("evaluate", "--dataset", "digits", "--held-out", "9" * 5000, says="no class")
    short = ("evaluate", "--dataset", "digits", "--held-out", "1", "--preset", "quick")
    refused(*short, "--save-scores", tmp_path, says=str(tmp_path))


def test_a_broken_package_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so: cannot open')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    says = "torch is installed but cannot be loaded (libtorch.so: cannot open)"
    refused("evaluate", "--dataset", "digits", "--held-out", "2", says=says)


@pytest.mark.parametrize(
    ("found", "called", "name"),
    [
        ("/bin/anocaps", "/bin/anocaps", "anocaps"),
        (None, "/site/anocaps/__main__.py", "python -m anocaps"),
        (None, "env/bin/anocaps", "env/bin/anocaps"),
    ],
)
def test_the_next_command_is_called_as_this_one_was(monkeypatch, found, called, name):
    monkeypatch.setattr(cli_train.shutil, "which", lambda _: found)
    monkeypatch.setattr(sys, "argv", [called])
    assert cli_train.own_name() == name
