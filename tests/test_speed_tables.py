"""What the tables of speed, and of the study's time, make of the files under results/."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
MEDIAN = {"median": 200.0, "lowest": 1.0, "highest": 300.0}
CPU = {
    "rates": {name: {"ours": MEDIAN, "textbook": MEDIAN, "ratio": 2.5,
                     "share of peak": {"ours": 1.5, "textbook": 0.6}}
              for name in ("training", "scoring PP and RE", "scoring PP")},
    "peak memory MiB": {"training": {"ours": 418, "textbook": 1489}},
    "peak fp32 GFLOP/s measured": 160.0,
    "largest score difference": 1e-7,
    "threads": 2,
    "processor": {"model": "a chip", "cores": 4},
    "versions": {"torch": "2.13"},
}  # fmt: skip
RUN = {"datasets": ["mnist"], "device": "a GPU", "commit": "c0ffee"}  # of the study, in its log
GPU = {
    "batch": 50,
    "training precision": "bf16",
    "parameters": 1_000_000,
    "multiply-adds an image": {"primary": 2_000_000_000},
    "steps": {
        "textbook eager, TF32, one network": MEDIAN,
        "one network": {"median": 0.6, "lowest": 0.59, "highest": 0.65},
        "10 networks at once, per network": {"median": 0.46, "lowest": 0.44, "highest": 0.5},
    },
    "scoring": {"fp32": MEDIAN, "bf16": MEDIAN},
    "share of peak": {"one network": 0.25, "scoring, fp32": 1.6},
    "peak memory MiB": {
        "scoring, fp32": {"tensors": 1, "reserved": 2},
        "textbook eager, TF32, one network": {"tensors": 1500, "reserved": 1400},
        "10 networks at once, per network": {"tensors": 2000, "reserved": 3000},
    },
    "versions": {"torch": "2.11"},
    "peak bf16 TFLOP/s measured": 800.0,
    "device": "a GPU",
    "largest score difference to textbook": 1e-6,
    "largest relative weight difference, fleet against alone": 0.0,
    "primary convolution": {"batch": 50, "ways": {}},
}


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.fixture
def results(monkeypatch, tmp_path):
    """An empty folder of results, with a study's."""
    import resultfiles

    monkeypatch.setattr(resultfiles, "RESULTS", tmp_path)
    (tmp_path / "paper").mkdir()
    return tmp_path


def write(folder, name, whole):
    (folder / name).write_text(json.dumps(whole), "utf-8")


# ── speed ────────────────────────────────────────────────────────────────────────────────────


def test_the_cpu_table_has_shares_and_memory_of_both_sides(results):
    import speed_tables

    write(results, "speed-cpu.json", CPU)
    shown = speed_tables.cpu()
    assert "on a CPU (a chip, 4 cores), 2 threads, fp32, images/s, median (lowest–" in shown
    rates = "200 (1–300) | 200 (1–300) | 2.5× | 150 %, 60 %"
    assert f"| training | {rates} | 418, 1,489 MiB |" in shown
    assert f"| scoring PP | {rates} |  |" in shown
    assert "From `make bench-cpu` with torch 2.13," in shown


def test_the_gpu_table_takes_share_and_memory_by_name(results):
    import speed_tables

    write(results, "speed-gpu.json", GPU)
    shown = speed_tables.gpu()
    assert "training steps of 50 images" in shown
    book = "training, textbook eager, TF32, one network"
    assert f"| {book} | 200.000 (1.000–300.000) ms a step |  | 1,500 MiB |" in shown
    assert "| training, one network, bf16 | 0.600 (0.590–0.650) ms a step | 25 % |  |" in shown
    assert "per network, bf16 | 0.460 (0.440–0.500) ms a step |  | 3,000 MiB in all |" in shown
    assert "| scoring PP and RE, fp32 | 200 (1–300) images/s | 160 % | 2 MiB |" in shown
    assert "| scoring PP and RE, bf16 | 200 (1–300) images/s |  |  |" in shown
    assert "with torch 2.11, which checks" in shown
    assert "in the same run: 800 TFLOP/s in bf16." in shown
    assert "float64" not in shown and "Scores in bf16" not in shown  # not measured


