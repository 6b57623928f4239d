"""benchmarks/public.py against small stand-ins for clones, written here with their interfaces."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"

# The interface of adambielski/CapsNet-pytorch with next to nothing inside. As there, Variable is
# imported only where the file is run as a script.
NET = """
import torch
from torch import nn

class CapsNet(nn.Module):
    def __init__(self, routing_iterations, n_classes=10):
        super().__init__()
        self.n_classes = n_classes
        self.layer = nn.Linear(784, n_classes * 16)

    def forward(self, input):
        capsules = torch.tanh(self.layer(input.flatten(1))).view(-1, self.n_classes, 16) / 4
        return capsules, capsules.norm(dim=2)

class ReconstructionNet(nn.Module):
    def __init__(self, n_dim=16, n_classes=10):
        super().__init__()
        self.layer = nn.Linear(n_dim * n_classes, 784)

    def forward(self, x, target):
        mask = Variable(torch.zeros(x.shape[:2])).scatter_(1, target.view(-1, 1), 1.0)
        return torch.sigmoid(self.layer((x * mask.unsqueeze(2)).flatten(1)))

class CapsNetWithReconstruction(nn.Module):
    def __init__(self, capsnet, reconstruction_net):
        super().__init__()
        self.capsnet, self.reconstruction_net = capsnet, reconstruction_net

    def forward(self, x, target):
        capsules, probs = self.capsnet(x)
        return self.reconstruction_net(capsules, target), probs

class MarginLoss(nn.Module):
    def __init__(self, m_pos, m_neg, lambda_):
        super().__init__()
        self.m_pos = m_pos

    def forward(self, lengths, targets):
        return (self.m_pos - lengths.gather(1, targets.view(-1, 1))).square().mean()
"""

# That of XifengGuo/CapsNet-Pytorch: a package for its data is imported, `.cuda()` always called.
CAPSULENET = """
import torch
from torch import nn
from torchvision import datasets, transforms
from capsulelayers import DenseCapsule

class CapsuleNet(nn.Module):
    def __init__(self, input_size, classes, routings):
        super().__init__()
        self.digits, self.decoder = DenseCapsule(classes), nn.Linear(16 * classes, 784)

    def forward(self, x, y=None):
        capsules = self.digits(x)
        length = capsules.norm(dim=-1)
        if y is None:
            y = torch.eye(length.shape[1]).cuda()[length.argmax(1)]
        return length, self.decoder((capsules * y[:, :, None]).flatten(1)).view(x.shape)

def caps_loss(y_true, y_pred, x, x_recon, lam_recon):
    return (y_true - y_pred).square().mean() + lam_recon * (x - x_recon).square().mean()
"""
LAYERS = """
from torch import nn

class DenseCapsule(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.classes, self.layer = classes, nn.Linear(784, classes * 16)

    def forward(self, x):
        return self.layer(x.flatten(1)).view(-1, self.classes, 16)
"""

# That of gram-ai/capsule-networks: digit capsules come class by class, and are then flattened image
# by image with a view that only the torch of its time accepted.
CAPSULE_NETWORK = """
import torch
from torch import nn

NUM_CLASSES = 10

class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(NUM_CLASSES, 784, 16) / 784)

    def forward(self, x):
        return (x.flatten(1) @ self.weights)[:, :, None, None]

class CapsuleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.digit_capsules, self.decoder = Digits(), nn.Linear(16 * NUM_CLASSES, 784)

    def forward(self, x, y=None):
        capsules = self.digit_capsules(x).squeeze().transpose(0, 1)
        lengths = capsules.norm(dim=-1)
        if y is None:
            y = Variable(torch.eye(NUM_CLASSES)).cuda()[lengths.argmax(1)]
        return lengths, self.decoder((capsules * y[:, :, None]).view(len(x), -1))

class CapsuleLoss(nn.Module):
    def forward(self, images, labels, lengths, redrawn):
        return (labels - lengths).square().mean() + (images.flatten(1) - redrawn).square().mean()
