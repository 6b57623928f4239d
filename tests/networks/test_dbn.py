"""The deep belief network: its energies against all states written out, and its two passes."""

from itertools import product

import torch

from anocaps.networks.dbn import DBN, RBM


def small_rbm() -> RBM:
    torch.manual_seed(0)
    rbm = RBM(5, 4)
    with torch.no_grad():
        for parameter in rbm.parameters():
            parameter.normal_()
    return rbm.double().requires_grad_(False)


def test_free_energy_sums_over_all_hidden_states():
    rbm = small_rbm()
    states = torch.tensor(list(product((0.0, 1.0), repeat=4)), dtype=torch.float64)
    for visible in torch.tensor(list(product((0.0, 1.0), repeat=5)), dtype=torch.float64):
        energies = -(
            visible @ rbm.visible_bias + states @ rbm.hidden_bias + states @ rbm.weight @ visible
        )
        # fields pass through fp32
        want = -torch.logsumexp(-energies, 0)
        torch.testing.assert_close(rbm.free_energy(visible[None])[0], want, rtol=1e-5, atol=1e-5)
        weights = torch.softmax(-energies, 0)
        up = rbm.up(visible[None])[0].double()
        torch.testing.assert_close(up, weights @ states, rtol=1e-5, atol=1e-5)


def test_down_is_the_conditional_of_the_visible_units():
    rbm = small_rbm()
    hidden = torch.tensor([[1.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    want = torch.sigmoid(rbm.weight[0] + rbm.weight[3] + rbm.visible_bias)
    torch.testing.assert_close(rbm.down(hidden)[0].double(), want, rtol=1e-5, atol=1e-5)


def test_the_paper_size_and_shapes():
    network = DBN(1, 28, 28)
    assert [tuple(rbm.weight.shape) for rbm in network.rbms] == [(500, 784), (500, 500), (500, 500)]
    x = torch.rand(3, 1, 28, 28)
    assert [network.up(x, layers).shape[1] for layers in range(4)] == [784, 500, 500, 500]
    assert network(x).shape == x.shape
    assert DBN(2, 9, 6)(torch.rand(3, 2, 9, 6)).shape == (3, 2, 9, 6)


def test_the_pass_goes_up_and_down_through_every_layer():
    network, x = DBN(1, 4, 4), torch.rand(2, 1, 4, 4)
    first, second, third = network.rbms
    units = third.up(second.up(first.up(x.flatten(1))))
    units = first.down(second.down(third.down(units)))
    torch.testing.assert_close(network(x).flatten(1), units)
    assert (network(x) > 0).all() and (network(x) < 1).all()
