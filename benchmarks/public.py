"""Claim: anocaps trains and scores the paper's network faster than a public PyTorch implementation
of it, side by side in one process. The printed ratio proves it or not.

    python benchmarks/public.py --repo PATH [--device cuda]        (PATH: a clone on your disk)

Random 28×28 images, 9 classes, batch 100, warmed up, turn by turn, median and spread of several
repeats. The clone runs as it ships: eager, fp32 (cuDNN may use TF32), its own loss, Adam, its
images already on the device; but gram-ai/capsule-networks, made for an older torch, would end with
an error today: its class capsules are copied once a pass, which is in its time. anocaps runs as its
detector does: on a GPU it trains in bf16, it scores in fp32 without TF32 and starts from arrays in
the computer's memory. The implementations differ in their equations, so their outputs cannot be
compared: it is checked that a clone's scores are finite, one for an image, and that a step changes
its weights. Results are added to results/speed-public.json, an entry for each implementation and
device, with git's ids of the files that were imported: these say what was timed, also where single
files were taken from a repository.
"""

import ast
import hashlib
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from arguments import Parser, at_least, one_line, stored, writable
from measuring import Side, rates, ratio, take_turns
from public_adapters import ADAPTERS, Adapter, Explain, Loss
from torch import Tensor, nn
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

from anocaps.base.errors import InputError
from anocaps.base.files import write_text
from anocaps.detectors import CapsNetDetector
from anocaps.training.device import circumstances

SCORE_BATCH = {"cpu": 100, "cuda": 500}  # of the clone
SCORED = {"cpu": 512, "cuda": 20_000}  # images in one repeat
# In one turn. Several also on a CPU: training never has another network's numbers in its cache.
STEPS_TIMED = {"cpu": 4, "cuda": 50}
BATCHES = {"cpu": 10, "cuda": 200}  # of images that anocaps trains on

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
        "one, add to benchmarks/public_adapters.py a function that returns its network, its loss "
        "and how it explains images (`xifengguo` there is one of ten lines), and an entry of "
        "ADAPTERS: "
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


# ── what was timed ───────────────────────────────────────────────────────────────────────────

SOURCE = "SOURCE"  # a file that says where single files come from


def imported_files(repo: Path) -> dict[str, dict[str, str]]:
    """The files of a folder that Python has imported, by their paths in it: what names a version.

    "blob" is the id that git gives these bytes, in a clone or not. Where no history is there to ask
    but a file SOURCE, "repository" and "commit" are what it says: the repository's name, then lines
    of a file's name and a commit that has it.
    """
    repo, known = repo.resolve(), _sources(repo)
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    inside = sorted(
        path for file in files if file and (path := Path(file).resolve()).is_relative_to(repo)
    )
    names = {path.relative_to(repo).as_posix(): path for path in inside}
    return {name: {"blob": blob_id(path)} | known.get(name, {}) for name, path in names.items()}


def blob_id(file: Path) -> str:
    """As `git hash-object` tells it."""
    content = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _sources(repo: Path) -> dict[str, dict[str, str]]:
    if (repo / ".git").exists() or not (repo / SOURCE).is_file():
        return {}
    repository, *lines = (repo / SOURCE).read_text("utf-8", "replace").splitlines() or [""]
    files = (words for line in lines if len(words := line.split()) == 2)
    return {name: {"repository": repository.strip(), "commit": commit} for name, commit in files}


def _commit(repo: Path) -> str | None:
    if not (repo / ".git").exists():
        return None
    command = ["git", "-C", str(repo), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None


# ── timing ───────────────────────────────────────────────────────────────────────────────────


@one_line
def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--repo", type=Path, required=True, help="folder of the clone")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=at_least(1), default=5)
    parser.add_argument("--images", type=at_least(1), help="scored in one repeat")
    parser.add_argument("--out", type=writable, default="results/speed-public.json")
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: no NVIDIA GPU is usable here; use --device cpu")
    entries = stored(options.out)
    adapter = find_adapter(options.repo)
    public = build(options.repo, adapter, device)
    what = {"clone commit": _commit(options.repo), "files": imported_files(options.repo)}
    result = measure(public, device, options.repeats, options.images or SCORED[device.type])
    entries[f"{adapter.name}, {result['device']}"] = result | what
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


if __name__ == "__main__":
    main()
