"""Claim: on one H200 anocaps trains the paper's network 12 times as fast as a textbook PyTorch
version of the same equations with TF32 (0.61 ms a step of 100 images; 0.45 ms for each of ten
networks at once) and scores 212,000 images a second in fp32, twice as many as the textbook with
TF32. Median of 5 turns; the printed table proves it or not.

28×28 images, 9 classes. Scoring goes from arrays in main memory to scores there, in batches of
4,096 on both sides. The textbook runs as PyTorch ships it (TF32 in convolutions) and in fp32. First
the results are checked, and nothing is timed if one is wrong: scores against the textbook with the
same weights, scores in bf16 against fp32, a whole recorded training step against the textbook in
float64, and a network of the fleet against the same one trained alone.

The peak is that of a large matrix product in the row's own precision. The share of it counts the
arithmetic of direct convolutions, so that a form with less arithmetic can pass 100 %.

    python benchmarks/speed_gpu.py        (make bench-gpu, 3 minutes)
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import common
import numpy as np
import primary_convolution
import torch
from common import BATCH, CLASSES, PAPER, SCORES, Side, require, steps_of, textbook_scores
from numpy.typing import NDArray
from primary_convolution import relative_error

from anocaps.detectors import CapsNetDetector
from anocaps.training.device import Precision, circumstances
from anocaps.training.loop import Run

TEXTBOOKS = {"textbook eager, TF32": True, "textbook eager fp32": False}  # whether TF32 is allowed
IMAGES = 200 * BATCH  # to train on; a turn is one epoch
SCORED, SCORED_BY_TEXTBOOK = 49 * 4096, 10 * 4096  # images in a turn
# Of a training step against float64, by the precision it is done in.
STEP_BOUNDS: dict[Precision, dict[str, float]] = {
    "bf16": {"loss": 2e-3, "gradients": 0.1, "Adam": 1e-4},
    "fp32": {"loss": 1e-5, "gradients": 1e-4, "Adam": 1e-4},
}
Memory = dict[str, dict[str, int]]


def main() -> None:
    parser = common.parser(__doc__, "speed-gpu.json")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--fleet", type=int, default=10, help="networks trained at once")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs an NVIDIA GPU, and none is usable here")
    result = measure(torch.device("cuda"), options.repeats, options.fleet)
    print(report(result))
    common.write(options.out, result)


def measure(device: torch.device, repeats: int, networks: int) -> dict[str, Any]:
    memory: Memory = {}
    detector, book, checked = checked_detector(device)
    sides, alone, runs = training_sides(device, networks, memory)
    checked["bf16 step against float64"] = check_step(device)
    checked["largest relative weight difference, fleet against alone"] = check_fleet(alone, runs)
    taken = common.take_turns(sides, repeats, device)
    per = {name: networks if name.endswith("per network") else 1 for name in sides}
    steps = {
        name: common.spread([1e3 * s / per[name] for s in seconds], 4)
        for name, seconds in taken.items()
    }
    scorers, counts = scoring_sides(detector, book, device, memory)
    taken = common.take_turns(scorers, repeats, device)
    scoring = {
        name: common.spread([counts[name] / s for s in seconds], 1)
        for name, seconds in taken.items()
    }

    precision, at_once = alone.config.precision, common.SCORED_AT_ONCE["cuda"]
    flops = partial(common.product_flops, 8192, device=device, calls=10)
    peaks = {"bf16": flops(torch.bfloat16), "TF32": flops(torch.float32, tf32=True),
             "fp32": flops(torch.float32)}  # fmt: skip
    done = {n: BATCH * common.TRAINING_FLOP / row["median"] * 1e3 for n, row in steps.items()}
    done |= {f"scoring, {n}": row["median"] * common.SCORING_FLOP for n, row in scoring.items()}

    def share(name: str) -> float:
        kind = next((kind for kind in peaks if kind in name), precision)
        return round(done[name] / peaks[kind], 3)

    batch, _ = common.noise(PAPER, at_once)
    quickest = min(row["median"] for name, row in steps.items() if name.startswith("textbook"))
    return {
        "what": "ms per training step, and images/s of scoring PP and RE",
        "batch": BATCH,
        "scored at once": at_once,
        "parameters": sum(weight.numel() for weight in book.parameters()),
        "multiply-adds an image": common.PAPER_MULTIPLY_ADDS,
        "training precision": precision,
        "repeats": repeats,
        "steps": steps,
        "scoring": scoring,
        "speed-up of one network over textbook": round(
            quickest / steps["one network"]["median"], 2
        ),
        **{f"peak {name} TFLOP/s measured": round(v / 1e12, 1) for name, v in peaks.items()},
        "share of peak": {name: share(name) for name in done},
        "peak memory MiB": memory,
        **checked,
        "top kernels, µs a step": top_kernels(sides["one network"].call, 20),
        f"top kernels of scoring {at_once} images in fp32, µs": top_kernels(
            lambda: scores_in("fp32", detector, batch), 5
        ),
        "primary convolution": primary_convolution.compare(device),
        **circumstances(device),
    }


# ── what is timed ────────────────────────────────────────────────────────────────────────────


def training_sides(
    device: torch.device, networks: int, memory: Memory
) -> tuple[dict[str, Side], Run, list[Run]]:
    """What takes turns, the run alone, and those of the fleet."""
    sides = {}
    for name, allowed in TEXTBOOKS.items():
        name = f"{name}, one network"
        step, memory[name] = common.with_memory(partial(textbook, device, allowed), device)
        sides[name] = Side(step, 20)
    together = f"{networks} networks at once, per network"
    [alone], memory["one network"] = common.with_memory(lambda: fleet(1, device), device)
    runs, memory[together] = common.with_memory(lambda: fleet(networks, device), device)
    sides["one network"] = Side(steps_of([alone]), alone.steps)
    sides[together] = Side(steps_of(runs), alone.steps)
    return sides, alone, runs


def textbook(device: torch.device, tf32: bool) -> Callable[[], None]:
    """A training step of a new textbook network, after the first step."""
    images, labels = common.noise(PAPER, BATCH)
    book = common.Textbook(CLASSES).to(device)
    pixels, on_device = common.as_pixels(images, device), torch.from_numpy(labels).to(device)
    step = with_tf32(tf32, common.textbook_step(book, pixels, on_device))
    step()
    return step


def with_tf32(allowed: bool, call: Callable[[], object]) -> Callable[[], None]:
    """A call whose convolutions may use TF32, or not; matrix products do not, as PyTorch ships."""

    def calls() -> None:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=allowed):
            call()

    return calls


def fleet(count: int, device: torch.device) -> list[Run]:
    """Runs whose step is recorded, so that its memory counts."""
    runs = [common.make_run(PAPER, seed, device, IMAGES) for seed in range(count)]
    for run in runs:
        run.prepare(alone=count == 1)
    return runs


def scoring_sides(
    detector: CapsNetDetector, book: common.Textbook, device: torch.device, memory: Memory
) -> tuple[dict[str, Side], dict[str, int]]:
    """What takes turns, and how many images each scores in a turn."""
    images, _ = common.noise(PAPER, SCORED)
    few = images[:SCORED_BY_TEXTBOOK]
    calls: dict[str, Callable[[], object]] = {
        name: with_tf32(allowed, lambda: textbook_scores(book.scores, few, device))
        for name, allowed in TEXTBOOKS.items()
    }
    calls |= {name: partial(scores_in, name, detector, images) for name in ("fp32", "bf16")}
    for name, call in calls.items():
        _, memory[f"scoring, {name}"] = common.with_memory(call, device)
    counts = {name: len(few) if name in TEXTBOOKS else len(images) for name in calls}
    return {name: Side(call) for name, call in calls.items()}, counts


def scores_in(
    precision: Precision, detector: CapsNetDetector, images: NDArray[np.uint8]
) -> dict[str, NDArray[np.float64]]:
    detector.scoring_precision = precision
    return detector.outputs(images, SCORES)


def top_kernels(call: Callable[[], object], calls: int) -> dict[str, float]:
    """The 25 longest kernels: "full name ×launches" → µs of a call."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    rows = sorted(profiled.key_averages(), key=lambda row: -row.device_time_total)[:25]
    return {
        f"{row.key} ×{row.count // calls}": round(row.device_time_total / calls, 1) for row in rows
    }


