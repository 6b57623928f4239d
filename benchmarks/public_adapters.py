"""Public PyTorch implementations of the paper's network that public.py can time: how a copy of each
is recognised, and how its network is built, trained and asked. A new one is a function and an entry
of ADAPTERS.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn.functional import mse_loss
from workloads import CLASSES

from anocaps.capsules.margin import margin_loss

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
    Adapter(
        "arogozhnikov/readable_capsnet",
        {"capsnet.py": {"Encoder", "Decoder"}},
        readable_capsnet,
    ),
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
