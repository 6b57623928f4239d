"""The Triton Adam against torch's plain one in float64; see triton_interpreter.py."""

import pytest
import torch
from torch import Tensor, nn
from triton_interpreter import DEVICE, HERE, ON_GPU, WithoutGpu, in_bfloat16, needs_triton

from anocaps.kernels.adam import Adam, FusedAdam, available
from anocaps.training import checkpoint

LAST = torch.channels_last
RATE, DECAY = 0.01, 0.9

pytestmark = needs_triton


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("anocaps.kernels.adam.BLOCK", 64)


def tensors(seed: int = 0) -> list[Tensor]:
    """Whole blocks, odd sizes, fewer numbers than a block, two orders of memory."""
    g = torch.Generator().manual_seed(seed)
    shapes = [(64,), (3, 7, 5, 5), (1,), (130,), (16, 8), (), (5, 3, 2, 4)]
    found = [torch.randn(shape, generator=g).to(DEVICE) for shape in shapes]
    found[1] = found[1].contiguous(memory_format=LAST)
    return found


def parameters(dtype=torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(x.to(dtype)) for x in tensors()]


def give(trained: list[nn.Parameter], seed: int) -> None:
    """Gradients of many sizes: tiny ones show the bias corrections and ε."""
    g = torch.Generator().manual_seed(seed)
    for x in trained:
        gradient = torch.randn(x.shape, generator=g) * 10 ** (
            -9 + 9 * torch.rand(x.shape, generator=g)
        )
        x.grad = torch.empty_like(x).copy_(gradient)


def wait() -> None:
    """For the stream of a run."""
    if ON_GPU:
        torch.cuda.synchronize()


