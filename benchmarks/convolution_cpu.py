"""Claim: on a CPU the rule `spectral_plan.wins` picks the slower form of a convolution for 4 of 128
shapes in scoring (then at most 1.2 times slower) and for 17 of 128 in training (at most 2.5 times
slower). The printed summary proves it or not.

The rule knows shapes alone. Both forms of `Convolution`, direct (torch's) and spectral, take turns
over a grid of sides, kernels, strides and maps, in fp32 on one thread; median of 5 turns of this
process's own time. Scoring is the forward pass with the kernel's transform kept; training is
forward and backward. One form serves both, so some shapes lose in one of them. The rule's constants
were chosen by earlier runs on the same processor. After a change of the rule, --judge applies it to
the stored times.

    python benchmarks/convolution_cpu.py            (3 minutes)
    python benchmarks/convolution_cpu.py --judge
"""

import json
import statistics
import time
from collections.abc import Iterator
from itertools import product
from typing import Literal, NamedTuple

import common
import torch
from torch import Tensor

from anocaps.kernels.patches import MOST_NUMBERS
from anocaps.kernels.spectral.plan import multiply_adds, wins
from anocaps.networks.convolution import Convolution
from anocaps.training.device import circumstances

SIDES = (8, 12, 20, 28, 64)
KERNELS = (3, 5, 9, 15)
STRIDES = (1, 2, 3)
MAPS = (16, 64, 256)
IMAGES = 32  # fewer than in training (100) and scoring (256), where the spectral form gains more
FEWEST_IMAGES = 8
MOST_WORK = 5e9  # multiply-adds of a direct convolution forward
TURNS = 5
MOST_SECONDS = 1.0  # of scoring or training one shape, unless its first turns take longer
FORMS: tuple[Literal["direct", "spectral"], ...] = ("direct", "spectral")


class Shape(NamedTuple):
    """Of a layer with as many input channels as maps."""

    side: int
    kernel: int
    stride: int
    maps: int

    @property
    def arguments(self) -> tuple[int, ...]:
        return self.side, self.side, self.kernel, self.stride, self.maps, self.maps

    @property
    def images(self) -> int:
        """Those of a batch, fewer where they would take long."""
        work, _ = multiply_adds(*self.arguments)
        return min(IMAGES, int(MOST_WORK / work))

    @property
    def takes_patches(self) -> bool:
        return self.maps * self.kernel**2 <= MOST_NUMBERS


OTHERS = (
    Shape(24, 9, 2, 256),  # the paper's second layer for 32×32 images; side 20 is for 28×28
    Shape(9, 9, 2, 256),  # and for 17×17: a single output
    Shape(8, 8, 1, 256),  # one at stride 1
    Shape(11, 9, 2, 256),  # few outputs and a large kernel
    Shape(6, 3, 1, 256),  # few outputs and a small kernel
    Shape(14, 3, 1, 128),  # many
    Shape(28, 3, 1, 128),
)


def main() -> None:
    parser = common.parser(__doc__, "convolution-cpu.json")
    parser.add_argument("--judge", action="store_true", help="keep the times that are stored")
    options = parser.parse_args()
    if options.judge:
        found = common.stored(options.out)
    else:
        torch.set_num_threads(1)
        found = {"shapes": [measured(shape) for shape in shapes()]}
        found |= circumstances(torch.device("cpu"))
    for row in found["shapes"]:
        row["chosen"] = chosen(row)
    found["summary"] = summary(found["shapes"])
    for what, mistakes in found["summary"].items():
        print(what, json.dumps(mistakes))
    common.write(options.out, found)


def shapes() -> Iterator[Shape]:
    """The grid and OTHERS, without what takes patches, which is a first layer, or too long."""
    for shape in (*map(Shape._make, product(SIDES, KERNELS, STRIDES, MAPS)), *OTHERS):
        if shape.kernel > shape.side or shape.takes_patches:
            continue
        if shape.images >= FEWEST_IMAGES:
            yield shape


def measured(shape: Shape) -> dict:
    """Milliseconds of both forms, turn by turn: scoring, with the kernel's transform kept, and
    training, forward and backward. Medians, and how many times faster the spectral form is."""
    torch.manual_seed(0)
    side, _, kernel, stride, maps, _ = shape.arguments
    layer = Convolution(maps, maps, kernel, stride, side, side)
    x = torch.randn(shape.images, maps, side, side)
    layer, x = (each.to(memory_format=torch.channels_last) for each in (layer, x))
    row = shape._asdict() | {"images": shape.images}
    for what, call in {"scoring": scoring, "training": training}.items():
        layer.train(what == "training")
        times: dict[str, list[float]] = {form: [] for form in FORMS}
        began = time.process_time()  # of this process alone: others may be busy
        for turn in range(1 + TURNS):
            for form in FORMS:
                layer.form = form
                start = time.process_time()
                call(layer, x)
                times[form].append(1000 * (time.process_time() - start))
            if turn > 1 and time.process_time() - began > MOST_SECONDS:
                break
        direct, spectral = (statistics.median(times[form][1:]) for form in FORMS)  # warmed up
        ratio = round(direct / spectral, 2)
        row[what] = {"direct": round(direct, 2), "spectral": round(spectral, 2), "ratio": ratio}
    return row


def scoring(layer: Convolution, x: Tensor) -> None:
    with torch.inference_mode():
        layer(x)


def training(layer: Convolution, x: Tensor) -> None:
    y = layer(x.requires_grad_())
    torch.autograd.grad(y, (x, *layer.parameters()), torch.ones_like(y))


def chosen(row: dict) -> str:
    """What the rule says of this shape now."""
    shape = Shape(*(row[name] for name in Shape._fields))
    return "spectral" if wins(*shape.arguments) else "direct"


def summary(rows: list[dict]) -> dict:
    """How often the rule chose the slower form, and how much slower that is."""
    found = {}
    for what in ("scoring", "training"):
        losses = []
        for row in rows:
            ratio = row[what]["ratio"]
            losses.append(1 / ratio if row["chosen"] == "spectral" else ratio)
        slower = sorted(loss for loss in losses if loss > 1)
        found[what] = {
            "shapes": len(rows),
            "slower chosen": len(slower),
            "by more than a tenth": sum(loss > 1.1 for loss in slower),
            "times slower, median": round(statistics.median(slower), 2) if slower else 1.0,
            "times slower, worst": round(max(slower, default=1.0), 2),
        }
    return found


if __name__ == "__main__":
    common.run_script(main)