def test_the_gpu_table_tells_its_peaks_and_checks(results):
    import speed_tables

    scores = {"images": 1797, "another longest capsule": 1,
              "largest PP difference": 0.002, "largest RE difference": 0.03,
              "PP": [0.4, 0.9], "RE": [-40, -12], "ties in PP": {"fp32": 3, "bf16": 5}}  # fmt: skip
    more = {
        "peak TF32 TFLOP/s measured": 400.0,
        "bf16 step against float64": {"loss": 1e-4, "gradients": 0.02},
        "bf16 scores": scores,
    }
    write(results, "speed-gpu.json", GPU | more)
    shown = speed_tables.gpu()
    assert "800 TFLOP/s in bf16, 400 TFLOP/s in TF32." in shown
    assert "of the loss 1e-04, of gradients at most 2e-02" in shown
    assert "2e-03 in PP (from 0.4 to 0.9) and 3e-02 in RE (from -40 to -12) on 1,797" in shown
    assert "1 of them, left out of that RE, have another longest capsule" in shown
    assert "5 in bf16, 3 in fp32" in shown


def test_public_implementations_stand_beside_anocaps(results):
    import speed_tables

    assert speed_tables.public() == ""
    rates = {
        "training": {"anocaps": {"median": 200}, "public": {"median": 99.6}, "ratio": 2.05},
        "scoring PP and RE": {"anocaps": {"median": 1234}, "public": {"median": 300}, "ratio": 4.1},
    }
    entry = {"rates": rates, "versions": {"torch": "2.13"},
             "scored at once": {"anocaps": 256, "public": 100}}  # fmt: skip
    more = {"versions": {"torch": "2.11"}, "scored at once": {"anocaps": 4096, "public": 500}}
    write(results, "speed-public.json", {"someone/capsnet, a CPU": entry})
    shown = speed_tables.public()
    assert "| someone/capsnet | a CPU | 200, 100 | 2.0× | 1,234, 300 | 4.1× |" in shown
    assert "by them: 256 and 100 on a CPU (torch 2.13)." in shown
    assert "bf16" not in shown  # of a GPU, of which there is none
    both = {"someone/capsnet, a CPU": entry, "someone/capsnet, a GPU": entry | more}
    write(results, "speed-public.json", both)
    shown = speed_tables.public()
    assert "256 and 100 on a CPU (torch 2.13); 4,096 and 500 on a GPU (torch 2.11)." in shown
    assert "On a GPU anocaps trains in bf16" in shown and "TF32 convolutions" in shown


def test_the_ways_of_a_convolution_are_those_that_ran(results):
    import speed_tables

    error = {"output": 1e-7, "dmaps": 3e-7}
    ways = {
        "cuDNN, fp32": {"ms": MEDIAN, "forward ms": {"median": 0.5}, "relative error": error},
        "older": {"ms": MEDIAN, "relative error": error},
        "broken": "failed: no",
    }
    write(results, "speed-gpu.json", GPU | {"primary convolution": {"batch": 50, "ways": ways}})
    shown = speed_tables.convolution()
    assert "| median | forward | forward and backward | largest relative error |" in shown
    assert "| cuDNN, fp32 | 0.500 ms | 200.000 ms | 3.0e-07 |" in shown
    assert "| older |  | 200.000 ms | 3.0e-07 |" in shown
    assert "broken" not in shown


def test_kernels_are_told_with_what_they_reach_when_alone(results):
    import speed_tables

    alone = {"_forward ×1": 500.0, "_update ×1": 14.0, "other ×2": 3.0}
    profiles = {
        "top kernels, µs a step": alone,
        "top kernels of a fleet, µs a step and network": {"_forward ×1": 600.0},
        "top kernels of scoring 4096 images in fp32, µs": {
            "a_long_name_of_a_gemm_kernel_in_fp32 ×7": 4000.0,
            "sweep ×3": 1500.0,
            "another_gemm ×2": 2000.0,
            "close ×3": 500.0,
            "nobody_knows ×1": 2000.0,
        },
    }
    write(results, "speed-gpu.json", GPU | profiles)
    shown = speed_tables.bounds()
    # 2 · 2e9 · 50 operations in 500 µs are 400 TFLOP/s; 28 bytes · 1e6 in 14 µs are 2 TB/s
    assert "| `_forward ×1` | primary convolution | 500 | 50 % of peak |" in shown
    assert "| `_update ×1` | Adam | 14 | 2.0 TB/s |" in shown
    assert "| `other ×2` |  | 3 |  |" in shown
    assert "Of a step of 600 µs on one a GPU" in shown and "3 largest kernels take 517 µs" in shown
    assert "| `_forward ×1` | primary convolution | 600 |\n" in shown
    assert "Of scoring 4096 images in fp32:" in shown
    assert shown.splitlines()[-8:-2] == [
        "| kernels for | launches | µs | share |",
        "| --- | --- | --- | --- |",
        "| matrix products | 9 | 6,000 | 60.0 % |",
        "| routing | 6 | 2,000 | 20.0 % |",
        "| other | 1 | 2,000 | 20.0 % |",
        "| together | 16 | 10,000 |  |",
    ]
    write(results, "speed-gpu.json", GPU | dict.fromkeys(profiles, "failed: no profiler"))
    assert speed_tables.bounds() == ""