class TestFusedAdam:
    __test__ = HERE

    def test_five_steps(self):
        mine, true = parameters(), parameters(torch.float64)
        rate = torch.tensor(RATE, device=DEVICE)
        fused, plain = FusedAdam(mine, rate, DECAY), torch.optim.Adam(true, lr=RATE, foreach=False)
        for step in range(5):
            give(mine, step)
            give(true, step)
            before = [x.detach().clone() for x in (*mine, *true)]
            fused.step()
            plain.step()
            plain.param_groups[0]["lr"] *= DECAY
            after = [x.detach() for x in (*mine, *true)]
            moves = [y - x for x, y in zip(before, after)]
            for a, b, move, right in zip(mine, true, moves, moves[len(mine) :]):
                # a parameter near 1 is rounded to 6e-8
                assert torch.allclose(move.double(), right, rtol=2e-6, atol=5e-7)
                # a mean of both signs is near 0, rounded as the gradients are
                for name, rounding in (("exp_avg", 1e-7), ("exp_avg_sq", 0)):
                    found = fused.state[a][name].double(), plain.state[b][name]
                    assert torch.allclose(*found, rtol=2e-6, atol=rounding)
                assert fused.state[a]["step"].item() == step + 1
        assert rate.item() == pytest.approx(RATE * DECAY**5, rel=1e-6)

    def test_the_first_moves_are_as_long_as_the_rate(self):
        """Bias corrections, ε and the rate show where parameters are 0 and hide nothing."""
        x = nn.Parameter(torch.zeros(200, device=DEVICE))
        fused = FusedAdam([x], torch.tensor(RATE, device=DEVICE), DECAY)
        x.grad = 10 ** torch.linspace(-10, 0, 200, device=DEVICE)
        for step in range(3):
            before = x.detach().double()
            fused.step()
            right = RATE * DECAY**step * x.grad.double() / (x.grad.double() + 1e-8)
            assert torch.allclose(before - x.detach().double(), right, rtol=1e-5)

    def test_a_late_step(self):
        """√(1 − β₂ᵗ) from the counter, after many steps."""
        x = nn.Parameter(torch.zeros(1, device=DEVICE))
        fused = FusedAdam([x], torch.tensor(1.0, device=DEVICE), 1.0)
        fused.state[x]["step"].fill_(2000)
        x.grad = torch.ones(1, device=DEVICE)
        fused.step()
        right = 0.1 / (1 - 0.9**2001) / ((0.001 / (1 - 0.999**2001)) ** 0.5 + 1e-8)
        assert x.item() == pytest.approx(-right, rel=1e-5)

    @pytest.mark.parametrize("order", ["contiguous", "channels last", "slice"])
    def test_gradients_in_another_order_of_memory(self, order):
        g = torch.Generator().manual_seed(3)
        start, gradient = torch.randn(2, 3, 7, 5, 5, generator=g).to(DEVICE)
        found = []
        for alike in (True, False):
            x = nn.Parameter(
                start.contiguous(memory_format=LAST) if order == "contiguous" else start.clone()
            )
            if alike:
                x.grad = torch.empty_like(x).copy_(gradient)
            elif order == "slice":
                x.grad = torch.empty(526, device=DEVICE)[1:].view(start.shape).copy_(gradient)
            else:
                x.grad = gradient.contiguous(
                    memory_format=LAST if order == "channels last" else torch.contiguous_format
                )
            FusedAdam([x], torch.tensor(RATE, device=DEVICE), DECAY).step()
            found.append(x.detach())
        assert torch.equal(*found)
        assert not torch.equal(found[0], start)

    @pytest.mark.parametrize("chosen", [(), (1,), (3, 0, 1), range(7)])
    def test_rounded_copies_follow(self, chosen):
        trained = parameters()
        copies = {trained[k]: torch.full_like(trained[k], 7, dtype=torch.bfloat16) for k in chosen}
        fused = FusedAdam(trained, torch.tensor(RATE, device=DEVICE), DECAY, copies)
        for x, copy in copies.items():
            assert torch.equal(copy, x.bfloat16())
        for step in range(2):
            give(trained, step)
            fused.step()
            for x, copy in copies.items():
                assert copy.stride() == x.stride()
                assert torch.equal(copy, in_bfloat16(x))
        with torch.no_grad():
            trained[1].add_(1)
        fused.round()
        for x, copy in copies.items():
            assert torch.equal(copy, x.bfloat16())

    def test_what_has_no_gradient_stays(self):
        trained = parameters()
        give(trained, 0)
        trained[0].grad = trained[4].grad = None
        FusedAdam(trained, torch.tensor(RATE, device=DEVICE), DECAY).step()
        stayed = [torch.equal(x, before) for x, before in zip(trained, tensors())]
        assert stayed == [k in (0, 4) for k in range(7)]

    def test_what_it_takes(self):
        x = nn.Parameter(torch.zeros(2, 3, 4, 5, device=DEVICE))
        assert available([x, nn.Parameter(x.detach().contiguous(memory_format=LAST))])
        assert not available([x, nn.Parameter(x.detach().double())])
        assert not available([x, nn.Parameter(x.detach().bfloat16())])
        assert not available([x, nn.Parameter(x.detach()[..., ::2])])

    def test_a_checkpoint_of_either_continues_in_the_other(self, tmp_path):
        """Two steps with one, two with the other: the same weights as four steps of torch's."""
        runs = []
        for first, second in ((Adam, Adam), (Adam, FusedAdam), (FusedAdam, Adam)):
            run = small_run(first)
            run.begin_epoch()
            for _ in range(run.steps):
                run.step()
            run.end_epoch()
            checkpoint.save(run, tmp_path / "c")
            run = small_run(second)
            checkpoint.restore(run, tmp_path / "c")
            run.begin_epoch()
            for _ in range(run.steps):
                run.step()
            wait()
            runs.append(run)
        for run in runs[1:]:
            assert run.rate.item() == pytest.approx(runs[0].rate.item(), rel=1e-6)
            for x, y in zip(run.network.parameters(), runs[0].network.parameters()):
                assert torch.allclose(x, y, rtol=1e-4, atol=1e-6)
                for name, value in run.optimizer.state[x].items():
                    other = runs[0].optimizer.state[y][name]
                    assert torch.allclose(value, other, rtol=1e-4, atol=1e-7), name


