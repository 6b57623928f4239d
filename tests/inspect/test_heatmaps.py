"""Heat lies where an image is odd, a normal image stays calm, and every file has its own map."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anocaps import CapsNetDetector
from anocaps.base.errors import InputError
from anocaps.data import Dataset, available, load_dataset
from anocaps.inspect.overlays import HeatmapWriter, overlay
from anocaps.judging.heat import heat, heatmaps, scale_of

BLACK = np.zeros((1, 28, 28, 1), np.float32)


# ── heat ─────────────────────────────────────────────────────────────────────────────────────


def test_no_error_no_heat_and_bytes_are_as_floats() -> None:
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
    assert spread.sum() == pytest.approx(0.25, rel=1e-3)  # moved, neither made nor lost
    assert np.unravel_index(spread.argmax(), spread.shape) == (14, 14)
    assert 0.02 < spread[14, 15] / spread.max() < 0.9
    assert heat(block, BLACK).max() > 2 * spread.max()  # of one strength, larger is hotter
    assert heat(block, BLACK).max() <= 0.25


def test_blur_grows_with_the_image() -> None:
    def width(side: int) -> int:
        image = np.zeros((1, side, side, 1), np.float32)
        image[0, side // 2, side // 2] = 1
        row = heat(image, np.zeros_like(image))[0, side // 2]
        return int((row > row.max() / 2).sum())

    assert width(8) == 1
    assert width(28) == 3
    assert width(128) == 9


def test_an_error_at_the_border_is_no_colder() -> None:
    edge, middle = BLACK.copy(), BLACK.copy()
    edge[0, 0, 14] = middle[0, 14, 14] = 1
    assert heat(edge, BLACK).max() >= heat(middle, BLACK).max()


def test_of_larger_images_the_central_window_counts() -> None:
    image = np.zeros((1, 10, 12, 1), np.uint8)
    image[0, 0] = 255  # outside
    redrawn = np.zeros((1, 6, 6, 1), np.float32)
    assert not heat(image, redrawn).any()
    image[0, 2, 3] = 255  # the window's first corner
    found = heat(image, redrawn)[0]
    assert np.unravel_index(found.argmax(), found.shape) == (0, 0)
    assert overlay(image, found[None]).shape == (1, 6, 6, 3)


def hot_images(maps: np.ndarray) -> float:
    """The share of images N×h×w that have half heat somewhere."""
    return float((maps.max(axis=(1, 2)) > 0.5).mean())


@pytest.mark.parametrize(
    ("images", "hotter"), [(1, 0), (5, 0), (19, 0), (38, 0), (39, 1), (100, 4), (199, 9)]
)
def test_of_the_images_that_set_the_scale_few_are_above_half_heat(images: int, hotter: int) -> None:
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
def test_of_new_normal_images_few_are_above_half_heat(known: int, share: float) -> None:
    """One in 20, or where less than 19 set the scale one in N + 1, over many draws of these."""
    rng = np.random.default_rng(0)
    rates = []
    for _ in range(400):
        errors = rng.random((known + 20, 6, 6, 1)) ** 20  # most far below the largest
        right = np.zeros_like(errors)
        scale = scale_of(heat(errors[:known], right[:known]))
        rates.append(hot_images(heatmaps(errors[known:], right[known:], scale)))
    assert abs(np.mean(rates) - share) < 3 * np.std(rates) / np.sqrt(len(rates))


def test_what_all_normal_pixels_show_is_not_heat() -> None:
    """As of a network that redraws everything as grey."""
    images = np.random.default_rng(0).random((50, 28, 28, 1))
    grey = np.full_like(images, 0.5)
    scale = scale_of(heat(images, grey))
    assert (heatmaps(images, grey, scale) > 0).mean() == pytest.approx(0.05, abs=0.001)
    stained = images.copy()
    stained[:, 5:12, 5:12] = 3  # beyond what any image has
    assert (heatmaps(stained, grey, scale)[:, 8, 8] == 1).all()


def test_heatmaps_lie_between_0_and_1() -> None:
    image = BLACK.copy()
    image[0, 3:9, 3:9] = 1
    found = heatmaps(image, BLACK, scale=0.5)
    assert found.max() == 1
    assert found.min() == 0
    expected = (2 * heat(image, BLACK) - 1 / 3) / (2 / 3)  # a third of the scale is usual
    np.testing.assert_allclose(found, expected.clip(0, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf")])
def test_an_impossible_scale_is_refused(scale: float) -> None:
    with pytest.raises(InputError, match="scale"):
        heatmaps(BLACK, BLACK, scale)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="N×h×w×C"):
        heat(BLACK[0], BLACK[0])
    with pytest.raises(InputError, match="smaller"):
        heat(BLACK[:, :8], BLACK)
    with pytest.raises(InputError, match="at least one"):
        scale_of(BLACK[:0])


@pytest.mark.parametrize(("epochs", "times"), [(2, 1.5), (6, 3)])
def test_trained_a_little_or_more_it_is_calm_on_new_normal_images(
    digits: Dataset, epochs: int, times: float
) -> None:
    known = digits.train.labels != 4
    detector = CapsNetDetector("quick", epochs=epochs, calibration=0.2, device="cpu")
    detector.fit(digits.train.images[known], digits.train.labels[known])
    maps = detector.heatmaps(digits.test.images)
    normal, odd = (maps[(digits.test.labels == 4) == four] for four in (False, True))
    assert hot_images(normal) < 0.08
    assert (normal > 0.2).mean() < 0.03
    assert (odd > 0.2).mean() > times * (normal > 0.2).mean()


# ── on real pictures, redrawn by their principal components ──────────────────────────────────


def redraw(normal: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Images N×h×w×1 from the 16 main directions of normal ones."""
    flat = normal.reshape(len(normal), -1) / 255
    mean = flat.mean(0)
    _, _, directions = np.linalg.svd(flat - mean, full_matrices=False)
    kept = directions[:16]
    centred = images.reshape(len(images), -1) / 255 - mean
    return (centred @ kept.T @ kept + mean).clip(0, 1).reshape(images.shape)


