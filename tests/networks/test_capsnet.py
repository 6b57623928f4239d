import pytest
import torch
from agreement import off

from anocaps.base.errors import InputError
from anocaps.capsules.textbook import TextbookCapsNet, lengths
from anocaps.kernels import choose
from anocaps.networks.capsnet import CapsNet, CapsNetConfig


def parameters(network: torch.nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def test_the_paper_counts():
    network = CapsNet(CapsNetConfig())
    assert parameters(network) == 8_215_568
    assert network.primary.weight.numel() + network.primary.bias.numel() == 5_308_672
    assert network.config.primary_capsules == 1152
    assert network.routing.shape == (1152, 10, 16, 8)
    assert parameters(CapsNet(CapsNetConfig(class_bias=True))) == 8_215_728
    assert CapsNetConfig(height=32, width=32, channels=2).primary_capsules == 2048


SMALL = CapsNetConfig(
    height=9, width=8, channels=2, classes=3, conv_maps=6, conv_kernel=3, primary_types=2,
    primary_size=4, primary_kernel=3, class_size=5, decoder=(7,),
)  # fmt: skip


def test_shapes():
    network = CapsNet(SMALL)
    capsules = network(torch.rand(4, 2, 9, 8))
    assert capsules.shape == (4, 3, 5)
    assert network.decode(capsules, torch.tensor([0, 1, 2, 0])).shape == (4, 2, 9, 8)


def test_a_capsule_is_neighbouring_maps_at_one_place():
    """Not neighbouring pixels of one map, as when a view forgets its permute."""
    network = CapsNet(SMALL)
    x = torch.rand(1, 2, 9, 8)
    maps = network.primary(torch.relu(network.conv1(x)))  # [1, 2·4, h, w]
    _, width = SMALL.primary_grid
    row, column, kind = 1, 1, 1
    raw = maps[0, 4 * kind : 4 * kind + 4, row, column]
    capsule = network.primary_capsules(x)[0, (row * width + column) * 2 + kind]
    torch.testing.assert_close(capsule / capsule.norm(), raw / raw.norm())


def test_the_decoder_sees_the_chosen_capsule_only():
    network = CapsNet(SMALL)
    capsules = torch.rand(1, 3, 5)
    other = capsules.clone()
    other[0, 0] = 9
    chosen = torch.tensor([1])
    assert torch.equal(network.decode(capsules, chosen), network.decode(other, chosen))
    other[0, 1] = 9
    assert not torch.equal(network.decode(capsules, chosen), network.decode(other, chosen))


def test_it_is_the_textbook_network():
    """The paper's network with the textbook's weights: loss and all gradients, in float64."""
    torch.manual_seed(0)
    book = TextbookCapsNet(classes=2).double()
    network = CapsNet(CapsNetConfig(classes=2)).double()
    network.load_state_dict(book.state_dict())
    x, labels = torch.rand(2, 1, 28, 28, dtype=torch.float64), torch.tensor([1, 0])
    torch.testing.assert_close(network(x), book(x))
    loss = choose.capsule_loss(network, network(x), labels, x, book.reconstruction_weight)
    want = book.loss(x, labels)
    torch.testing.assert_close(loss, want)
    loss.backward()
    want.backward()
    for (name, mine), true in zip(network.named_parameters(), book.parameters()):
        assert off(mine.grad, true.grad) < 1e-8, name


@pytest.mark.parametrize(
    "config", [CapsNetConfig(classes=9), CapsNetConfig(channels=2, height=32, width=32, classes=4)]
)
def test_the_start_is_neither_dead_nor_saturated(config):
    torch.manual_seed(0)
    x = torch.randn(8, config.channels, config.height, config.width)
    length = lengths(CapsNet(config)(x))
    assert 0.003 < length.mean() < 0.3


def test_too_small_an_image_is_refused():
    with pytest.raises(InputError, match="8×8 images are too small"):
        CapsNet(CapsNetConfig(height=8, width=8))
