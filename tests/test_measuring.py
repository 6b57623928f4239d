"""How the speed scripts measure: turns, spread, memory; and the work that they measure."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from anocaps import scoring

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
CPU = torch.device("cpu")


@pytest.fixture
def measuring(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import measuring

    return measuring


@pytest.fixture
def workloads(measuring):
    import workloads

    return workloads


@pytest.fixture
def clock(measuring, monkeypatch):
    """Time that passes only where it is told to."""
    now = [0.0]
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: now[0])

    def takes(*seconds: float):
        left = list(seconds)
        return lambda *_: now.__setitem__(0, now[0] + (left.pop(0) if len(left) > 1 else left[0]))

    return takes


def test_sides_take_turns_and_the_first_turn_is_not_counted(measuring, clock):
    order = []
    slow, fast = clock(100, 100, 2, 4), clock(50, 1)
    sides = {
        "slow": measuring.Side(lambda: (order.append("slow"), slow()), calls=2),
        "fast": measuring.Side(lambda: (order.append("fast"), fast())),
    }
    seconds = measuring.take_turns(sides, 2, CPU)
    assert order == ["slow", "slow", "fast"] * 3
    assert seconds == {"slow": [3, 4], "fast": [1, 1]}
    assert measuring.rates(seconds["slow"], 12) == {"median": 3.5, "lowest": 3, "highest": 4}
    assert measuring.milliseconds(seconds["slow"], per=10)["median"] == 350
    assert measuring.ratio(seconds["fast"], seconds["slow"]) == 3.5


def test_a_device_is_waited_for_before_and_after(measuring, clock, monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", clock(7, 2))  # what was left, what was begun
    side = measuring.Side(lambda: None, calls=4)
    assert measuring.seconds_of(side, torch.device("cuda")) == 0.5


def test_a_median_has_a_repeat_at_least_and_five_at_most(measuring):
    for seconds, repeats in ((0.0, 1), (1e9, 5)):
        calls = []
        measuring.median_seconds(lambda calls=calls: calls.append(1), seconds, CPU)
        assert len(calls) == repeats


def test_the_peak_counts_a_product_of_matrices(measuring, clock, monkeypatch):
    takes = clock(9, 9, 0.5)
    seen = []
    monkeypatch.setattr(torch, "mm", lambda a, b: (seen.append((a.dtype, a.shape)), takes()))
    assert measuring.product_flops(20, torch.bfloat16, CPU, 2, calls=2) == 2 * 20**3 / 0.5
    assert set(seen) == {(torch.bfloat16, (20, 20))}


def test_tf32_is_allowed_for_one_product_alone(measuring, monkeypatch):
    matmul, seen = torch.backends.cuda.matmul, []
    monkeypatch.setattr(torch, "mm", lambda a, b: seen.append(matmul.allow_tf32))
    measuring.product_flops(4, torch.float32, CPU, 1, tf32=True)
    assert all(seen) and not matmul.allow_tf32


def test_a_peak_is_what_came_on_top():
    """In a fork, as on the way of `apart`: a program that is started keeps its parent's peak."""
    code = """
import os, numpy as np, torch, measuring
if os.fork() == 0:
    def hold():
        held = np.ones((300, 2**20), dtype=np.uint8)
        return len(held)
    result, memory = measuring.with_memory(hold, torch.device("cpu"))
    print(result, memory["process"], flush=True)
    os._exit(0)
os.wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=BENCHMARKS
    )
    assert done.returncode == 0, done.stderr
    result, found = map(int, done.stdout.split())
    assert result == 300 and 290 <= found <= 330


def test_memory_of_a_device_is_its_peak_less_what_was_there(measuring, monkeypatch):
    """With the numbers that torch.cuda would give: it is asked only after the peak was reset."""
    peak = {"allocated": 900, "reserved": 950}  # MiB, from before
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(
        torch.cuda, "reset_peak_memory_stats", lambda _: peak.update(allocated=40, reserved=100)
    )
    for name in peak:
        most = lambda _, name=name: peak[name] * 2**20  # noqa: E731
        monkeypatch.setattr(torch.cuda, f"max_memory_{name}", most)
    found = measuring.with_memory(
        lambda: peak.update(allocated=240, reserved=250), torch.device("cuda")
    )
    assert found == (None, {"tensors": 200, "reserved": 150})
    made = measuring.Peak(torch.device("cuda"))
    peak["reserved"] = 101
    assert made.mib() == 1


def test_what_fails_beside_the_claim_is_told(measuring):
    assert measuring.optional(lambda: 3) == 3
    assert measuring.optional(lambda: 1 / 0) == "failed: ZeroDivisionError: division by zero"


def test_multiply_adds_are_those_of_the_equations(workloads):
    """Those that torch counts in the textbook; and so is the number of parameters."""
    from textbook import TextbookCapsNet

    book = TextbookCapsNet(workloads.CLASSES)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        book.scores(torch.rand(2, 1, 28, 28))
    assert counter.get_total_flops() == 2 * workloads.SCORING_FLOP
    found = workloads.multiply_adds(workloads.PAPER.network().config)
    assert found["primary"] == 36 * 256 * 256 * 81
    assert found["conv1"] == 400 * 256 * 81
    assert 6 * sum(found.values()) == workloads.TRAINING_FLOP


def test_both_sides_score_as_many_images_at_once(workloads):
    assert workloads.SCORED_AT_ONCE == scoring._BATCH


def test_the_textbook_scores_every_image_once(workloads, monkeypatch):
    monkeypatch.setitem(workloads.SCORED_AT_ONCE, "cpu", 2)
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    seen = []

    def score(x: torch.Tensor) -> tuple[torch.Tensor]:
        seen.append(x)
        return (x.sum((1, 2, 3)),)

    [found] = workloads.textbook_scores(score, images, CPU)
    assert [len(x) for x in seen] == [2, 2, 1]
    assert np.array_equal((torch.cat(seen)[:, 0] * 255).round().numpy(), images)
    np.testing.assert_allclose(found, images.sum((1, 2)) / 255, rtol=1e-5)


def test_the_textbook_takes_a_step_of_adam(workloads):
    book = torch.nn.Linear(2, 1)
    book.loss = lambda x, y: (book(x).flatten() - y).square().mean()
    before = book.weight.detach().clone()
    workloads.textbook_step(book, torch.ones(3, 2), torch.full((3,), 9.0))()
    torch.testing.assert_close(book.weight.detach() - before, torch.full((1, 2), 1e-3))


def test_the_data_begin_again_when_they_are_used_up(workloads):
    kind = workloads.Kind("quick", 8, 2)
    runs = [workloads.make_run(kind, seed, CPU, 3 * workloads.BATCH) for seed in (0, 1)]
    assert not np.array_equal(*(run.images.numpy() for run in runs))
    began = []
    for run in runs:
        begin = run.begin_epoch
        run.begin_epoch = lambda run=run, begin=begin: (began.append(run.config.seed), begin())
    step = workloads.steps_of(runs, 2)
    step()
    step()
    assert began == [0, 1, 0, 1]
    assert [int(run.cursor) for run in runs] == [workloads.BATCH] * 2


def test_digits_are_enlarged(workloads, digits):
    images, labels = workloads.large_digits()
    assert images.shape == (1797, 28, 28) and set(labels) == set(range(10))
    first = digits.train.images[0]
    assert np.array_equal(images[0, 2:26:3, 4:26:3], first)
    assert images[0].sum() == 9 * int(first.sum())