@pytest.fixture(params=["digits", "fashion-mnist"])
def real_images(request: pytest.FixtureRequest) -> Dataset:
    folder = Path(os.environ.get("ANOCAPS_DATA", "no such folder"))
    if request.param != "digits" and not available(request.param, folder):
        pytest.skip(f"{request.param} is not in ANOCAPS_DATA")
    return load_dataset(request.param, folder, download=False)


def test_a_normal_image_is_calm_and_a_stain_is_found(real_images: Dataset) -> None:
    normal = real_images.train.images[:2000, ..., None]
    images = real_images.test.images[:800, ..., None]
    side = images.shape[1]
    calibration, new = images[:400], images[400:]
    scale = scale_of(heat(calibration, redraw(normal, calibration)))
    redrawn = redraw(normal, new)
    calm = heatmaps(new, redrawn, scale)
    assert hot_images(calm) < 0.08
    assert np.mean(calm == 1) < 0.005
    assert np.median(calm.mean((1, 2))) < 0.15

    stained = new.copy()  # and redrawn as if it were clean
    square = slice(side // 4, side // 2)
    dark = new[:, square, square].mean((1, 2, 3), keepdims=True) < 128
    stained[:, square, square] = np.where(dark, 255, 0)
    found = heat(stained, redrawn)
    hottest = np.array([np.unravel_index(each.argmax(), each.shape) for each in found])
    inside = ((hottest >= square.start) & (hottest < square.stop)).all(axis=1)
    assert inside.mean() > 0.8
    hot = heatmaps(stained, redrawn, scale)[:, square, square].mean()
    assert hot > 3 * calm[:, square, square].mean()


# ── the overlay ──────────────────────────────────────────────────────────────────────────────

ALL_GREYS = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)


def test_no_heat_no_colour() -> None:
    shown = overlay(ALL_GREYS, np.zeros((1, 16, 16)))
    np.testing.assert_array_equal(shown, ALL_GREYS.repeat(3, axis=3))
    coloured = np.random.default_rng(0).integers(0, 256, (2, 9, 7, 3), dtype=np.uint8)
    shown = overlay(coloured, np.zeros((2, 9, 7)))
    assert not np.ptp(shown, axis=3).any()
    luma = [np.asarray(Image.fromarray(each).convert("L"), float) for each in coloured]
    np.testing.assert_allclose(shown[..., 0], luma, atol=1)


def test_of_a_stereo_pair_the_first_is_shown_and_floats_are_as_bytes() -> None:
    pair = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 2), dtype=np.uint8)
    heats = np.random.default_rng(1).random((1, 8, 8))
    np.testing.assert_array_equal(overlay(pair, heats), overlay(pair[..., :1], heats))
    np.testing.assert_array_equal(overlay(pair / 255, heats), overlay(pair, heats))


def lab(colours: np.ndarray) -> np.ndarray:
    """sRGB in 0…255 → CIELAB, in which distance is what the eye tells apart."""
    linear = linear_light(colours)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = linear @ np.transpose(to_xyz) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)


