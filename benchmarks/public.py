"""Claim: anocaps trains and scores the paper's network faster than a public PyTorch implementation
of it, side by side in one process. The printed ratio proves it or not.

    python benchmarks/public.py --repo PATH        (PATH: a clone on your disk)

Random 28×28 images, 9 classes, batch 100, warmed up, turn by turn, median and spread of several
repeats. The clone runs as it ships: eager, fp32 (cuDNN may use TF32), its own loss, Adam, its
images already on the device; but gram-ai/capsule-networks, made for an older torch, would end with
an error today: its class capsules are copied once a pass, which is in its time. anocaps runs as its
detector does: on a GPU it trains in bf16, it scores in fp32 without TF32 and starts from arrays in
the computer's memory. The implementations differ in their equations, so their outputs cannot be
compared: it is checked that a clone's scores are finite, one for an image, and that a step changes
its weights. Results are added to results/speed-public.json, an entry for each implementation and
device.
"""

import argparse
import ast
import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from measuring import Side, rates, ratio, take_turns
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn.functional import mse_loss
from workloads import (
    BATCH,
    CLASSES,
    PAPER,
    SCORED_AT_ONCE,
    SCORES,
    as_pixels,
    make_run,
    noise,
    steps_of,
    textbook_step,
)

from anocaps.capsules import margin_loss
from anocaps.circumstances import circumstances
from anocaps.detectors import CapsNetDetector
from anocaps.errors import InputError
from anocaps.files import write_text

SCORE_BATCH = {"cpu": 100, "cuda": 500}  # of the clone
SCORED = {"cpu": 512, "cuda": 20_000}  # images in one repeat
# In one turn. Several also on a CPU: training never has another network's numbers in its cache.
STEPS_TIMED = {"cpu": 4, "cuda": 50}
BATCHES = {"cpu": 10, "cuda": 200}  # of images that anocaps trains on

# ── the implementations ──────────────────────────────────────────────────────────────────────

Loss = Callable[[Tensor, Tensor], Tensor]  # pixels [N, 1, 28, 28], labels [N] → scalar
Explain = Callable[[Tensor], tuple[Tensor, Tensor]]  # pixels → lengths [N, classes], redrawn pixels
Import = Callable[[str], Any]  # a module of the clone by its name


@dataclass(frozen=True)
class Adapter:
    """How a clone is recognised, and how its network is built, trained and asked."""

    name: str
    files: dict[str, set[str]]  # file of the clone → classes and functions that it defines
    build: Callable[[Import, torch.device], tuple[nn.Module, Loss, Explain]]
    unneeded: tuple[str, ...] = ()  # packages that it imports, but not for the network


def one_hot(labels: Tensor) -> Tensor:
    return nn.functional.one_hot(labels, CLASSES).float()


def readable_capsnet(clone: Import, device: torch.device) -> tuple[nn.Module, Loss, Explain]:
    source = clone("capsnet")
    encoder = source.Encoder(28, 28, 1, 32, 8, CLASSES, 16)
    decoder = source.Decoder(CLASSES, 16, 28, 28, 1)

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:  # its own is in a script, not a function
        capsules = encoder(pixels)
        redrawn = decoder(capsules * one_hot(labels).unsqueeze(2))
        return margin_loss(capsules.norm(dim=2), labels) + 10 * mse_loss(redrawn, pixels)

    def explain(pixels: Tensor) -> tuple[Tensor, Tensor]:
        capsules = encoder(pixels)
        lengths = capsules.norm(dim=2)
        return lengths, decoder(capsules * one_hot(lengths.argmax(1)).unsqueeze(2))

    return nn.ModuleList([encoder, decoder]), loss, explain


def adambielski(clone: Import, device: torch.device) -> tuple[nn.Module, Loss, Explain]:
    source = clone("net")
    source.Variable = Variable  # which it imports only as a script
    capsnet = source.CapsNet(2, CLASSES)  # iterations after the first
    network = source.CapsNetWithReconstruction(capsnet, source.ReconstructionNet(16, CLASSES))
    margin = source.MarginLoss(0.9, 0.1, 0.5)

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        redrawn, lengths = network(pixels, labels)
        found: Tensor = margin(lengths, labels)
        return found + 0.0005 * mse_loss(redrawn, pixels.flatten(1))

    def explain(pixels: Tensor) -> tuple[Tensor, Tensor]:
        capsules, lengths = network.capsnet(pixels)
        return lengths, network.reconstruction_net(capsules, lengths.argmax(1))

    return network, loss, explain


def danielhavir(clone: Import, device: torch.device) -> tuple[nn.Module, Loss, Explain]:
    build, criterion = clone("model").CapsuleNetwork, clone("loss").CapsuleLoss()
    arguments = {
        "img_shape": (1, 28, 28), "channels": 256, "primary_dim": 8, "primary_caps": 1152,
        "num_classes": CLASSES, "out_dim": 16, "num_routing": 3, "device": device,
    }  # fmt: skip
    known = inspect.signature(build).parameters  # they changed over time
    network = build(**{name: value for name, value in arguments.items() if name in known})

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        lengths, redrawn = network(pixels)
        found: Tensor = criterion(lengths, one_hot(labels), pixels, redrawn)
        return found

    return network, loss, network


