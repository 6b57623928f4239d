import numpy as np
import pytest
import torch

import anocaps
from anocaps.base.errors import InputError
from anocaps.detectors import scores
from anocaps.detectors.scores import pp, re


def test_pp_is_the_longest_capsule():
    assert pp(torch.tensor([[0.2, 0.9, 0.1], [0.3, 0.1, 0.2]])).tolist() == pytest.approx(
        [0.9, 0.3]
    )


def test_pp_of_one_class_has_nothing_to_compare():
    with pytest.raises(InputError, match="two classes"):
        pp(torch.tensor([[0.9]]))


def test_re_by_hand_divides_by_the_norm_not_by_its_square():
    image = torch.tensor([[[0.6, 0.8], [0.0, 0.0]], [[0.3, 0.4], [0.0, 0.0]]])
    reconstructed = torch.zeros(2, 2, 2)
    # ‖x‖² / ‖x‖: 1 / 1 and 0.25 / 0.5
    assert re(image, reconstructed).tolist() == pytest.approx([-1.0, -0.5])
    assert re(image, image).tolist() == [0.0, 0.0]


def test_re_of_a_black_image_is_finite_and_only_that_image_is_touched():
    black = torch.zeros(1, 2, 2)
    assert re(black, torch.full((1, 2, 2), 0.1)).item() == pytest.approx(-0.04 * 255)
    dimmest = black.clone()
    dimmest[0, 0, 0] = 1 / 255  # the darkest image that is not black
    assert re(dimmest, black).item() == pytest.approx(-(1 / 255), rel=1e-5)


def test_numpy_arrays_score_as_tensors_do():
    generator = np.random.default_rng(0)
    lengths = generator.random((5, 3))
    images, reconstructions = generator.random((2, 5, 4, 4, 1)).astype(np.float32)
    for function, given in ((scores.pp, (lengths,)), (scores.re, (images, reconstructions))):
        found = function(*given)
        assert isinstance(found, np.ndarray) and found.shape == (5,)
        np.testing.assert_allclose(found, function(*map(torch.from_numpy, given)).numpy())
    pixels = (255 * images).astype(np.uint8)
    np.testing.assert_allclose(
        scores.re(pixels, reconstructions), scores.re(pixels / 255, reconstructions), rtol=1e-5
    )
    assert anocaps.scores is scores
