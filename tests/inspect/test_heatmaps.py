"""Heat shows where an image is anomalous, stays low on normal images, and is one file per image."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from image_files import save
from PIL import Image
from processes import measured

from anocaps import CapsNetDetector
from anocaps.base.errors import InputError
from anocaps.data import Dataset
from anocaps.images.decode import Fit, How, read_image
from anocaps.images.limits import MOST_BYTES
from anocaps.inspect.overlays import HeatmapWriter, layer, over_photo, overlay
from anocaps.judging.heat import errors, heatmaps, scale_of

BLACK = np.zeros((1, 28, 28, 1), np.float32)


# ── heat ─────────────────────────────────────────────────────────────────────────────────────


def test_no_error_gives_no_heat_and_bytes_equal_floats() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 256, (2, 3, 9, 12, 3), dtype=np.uint8)
    assert not errors(first, first).any()
    np.testing.assert_allclose(errors(first, second), errors(first / 255, second / 255), rtol=1e-5)
    assert errors(first, second).shape == (3, 9, 12)


def test_heat_is_squared_error_spread_over_neighbours() -> None:
    lone, block = BLACK.copy(), BLACK.copy()
    lone[0, 14, 14] = 0.5
    block[0, 12:17, 12:17] = 0.5
    spread = errors(lone, BLACK)[0]
    assert spread.sum() == pytest.approx(0.25, rel=1e-3)  # the blur keeps the sum
    assert np.unravel_index(spread.argmax(), spread.shape) == (14, 14)
    assert 0.02 < spread[14, 15] / spread.max() < 0.9
    assert errors(block, BLACK).max() > 2 * spread.max()  # a larger error is hotter
    assert errors(block, BLACK).max() <= 0.25


def test_an_error_at_the_border_is_as_hot() -> None:
    edge, middle = BLACK.copy(), BLACK.copy()
    edge[0, 0, 14] = middle[0, 14, 14] = 1
    assert errors(edge, BLACK).max() >= errors(middle, BLACK).max()


def test_larger_images_are_compared_in_their_central_window() -> None:
    image = np.zeros((1, 10, 12, 1), np.uint8)
    image[0, 0] = 255  # outside
    reconstructed = np.zeros((1, 6, 6, 1), np.float32)
    assert not errors(image, reconstructed).any()
    image[0, 2, 3] = 255  # the window's first corner
    found = errors(image, reconstructed)[0]
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
    hottest = heatmaps(spots, black, scale_of(errors(spots, black))).max(axis=(1, 2))
    assert (hottest > 0.5 + 1e-5).sum() == hotter
    assert np.isclose(hottest, 0.5, atol=1e-5).sum() == 1  # the next one sets it
    assert scale_of(np.zeros((4, 8, 8))) > 0


@pytest.mark.parametrize(("known", "share"), [(39, 1 / 20), (19, 1 / 20), (4, 1 / 5)])
def test_few_new_normal_images_exceed_half_heat(known: int, share: float) -> None:
    """One in 20, or one in N + 1 if N < 19 images set the scale, over many draws."""
    rng = np.random.default_rng(0)
    rates = []
    for _ in range(300):
        wrong = rng.random((known + 20, 6, 6, 1)) ** 20  # most far below the largest
        right = np.zeros_like(wrong)
        scale = scale_of(errors(wrong[:known], right[:known]))
        rates.append(hot_images(heatmaps(wrong[known:], right[known:], scale)))
    assert abs(np.mean(rates) - share) < 3 * np.std(rates) / np.sqrt(len(rates))


def test_errors_of_all_normal_pixels_are_not_heat() -> None:
    """As of a network that reconstructs everything as grey."""
    images = np.random.default_rng(0).random((50, 28, 28, 1))
    grey = np.full_like(images, 0.5)
    scale = scale_of(errors(images, grey))
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
            errors(image, reconstruction)
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

FIT = Fit(20, 28, 1, "resize")
HEAT = np.linspace(0, 1, 20 * 28).reshape(20, 28)


def test_an_overlay_and_its_heat_have_the_size_of_the_photo(tmp_path: Path) -> None:
    new = tmp_path / "new"
    photo = np.random.default_rng(0).integers(0, 256, (80, 140, 3), dtype=np.uint8)
    file = save(new / "cup" / "7.png", photo)
    path = HeatmapWriter(tmp_path / "maps", [new]).add(file, HEAT, FIT)
    assert path == tmp_path / "maps" / "cup" / "7.png.png"
    with np.load(path.with_suffix(".npz")) as found:
        heats = found["heat"]
    assert heats.shape == (80, 140) and heats.dtype == np.float32
    assert heats.min() >= 0 and heats.max() <= 1 and abs(heats.mean() - 0.5) < 0.01
    pixels = np.asarray(Image.open(path))
    expected = overlay(photo[None], over_photo(HEAT, FIT, 140, 80)[None])[0]
    np.testing.assert_array_equal(pixels, expected)
    names = {each.name for each in path.parent.iterdir()}
    assert names == {"7.png.png", "7.png.npz"}  # nothing temporary


def test_a_photo_that_is_gone_has_no_map(tmp_path: Path) -> None:
    writer = HeatmapWriter(tmp_path / "maps", [tmp_path / "new"])
    assert writer.add(tmp_path / "new" / "gone.png", HEAT, FIT) is None


@pytest.mark.parametrize("how", ["resize", "letterbox", "crop"])
@pytest.mark.parametrize("size", [(300, 200), (120, 360), (64, 64)])
@pytest.mark.parametrize("spot", [(0.35, 0.4), (0.6, 0.62)])
@pytest.mark.parametrize("side", [48, 40])  # the network sees all, or the middle
def test_the_hottest_place_of_the_photo_is_where_it_should_be(
    tmp_path: Path, how: How, size: tuple[int, int], spot: tuple[float, float], side: int
) -> None:
    """A bright spot in a photo is fitted, its brightness is taken as heat, and brought back."""
    width, height = size
    fit = Fit(48, 48, 1, how)
    x, y = round(spot[0] * width), round(spot[1] * height)
    photo = np.zeros((height, width), np.uint8)
    around = max(2, max(size) // 40)
    photo[y - around : y + around + 1, x - around : x + around + 1] = 255
    cut = (48 - side) // 2
    seen = read_image(save(tmp_path / "photo.png", photo), fit)[cut : 48 - cut, cut : 48 - cut, 0]
    heats = over_photo(seen / 255, fit, width, height)
    assert heats.shape == photo.shape
    down, across = np.unravel_index(heats.argmax(), heats.shape)
    near = 1.5 * max(size) / 48  # pixels of the photo in one and a half of the fit
    assert abs(down - y) <= near and abs(across - x) <= near
    shown = overlay(photo[None, ..., None] // 2, heats[None])[0].astype(int)
    colour = np.ptp(shown, axis=2)  # grey has none
    assert colour[down, across] > 100 and colour[0, 0] == 0


def test_what_the_network_did_not_see_has_no_heat() -> None:
    everywhere = np.ones((40, 40))
    whole = over_photo(everywhere, Fit(40, 40, 1, "crop"), 200, 100)
    assert (whole[:, 60:140] == 1).all() and not whole[:, :48].any() and not whole[:, 152:].any()
    assert (over_photo(everywhere, Fit(40, 40, 1, "letterbox"), 200, 100) == 1).all()


def test_a_layer_over_an_image_is_its_overlay() -> None:
    grey = np.random.default_rng(0).integers(0, 256, (20, 28, 1), dtype=np.uint8)
    pixels = layer(HEAT).astype(float)
    strength = pixels[..., 3:] / 255
    shown = strength * pixels[..., :3] + (1 - strength) * grey
    np.testing.assert_allclose(shown, overlay(grey[None], HEAT[None])[0], atol=3)


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
    for file in files:
        file.parent.mkdir(exist_ok=True)
        Image.new("L", (4, 4)).save(file, "PNG")
    writer = HeatmapWriter(tmp_path / "maps", roots)
    written = [writer.add(file, HEAT, FIT) for file in files]
    assert len(set(written)) == len(files)
    assert all(path.is_file() and path.is_relative_to(tmp_path / "maps") for path in written)
    assert len({path.with_suffix(".npz") for path in written}) == len(files)
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


def test_a_large_image_is_painted_as_its_parts_are() -> None:
    rng = np.random.default_rng(0)
    photo = rng.integers(0, 256, (1, 700, 900, 3), dtype=np.uint8)
    heat = rng.random((1, 700, 900), dtype=np.float32)
    found = overlay(photo, heat)
    for part in (slice(0, 100), slice(600, 700)):
        np.testing.assert_array_equal(found[:, part], overlay(photo[:, part], heat[:, part]))


MEASURE = """
import sys
import numpy as np
from anocaps.images.decode import Fit
from anocaps.inspect.overlays import HeatmapWriter
place, fit = Path(sys.argv[1]), Fit(128, 128, 3, "letterbox")
writer = HeatmapWriter(place / "maps", [place / "photos"])
heat = np.zeros((128, 128), np.float32)
writer.add(place / "photos" / "small.png", heat, fit)
before = peak()
writer.add(place / "photos" / "large.png", heat, fit)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak of memory")
def test_the_overlay_of_a_large_photo_fits_into_memory(tmp_path) -> None:
    for name, side in (("small", 8), ("large", 7000)):
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.new("RGB", (side, side)).save(tmp_path / "photos" / f"{name}.png", compress_level=1)
    assert int(measured(MEASURE, tmp_path)) < 1.05 * MOST_BYTES