def xifengguo(clone: Import, device: torch.device) -> tuple[nn.Module, Loss, Explain]:
    source = clone("capsulenet")
    network = source.CapsuleNet(input_size=[1, 28, 28], classes=CLASSES, routings=3)

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        lengths, redrawn = network(pixels, one_hot(labels))
        weight = 0.0005 * 784
        found: Tensor = source.caps_loss(one_hot(labels), lengths, pixels, redrawn, weight)
        return found

    return network, loss, network


def gram_ai(clone: Import, device: torch.device) -> tuple[nn.Module, Loss, Explain]:
    source = clone("capsule_network")
    source.NUM_CLASSES = CLASSES
    source.Variable = Variable  # which it imports only as a script
    network, criterion = source.CapsuleNet(), source.CapsuleLoss()

    def image_by_image(_: nn.Module, __: object, capsules: Tensor) -> Tensor:
        # [classes, N, 1, 1, 16]: its later view needs an image's capsules side by side in memory,
        # as the torch of its time laid them out
        return capsules.transpose(0, 1).contiguous().transpose(0, 1)

    network.digit_capsules.register_forward_hook(image_by_image)

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        present = one_hot(labels)
        found: Tensor = criterion(pixels, present, *network(pixels, present))
        return found

    return network, loss, network


ADAPTERS = (
    Adapter("readable_capsnet", {"capsnet.py": {"Encoder", "Decoder"}}, readable_capsnet),
    Adapter(
        "adambielski/CapsNet-pytorch",
        {"net.py": {"CapsNet", "ReconstructionNet", "CapsNetWithReconstruction", "MarginLoss"}},
        adambielski,
    ),
    Adapter(
        "danielhavir/capsule-network",
        {"model.py": {"CapsuleNetwork"}, "loss.py": {"CapsuleLoss"}, "capsules.py": set()},
        danielhavir,
    ),
    Adapter(
        "XifengGuo/CapsNet-Pytorch",
        {"capsulenet.py": {"CapsuleNet", "caps_loss"}, "capsulelayers.py": set()},
        xifengguo,
        unneeded=("torchvision",),
    ),
    Adapter(
        "gram-ai/capsule-networks",
        {"capsule_network.py": {"CapsuleNet", "CapsuleLoss"}},
        gram_ai,
    ),
)


# ── from a folder to a network ───────────────────────────────────────────────────────────────


