"""Wrong options of the scripts of benchmarks/: one line, exit code 2, before any work."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def refused(monkeypatch, tmp_path, capsys):
    """Runs a script whose work would fail the test; what it says."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)

    def run(script: str, work: str, *words: str) -> str:
        module = importlib.import_module(script)
        monkeypatch.setattr(module, work, lambda *_, **__: pytest.fail("it began to work"))
        monkeypatch.setattr(sys, "argv", [f"{script}.py", *words])
        with pytest.raises(SystemExit) as stopped:
            module.main()
        said = capsys.readouterr().err
        assert stopped.value.code == 2
        assert said.startswith(f"{script}.py: error: ") and said.count("\n") == 1
        assert [path.name for path in tmp_path.iterdir()] == []
        return said

    return run


@pytest.mark.parametrize(
    ("script", "work", "words", "said"),
    [
        ("speed_cpu", "measure", ["--repeats", "0"], "--repeats: a whole number from 1 on"),
        ("speed_cpu", "measure", ["--images", "many"], "--images: a whole number from 1 on"),
        ("speed_cpu", "measure", ["--out", "."], "--out: .: is a folder, name a file"),
        ("speed_gpu", "measure", [], "needs an NVIDIA GPU"),
        ("speed_gpu", "measure", ["--fleet", "-1"], "--fleet: a whole number from 1 on"),
        ("kernel_checks", "run_checks", ["--shapes", "0"], "--shapes: a whole number from 1 on"),
        ("public", "measure", ["--repo", ".", "--repeats", "0"], "--repeats: a whole number"),
        ("public", "measure", ["--repo", ".", "--out", "."], "is a folder, name a file"),
        ("public", "measure", ["--repo", "nowhere"], "nowhere: no such folder"),
        ("growth", "by_images", ["--device", "gpu"], "device 'gpu' is unknown: use 'auto'"),
        ("growth", "by_images", ["--device", "cuda"], "no such NVIDIA GPU is usable here"),
        ("growth", "by_images", ["--out", "/dev/null"], "is a pipe or a device"),
        ("precision", "fleet", ["--dataset", "nope"], "nope"),
        ("precision", "fleet", ["--method", "nope"], "nope"),
        ("precision", "fleet", ["--dataset", "digits", "--held-out", "12"], "no class '12'"),
        ("precision", "fleet", ["--dataset", "digits", "--seeds", "0"], "--seeds: a whole number"),
        ("convolution_cpu", "measured", ["--judge", "--out", "none"], "none: has no times"),
        ("conformal", "measured", ["--dataset", "nope"], "nope"),
        ("conformal", "measured", ["--dataset", "digits", "--preset", "nope"], "preset 'nope'"),
        ("conformal", "measured", ["--score", "nope"], "--score: invalid choice"),
        ("deep_choices", "measured", ["nope"], "nope"),
        ("deep_choices", "measured", ["digits", "--seeds", "0"], "--seeds: a whole number"),
        ("many_files", "measured", ["--files", "0"], "--files: a whole number from 1 on"),
        ("many_files", "measured", ["--model", "none.onnx"], "none.onnx: no such file"),
        ("many_files", "measured", ["--folder", "/dev/null/x"], "/dev/null"),
        ("folders", "make", ["make", "digits"], "digits: DATASET:CLASS, as digits:4"),
        ("folders", "make", ["make", "digits:4:many"], "a whole number from 2 on"),
        ("folders", "pictures_of", ["make", "digits:4", "--out", "."], "is a folder, name a file"),
        ("folders", "write_pictures", ["make", "nope:4"], "nope"),
        ("ocsvm", "trained", ["--out", "."], "is a folder, name a file"),
        ("ocsvm", "trained", ["--cells", "nope:4"], "nope"),
        ("ocsvm", "compared", ["--cells", "digits:12"], "no class '12'"),
        ("runtime_size", "measured", ["--out", "."], "is a folder, name a file"),
        ("tables", "table", ["--chek"], "--chek"),
    ],
)
def test_a_wrong_option_is_told_before_any_work(refused, script, work, words, said):
    assert said in refused(script, work, *words)


def test_results_that_cannot_be_read_are_not_lost(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import arguments

    path = tmp_path / "results.json"
    assert arguments.stored(path) == {}
    path.write_text('{"a": 1}')
    assert arguments.stored(path) == {"a": 1}
    for broken in ('{"a": ', "[1]"):
        path.write_text(broken)
        with pytest.raises(arguments.InputError, match=r"results\.json: .*name another file"):
            arguments.stored(path)
    assert path.read_text() == "[1]"