def linear_light(colours: np.ndarray) -> np.ndarray:
    unit = colours / 255
    return np.where(unit <= 0.04045, unit / 12.92, ((unit + 0.055) / 1.055) ** 2.4)


# Full loss of one kind of cone, in linear light (Machado, Oliveira and Fernandes, 2009).
VISION = {
    "full": np.eye(3),
    "no red": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.052]],
    "no green": [[0.3673, 0.8606, -0.228], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "no blue": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}


@pytest.mark.parametrize("vision", VISION)
def test_every_kind_of_vision_tells_heat_from_grey(vision: str) -> None:
    def seen(colours: np.ndarray) -> np.ndarray:
        light = (linear_light(colours) @ np.transpose(VISION[vision])).clip(0, 1)
        return lab(
            255 * np.where(light <= 0.0031, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
        )

    hot = seen(overlay(ALL_GREYS, np.ones((1, 16, 16))).reshape(-1, 3))
    greys = seen(ALL_GREYS.repeat(3, axis=3).reshape(-1, 3))
    assert np.linalg.norm(hot[:, None] - greys[None], axis=2).min() > 30


@pytest.mark.parametrize(("grey", "direction"), [(0, 1), (255, -1)])
def test_more_heat_is_seen_as_more(grey: int, direction: int) -> None:
    ramp = np.linspace(0, 1, 21)[None, None]
    shown = overlay(np.full((1, 1, 21, 1), grey, np.uint8), ramp).reshape(-1, 3)
    assert (direction * np.diff(lab(shown)[:, 0]) > -0.01).all()
    away = np.linalg.norm(lab(shown) - lab(shown[:1]), axis=1)
    assert (np.diff(away) > 0).all()
    assert away[4] < 12 < away[8]  # a fifth of full heat is hardly seen, two are


# ── files ────────────────────────────────────────────────────────────────────────────────────

IMAGE = np.arange(20 * 28, dtype=np.uint16).astype(np.uint8).reshape(20, 28, 1)
HEAT = np.linspace(0, 1, 20 * 28).reshape(20, 28)


def test_a_file_is_the_overlay_enlarged_exactly(tmp_path: Path) -> None:
    new = tmp_path / "new"
    path = HeatmapWriter(tmp_path / "maps", [new]).add(new / "cup" / "7.jpg", IMAGE, HEAT)
    assert path == tmp_path / "maps" / "new" / "cup" / "7.jpg.png"  # `new` is no folder: a file
    new.mkdir()
    path = HeatmapWriter(tmp_path / "maps", [new]).add(new / "cup" / "7.jpg", IMAGE, HEAT)
    assert path == tmp_path / "maps" / "cup" / "7.jpg.png"
    pixels = np.asarray(Image.open(path))
    assert pixels.shape == (7 * 20, 7 * 28, 3)
    expected = overlay(IMAGE[None], HEAT[None])[0]
    np.testing.assert_array_equal(pixels.reshape(20, 7, 28, 7, 3)[:, 3, :, 5], expected)
    np.testing.assert_array_equal(pixels, expected.repeat(7, 0).repeat(7, 1))
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # nothing temporary


def test_a_large_image_keeps_its_size(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    writer = HeatmapWriter(tmp_path / "maps", [tmp_path / "new"])
    image = np.zeros((128, 150, 3), np.uint8)
    path = writer.add(tmp_path / "new" / "a.png", image, np.zeros((128, 150)))
    assert Image.open(path).size == (150, 128)


def test_names_never_meet(tmp_path: Path) -> None:
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


def test_paths_as_users_write_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    writer = HeatmapWriter(Path("maps"), [Path("../new/")])
    assert writer.place("../new/a.png") == tmp_path / "here" / "maps" / "a.png.png"
    assert writer.place(str(tmp_path / "new" / "a.png")) == writer.place("../new/./a.png")


def test_maps_among_the_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    for folder in (tmp_path / "new" / "maps", tmp_path / "new"):
        with pytest.raises(InputError, match="name a folder outside"):
            HeatmapWriter(folder, [tmp_path / "new"])
    writer = HeatmapWriter(tmp_path / "maps", [tmp_path / "new"])
    with pytest.raises(InputError, match="not among"):
        writer.place(tmp_path / "other" / "a.png")


def test_a_place_for_maps_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "maps").touch()
    for folder in (tmp_path / "maps", tmp_path / "maps" / "deep"):
        with pytest.raises(NotADirectoryError) as caught:
            HeatmapWriter(folder, [tmp_path / "new"])
        assert caught.value.filename == str(tmp_path / "maps")
    assert {path.name for path in tmp_path.iterdir()} == {"new", "maps"}