class TestRoundedWeights:
    """The copies that FusedAdam keeps for a capsule network in bfloat16."""

    __test__ = HERE

    def run(self):
        import numpy as np

        from anocaps.detectors.capsnet import capsnet_loss
        from anocaps.networks.capsnet import CapsNet, CapsNetConfig
        from anocaps.training.loop import Run, TrainingConfig
        from anocaps.training.preprocessing import Preprocessing

        torch.manual_seed(0)
        network = CapsNet(
            CapsNetConfig(1, 6, 6, 2, conv_maps=64, conv_kernel=3, primary_types=8,
                          primary_kernel=3, decoder=(16,))
        )  # fmt: skip
        preprocessing = Preprocessing(6, 6, 1)
        return Run(
            network,
            capsnet_loss(network, preprocessing, 0.0005),
            np.random.default_rng(0).integers(0, 256, (2, 6, 6, 1), dtype=np.uint8),
            np.arange(2),
            preprocessing,
            TrainingConfig(epochs=2, batch_size=2, precision="bf16"),
            torch.device(DEVICE),
        )

    def test_they_are_those_of_the_weights_from_the_start_to_the_end(self, tmp_path, monkeypatch):
        monkeypatch.setattr("anocaps.kernels.adam.BLOCK", 4096)
        run = self.run()
        network = run.network
        start = network.primary.weight.detach().clone()
        run.begin_epoch()
        wait()
        assert network.primary.weight in network.rounded
        for weight, copy in network.rounded.items():
            assert torch.equal(copy, weight.bfloat16())
        checkpoint.save(run, tmp_path / "c")
        run.step()
        wait()
        for weight, copy in network.rounded.items():
            assert torch.equal(copy, in_bfloat16(weight))
        assert not torch.equal(network.primary.weight, start)
        checkpoint.restore(run, tmp_path / "c")
        run.begin_epoch()
        wait()
        assert torch.equal(network.primary.weight, start)
        for weight, copy in network.rounded.items():
            assert torch.equal(copy, weight.bfloat16())

    def test_training_takes_them_and_scoring_does_not(self):
        network = self.run().network
        x = torch.rand(2, 1, 6, 6, device=DEVICE)
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
            right = network.primary_capsules(x)
            network.rounded[network.primary.weight].zero_()
            assert not torch.equal(network.primary_capsules(x), right)
            network.eval()
            assert torch.equal(network.primary_capsules(x), right)
            network.train()
            assert torch.equal(network.primary_capsules(x), right)


def small_run(kind: type[Adam]):
    """Of a network with a convolution, as training makes it, with this Adam."""
    import numpy as np

    from anocaps.training import loop as training
    from anocaps.training.preprocessing import Preprocessing

    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(48, 2))
    images = np.random.default_rng(0).integers(0, 256, (8, 6, 6, 1), dtype=np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.fused_adam, "available", lambda _: kind is FusedAdam)
        run = training.Run(
            network,
            lambda x, labels: nn.functional.cross_entropy(network(x).float(), labels),
            images,
            np.arange(8) % 2,
            Preprocessing(6, 6, 1),
            training.TrainingConfig(epochs=2, batch_size=4),
            torch.device(DEVICE),
        )
    assert type(run.optimizer) is kind
    return run


class TestWithoutGpu(WithoutGpu):
    __test__ = not HERE

    def test_a_cpu_trains_with_torch(self):
        assert not available([nn.Parameter(torch.zeros(3))])

    def test_torch_with_a_falling_rate(self):
        mine, true = parameters(), parameters(torch.float64)
        rate = torch.tensor(RATE)
        adam, plain = Adam(mine, rate, DECAY), torch.optim.Adam(true, lr=RATE, foreach=False)
        for step in range(3):
            give(mine, step)
            give(true, step)
            adam.step()
            plain.step()
            plain.param_groups[0]["lr"] *= DECAY
        assert rate.item() == pytest.approx(RATE * DECAY**3, rel=1e-6)
        for a, b in zip(mine, true):
            assert torch.allclose(a.double(), b, rtol=1e-5, atol=1e-6)