# ── what is checked first ────────────────────────────────────────────────────────────────────


def checked_detector(
    device: torch.device,
) -> tuple[CapsNetDetector, common.Textbook, dict[str, Any]]:
    """A detector trained on digits, a textbook with its weights, and how far scores differ."""
    images, labels = common.large_digits(1797)
    detector = CapsNetDetector("paper", epochs=10, calibration=0.0, device=device.type).fit(
        images, labels
    )
    book = common.Textbook(CLASSES).to(device)
    book.load_state_dict(detector.network_.state_dict())
    return detector, book, {
        "largest score difference to textbook": common.check_equal(detector, book, images),
        "bf16 scores": check_bf16(detector, images),
    }  # fmt: skip


def check_bf16(detector: CapsNetDetector, images: NDArray[np.uint8]) -> dict[str, Any]:
    """How far scores in bf16 are from those in fp32, and how many images share their PP.

    Where two capsules are nearly as long, rounding decides which one makes the reconstruction.
    Such images are left out of the RE.
    """
    exact, longest = scores_in("fp32", detector, images), detector.classify(images)
    rounded, other = scores_in("bf16", detector, images), detector.classify(images)
    detector.scoring_precision = "fp32"
    same = longest == other
    require(same.mean() >= 0.99, f"{np.sum(~same)} images have another longest capsule in bf16")
    off = {name: np.abs(exact[name] - rounded[name]) for name in SCORES}
    largest = {"pp": float(off["pp"].max()), "re": float(off["re"][same].max())}
    require(largest["pp"] <= 0.02 and largest["re"] <= 0.1, f"bf16 scores are off by {largest}")
    return {
        "images": len(images),
        "another longest capsule": int(np.sum(~same)),
        **{f"largest {name.upper()} difference": largest[name] for name in SCORES},
        **{name.upper(): [float(exact[name].min()), float(exact[name].max())] for name in SCORES},
        "ties in PP": {
            "fp32": len(images) - len(np.unique(exact["pp"])),
            "bf16": len(images) - len(np.unique(rounded["pp"])),
        },
    }


