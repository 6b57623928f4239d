"""What the scripts of this folder share: result files, measuring in turns, and the work they time.

Sides that are compared take turns in one process, so that they meet the same disturbances. The
first turn of each warms up. Device times are taken between two synchronisations.
"""

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anocaps.base.errors import AnocapsError
from anocaps.base.files import write_text
from anocaps.capsules.textbook import TextbookCapsNet, lengths
from anocaps.data import load_dataset
from anocaps.detectors import CapsNetDetector, load
from anocaps.detectors.capsnet import built, capsnet_loss
from anocaps.detectors.presets import find_preset
from anocaps.networks.capsnet import CapsNet
from anocaps.networks.deep import DeepCapsNet
from anocaps.training.device import pick_precision
from anocaps.training.loop import Run, TrainingConfig
from anocaps.training.memory import in_parts, release
from anocaps.training.preprocessing import Preprocessing

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
T = TypeVar("T")
Spread = dict[str, float]  # median, lowest, highest


# ── options and result files ─────────────────────────────────────────────────────────────────


def parser(doc: str, out: str) -> argparse.ArgumentParser:
    """`--help` shows the script's docstring; `--out` is where its results go."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--out", type=Path, default=RESULTS / out, help=f"else results/{out}")
    return made


def run_script(main: Callable[[], None]) -> None:
    try:
        main()
    except AnocapsError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")  # one line


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text("utf-8"))


def stored(path: Path) -> dict[str, Any]:
    """The results in a file to which more are added."""
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def write(path: Path, result: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(f"written to {path}")


def table(head: list[str], rows: list[list[str]]) -> str:
    """In Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# ── time and memory ──────────────────────────────────────────────────────────────────────────


class Side(NamedTuple):
    """Work that takes turns with other work. A turn is `calls` calls."""

    call: Callable[[], object]
    calls: int = 1


