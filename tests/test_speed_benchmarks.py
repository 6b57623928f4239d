"""The speed scripts and their yardstick."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from anocaps import circumstances

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
SPREAD = {"median": 2.0, "lowest": 1.0, "highest": 3.0}


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.fixture
def book():
    from textbook import TextbookCapsNet

    torch.manual_seed(0)
    return TextbookCapsNet(3)


def test_the_textbook_makes_pp_without_its_decoder(book):
    x = torch.rand(2, 1, 28, 28)
    with torch.inference_mode():
        want, _ = book.scores(x)
        del book.decoder
        assert torch.equal(book.pp(x), want)


@pytest.fixture
def gpu(monkeypatch):
    """The GPU script, to be run on a CPU with next to no work."""
    import primary_convolution
    import speed_gpu
    import workloads

    monkeypatch.setitem(workloads.SCORED_AT_ONCE, "cpu", 8)
    way = {"ms": SPREAD, "forward ms": SPREAD, "relative error": {"output": 1e-6}}
    found = {"batch": 2, "ways": {"a way": way, "another": "failed: it is not there"}}
    monkeypatch.setattr(primary_convolution, "compare", lambda device: found)
    return speed_gpu


TINY = {"repeats": 1, "scored": 16, "scored_by_textbook": 8, "fleet": 2, "images": 18,
        "textbook_steps": 1, "digits": 40, "epochs": 1, "product": 16}  # fmt: skip


def test_the_gpu_script_measures_every_row(gpu, monkeypatch):
    import workloads

    monkeypatch.setattr(gpu, "product_flops", lambda side, *_, **__: side * 2e9)
    found = gpu.measure(torch.device("cpu"), gpu.Sizes(**TINY))
    json.dumps(found)
    steps, scoring = list(found["steps"]), list(found["scoring"])
    assert steps == [
        "textbook eager, TF32, one network",
        "textbook eager fp32, one network",
        "one network",
        "2 networks at once, per network",
    ]
    assert scoring == ["textbook eager, TF32", "textbook eager fp32", "fp32", "bf16"]
    rows = steps + [f"scoring, {name}" for name in scoring]
    assert list(found["share of peak"]) == list(found["peak memory MiB"]) == rows
    for row in (*found["steps"].values(), *found["scoring"].values()):
        assert 0 < row["lowest"] <= row["median"] <= row["highest"]
    assert (found["batch"], found["scored at once"], found["parameters"]) == (18, 8, 8_059_920)
    ms, speed = found["steps"]["one network"]["median"], found["scoring"]["fp32"]["median"]
    flop = 18 * workloads.TRAINING_FLOP / (ms * 1e-3)  # in a second
    assert found["share of peak"]["one network"] == pytest.approx(flop / 32e9, abs=1e-3)
    flop = speed * workloads.SCORING_FLOP
    assert found["share of peak"]["scoring, fp32"] == pytest.approx(flop / 32e9, abs=1e-3)
    assert found["largest relative weight difference, fleet against alone"] == 0
    assert 0 < found["largest score difference to textbook"] < 1e-4
    assert found["bf16 step against float64"]["gradients"] < 1e-4  # a CPU trains in fp32
    assert 0 < found["bf16 scores"]["largest PP difference"] < 0.02
    kernels = [value for name, value in found.items() if name.startswith("top kernels")]
    assert len(kernels) == 3

    lines = gpu.report(found).splitlines()
    for name in rows:
        [line] = [line for line in lines if line.startswith(f"{name} ")]
        assert "of peak" in line and "MiB" in line
    assert any("ties in PP: 0" in line for line in lines)
    assert any(line.endswith("  a way") for line in lines)
    assert any("another failed: it is not there" in line for line in lines)


def test_a_share_is_of_the_peak_of_the_same_precision(gpu):
    names = ("textbook eager, TF32, one network", "textbook eager fp32, one network",
             "one network", "scoring, fp32", "scoring, bf16")  # fmt: skip
    assert [gpu.precision_of(name, "bf16") for name in names] == [
        "TF32", "fp32", "bf16", "fp32", "bf16"
    ]  # fmt: skip


def test_tf32_is_allowed_in_the_convolutions_of_one_textbook(gpu):
    seen = []
    for allowed in gpu.TEXTBOOKS.values():
        gpu.with_tf32(allowed, lambda: seen.append(torch.backends.cudnn.allow_tf32))()
    assert seen == [True, False]


@pytest.mark.parametrize("wrong", ["kernels", "step"])
def test_a_failed_check_times_and_writes_nothing(gpu, monkeypatch, tmp_path, wrong):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "run_checks", lambda: {"ok": wrong != "kernels", "wrong": ["a case"]})
    cpu, measure = torch.device("cpu"), gpu.measure
    monkeypatch.setattr(gpu, "measure", lambda *_: measure(cpu, gpu.Sizes(**TINY)))
    monkeypatch.setattr(gpu, "scoring_checks", lambda *_: (None, None, {}))

    def off(run):
        raise SystemExit("a step is off: nothing was timed")

    monkeypatch.setattr(gpu, "check_step", off)
    monkeypatch.setattr(gpu, "take_turns", lambda *_: pytest.fail("timed"))
    monkeypatch.setattr("sys.argv", ["speed_gpu.py", "--out", str(tmp_path / "out.json")])
    with pytest.raises(SystemExit, match="nothing was timed"):
        gpu.main()
    assert not list(tmp_path.iterdir())


def test_kernels_are_told_by_call_and_network(gpu, monkeypatch):
    import torch.profiler

    class Profile:
        def __init__(self, activities):
            self.calls = 0

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def key_averages(self):
            row = SimpleNamespace
            return [row(key="short", count=10, device_time_total=20.0),
                    row(key="long", count=30, device_time_total=600.0)]  # fmt: skip

    monkeypatch.setattr(torch.profiler, "profile", Profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    calls = []
    assert gpu.top_kernels(lambda: calls.append(1), 5, networks=2) == {"long ×3": 60, "short ×1": 2}
    assert len(calls) == 5


def test_the_cpu_script_measures_every_row(monkeypatch):
    import speed_cpu
    import workloads

    monkeypatch.setitem(workloads.SCORED_AT_ONCE, "cpu", 8)
    monkeypatch.setattr(speed_cpu, "TURN", 1)
    found = speed_cpu.measure(speed_cpu.Sizes(repeats=1, scored=8, batch=18, product=64))
    assert list(found["rates"]) == ["training", "scoring PP and RE", "scoring PP"]
    for row in found["rates"].values():
        assert row["ours"]["median"] > 0 and row["textbook"]["median"] > 0 and row["ratio"] > 0
        assert row["share of peak"].keys() == {"ours", "textbook"}
    assert (found["batch"], found["scored at once"]) == (18, 8)
    memory = {"training": {"ours": 418, "textbook": 1489}}
    shown = speed_cpu.report(found | {"peak memory MiB": memory, "demo seconds": 38.5})
    assert "anocaps demo: 38.5 s" in shown and "1489" in shown


def test_the_textbook_has_a_memory_of_its_own():
    """In a process of its own, as it is measured; its votes alone take more than 5 MiB."""
    import measuring
    import speed_cpu

    cpu = torch.device("cpu")
    assert measuring.apart(cpu, speed_cpu.textbook_mib, "scoring PP and RE", 9) > 5


def test_the_demo_is_timed_as_a_command_of_its_own(monkeypatch, tmp_path):
    import speed_cpu

    code = (
        "import os, sys; print(sys.argv, os.environ['CUDA_VISIBLE_DEVICES'], file=open({!r}, 'w'))"
    )
    note = tmp_path / "called"
    monkeypatch.setattr(speed_cpu, "DEMO", (sys.executable, "-c", code.format(str(note))))
    assert speed_cpu.demo_seconds() >= 0
    assert "'--out'" in note.read_text() and note.read_text().endswith(" \n")  # no GPU
    monkeypatch.setattr(speed_cpu, "DEMO", (sys.executable, "-c", "import sys; sys.exit(3)"))
    with pytest.raises(subprocess.CalledProcessError):
        speed_cpu.demo_seconds()


def test_the_processor_is_named_beside_the_device(monkeypatch):
    found = circumstances.circumstances(torch.device("cpu"))
    assert found["device"].endswith(" CPU")
    assert found["processor"]["model"] and found["processor"]["cores"] >= 1

    def absent(*_):
        raise FileNotFoundError

    monkeypatch.setattr(circumstances.Path, "read_text", absent)
    monkeypatch.setattr(circumstances.platform, "processor", lambda: "a chip")
    assert circumstances._processor.__wrapped__() == "a chip"
