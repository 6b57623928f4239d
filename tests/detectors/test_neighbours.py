import numpy as np
import pytest
import torch

from anocaps.base.errors import InputError
from anocaps.detectors.neighbours import (
    MOST_COMPONENTS,
    MOST_NUMBERS,
    MOST_VECTORS,
    FeatureNeighbours,
    Neighbours,
    draw,
)


def by_hand(kept, capsules):
    """Minus the mean of the 5 smallest cosine distances, one image after the other."""
    kept, flat = (v.flatten(1).double().numpy() for v in (kept, capsules))
    found = []
    for v in flat:
        distances = [1 - v @ w / np.linalg.norm(v) / np.linalg.norm(w) for w in kept]
        found.append(-np.mean(sorted(distances)[:5]))
    return found


def test_the_mean_cosine_distance_to_the_five_nearest(monkeypatch):
    monkeypatch.setattr("anocaps.detectors.neighbours._PART", 4)  # several parts
    generator = torch.Generator().manual_seed(0)
    kept, capsules = (torch.randn(n, 3, 4, generator=generator) for n in (30, 9))
    scores = Neighbours.fit(kept).score(capsules)
    assert scores.dtype == torch.float64 and scores.shape == (9,)
    np.testing.assert_allclose(scores, by_hand(kept, capsules), rtol=1e-6, atol=1e-9)


def test_length_does_not_count_and_the_sign_does():
    kept = torch.eye(2).repeat(5, 1).unsqueeze(1)  # five vectors each of two directions
    directions = torch.tensor([[3.0, 0.0], [0.0, 0.01], [1.0, 1.0], [-1.0, -1.0]]).unsqueeze(1)
    scores = Neighbours.fit(kept).score(directions)
    np.testing.assert_allclose(scores, [0, 0, 0.5**0.5 - 1, -(0.5**0.5) - 1], atol=1e-7)


def test_near_neighbours_are_told_apart():
    """Angles whose cosines are the same number in fp32."""
    kept = torch.tensor([[1.0, 0.0]]).repeat(5, 1).unsqueeze(1)
    angles = torch.tensor([1e-4, 2e-4, 3e-4])
    capsules = torch.stack([torch.ones(3), angles], dim=1).unsqueeze(1)
    scores = Neighbours.fit(kept).score(capsules)
    np.testing.assert_allclose(scores, -angles.double().square() / 2, rtol=1e-5)


def test_few_vectors_and_zero_vectors_have_scores():
    few = Neighbours.fit(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
    np.testing.assert_allclose(few.score(torch.tensor([[[1.0, 0.0]]])), [-0.5])
    np.testing.assert_allclose(few.score(torch.zeros(1, 1, 2)), [-1])


def test_few_images_are_all_kept():
    labels = np.array([2, 0, 0, 1, 2, 2])
    np.testing.assert_array_equal(draw(labels, 48, seed=0), np.arange(6))


def test_rare_classes_are_kept_whole():
    labels = np.repeat([0, 1, 2], [20, 40_000, 20_000])
    kept = draw(labels, 48, seed=0)
    assert len(kept) == len(set(kept.tolist())) == MOST_VECTORS
    assert np.bincount(labels[kept]).tolist() == [20, 2490, 2490]


def test_many_classes_keep_fewer_vectors():
    kept = draw(np.arange(20_000) % 100, 1600, seed=0)
    assert len(kept) * 1600 <= MOST_NUMBERS
    assert set(np.bincount(kept % 100)) <= {11, 12}


def test_the_seed_decides_the_draw():
    labels = np.zeros(20_000, dtype=np.int64)
    first, same, other = (draw(labels, 16, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)
    assert first.mean() == pytest.approx(10_000, rel=0.05)  # from all over


def test_principal_components_keep_the_angles_between_training_images():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40, MOST_COMPONENTS + 50, generator=generator) * 3 + 1
    standard = (features - features.mean(0)) / features.std(0, correction=0)
    neighbours = FeatureNeighbours.fit(features)
    assert neighbours.neighbours.kept.shape == (40, 40)
    found = neighbours.score(features)
    np.testing.assert_allclose(found, by_hand(standard, standard), rtol=1e-4, atol=1e-6)


def test_the_basis_is_saved_and_one_of_another_size_is_refused():
    features = torch.randn(300, MOST_COMPONENTS + 50, generator=torch.Generator().manual_seed(0))
    neighbours = FeatureNeighbours.fit(features)
    arrays = neighbours.arrays()
    loaded = FeatureNeighbours.of_arrays(arrays)
    assert torch.equal(loaded.score(features), neighbours.score(features))
    for wrong in (np.s_[:-1], np.s_[:, :-1]):
        basis = arrays["stem_neighbours.basis"][wrong]
        with pytest.raises(InputError, match="do not fit"):
            FeatureNeighbours.of_arrays(arrays | {"stem_neighbours.basis": basis})
