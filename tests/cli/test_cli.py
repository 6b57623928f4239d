"""The command line: its output, its exit codes, and its imports."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from data_writers import png
from image_files import save, write_digits

from anocaps import __version__

COMMANDS = (
    "demo", "evaluate", "train", "card", "check", "test", "score", "export", "keygen", "sign",
    "data list", "data fetch", "study run", "study status", "study report",
)  # fmt: skip


def process(*words, **settings):
    """Run `anocaps …` in a process of its own; no stack trace may ever be shown."""
    done = subprocess.run(
        [sys.executable, "-m", "anocaps", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        **settings,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture
def refused(command):
    """The command must end with exit code 2 and one line of error."""

    def run(*words, says):
        code, _, errors = command(*words)
        lines = [line for line in errors.splitlines() if line.strip()]
        assert code == 2 and len(lines) == 1 and lines[0].startswith("Error: "), errors
        assert says in lines[0]

    return run


@pytest.fixture(scope="module")
def photos(tmp_path_factory, digits):
    """Digits 0 to 2 as a folder of PNG files, and a folder of new images, some of them 7s."""
    root = tmp_path_factory.mktemp("photos")
    write_digits(root / "normal", digits, range(3), 200)
    for wanted in (0, 1, 2, 7):
        for index in np.flatnonzero(digits.test.labels == wanted)[:12]:
            save(root / "new" / f"{wanted}-{index:04}.png", digits.test.images[index])
    return root


@pytest.fixture(scope="module")
def model(photos, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    words = ("--size", 8, "--score-function", "pp+re", "--epochs", 12, "--calibration", 0.2)
    done = process("train", photos / "normal", "-o", path, *words, "--no-self-check")
    assert done.returncode == 0, done.stderr
    assert str(path) in done.stdout
    return path


@pytest.mark.parametrize("words", COMMANDS)
def test_help_has_an_example(command, words):
    code, out, _ = command(*words.split(), "--help")
    assert code == 0 and "Example" in out


def test_the_version(command):
    assert command("--version")[:2] == (0, f"{__version__}\n")


def imported_by(*words):
    """The modules that a command has imported at its end."""
    code = (
        "import sys\n"
        f"sys.argv = {['anocaps', *map(str, words)]}\n"
        "from anocaps.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as ended: assert not ended.code, ended\n"
        "print('modules:', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.splitlines()[-1].split())


def test_help_imports_nothing_heavy():
    heavy = {"torch", "numpy", "sklearn", "PIL", "pooch", "jinja2", "matplotlib"}
    assert not heavy & imported_by("--help")


def test_scoring_from_a_model_file_imports_only_what_it_needs(model, photos):
    found = imported_by("score", model, min((photos / "new").iterdir()))
    assert "torch" in found
    heavy = {"torch._dynamo", "sklearn", "scipy", "matplotlib", "triton", "sympy", "pyarrow"}
    assert not heavy & found


def test_train_then_score_finds_the_anomalies(command, model, photos, tmp_path):
    out = tmp_path / "scores.csv"
    code, said, _ = command("score", model, photos / "new", "-o", out, "--alpha", 0.1)
    assert code == 0 and "48" in said
    rows = list(csv.DictReader(out.open()))
    assert list(rows[0])[:6] == ["file", "score", "p_value", "verdict", "class", "error"]
    assert len(rows) == 48 and not any(row["error"] for row in rows)
    unknown = np.array(["/7-" in row["file"] for row in rows])
    flagged = np.array([row["verdict"] == "anomalous" for row in rows])
    assert flagged[unknown].mean() > 0.7 and flagged[~unknown].mean() < 0.4
    assert {row["class"] for row in rows} <= {"digit 0", "digit 1", "digit 2"}
    assert list(tmp_path.iterdir()) == [out]


def test_onnxruntime_writes_nothing_on_standard_output(command, model, photos, tmp_path):
    pytest.importorskip("onnx")
    assert command("export", model, tmp_path / "m.onnx")[0] == 0
    done = process("score", tmp_path / "m.onnx", photos / "new", "--json")
    assert done.returncode == 0 and done.stderr == ""
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 48 and "score" in rows[0]


def test_characters_that_a_terminal_cannot_show_are_escaped(photos):
    plain = os.environ | {"PYTHONIOENCODING": "ascii:strict"}
    done = process("check", photos / "ﬁ", env=plain)
    assert done.returncode == 2 and r"\ufb01" in done.stderr


def test_evaluate_prints_json_and_a_table(command, tmp_path):
    words = ("evaluate", "--dataset", "digits", "--held-out", "0,3", "--preset", "quick")
    short = (*words, "--epochs", 1, "--limit", 20, "--device", "cpu")
    result = json.loads(command(*short, "--json", "--save-scores", tmp_path / "raw.npz")[1])
    assert result["held_out"] == ["0", "3"] and result["record"]["training_images"] == 160
    assert {"pp", "re", "pp+re", "knn"} <= set(result["metrics"])
    assert (tmp_path / "raw.npz").exists()
    assert "AUROC" in command(*short)[1]


def test_demo_writes_its_report_and_says_where(command, tmp_path):
    out = tmp_path / "deep" / "report.html"
    code, said, _ = command("demo", "--epochs", 1, "--out", out)
    assert code == 0 and str(out) in said
    assert out.read_text().lower().startswith("<!doctype html>")


def test_data_list(command, tmp_path):
    rows = json.loads(command("data", "list", "--json", "--data-dir", tmp_path)[1])["datasets"]
    assert {"digits", "mnist", "fashion-mnist", "small-norb"} <= {row["name"] for row in rows}
    assert "licence" in rows[0]
    assert command("data", "list")[0] == 0


def test_a_stopped_training_resumes(command, refused, photos, tmp_path):
    out, checkpoint = (tmp_path / f"m.safetensors{end}" for end in ("", ".checkpoint"))
    words = ["train", photos / "normal", "-o", out, "--size", 8, "--no-self-check"]
    running = subprocess.Popen(
        [sys.executable, "-m", "anocaps", *map(str, words), "--epochs", "40"],
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130 and "Traceback" not in errors
    assert str(checkpoint) in errors and "--resume" in errors
    assert checkpoint.exists() and not out.exists()
    refused(*words, "--epochs", 3, "--resume", "--json", says="checkpoint")
    code, _, errors = command(*words, "--epochs", 40, "--resume", "--json")
    assert code == 0, errors
    assert out.exists() and not checkpoint.exists()


@pytest.mark.parametrize(
    ("name", "bad"), [("empty", b""), ("bomb", png(50_000, 50_000)), ("missing", None)]
)
def test_a_bad_folder_is_named_and_leaves_nothing(refused, tmp_path, name, bad):
    if bad is not None:
        for k in range(10):
            save(tmp_path / name / "ab"[k % 2] / f"{k}.png", np.full((8, 8), k, np.uint8))
        (tmp_path / name / "a" / "bad.png").write_bytes(bad)
    out = tmp_path / "out" / "model.safetensors"
    says = "missing" if bad is None else "bad.png"
    refused("train", tmp_path / name, "-o", out, "--json", says=says)
    assert not out.parent.exists()


def test_bad_arguments_are_named(refused, photos, tmp_path):
    evaluate = ("evaluate", "--held-out", "1", "--dataset")
    refused("train", photos / "normal", "-o", tmp_path, says=str(tmp_path))
    refused("evaluate", "--dataset", "digits", "--held-out", "x", says="'x'")
    refused("evaluate", "--dataset", "digits", "--held-out", "9" * 5000, says="no class")
    refused(*evaluate, "moon", says="moon")
    refused(*evaluate, "digits", "--method", "tea", says="tea")
    refused(*evaluate, "digits", "--json", says="quick")
    refused(*evaluate, "digits", "--save-scores", tmp_path, says=str(tmp_path))
    refused("data", "fetch", "moon", says="moon")


def test_a_broken_package_is_one_line_of_error(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so: cannot open')")
    done = process(
        "evaluate", "--dataset", "digits", "--held-out", 2,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "torch" in done.stderr and "libtorch.so" in done.stderr