# ── goals ────────────────────────────────────────────────────────────────────────────────────


def test_goals_have_the_study_and_the_demo_where_they_were_measured(results, monkeypatch):
    import speed_goals

    write(results, "speed-gpu.json", GPU)
    write(results, "speed-cpu.json", CPU)
    runs = [RUN | {"seconds": 150.0, "finished": 21}, RUN | {"seconds": 50.0, "finished": 5}]
    monkeypatch.setattr(speed_goals.study_tables, "one_seed", lambda: [])
    shown = speed_goals.goals()
    step = "GPU, a training step of one network | ≤ 0.7 ms | 0.5"
    assert f"| {step} | 0.6 (0.59–0.65) | yes |" in shown
    assert "| CPU, training | ≥ 180 images/s |  | 200 (1–300) | yes, in the median |" in shown
    assert "demo" not in shown and "study, one seed" not in shown and "were training" not in shown
    write(results, "speed-cpu.json", CPU | {"demo seconds": 54.0})
    monkeypatch.setattr(speed_goals.study_tables, "one_seed", lambda: runs)
    monkeypatch.setattr(speed_goals.study_tables, "training_seconds", lambda runs: 170.0)
    shown = speed_goals.goals()
    assert "| CPU, `anocaps demo` | ≤ 45 s |  | 54 | no, by 20 % |" in shown
    assert "| GPU, the 26 CapsNets of the study, one seed | ≤ 220 s | 140 | 200 | yes |" in shown
    assert "Of the 200 s of the study 170 were training (85 %)" in shown
    assert "MNIST: 150 s at commit c0ffee; MNIST: 50 s at commit c0ffee." in shown


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
    ("low", "median", "high", "at_most", "verdict"),
    [
        (130, 135, 139, True, "stretch"),
        (130, 135, 141, True, "stretch, in the median"),
        (150, 200, 219, True, "yes"),
        (150, 200, 221, True, "yes, in the median"),
        (219, 242, 250, True, "no, by 10 %, in the median"),
        (221, 242, 250, True, "no, by 10 %"),
        (219, 230, 250, False, "yes, in the median"),
        (221, 230, 250, False, "yes"),
        (390, 410, 420, False, "stretch, in the median"),
    ],
)
def test_a_goal_inside_the_spread_is_told_as_such(low, median, high, at_most, verdict):
    from speed_goals import Goal

    found = {"median": median, "lowest": low, "highest": high}
    goal = Goal("time or rate", 220, 140 if at_most else 400, found, "", at_most)
    assert goal.row()[-2:] == [f"{median} ({low}–{high})", verdict]


# ── the study's time ─────────────────────────────────────────────────────────────────────────


class Found:
    """Numbers of a study of two datasets."""

    datasets = ("mnist", "small-norb")
    results = ()

    def cells(self, dataset):
        return {"mnist": range(3), "small-norb": range(2)}.get(dataset, ())


def line(datasets, finished, seconds, method="capsnet", device="a GPU"):
    told = {"datasets": datasets, "methods": [method], "finished": finished, "seconds": seconds}
    return json.dumps(told | {"device": device, "seeds": 1, "commit": "c"}) + "\n"


