"""The one-class SVM: both solvers, the width of the kernel, and the arrays of the model file."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.svm import OneClassSVM as Reference

from anocaps.detectors.baselines.one_class_svm import (
    NU,
    LinearMachine,
    OneClassSVM,
    _neighbour_distance,
    _project,
    _solve_on_cpu,
    _solve_on_gpu,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="module")
def clumps():
    """Three clumps of points with gaps between them."""
    generator = np.random.default_rng(0)
    centres = generator.normal(0, 5, (3, 8))
    points = centres[np.arange(600) % 3] + generator.normal(0, 0.5, (600, 8))
    return torch.from_numpy(points.astype(np.float32))


def scattered(count=200):
    return torch.from_numpy(np.random.default_rng(1).normal(0, 4, (count, 8)).astype(np.float32))


def test_decision_is_scikit_learn_s_on_a_log_scale(clumps):
    machine = OneClassSVM.fit(clumps, seed=0)
    reference = Reference(gamma=machine.gamma, nu=NU).fit(clumps.double().numpy())
    others = torch.cat([clumps[:50], scattered()])
    values = reference.decision_function(others.double().numpy())
    total, level = reference.dual_coef_.sum(), -reference.intercept_[0]
    got = machine.decision(others).numpy()
    np.testing.assert_allclose(np.exp(got) * level - level, values, atol=1e-9 * total)
    np.testing.assert_array_equal(got > 0, values > 0)


@pytest.mark.parametrize(
    "gamma", [0.01, 0.1, 1.0]
)  # from a ceiling that binds to one that does not
def test_both_solvers_find_the_same_machine(clumps, gamma):
    want, want_level = _solve_on_cpu(clumps, gamma)
    got, level = _solve_on_gpu(clumps.to(DEVICE), gamma)
    got = got.cpu()
    assert float(got.sum()) == pytest.approx(1, abs=1e-4)
    assert float(got.max()) <= 1.0001 / (NU * len(clumps)) and float(got.min()) >= 0
    assert level == pytest.approx(want_level, rel=2e-3)
    others = torch.cat([clumps, scattered()]).double()
    kernel = torch.exp(-gamma * torch.cdist(others, clumps.double()).square())
    ours, theirs = kernel @ got, kernel @ want
    torch.testing.assert_close(ours, theirs, rtol=5e-3, atol=1e-3 * want_level)


def test_projection_meets_both_bounds():
    weights = torch.randn(50, generator=torch.Generator().manual_seed(0))
    projected = _project(weights, 0.1)
    assert float(projected.sum()) == pytest.approx(1, abs=1e-5)
    assert float(projected.min()) >= 0 and float(projected.max()) == pytest.approx(0.1)
    torch.testing.assert_close(_project(projected, 0.1), projected, atol=1e-5, rtol=0)


def test_the_width_is_the_distance_of_neighbours():
    line = torch.arange(100.0)[:, None] * 3
    assert _neighbour_distance(line, seed=0) == 9
    assert _neighbour_distance(torch.ones(10, 4), seed=0) == 1  # all alike
    assert _neighbour_distance(torch.ones(1, 4), seed=0) == 1
    alike = OneClassSVM.fit(torch.ones(10, 4), seed=0)
    assert alike.decision(torch.ones(2, 4)).isfinite().all()


def test_arrays_hold_all_of_it(clumps):
    machine = OneClassSVM.fit(clumps, seed=0)
    again = OneClassSVM.from_arrays(machine.arrays(), torch.device("cpu"))
    assert torch.equal(machine.decision(scattered()), again.decision(scattered()))


# ── without a kernel ─────────────────────────────────────────────────────────────────────────


def test_the_hyperplane_is_scikit_learn_s():
    points = np.random.default_rng(2).uniform(0, 1, (300, 6)) + 1
    machine = LinearMachine.fit(torch.from_numpy(points), sphere=False)
    reference = Reference(kernel="linear", nu=NU, tol=1e-8).fit(points)
    total = reference.dual_coef_.sum()
    np.testing.assert_allclose(machine.centre, reference.coef_[0] / total, atol=5e-3)
    want = reference.decision_function(points) / total
    np.testing.assert_allclose(machine.decision(torch.from_numpy(points)), want, atol=1e-2)


def test_the_hypersphere_is_that_of_a_plain_solver():
    """SLSQP on the primal: centre, squared radius and one slack per point (Tax and Duin 2004)."""
    points = np.random.default_rng(3).normal(4, [1.0, 3.0], (40, 2))
    cost = 1 / (NU * len(points))

    def objective(x):
        return x[2] + cost * x[3:].sum()

    inside = {
        "type": "ineq",
        "fun": lambda x: x[2] + x[3:] - ((points - x[:2]) ** 2).sum(1),
    }
    bounds = [(None, None)] * 2 + [(0, None)] * (1 + len(points))
    began = np.concatenate([points.mean(0), [points.var() * 4], np.full(len(points), 1.0)])
    found = minimize(objective, began, bounds=bounds, constraints=inside, options={"maxiter": 500})
    machine = LinearMachine.fit(torch.from_numpy(points), sphere=True)
    np.testing.assert_allclose(machine.centre, found.x[:2], atol=2e-2)
    assert machine.level == pytest.approx(found.x[2], rel=1e-2)
    outside = (machine.decision(torch.from_numpy(points)) < -1e-6).double().mean()
    assert float(outside) <= NU


def test_the_array_of_a_linear_machine_holds_all_of_it(clumps):
    for sphere in (False, True):
        machine = LinearMachine.fit(clumps, sphere)
        again = LinearMachine.from_array(machine.array(), torch.device("cpu"))
        assert torch.equal(machine.decision(scattered()), again.decision(scattered()))
