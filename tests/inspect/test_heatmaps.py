"""Heat shows where an image is anomalous, stays low on normal images, and is one file per image."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anocaps import CapsNetDetector
from anocaps.base.errors import InputError
from anocaps.data import Dataset
from anocaps.inspect.overlays import HeatmapWriter, overlay
from anocaps.judging.heat import errors as heat
from anocaps.judging.heat import heatmaps, scale_of

BLACK = np.zeros((1, 28, 28, 1), np.float32)


# ── heat ─────────────────────────────────────────────────────────────────────────────────────


def test_no_error_gives_no_heat_and_bytes_equal_floats() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 256, (2, 3, 9, 12, 3), dtype=np.uint8)
    assert not heat(first, first).any()
    np.testing.assert_allclose(heat(first, second), heat(first / 255, second / 255), rtol=1e-5)
    assert heat(first, second).shape == (3, 9, 12)


def test_heat_is_squared_error_spread_over_neighbours() -> None:
    lone, block = BLACK.copy(), BLACK.copy()
    lone[0, 14, 14] = 0.5
    block[0, 12:17, 12:17] = 0.5
    spread = heat(lone, BLACK)[0]
    assert spread.sum() == pytest.approx(0.25, rel=1e-3)  # the blur keeps the sum
    assert np.unravel_index(spread.argmax(), spread.shape) == (14, 14)
    assert 0.02 < spread[14, 15] / spread.max() < 0.9
    assert heat(block, BLACK).max() > 2 * spread.max()  # a larger error is hotter
    assert heat(block, BLACK).max() <= 0.25


def test_an_error_at_the_border_is_as_hot() -> None:
    edge, middle = BLACK.copy(), BLACK.copy()
    edge[0, 0, 14] = middle[0, 14, 14] = 1
    assert heat(edge, BLACK).max() >= heat(middle, BLACK).max()


def test_larger_images_are_compared_in_their_central_window() -> None:
    image = np.zeros((1, 10, 12, 1), np.uint8)
    image[0, 0] = 255  # outside
    reconstructed = np.zeros((1, 6, 6, 1), np.float32)
    assert not heat(image, reconstructed).any()
    image[0, 2, 3] = 255  # the window's first corner
    found = heat(image, reconstructed)[0]
    assert np.unravel_index(found.argmax(), found.shape) == (0, 0)
    assert overlay(image, found[None]).shape == (1, 6, 6, 3)


def hot_images(maps: np.ndarray) -> float:
    """The share of images N×h×w that have half heat somewhere."""
    return float((maps.max(axis=(1, 2)) > 0.5).mean())


@pytest.mark.parametrize(("images", "hotter"), [(1, 0), (38, 0), (39, 1), (199, 9)])
def test_few_images_that_set_the_scale_exceed_half_heat(images: int, hotter: int) -> None:
    rng = np.random.default_rng(0)
    spots = np.zeros((images, 12, 12, 1))  # one pixel each, so that few pixels are hot anyway
    places = rng.integers(0, 12, (2, images))
    spots[np.arange(images), *places, 0] = 0.5 + rng.permutation(images) / images / 2
    black = np.zeros_like(spots)
    hottest = heatmaps(spots, black, scale_of(heat(spots, black))).max(axis=(1, 2))
    assert (hottest > 0.5 + 1e-5).sum() == hotter
    assert np.isclose(hottest, 0.5, atol=1e-5).sum() == 1  # the next one sets it
    assert scale_of(np.zeros((4, 8, 8))) > 0


@pytest.mark.parametrize(("known", "share"), [(39, 1 / 20), (19, 1 / 20), (4, 1 / 5)])
def test_few_new_normal_images_exceed_half_heat(known: int, share: float) -> None:
    """One in 20, or one in N + 1 if N < 19 images set the scale, over many draws."""
    rng = np.random.default_rng(0)
    rates = []
    for _ in range(300):
        errors = rng.random((known + 20, 6, 6, 1)) ** 20  # most far below the largest
        right = np.zeros_like(errors)
        scale = scale_of(heat(errors[:known], right[:known]))
        rates.append(hot_images(heatmaps(errors[known:], right[known:], scale)))
    assert abs(np.mean(rates) - share) < 3 * np.std(rates) / np.sqrt(len(rates))


def test_errors_of_all_normal_pixels_are_not_heat() -> None:
    """As of a network that reconstructs everything as grey."""
    images = np.random.default_rng(0).random((50, 28, 28, 1))
    grey = np.full_like(images, 0.5)
    scale = scale_of(heat(images, grey))
    assert (heatmaps(images, grey, scale) > 0).mean() == pytest.approx(0.05, abs=0.001)
    stained = images.copy()
    stained[:, 5:12, 5:12] = 3  # beyond what any image has
    assert (heatmaps(stained, grey, scale)[:, 8, 8] > 0.9).all()


def test_a_trained_network_has_little_heat_on_new_normal_images(digits: Dataset) -> None:
    known = digits.train.labels != 4
    detector = CapsNetDetector("quick", epochs=6, calibration=0.2, device="cpu")
    detector.fit(digits.train.images[known], digits.train.labels[known])
    maps = detector.heatmaps(digits.test.images)
    normal, anomalous = (maps[(digits.test.labels == 4) == four] for four in (False, True))
    assert hot_images(normal) < 0.08
    assert (normal > 0.2).mean() < 0.03
    assert (anomalous > 0.2).mean() > 3 * (normal > 0.2).mean()


def test_impossible_arguments_are_refused() -> None:
    for scale in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError):
            heatmaps(BLACK, BLACK, scale)
    for image, reconstruction in ((BLACK[0], BLACK[0]), (BLACK[:, :8], BLACK)):
        with pytest.raises(InputError):
            heat(image, reconstruction)
    with pytest.raises(InputError):
        scale_of(BLACK[:0])


# ── the overlay ──────────────────────────────────────────────────────────────────────────────


def test_without_heat_the_overlay_is_the_grey_image() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 9, 7, 3), dtype=np.uint8)
    shown = overlay(images, np.zeros((2, 9, 7)))
    assert not np.ptp(shown, axis=3).any()
    luma = [np.asarray(Image.fromarray(each).convert("L"), float) for each in images]
    np.testing.assert_allclose(shown[..., 0], luma, atol=1)


@pytest.mark.parametrize("grey", [0, 128, 255])
def test_more_heat_is_farther_from_grey(grey: int) -> None:
    ramp = np.linspace(0, 1, 21)[None, None]
    shown = overlay(np.full((1, 1, 21, 1), grey, np.uint8), ramp).reshape(-1, 3)
    away = np.linalg.norm(shown - float(grey), axis=1)
    assert away[0] == 0 and away[-1] > 100 and (np.diff(away) >= 0).all()


def test_of_a_stereo_pair_the_first_image_is_shown() -> None:
    pair = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 2), dtype=np.uint8)
    heats = np.random.default_rng(1).random((1, 8, 8))
    np.testing.assert_array_equal(overlay(pair, heats), overlay(pair[..., :1], heats))
    np.testing.assert_array_equal(overlay(pair / 255, heats), overlay(pair, heats))


# ── files ────────────────────────────────────────────────────────────────────────────────────

IMAGE = np.arange(20 * 28, dtype=np.uint16).astype(np.uint8).reshape(20, 28, 1)
HEAT = np.linspace(0, 1, 20 * 28).reshape(20, 28)


def test_a_file_is_the_overlay_enlarged_exactly(tmp_path: Path) -> None:
    new = tmp_path / "new"
    path = HeatmapWriter(tmp_path / "maps", [new]).add(new / "cup" / "7.jpg", IMAGE, HEAT)
    assert path == tmp_path / "maps" / "new" / "cup" / "7.jpg.png"  # `new` is not a folder
    new.mkdir()
    path = HeatmapWriter(tmp_path / "maps", [new]).add(new / "cup" / "7.jpg", IMAGE, HEAT)
    assert path == tmp_path / "maps" / "cup" / "7.jpg.png"
    pixels = np.asarray(Image.open(path))
    assert pixels.shape == (7 * 20, 7 * 28, 3)
    expected = overlay(IMAGE[None], HEAT[None])[0]
    np.testing.assert_array_equal(pixels.reshape(20, 7, 28, 7, 3)[:, 3, :, 5], expected)
    np.testing.assert_array_equal(pixels, expected.repeat(7, 0).repeat(7, 1))
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # nothing temporary


def test_every_file_has_its_own_map(tmp_path: Path) -> None:
    names = [
        "a.png", "a.jpg", "a", "a.png.png", "b/a.png", "b/a.jpg", "Ä ö/ß→文.png", "x" * 240,
        "x" * 239 + "y", "文" * 80 + ".png", "文" * 80 + ".jpg", "new\nline.png", "~.png",
    ]  # fmt: skip
    roots = [tmp_path / "one", tmp_path / "two"]
    for root in roots:
        root.mkdir()
    files = [root / name for root in roots for name in names]
    if sys.platform == "linux":
        files.append(roots[0] / os.fsdecode(b"no text \xff.png"))
    writer = HeatmapWriter(tmp_path / "maps", roots)
    written = [writer.add(file, IMAGE, HEAT) for file in files]
    assert len(set(written)) == len(files)
    assert all(path.is_file() and path.is_relative_to(tmp_path / "maps") for path in written)
    assert written[0] == tmp_path / "maps" / "one" / "a.png.png"
    again = HeatmapWriter(tmp_path / "maps", roots)
    assert [again.place(file) for file in files] == written


def test_one_file_under_several_paths_has_one_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    writer = HeatmapWriter(Path("maps"), [Path("../new/")])
    assert writer.place("../new/a.png") == tmp_path / "here" / "maps" / "a.png.png"
    assert writer.place(str(tmp_path / "new" / "a.png")) == writer.place("../new/./a.png")


def test_maps_among_the_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    for folder in (tmp_path / "new" / "maps", tmp_path / "new"):
        with pytest.raises(InputError, match="new"):
            HeatmapWriter(folder, [tmp_path / "new"])
    writer = HeatmapWriter(tmp_path / "maps", [tmp_path / "new"])
    with pytest.raises(InputError):
        writer.place(tmp_path / "other" / "a.png")
