"""Claim: anocaps trains the paper's network 2 to 3 times (CPU) and 14 to 21 times (H200) as fast as
public PyTorch implementations of it, and scores 3 to 4 times (CPU) and 2 to 6 times (H200) as fast.
Median of 5 turns in one process; the printed ratios prove it or not.

Random 28×28 images, 9 classes, training steps of 100 images. The clone runs as it ships: eager,
fp32 (cuDNN may use TF32), its own loss, Adam, its images already on the device. gram-ai's needs one
copy a pass to run with today's torch. anocaps runs as its detector does: on a GPU it trains in
bf16; it scores in fp32 without TF32 and starts from arrays in main memory. The implementations
differ in their equations, so outputs are not compared: a clone's scores must be finite, one for an
image, and a step must change its weights. Results are added to the file, one entry for each
implementation and device, with git's ids of the imported files.

    python benchmarks/public.py NAME PATH [--device cuda]        (PATH: a clone of NAME)
"""

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import common
import torch
from common import BATCH, CLASSES, PAPER, SCORES, Side
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn.functional import mse_loss

from anocaps.capsules.textbook import margin_loss
from anocaps.detectors import CapsNetDetector
from anocaps.training.device import circumstances

SCORE_BATCH = {"cpu": 100, "cuda": 500}  # images that the clone scores at once
SCORED = {"cpu": 512, "cuda": 20_000}  # images in one turn
STEPS_TIMED = {"cpu": 4, "cuda": 50}  # in one turn
BATCHES = {"cpu": 10, "cuda": 200}  # of images that anocaps trains on

Loss = Callable[[Tensor, Tensor], Tensor]  # pixels [N, 1, 28, 28], labels [N] → scalar
Explain = Callable[[Tensor], tuple[Tensor, Tensor]]  # pixels → lengths [N, classes], reconstruction
Import = Callable[[str], Any]  # a module of the clone by its name


Built = tuple[nn.Module, Loss, Explain]


# ── the implementations: a new one is a function and an entry of ADAPTERS ──────────


def one_hot(labels: Tensor) -> Tensor:
    return nn.functional.one_hot(labels, CLASSES).float()


def readable_capsnet(clone: Import, device: torch.device) -> Built:
    source = clone("capsnet")
    encoder = source.Encoder(28, 28, 1, 32, 8, CLASSES, 16)
    decoder = source.Decoder(CLASSES, 16, 28, 28, 1)

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:  # its own is in a script, not a function
        capsules = encoder(pixels)
        reconstruction = decoder(capsules * one_hot(labels).unsqueeze(2))
        return margin_loss(capsules.norm(dim=2), labels) + 10 * mse_loss(reconstruction, pixels)

    def explain(pixels: Tensor) -> tuple[Tensor, Tensor]:
        capsules = encoder(pixels)
        lengths = capsules.norm(dim=2)
        return lengths, decoder(capsules * one_hot(lengths.argmax(1)).unsqueeze(2))

    return nn.ModuleList([encoder, decoder]), loss, explain


def adambielski(clone: Import, device: torch.device) -> Built:
    source = clone("net")
    source.Variable = Variable  # which it imports only as a script
    capsnet = source.CapsNet(2, CLASSES)  # iterations after the first
    network = source.CapsNetWithReconstruction(capsnet, source.ReconstructionNet(16, CLASSES))
    margin = source.MarginLoss(0.9, 0.1, 0.5)

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        reconstruction, lengths = network(pixels, labels)
        found: Tensor = margin(lengths, labels)
        return found + 0.0005 * mse_loss(reconstruction, pixels.flatten(1))

    def explain(pixels: Tensor) -> tuple[Tensor, Tensor]:
        capsules, lengths = network.capsnet(pixels)
        return lengths, network.reconstruction_net(capsules, lengths.argmax(1))

    return network, loss, explain


def danielhavir(clone: Import, device: torch.device) -> Built:
    build, criterion = clone("model").CapsuleNetwork, clone("loss").CapsuleLoss()
    arguments = {
        "img_shape": (1, 28, 28), "channels": 256, "primary_dim": 8, "primary_caps": 1152,
        "num_classes": CLASSES, "out_dim": 16, "num_routing": 3, "device": device,
    }  # fmt: skip
    known = inspect.signature(build).parameters  # they changed over time
    network = build(**{name: value for name, value in arguments.items() if name in known})

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        lengths, reconstruction = network(pixels)
        found: Tensor = criterion(lengths, one_hot(labels), pixels, reconstruction)
        return found

    return network, loss, network


def xifengguo(clone: Import, device: torch.device) -> Built:
    source = clone("capsulenet")
    network = source.CapsuleNet(input_size=[1, 28, 28], classes=CLASSES, routings=3)

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        lengths, reconstruction = network(pixels, one_hot(labels))
        weight = 0.0005 * 784
        found: Tensor = source.caps_loss(one_hot(labels), lengths, pixels, reconstruction, weight)
        return found

    return network, loss, network


def gram_ai(clone: Import, device: torch.device) -> Built:
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


ADAPTERS: dict[str, Callable[[Import, torch.device], Built]] = {
    "arogozhnikov/readable_capsnet": readable_capsnet,
    "adambielski/CapsNet-pytorch": adambielski,
    "danielhavir/capsule-network": danielhavir,
    "XifengGuo/CapsNet-Pytorch": xifengguo,
    "gram-ai/capsule-networks": gram_ai,
}
UNNEEDED = ("torchvision",)  # packages that a clone imports, but not for its network


