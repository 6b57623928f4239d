import hashlib

import numpy as np
import pytest
import torch

from anocaps.base.errors import InputError
from anocaps.training import preprocessing
from anocaps.training.preprocessing import Chosen, Preprocessing, as_images


def test_central_crop_is_the_middle():
    images = torch.arange(48 * 48, dtype=torch.float32).view(1, 48, 48, 1) / (48 * 48)
    got = Preprocessing(48, 48, 1, crop=32).central(images)
    assert torch.equal(got[0, 0], images[0, 8:40, 8:40, 0])


def test_windows_cut_where_they_are_told():
    images = torch.randint(0, 256, (3, 6, 7, 2), dtype=torch.uint8)
    prepare = Preprocessing(6, 7, 2, crop=4)
    got = prepare.windows(images, torch.tensor([2, 0]), torch.tensor([[1, 3], [0, 2]]))
    want = torch.stack([images[2, 1:5, 3:7], images[0, 0:4, 2:6]]).permute(0, 3, 1, 2) / 255
    assert torch.equal(got, want)


def test_shift_moves_by_up_to_its_pixels_and_fills_with_black():
    prepare = Preprocessing(5, 5, 1, shift=2)
    image = torch.full((1, 5, 5, 1), 255, dtype=torch.uint8)
    offsets = prepare.draw_offsets(np.random.default_rng(0), 1000)
    assert offsets.min() == 0 and offsets.max() == 4
    got = prepare.windows(prepare.pad(image), torch.tensor([0]), torch.tensor([[0, 2]]))
    assert got[0, 0].sum(1).tolist() == [0, 0, 5, 5, 5]
    assert torch.equal(prepare.central(image), torch.ones(1, 1, 5, 5))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_shift_may_repeat_the_edge(dtype):
    images = torch.randint(0, 256, (2, 5, 7, 3)).to(dtype)
    padded = Preprocessing(5, 7, 3, shift=2, padding="edge").pad(images)
    want = np.pad(images.numpy(), ((0, 0), (2, 2), (2, 2), (0, 0)), mode="edge")
    assert padded.dtype == dtype
    np.testing.assert_array_equal(padded.numpy(), want)


@pytest.mark.parametrize(("shift", "padding"), [(0, "black"), (2, "black"), (2, "edge")])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images_to_train_on_are_padded_part_by_part(shift, padding, dtype, monkeypatch):
    """As all at once, and the digest is that of the images as they were given."""
    monkeypatch.setattr(preprocessing, "_PART", 4)
    images = np.random.default_rng(0).integers(0, 2, (11, 5, 7, 3)).astype(dtype)
    prepare = Preprocessing(5, 7, 3, shift=shift, padding=padding)
    index = np.array([0, 2, 3, 5, 6, 7, 8, 9, 10])
    digest = hashlib.sha256()
    got = prepare.padded(Chosen(images, index), torch.device("cpu"), digest)
    want = prepare.pad(torch.from_numpy(images[index]))
    assert got.dtype == want.dtype and torch.equal(got, want) and got.is_contiguous()
    assert digest.hexdigest() == hashlib.sha256(images[index].tobytes()).hexdigest()


def test_chosen_images_are_a_contiguous_copy_of_what_is_asked_for():
    images = np.random.default_rng(0).random((9, 4, 3, 2))[:, ::-1]
    chosen = Chosen(images, np.array([1, 4, 5, 8]))
    again = Chosen(chosen, np.array([0, 2, 3]))
    assert len(chosen) == 4 and chosen.shape == (4, 4, 3, 2) and chosen.dtype == np.float32
    assert again.shape == (3, 4, 3, 2) and again.dtype == np.float32
    for got, index in (
        (chosen[:], [1, 4, 5, 8]),
        (chosen[1:3], [4, 5]),
        (again[:], [1, 5, 8]),
        (again[np.array([2, 0])], [8, 1]),
    ):
        np.testing.assert_array_equal(got, images[index].astype(np.float32))
        assert got.dtype == np.float32 and got.flags.c_contiguous
        got[:] = 2
    assert images.max() <= 1


def test_standardised_over_both_channels():
    pixels = torch.rand(4, 2, 8, 8)
    got = Preprocessing(8, 8, 2, standardize=True).encoder_input(pixels).flatten(1)
    torch.testing.assert_close(got.mean(1), torch.zeros(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(got.std(1, correction=0), torch.ones(4))


def test_a_flat_image_is_divided_by_the_least_spread():
    prepare = Preprocessing(4, 4, 1, standardize=True)
    pixels = torch.full((1, 1, 4, 4), 0.5)
    assert torch.equal(prepare.encoder_input(pixels), torch.zeros(1, 1, 4, 4))
    pixels[0, 0, 0, 0] = 0.501
    deviation = 0.001 * 15 / 16
    assert prepare.encoder_input(pixels).max().item() == pytest.approx(deviation * 4, rel=1e-3)


@pytest.mark.parametrize(
    ("images", "match"),
    [
        (np.zeros((3, 3)), "shape"),
        (np.zeros((0, 3, 3)), "empty"),
        (np.zeros((2, 0, 3)), "no pixels"),
        (np.zeros((2, 3, 3), dtype=int), "int64"),
        (np.full((2, 3, 3), 2.0), r"image 0 .*\[0, 1\]"),
        (np.full((2, 3, 3), -0.1), r"\[0, 1\]"),
        (np.full((2, 3, 3), np.inf), "finite"),
        (np.array([["a"]]), "shape"),
    ],
)
def test_the_gate_names_what_is_wrong(images, match):
    with pytest.raises(InputError, match=match):
        as_images(images)


def test_crop_must_fit():
    with pytest.raises(InputError, match="crop=9"):
        Preprocessing(8, 8, 1, crop=9)