"""


def git_id(file: Path) -> str:
    """What git itself calls these bytes."""
    command = ["git", "hash-object", "--no-filters", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def public(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import public

    return public


@pytest.fixture
def run(public, monkeypatch):
    """Runs the script with these options."""

    def main(*options: object) -> None:
        monkeypatch.setattr(sys, "argv", ["public.py", *map(str, options)])
        public.main()

    return main


def test_a_clone_is_timed_beside_anocaps(run, tmp_path, capsys):
    (tmp_path / "net.py").write_text(NET)
    out = tmp_path / "speed.json"
    out.write_text('{"another": {"rates": {}}}')
    run("--repo", tmp_path, "--repeats", 1, "--images", 10, "--out", out)
    entries = json.loads(out.read_text("utf-8"))
    assert "another" in entries  # results are added
    name = next(name for name in entries if name.startswith("adambielski/CapsNet-pytorch, "))
    result = entries[name]
    assert result["parameters"] == {"anocaps": 8_059_920, "public": 785 * 144 + 145 * 784}
    assert result["versions"]["torch"] == torch.__version__
    assert result["clone commit"] is None
    assert result["files"] == {"net.py": {"blob": git_id(tmp_path / "net.py")}}
    assert result["scored at once"] == {"anocaps": 256, "public": 100}
    assert result["rates"].keys() == {"training", "scoring PP and RE"}
    for row in result["rates"].values():
        assert row["anocaps"]["median"] > 0 and row["public"]["median"] > 0
    assert "ratio" in capsys.readouterr().out


def test_the_ratio_is_how_much_faster_anocaps_is(public, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def takes(seconds: float):
        return lambda: clock.__setitem__(0, clock[0] + seconds)

    row = public.side_by_side(3, 100, torch.device("cpu"), ours=takes(1), theirs=takes(4))
    assert (row["anocaps"]["median"], row["public"]["median"], row["ratio"]) == (100, 25, 4)


def test_an_unknown_folder_is_answered_with_what_to_do(run, tmp_path, capsys):
    (tmp_path / "network.py").write_text("class CapsNet: pass\n")
    for folder, words in (
        (tmp_path, ("none of the known", "XifengGuo/CapsNet-Pytorch", "ADAPTERS")),
        (tmp_path / "nowhere", ("no such folder",)),
    ):
        with pytest.raises(SystemExit) as stopped:
            run("--repo", folder, "--out", tmp_path / "out.json")
        assert stopped.value.code == 2
        said = capsys.readouterr().err
        assert str(folder) in said
        assert all(word in said for word in words)
        assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("index", range(5))
def test_each_implementation_is_known_by_its_files(public, tmp_path, index):
    adapter = public.ADAPTERS[index]
    for file, names in adapter.files.items():
        (tmp_path / file).write_text("".join(f"class {name}:\n    pass\n\n" for name in names))
    assert public.find_adapter(tmp_path) is adapter
    next(tmp_path.iterdir()).unlink()
    with pytest.raises(public.InputError):
        public.find_adapter(tmp_path)


def test_what_a_clone_does_not_need_is_stood_in_for(public, tmp_path):
    (tmp_path / "capsulenet.py").write_text(CAPSULENET)
    (tmp_path / "capsulelayers.py").write_text(LAYERS)
    device = torch.device("cpu")
    network = public.build(tmp_path, public.find_adapter(tmp_path), device)
    pixels, labels = torch.rand(4, 1, 28, 28), torch.tensor([0, 1, 2, 8])
    with public.without_cuda(device):
        pp, re = network.scores(pixels)
        loss = network.loss(pixels, labels)
        public.check(network, pixels, public.textbook_step(network, pixels, labels))
        with pytest.raises(SystemExit, match="changes none"):
            public.check(network, pixels, lambda: None)
    assert pp.shape == re.shape == (4,)
    assert (re < 0).all() and loss > 0
    assert str(tmp_path) not in sys.path


def test_what_was_timed_is_told_by_ids_and_sources(public, tmp_path):
    (tmp_path / "capsulenet.py").write_text(CAPSULENET)
    (tmp_path / "capsulelayers.py").write_text(LAYERS)
    (tmp_path / "not_imported.py").write_text("1")
    (tmp_path / "SOURCE").write_text("someone/CapsNet\ncapsulenet.py c0ffee\nutils.py fa11\n\n")
    for name in ("capsulenet", "capsulelayers"):
        sys.modules.pop(name, None)  # of another test
    public.build(tmp_path, public.find_adapter(tmp_path), torch.device("cpu"))
    ids = {name: git_id(tmp_path / name) for name in ("capsulelayers.py", "capsulenet.py")}
    source = {"repository": "someone/CapsNet", "commit": "c0ffee"}
    found = public.imported_files(tmp_path)
    assert found == {
        "capsulelayers.py": {"blob": ids["capsulelayers.py"]},
        "capsulenet.py": {"blob": ids["capsulenet.py"]} | source,
    }
    (tmp_path / ".git").mkdir()  # a clone tells its commit itself
    assert public.imported_files(tmp_path)["capsulenet.py"].keys() == {"blob"}


def test_every_stored_result_says_what_was_timed():
    entries = json.loads((BENCHMARKS.parent / "results/speed-public.json").read_text("utf-8"))
    for name, entry in entries.items():
        for file in entry["files"].values():
            assert re.fullmatch("[0-9a-f]{40}", file["blob"])
            known = file.get("repository") == name.rsplit(", ", 1)[0] and file["commit"]
            assert known or entry["clone commit"], name


def test_capsules_that_come_class_by_class_are_laid_out_image_by_image(public, tmp_path):
    (tmp_path / "capsule_network.py").write_text(CAPSULE_NETWORK)
    device = torch.device("cpu")
    network = public.build(tmp_path, public.find_adapter(tmp_path), device)
    pixels, labels = torch.rand(4, 1, 28, 28), torch.tensor([0, 1, 2, 8])
    with public.without_cuda(device):
        public.check(network, pixels, public.textbook_step(network, pixels, labels))
        lengths, _ = network.explain(pixels)
    assert torch.allclose(lengths.T, (pixels.flatten(1) @ next(network.parameters())).norm(dim=-1))


def test_a_missing_package_is_named(public, tmp_path):
    source = "import no_such_package\nclass Encoder: pass\nclass Decoder: pass\n"
    (tmp_path / "capsnet.py").write_text(source)
    with pytest.raises(public.InputError, match="needs the package no_such_package, which is not"):
        public.build(tmp_path, public.find_adapter(tmp_path), torch.device("cpu"))


@pytest.mark.parametrize("line", ["from numpy import nothing_such", "import numpy.nothing_such"])
def test_a_version_that_does_not_serve_is_named(public, tmp_path, monkeypatch, line):
    (tmp_path / "capsnet.py").write_text(f"{line}\nclass Encoder: pass\nclass Decoder: pass\n")
    monkeypatch.delitem(sys.modules, "capsnet", raising=False)
    said = rf"with numpy {re.escape(np.__version__)}: .*nothing_such.*install what it needs"
    with pytest.raises(public.InputError, match=said):
        public.build(tmp_path, public.find_adapter(tmp_path), torch.device("cpu"))