def check_step(device: torch.device) -> dict[str, Any]:
    """The first step of a run as it is timed, against the textbook in float64.

    Loss and gradients are relative errors. Adam is the error of a weight's change, against torch's
    Adam in float64 with this step's own gradients.
    """
    torch.manual_seed(0)
    run = common.run_on(PAPER.network(), *common.large_digits(1797), 0, device)
    run.begin_epoch()
    common.synchronize(device)
    book = common.Textbook(CLASSES).to(device).double()
    book.load_state_dict(run.network.state_dict())
    taken = run.order[:BATCH]
    pixels = run.images[taken].permute(0, 3, 1, 2).double() / 255  # [B, 1, 28, 28]
    loss = book.loss(pixels, run.labels[taken])
    loss.backward()
    run.step()
    common.synchronize(device)

    exact = dict(book.named_parameters())
    before = {name: weight.detach().clone() for name, weight in exact.items()}
    gradients, updates = {}, {}
    for name, weight in run.network.named_parameters():
        gradients[name] = relative_error(weight.grad, exact[name].grad)
        exact[name].grad = weight.grad.double()
    torch.optim.Adam(book.parameters(), lr=run.config.learning_rate).step()
    for name, weight in run.network.named_parameters():
        change = weight.detach().double() - before[name]
        updates[name] = relative_error(change, exact[name].detach() - before[name])

    largest = max(gradients, key=lambda name: np.nan_to_num(gradients[name], nan=np.inf))
    found = {
        "loss": abs(run.mean_loss(1) / loss.item() - 1),
        "gradients": gradients[largest],
        "Adam": float(np.max(list(updates.values()))),
    }
    bounds = STEP_BOUNDS[run.config.precision]
    for name, error in found.items():
        require(error <= bounds[name], f"{name} of a training step: {error:.2g} off float64")
    return {**found, "of": largest, "bounds": bounds}


def check_fleet(alone: Run, runs: list[Run]) -> float:
    """The largest relative difference of a weight to the same network alone, after 20 steps."""
    for each in ([alone], runs):
        steps_of(each, 20)()
    common.synchronize(alone.device)
    pairs = zip(runs[0].network.parameters(), alone.network.parameters())
    largest = float(np.max([relative_error(a.detach(), b.detach().double()) for a, b in pairs]))
    require(largest <= 1e-4, f"a network of a fleet is {largest:.2g} off the same one alone")
    return largest


def report(result: dict[str, Any]) -> str:
    share, memory = result["share of peak"], result["peak memory MiB"]
    rows = [(name, row, ",.3f", "ms") for name, row in result["steps"].items()]
    rows += [(f"scoring, {n}", row, ",.0f", "images/s") for n, row in result["scoring"].items()]
    lines = [f"{result['device']}: {result['what']}"]
    for name, row, form, unit in rows:
        low, middle, high = (format(row[k], form) for k in ("lowest", "median", "highest"))
        told = f"{middle} {unit} ({low}–{high})"
        held = max(memory[name].values())
        lines.append(f"{name:40} {told:44} {share[name]:6.1%} of peak {held:7,} MiB")
    step = result["bf16 step against float64"]
    lines.append(
        f"{result['speed-up of one network over textbook']} × the faster textbook; scores off it "
        f"by {result['largest score difference to textbook']:.1e}; a step off float64: loss "
        f"{step['loss']:.1e}, gradients {step['gradients']:.1e}, Adam {step['Adam']:.1e}; bf16 "
        f"scores off fp32: PP {result['bf16 scores']['largest PP difference']:.1e}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    common.run_script(main)