# ── from a folder to a network ───────────────────────────────────────────────────────────────


class Public(nn.Module):
    """An implementation with the methods of the textbook network."""

    def __init__(self, network: nn.Module, loss: Loss, explain: Explain) -> None:
        super().__init__()
        self.network, self.loss, self.explain = network, loss, explain

    def scores(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """PP and RE of [N, 1, 28, 28]."""
        lengths, reconstruction = self.explain(pixels)
        flat = pixels.flatten(1)
        error = (flat - reconstruction.flatten(1)).square().sum(1)
        return lengths.amax(1), -error / flat.norm(dim=1)


@contextmanager
def importable(repo: Path) -> Iterator[None]:
    """Modules are found in the clone; unneeded packages that are missing are mocked."""
    absent = [name for name in UNNEEDED if find_spec(name) is None]
    sys.path.insert(0, str(repo))
    sys.modules.update({name: MagicMock() for name in absent})
    try:
        yield
    finally:
        sys.path.remove(str(repo))
        for name in absent:
            del sys.modules[name]


def imported_files(repo: Path) -> dict[str, dict[str, str]]:
    """Git's id of every file of the clone that Python has imported."""
    found = {}
    for module in list(sys.modules.values()):
        path = Path(getattr(module, "__file__", None) or "/").resolve()
        if path.is_relative_to(repo.resolve()):
            content = path.read_bytes()
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            found[path.relative_to(repo.resolve()).as_posix()] = {"blob": blob}
    return dict(sorted(found.items()))


# ── timing ───────────────────────────────────────────────────────────────────────────────────


def main() -> None:
    parser = common.parser(__doc__, "speed-public.json")
    parser.add_argument("name", choices=ADAPTERS)
    parser.add_argument("repo", type=Path, help="folder of the clone")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--images", type=int, help="scored in one turn")
    options = parser.parse_args()
    device = torch.device(options.device)
    with importable(options.repo):
        public = Public(*ADAPTERS[options.name](importlib.import_module, device)).to(device)
    result = measure(public, device, options.repeats, options.images or SCORED[device.type])
    for name, row in result["rates"].items():
        print(
            f"{name:20} anocaps {row['anocaps']['median']:9.0f} images/s   "
            f"{options.name} {row['public']['median']:9.0f}   ratio {row['ratio']:.2f}"
        )
    name = f"{options.name}, {result['device']}"
    entry = {**result, "files": imported_files(options.repo)}
    common.write(options.out, common.stored(options.out) | {name: entry})


def measure(public: Public, device: torch.device, repeats: int, scored: int) -> dict[str, Any]:
    images, labels = common.noise(PAPER, max(scored, BATCH))
    detector = CapsNetDetector("paper", epochs=1, calibration=0.0, device=device.type)
    detector.fit(images[: 2 * CLASSES], labels[: 2 * CLASSES])
    pixels, few = common.as_pixels(images, device), images[:scored]
    first = pixels[:BATCH], torch.from_numpy(labels[:BATCH]).to(device)
    run = common.make_run(PAPER, 0, device, BATCHES[device.type] * BATCH)
    their_step = common.textbook_step(public, *first)
    at_once, steps = SCORE_BATCH[device.type], STEPS_TIMED[device.type]

    def score() -> None:
        with torch.inference_mode():
            for part in torch.split(pixels[:scored], at_once):
                public.scores(part)

    # Some call `.cuda()` whatever the device: on a CPU it shall leave a tensor where it is.
    on_cpu = patch.object(torch.Tensor, "cuda", lambda tensor, *_, **__: tensor)
    with on_cpu if device.type == "cpu" else nullcontext():
        check(public, first[0], their_step)
        sides = {
            "training": (BATCH, Side(common.steps_of([run]), steps), Side(their_step, steps)),
            "scoring PP and RE": (
                scored,
                Side(lambda: detector.outputs(few, SCORES)),
                Side(score),
            ),
        }
        rates = {
            name: common.side_by_side(ours, theirs, count, repeats, device, ("anocaps", "public"))
            for name, (count, ours, theirs) in sides.items()
        }
    return {
        "what": "images/s, paper's network, 28×28×1, 9 classes",
        "batch": BATCH,
        "scored at once": {"anocaps": common.SCORED_AT_ONCE[device.type], "public": at_once},
        "repeats": repeats,
        "parameters": {
            "anocaps": sum(weight.numel() for weight in detector.network_.parameters()),
            "public": sum(weight.numel() for weight in public.parameters()),
        },
        "rates": rates,
        **circumstances(device),
    }


def check(public: Public, pixels: Tensor, step: Callable[[], None]) -> None:
    with torch.inference_mode():
        for scores in public.scores(pixels):
            finite = scores.shape == (len(pixels),) and bool(scores.isfinite().all())
            common.require(finite, "the clone's scores are not finite numbers, one for an image")
    before = [weight.detach().clone() for weight in public.parameters()]
    step()
    changed = any(not torch.equal(a, b) for a, b in zip(before, public.parameters()))
    common.require(changed, "a training step of the clone changes none of its weights")


if __name__ == "__main__":
    common.run_script(main)