BOTH = ["mnist", "small-norb"]
LOGS = {
    "the last of each dataset": (
        line(["mnist"], 3, 9.0)
        + line(["mnist"], 3, 8.0)  # another seed, later
        + line(["mnist"], 0, 1.0)  # found everything done
        + line(["mnist"], 6, 15.0)  # two seeds at once
        + line(["mnist"], 3, 2.0, method="vae")
        + line(["small-norb"], 2, 5.0),
        [5.0, 8.0],
    ),
    "a later run of both replaces two": (
        line(["mnist"], 3, 9.0) + line(["small-norb"], 2, 5.0) + line(BOTH, 5, 11.0),
        [11.0],
    ),
    "one of them alone is not added to a run of both": (
        line(BOTH, 5, 11.0) + line(["mnist"], 3, 7.0),
        [11.0],
    ),
    "two later runs replace one of both": (
        line(BOTH, 5, 11.0) + line(["mnist"], 3, 7.0) + line(["small-norb"], 2, 5.0),
        [5.0, 7.0],
    ),
    "other devices are not added up": (
        line(BOTH, 5, 11.0)
        + line(["mnist"], 3, 7.0, device="another GPU")
        + line(["small-norb"], 2, 5.0)
        + line(BOTH, 5, 999.0, device="x86_64 CPU"),
        [11.0],
    ),
    "a dataset is missing": (line(["mnist"], 3, 9.0), []),
    "a dataset is unknown": (line([*BOTH, "other"], 5, 9.0), []),
}


@pytest.mark.parametrize(("log", "seconds"), LOGS.values(), ids=LOGS)
def test_the_time_of_one_seed_has_each_dataset_once(results, monkeypatch, log, seconds):
    import study_tables

    (results / "paper" / "log.jsonl").write_text(log)
    monkeypatch.setattr(study_tables, "numbers", Found)
    assert [run["seconds"] for run in study_tables.one_seed()] == seconds


def test_a_fleet_has_one_training_time(monkeypatch):
    import study_tables

    def cell(dataset, seed, seconds, commit="c"):
        record = {"training_seconds": seconds, "commit": commit}
        return SimpleNamespace(
            dataset=dataset, method="capsnet", variant="", seed=seed, record=record
        )

    cells = [cell("mnist", 1, 30.0 + k) for k in range(3)]
    cells += [cell("small-norb", 1, 20.0), cell("small-norb", 1, 19.5), cell("mnist", 0, 1.0)]
    monkeypatch.setattr(study_tables, "numbers", Found)
    monkeypatch.setattr(Found, "results", cells)
    runs = [{"datasets": [name], "seeds": 2, "commit": "c"} for name in BOTH]
    assert study_tables.training_seconds(runs) == 49.5
    monkeypatch.setattr(Found, "results", [*cells[1:], cell("mnist", 1, 30.0, "later")])
    assert study_tables.training_seconds(runs) is None  # one was replaced


def test_the_means_say_how_many_seeds_each_row_has(monkeypatch):
    import study_tables

    from anocaps.report.study_numbers import Spread

    columns = [SimpleNamespace(method="m", score=s, look=SimpleNamespace(label=s)) for s in "ab"]
    spreads = {("mnist", "a"): Spread({0: 0.5, 1: 0.7}), ("mnist", "b"): Spread({0: 0.25}),
               ("small-norb", "a"): Spread({0: 0.125})}  # fmt: skip
    monkeypatch.setattr(Found, "mean_auroc", lambda _, name, s: spreads.get((name, s.score)),
                        raising=False)  # fmt: skip
    monkeypatch.setattr(study_tables, "numbers", Found)
    monkeypatch.setattr(study_tables, "_columns", lambda found: columns)
    monkeypatch.setattr(study_tables, "one_seed", lambda: [])
    shown = study_tables.means()
    assert "| MNIST | 1–2 | 0.600 ± 0.141 | 0.250 |" in shown
    assert "| Small-NORB | 1 | 0.125 | – |" in shown
    assert "took" not in shown
    runs = [RUN | {"seconds": s, "finished": n} for s, n in ((150.0, 21), (50.0, 5))]
    monkeypatch.setattr(study_tables, "one_seed", lambda: runs)
    assert "The 26 CapsNets of one seed took 200 s on one a GPU in 2 runs, each from start" in (
        study_tables.means()
    )
    monkeypatch.setattr(study_tables, "one_seed", lambda: runs[:1])
    assert (
        "took 150 s on one a GPU in 1 run, from start to last AUROC (MNIST: 150 s at commit c0ffee)"
    ) in study_tables.means()