def take_turns(
    sides: Mapping[str, Side], repeats: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of one call of each side, one number for each repeat."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(1 + repeats):
        for name, side in sides.items():
            taken = seconds_of(side, device)
            if repeat > 0:
                seconds[name].append(taken)
    return seconds


def seconds_of(side: Side, device: torch.device) -> float:
    synchronize(device)
    started = time.perf_counter()
    for _ in range(side.calls):
        side.call()
    synchronize(device)
    return (time.perf_counter() - started) / side.calls


def median_seconds(call: Callable[[], object], seconds: float, device: torch.device) -> float:
    """The median time of 1 to 5 calls; none begins after `seconds`."""
    times: list[float] = []
    while not times or (sum(times) < seconds and len(times) < 5):
        times.append(seconds_of(Side(call), device))
    return statistics.median(times)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def spread(values: Sequence[float], digits: int) -> Spread:
    found = {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
    return {name: round(value, digits) for name, value in found.items()}


def side_by_side(
    ours: Side, theirs: Side, images: int, repeats: int, device: torch.device, names: Sequence[str]
) -> dict[str, Any]:
    """Images/s of two sides, with `images` images a call, and the median ratio of turns."""
    taken = take_turns(dict(zip(names, (ours, theirs))), repeats, device)
    ratios = [b / a for a, b in zip(*taken.values())]
    rates = {name: spread([images / s for s in each], 1) for name, each in taken.items()}
    return {**rates, "ratio": round(statistics.median(ratios), 2)}


def product_flops(
    side: int, dtype: torch.dtype, device: torch.device, calls: int = 1, tf32: bool = False
) -> float:
    """FLOP/s of a large matrix product, which counts as the peak."""
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    torch.backends.cuda.matmul.allow_tf32 = tf32
    taken = take_turns({"": Side(lambda: torch.mm(a, b), calls)}, 5, device)[""]
    torch.backends.cuda.matmul.allow_tf32 = False  # as PyTorch ships
    return 2 * side**3 / statistics.median(taken)


class Peak:
    """The peak memory since this object was made, in MiB, less what was held then.

    On a GPU "tensors" is what they held, "reserved" what the allocator took for them. A CPU process
    knows its peak since its start only: measure in a process of its own (`apart`).
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            synchronize(device)
            release()
            torch.cuda.reset_peak_memory_stats(device)
        self.before = self._most()

    def _most(self) -> dict[str, int]:
        if self.device.type == "cuda":
            return {
                "tensors": torch.cuda.max_memory_allocated(self.device),
                "reserved": torch.cuda.max_memory_reserved(self.device),
            }
        return {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}

    def parts(self) -> dict[str, int]:
        synchronize(self.device)
        return {name: (most - self.before[name]) // 2**20 for name, most in self._most().items()}

    def mib(self) -> int:
        return max(self.parts().values())


def with_memory(call: Callable[[], T], device: torch.device) -> tuple[T, dict[str, int]]:
    """What a call returns, and the memory that it needed."""
    peak = Peak(device)
    result = call()
    return result, peak.parts()


def apart(device: torch.device, work: Callable[..., T], *given: object) -> T:
    """What `work` returns; on a CPU in a new process that has imported everything."""
    if device.type == "cuda":
        return work(*given)
    context = get_context("forkserver")
    context.set_forkserver_preload(["anocaps.detectors", "torch._dynamo"])  # Adam imports the last
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(work, *given).result()


# ── networks and images ──────────────────────────────────────────────────────────────────────

CLASSES = 9
BATCH = 100  # images in a training step
SCORED_AT_ONCE = {"cpu": 256, "cuda": 4096}  # images, as anocaps.training.inference takes them
SCORES = ("pp", "re")


@dataclass(frozen=True)
class Kind:
    """The network of a preset for a size of images and a number of classes."""

    preset: str
    side: int = 28  # pixels
    classes: int = CLASSES

    def network(self) -> CapsNet | DeepCapsNet:
        return built(find_preset(self.preset).network(self.side, self.side, 1, self.classes))


PAPER = Kind("paper")


PAPER_MULTIPLY_ADDS = {  # of one image, forward, with direct convolutions; routing's sums left out
    "conv1": 20 * 20 * 256 * 9 * 9,
    "primary": 6 * 6 * 256 * 256 * 9 * 9,
    "votes": 1152 * 8 * CLASSES * 16,
    "decoder": CLASSES * 16 * 512 + 512 * 1024 + 1024 * 28 * 28,
}
SCORING_FLOP = 2 * sum(PAPER_MULTIPLY_ADDS.values())  # an image
TRAINING_FLOP = 3 * SCORING_FLOP  # forward, and the gradients of inputs and of weights


def noise(kind: Kind, images: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Random images [N, side, side] and labels [N]."""
    shape = (images, kind.side, kind.side)
    drawn = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return drawn, np.arange(images) % kind.classes


def large_digits(most: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bundled digits without the nine, every pixel 3×3, black border: [N, 28, 28], labels."""
    digits = load_dataset("digits")
    images = np.concatenate([digits.train.images, digits.test.images])
    labels = np.concatenate([digits.train.labels, digits.test.labels])
    normal = np.flatnonzero(labels < CLASSES)[:most]
    large = images[normal].repeat(3, axis=1).repeat(3, axis=2)
    return np.pad(large, ((0, 0), (2, 2), (2, 2))), labels[normal]


def make_run(kind: Kind, seed: int, device: torch.device, images: int) -> Run:
    """Training on random images."""
    torch.manual_seed(seed)
    return run_on(kind.network(), *noise(kind, images, seed), seed, device, kind.preset)


def run_on(
    network: CapsNet | DeepCapsNet,
    images: NDArray[np.uint8],  # [N, side, side]
    labels: NDArray[np.int64],
    seed: int,
    device: torch.device,
    preset: str = "paper",
) -> Run:
    """Training as the detector does it, in batches of BATCH."""
    settings, (height, width) = find_preset(preset), images.shape[1:]
    shift = settings.shift_for(height, width)
    preprocessing = Preprocessing(height, width, 1, shift=shift, padding=settings.padding)
    return Run(
        network,
        capsnet_loss(network, preprocessing, settings.weight_for(height * width)),
        images[..., None],
        labels.astype(np.int64),
        preprocessing,
        TrainingConfig(
            epochs=1000, batch_size=BATCH, precision=pick_precision("auto", device), seed=seed
        ),
        device,
    )


def steps_of(runs: Sequence[Run], steps: int = 1) -> Callable[[], None]:
    """`steps` steps of every run. A new epoch begins when the images are used up."""
    place = 0

    def step() -> None:
        nonlocal place
        for _ in range(steps):
            if place % runs[0].steps == 0:
                for run in runs:
                    run.begin_epoch()
            for run in runs:
                run.step()
            place += 1

    return step


@contextmanager
def fitted(kind: Kind) -> Iterator[Path]:
    """A model file, so that training has no part in the memory of scoring."""
    detector = CapsNetDetector(kind.preset, epochs=1, calibration=0.0, device="cpu")
    with TemporaryDirectory() as folder:
        model = Path(folder) / "model.safetensors"
        detector.fit(*noise(kind, 2 * kind.classes)).save(model)
        yield model


class Cost(NamedTuple):
    seconds: float
    mib: int  # peak memory


def training_cost(
    kind: Kind, images: int, steps: int, seconds: float, device: torch.device
) -> Cost:
    """Seconds of one step, and the memory of training on `images` images."""
    peak = Peak(device)
    step = steps_of([make_run(kind, 0, device, images)], steps)
    step()  # warm up
    return Cost(median_seconds(step, seconds, device) / steps, peak.mib())


def scoring_cost(model: Path, images: int, seconds: float, device: torch.device) -> Cost:
    """Seconds to score `images` images by PP and RE: one image, repeated without a copy."""
    peak = Peak(device)
    detector = load(model, device=str(device))
    seen = detector.preprocessing_
    one = np.random.default_rng(0).integers(0, 256, (1, seen.height, seen.width), dtype=np.uint8)
    many = np.broadcast_to(one, (images, *one.shape[1:]))
    detector.outputs(many[:5000], SCORES)  # warm up
    taken = median_seconds(lambda: detector.outputs(many, SCORES), seconds, device)
    return Cost(taken, peak.mib())


# ── the textbook, and whatever has its methods ───────────────────────────────────────────────


class Textbook(TextbookCapsNet):
    """With the paper's two scores of pixels [N, 1, 28, 28]."""

    def pp(self, x: Tensor) -> Tensor:
        return lengths(self(x)).amax(1)

    def scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        capsules = self(x)
        length = lengths(capsules)
        error = (x - self.decode(capsules, length.argmax(1))).square().flatten(1).sum(1)
        return length.amax(1), -error / x.flatten(1).norm(dim=1)


def as_pixels(images: NDArray[np.uint8], device: torch.device) -> Tensor:
    """[N, 28, 28] → [N, 1, 28, 28] in [0, 1] on the device."""
    return torch.from_numpy(images).unsqueeze(1).to(device) / 255


def textbook_step(book: Any, pixels: Tensor, labels: Tensor) -> Callable[[], None]:
    """One training step over the same batch again and again."""
    optimizer = torch.optim.Adam(book.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        book.loss(pixels, labels).backward()
        optimizer.step()

    return step


def textbook_scores(
    score: Callable[[Tensor], tuple[Tensor, ...]], images: NDArray[np.uint8], device: torch.device
) -> list[NDArray[Any]]:
    """From arrays [N, 28, 28] in main memory to scores there, in batches of anocaps' size."""

    def of_part(part: slice) -> list[NDArray[Any]]:
        return [scores.cpu().numpy() for scores in score(as_pixels(images[part], device))]

    size = SCORED_AT_ONCE[device.type]
    with torch.inference_mode():
        parts = list(in_parts(len(images), size, of_part, whole="batch", thing="image"))
    return [np.concatenate(scores) for scores in zip(*parts)]


def check_equal(detector: CapsNetDetector, book: Textbook, images: NDArray[np.uint8]) -> float:
    """The largest difference of PP and RE to the textbook with the same weights."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        want = textbook_scores(book.scores, images, book.routing.device)
    got = detector.outputs(images, SCORES)
    largest = max(float(np.abs(g - w).max()) for g, w in zip(got.values(), want))
    require(largest <= 1e-4, f"scores differ from the textbook's by {largest:.2g}")
    return largest


def require(right: bool, what: str) -> None:
    if not right:  # as NaN is
        raise SystemExit(f"{what}: nothing was timed")