class Public(nn.Module):
    """An implementation with the methods of textbook.TextbookCapsNet: the same helpers time it."""

    def __init__(self, network: nn.Module, loss: Loss, explain: Explain) -> None:
        super().__init__()
        self.network, self.loss, self.explain = network, loss, explain

    def scores(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """PP and RE of [N, 1, 28, 28]."""
        lengths, redrawn = self.explain(pixels)
        flat = pixels.flatten(1)
        error = (flat - redrawn.flatten(1)).square().sum(1)
        return lengths.amax(1), -error / flat.norm(dim=1)


def find_adapter(repo: Path) -> Adapter:
    if not repo.is_dir():
        raise InputError(f"{repo}: no such folder; clone an implementation there first")
    for adapter in ADAPTERS:
        if all(_defines(repo / file, names) for file, names in adapter.files.items()):
            return adapter
    known = ", ".join(adapter.name for adapter in ADAPTERS)
    raise InputError(
        f"{repo}: none of the known implementations ({known}) is in this folder. To time another "
        "one, add to benchmarks/public.py a function that returns its network, its loss and how "
        "it explains images (`xifengguo` there is one of ten lines), and an entry of ADAPTERS: "
        'Adapter("name", {"file.py": {"ClassInIt"}}, function)'
    )


def _defines(file: Path, names: set[str]) -> bool:
    """Whether the file has these classes and functions at its top level; nothing is run."""
    try:
        tree = ast.parse(file.read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return False
    found = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return names <= found


def build(repo: Path, adapter: Adapter, device: torch.device) -> Public:
    with _importable(repo, adapter.unneeded):
        try:
            parts = adapter.build(importlib.import_module, device)
        except ImportError as error:
            raise InputError(f"{repo}: {adapter.name} {_missing(error)}") from error
    return Public(*parts).to(device)


def _missing(error: ImportError) -> str:
    """What a clone asks for in vain: a package, or a part that the installed version has not."""
    package = (error.name or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and error.name == package:
        return f"needs the package {package}, which is not installed; install it and run this again"
    known = packages_distributions().get(package)
    installed = f" with {package} {version(known[0])}" if known else ""
    return f"cannot be imported{installed}: {error}; install what it needs and run this again"


@contextmanager
def _importable(repo: Path, unneeded: tuple[str, ...]) -> Iterator[None]:
    """Modules are found in the clone; unneeded packages that are not installed are stood in for."""
    absent = [name for name in unneeded if find_spec(name) is None]
    sys.path.insert(0, str(repo))
    sys.modules.update({name: MagicMock() for name in absent})
    try:
        yield
    finally:
        sys.path.remove(str(repo))
        for name in absent:
            del sys.modules[name]


def without_cuda(device: torch.device) -> AbstractContextManager[object]:
    """Some call `.cuda()` whatever the device: on a CPU it shall leave a tensor where it is."""
    if device.type == "cuda":
        return nullcontext()
    return patch.object(torch.Tensor, "cuda", lambda tensor, *_, **__: tensor)


def check(public: Public, pixels: Tensor, step: Callable[[], None]) -> None:
    """What can be asked of a network whose equations are not ours."""
    with torch.inference_mode():
        for scores in public.scores(pixels):
            if scores.shape != (len(pixels),) or not scores.isfinite().all():
                raise SystemExit("the clone's scores are not finite numbers, one for an image")
    before = [weight.detach().clone() for weight in public.parameters()]
    step()
    if all(torch.equal(a, b) for a, b in zip(before, public.parameters())):
        raise SystemExit("a training step of the clone changes none of its weights")


# ── timing ───────────────────────────────────────────────────────────────────────────────────


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repo", type=Path, required=True, help="folder of the clone")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--images", type=int, help="scored in one repeat")
    parser.add_argument("--out", type=Path, default=Path("results/speed-public.json"))
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: no NVIDIA GPU is usable here; use --device cpu")
    try:
        adapter = find_adapter(options.repo)
        public = build(options.repo, adapter, device)
    except InputError as error:
        parser.error(str(error))
    result = measure(public, device, options.repeats, options.images or SCORED[device.type])
    result["clone commit"] = _commit(options.repo)
    entries = json.loads(options.out.read_text("utf-8")) if options.out.exists() else {}
    entries[f"{adapter.name}, {result['device']}"] = result
    write_text(options.out, json.dumps(entries, indent=1, ensure_ascii=False) + "\n")
    for name, row in result["rates"].items():
        print(
            f"{name:20} anocaps {row['anocaps']['median']:9.0f} images/s   "
            f"{adapter.name} {row['public']['median']:9.0f}   ratio {row['ratio']:.2f}"
        )
    print(f"written to {options.out}")


def measure(public: Public, device: torch.device, repeats: int, scored: int) -> dict[str, Any]:
    images, labels = noise(PAPER, max(scored, BATCH))
    detector = CapsNetDetector(epochs=1, calibration=0.0, device=device.type)
    detector.fit(images[: 2 * CLASSES], labels[: 2 * CLASSES])
    pixels = as_pixels(images, device)
    first = pixels[:BATCH], torch.from_numpy(labels[:BATCH]).to(device)
    our_step = steps_of([make_run(PAPER, 0, device, BATCHES[device.type] * BATCH)])
    their_step = textbook_step(public, *first)
    at_once = SCORE_BATCH[device.type]
    with without_cuda(device):
        check(public, pixels[:BATCH], their_step)
        found = {
            "training": side_by_side(
                repeats, BATCH, device, our_step, their_step, STEPS_TIMED[device.type]
            ),
            "scoring PP and RE": side_by_side(
                repeats,
                scored,
                device,
                lambda: detector.all_scores(images[:scored], SCORES),
                lambda: score(public, pixels[:scored], at_once),
            ),
        }
    return {
        "what": "images/s, paper's network, 28×28×1, 9 classes",
        "batch": BATCH,
        "scored at once": {"anocaps": SCORED_AT_ONCE[device.type], "public": at_once},
        "repeats": repeats,
        "parameters": {
            "anocaps": sum(weight.numel() for weight in detector.network_.parameters()),
            "public": sum(weight.numel() for weight in public.parameters()),
        },
        "rates": found,
        **circumstances(device),
    }


def score(public: Public, pixels: Tensor, batch: int) -> None:
    with torch.inference_mode():
        for part in torch.split(pixels, batch):
            public.scores(part)


def side_by_side(
    repeats: int,
    images: int,
    device: torch.device,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    calls: int = 1,
) -> dict[str, Any]:
    """Images/s of both, which take turns of so many calls, of so many images each."""
    sides = {"anocaps": Side(ours, calls), "public": Side(theirs, calls)}
    seconds = take_turns(sides, repeats, device)
    return {
        **{name: rates(values, images) for name, values in seconds.items()},
        "ratio": ratio(seconds["anocaps"], seconds["public"]),
    }


def _commit(repo: Path) -> str | None:
    if not (repo / ".git").exists():
        return None
    command = ["git", "-C", str(repo), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None


if __name__ == "__main__":
    main()
