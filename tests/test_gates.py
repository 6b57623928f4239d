"""What must hold before anything is timed: right results pass, one changed weight does not."""

from pathlib import Path

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
CPU = torch.device("cpu")
IMAGES = 18  # two of each class


@pytest.fixture
def gates(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import gates

    return gates


@pytest.fixture
def images(gates) -> np.ndarray:
    import workloads

    return workloads.noise(workloads.PAPER, IMAGES)[0]


@pytest.fixture
def pair(gates):
    """A detector, and a textbook with its weights."""
    import speed_cpu
    import workloads

    return speed_cpu.pair(*workloads.noise(workloads.PAPER, IMAGES))


@pytest.fixture
def make_run(gates, monkeypatch):
    import workloads

    def make(precision: str = "fp32"):
        monkeypatch.setattr(workloads, "pick_precision", lambda *_: precision)
        return workloads.make_run(workloads.PAPER, 0, CPU, IMAGES)

    return make


def change(network: torch.nn.Module, name: str = "routing") -> None:
    """One weight."""
    with torch.no_grad():
        network.get_parameter(name).view(-1)[0] += 1


def test_scores_must_be_those_of_the_textbook(gates, pair, images):
    detector, book = pair
    assert 0 < gates.check_equal(detector, book, images) < 1e-5
    change(book)
    with pytest.raises(SystemExit, match=r"differ from the textbook's .*: nothing was timed"):
        gates.check_equal(detector, book, images)


def test_scores_in_bf16_must_be_near(gates, pair, images, monkeypatch):
    detector, _ = pair
    found = gates.check_bf16(detector, images)
    assert found["images"] == IMAGES
    for name, bound in gates.BF16_BOUNDS.items():
        low, high = found[name.upper()]
        assert low < high
        assert 0 < found[f"largest {name.upper()} difference"] < bound
    assert found["ties in PP"]["fp32"] == 0
    assert detector.scoring_precision == "fp32"

    right = gates.judged_in
    for name in gates.BF16_BOUNDS:

        def wrong(precision, *given, name=name):
            scores, longest = right(precision, *given)
            scores[name][0] += 0.5 * (precision == "bf16")
            return scores, longest

        monkeypatch.setattr(gates, "judged_in", wrong)
        with pytest.raises(SystemExit, match=f"{name.upper()} in bf16 is off"):
            gates.check_bf16(detector, images)


def test_few_images_may_be_redrawn_by_another_capsule_in_bf16(gates, pair, images, monkeypatch):
    detector, _ = pair
    right = gates.judged_in

    def another(precision, *given):
        scores, longest = right(precision, *given)
        if precision == "bf16":
            longest[0] = (longest[0] + 1) % 9
            scores["re"][0] += 0.5
        return scores, longest

    monkeypatch.setattr(gates, "judged_in", another)
    with pytest.raises(SystemExit, match=f"1 of {IMAGES} images .*: nothing was timed"):
        gates.check_bf16(detector, images)
    monkeypatch.setattr(gates, "SAME_LONGEST", 0.9)
    found = gates.check_bf16(detector, images)
    assert found["another longest capsule"] == 1
    assert found["largest RE difference"] < gates.BF16_BOUNDS["re"]


def test_ties_are_images_that_fell_together(gates):
    assert gates.ties(np.array([1.0, 2.0, 1.0, 1.0])) == 2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_right_step_passes(gates, make_run, precision):
    found = gates.check_step(make_run(precision))
    assert found["bounds"] == gates.STEP_BOUNDS[precision]
    assert all(0 < found[name] < bound for name, bound in found["bounds"].items())
    assert found["gradients"] > (1e-3 if precision == "bf16" else 0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [("weight", "gradients"), ("update", "Adam"), ("batch", "loss"), ("nan", "loss")],
)
def test_a_step_that_is_off_stops_everything(gates, make_run, monkeypatch, changes, told):
    run = make_run()
    right, loss = run.step, run.loss

    def step() -> None:
        if changes == "weight":
            change(run.network, "decoder.2.weight")
        elif changes == "batch":
            run.labels.copy_(run.labels.roll(1))
        elif changes == "nan":
            run.loss = lambda *given: loss(*given) * float("nan")
        right()
        if changes == "update":
            change(run.network)

    monkeypatch.setattr(run, "step", step)
    with pytest.raises(
        SystemExit, match=rf"{told} of a training step in fp32: .*nothing was timed"
    ):
        gates.check_step(run)


def test_a_network_of_a_fleet_must_be_the_one_alone(gates, make_run):
    alone, member = make_run(), make_run()
    assert gates.check_fleet(alone, member) == 0
    change(member.network)
    with pytest.raises(SystemExit, match="off the same one alone: nothing was timed"):
        gates.check_fleet(alone, member)
    with torch.no_grad():
        member.network.routing.fill_(float("nan"))
    with pytest.raises(SystemExit):
        gates.check_fleet(alone, member)
