"""The speed scripts, their yardstick, the choices, and what the tables make of their results."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from anocaps import circumstances

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
MEDIAN = {"median": 200.0, "lowest": 1.0, "highest": 300.0}


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


def test_the_textbook_scores_every_image_once(book, monkeypatch):
    import speed_gpu

    seen = []
    monkeypatch.setattr(book, "scores", lambda x: seen.append(x) or (x.sum(), x.sum()))
    monkeypatch.setattr(speed_gpu, "SCORED_AT_ONCE", 2)
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    speed_gpu.textbook_scores(book, images)
    assert [len(x) for x in seen] == [2, 2, 1]
    assert np.array_equal((torch.cat(seen)[:, 0] * 255).round().numpy(), images)


def test_the_first_pass_over_all_images_is_not_counted(monkeypatch):
    import speed_gpu

    clock = iter([0, 100, 100, 101, 101, 103, 103, 104])  # 100 s, then 1, 2 and 1
    monkeypatch.setattr(speed_gpu.time, "perf_counter", lambda: next(clock))
    rate = speed_gpu.rate(lambda: None, images=10, repeats=3)
    assert rate == {"median": 10, "lowest": 5, "highest": 10}


def test_a_choice_is_trained_and_judged():
    import choices

    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (36, 28, 28), dtype=np.uint8)
    split = SimpleNamespace(images=images, labels=np.arange(36) // 4 % 3)
    dataset = SimpleNamespace(name="x", official=True, train=split, class_names=("a", "b", "c"))
    options = SimpleNamespace(limit=4, epochs=1)
    row, other = (
        choices.mock_cell(dataset, 0, options, choices.CHOICES[name])
        for name in ("start: released code", "as it is")
    )
    assert row["held_out"] == "a" and 0 <= row["auroc"]["pp"] <= 1
    assert row["losses"] != other["losses"]


def test_the_processor_is_named_beside_the_device(monkeypatch):
    found = circumstances.circumstances(torch.device("cpu"))
    assert found["device"].endswith(" CPU")
    assert found["processor"]["model"] and found["processor"]["cores"] >= 1

    def absent(*_):
        raise FileNotFoundError

    monkeypatch.setattr(circumstances.Path, "read_text", absent)
    monkeypatch.setattr(circumstances.platform, "processor", lambda: "a chip")
    assert circumstances._processor.__wrapped__() == "a chip"


def test_parameters_are_those_of_the_network():
    import tables
    from textbook import TextbookCapsNet

    assert sum(p.numel() for p in TextbookCapsNet(9).parameters()) == tables.PARAMETERS


def test_the_cpu_table_has_shares_and_memory_of_both_sides(monkeypatch):
    import tables

    row = {"ours": MEDIAN, "textbook": MEDIAN, "ratio": 2.5}
    row["share of peak"] = {"ours": 1.5, "textbook": 0.6}
    monkeypatch.setattr(tables, "read", lambda name: {
        "rates": {"training": row, "scoring PP": row}, "threads": 2,
        "largest score difference": 1e-7, "peak fp32 GFLOP/s measured": 160.0,
        "peak memory MiB": {"training": {"ours": 418, "textbook": 1489}},
        "processor": {"model": "a chip", "cores": 4},
    })  # fmt: skip
    shown = tables.cpu_speed()
    assert "on a CPU (a chip, 4 cores), 2 threads" in shown
    assert "| training | 200 | 200 | 2.5× | 150 %, 60 % | 418, 1,489 MiB |" in shown
    assert "| scoring PP | 200 | 200 | 2.5× | 150 %, 60 % |  |" in shown


def test_the_gpu_table_has_the_larger_memory_and_no_share_of_the_textbook(monkeypatch):
    import tables

    monkeypatch.setattr(tables, "read", lambda name: {
        "steps": {"textbook eager fp32, one network": MEDIAN, "one network": MEDIAN},
        "scoring": {"textbook eager fp32": MEDIAN},
        "share of peak": {"one network": 0.25},
        "peak memory MiB": {
            "training one network": {"tensors": 306, "reserved": 298},
            "scoring, textbook eager fp32": {"tensors": 1, "reserved": 2},
        },
        "peak bf16 TFLOP/s measured": 762.4, "device": "a GPU",
        "largest score difference to textbook": 1e-6,
        "largest relative weight difference, fleet against alone": 0.0,
    })  # fmt: skip
    shown = tables.gpu_speed()
    assert "| training, textbook eager fp32, one network | 200.000 ms a step |  |  |" in shown
    assert "| training, one network | 200.000 ms a step | 25 % | 306 MiB |" in shown
    assert "| scoring PP and RE, textbook eager fp32 | 200 images/s |  | 2 MiB |" in shown


def test_the_time_of_one_seed_is_that_of_the_last_run_that_made_one(monkeypatch, tmp_path):
    import study_tables

    class Found:
        def cells(self, dataset):
            return {"mnist": range(3), "small-norb": range(2)}[dataset]

    def line(datasets, finished, seconds, method="capsnet"):
        told = {"datasets": datasets, "methods": [method], "finished": finished, "seconds": seconds}
        return json.dumps(told) + "\n"

    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "log.jsonl").write_text(
        line(["mnist"], 3, 9.0)
        + line(["mnist"], 3, 8.0)  # another seed, later
        + line(["mnist"], 0, 1.0)  # found everything done
        + line(["mnist"], 6, 15.0)  # two seeds at once
        + line(["mnist"], 3, 2.0, "vae")
        + line(["small-norb"], 2, 5.0)
    )
    monkeypatch.setattr(study_tables, "RESULTS", tmp_path)
    monkeypatch.setattr(study_tables, "numbers", Found)
    assert [run["seconds"] for run in study_tables.one_seed()] == [8.0, 5.0]


@pytest.mark.parametrize(
    ("reached", "at_most", "verdict"),
    [
        (130, True, "stretch"),
        (219, True, "yes"),
        (242, True, "no, by 10 %"),
        (130, False, "no, by 41 %"),
        (220, False, "yes"),
    ],
)
def test_a_goal_tells_how_far_it_is_missed(reached, at_most, verdict):
    from speed_goals import Goal

    stretch = 140 if at_most else 400
    assert Goal("time or rate", 220, stretch, reached, "", at_most).row()[-1] == verdict


@pytest.mark.parametrize(
    ("seeds", "shown"), [({0: True}, "**holds** (1 seed)"), ({0: True, 1: True}, "**holds**")]
)
def test_a_verdict_of_one_seed_says_so(seeds, shown):
    import study_tables

    from anocaps.study.claims import CLAIMS, Judged

    assert study_tables.verdict(Judged(CLAIMS[0], "holds", "", seeds)) == shown
