"""The gallery keeps the most anomalous images, in bounded memory, and shows them first."""

import base64
import gc
import io
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gallery_rows import SMALL, content, make_row
from PIL import Image

from anocaps.data import Dataset
from anocaps.inspect import gallery
from anocaps.inspect.gallery import GalleryWriter
from anocaps.inspect.overlays import overlay
from anocaps.judging.heat import heatmaps


def files(path: Path) -> list[str]:
    return [row[0] for row in content(path)["rows"]]


def decode(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def test_the_most_anomalous_come_first_and_ties_keep_their_order(path: Path) -> None:
    scores = np.random.default_rng(0).permutation(np.repeat(np.arange(-20.0, 20), 2))
    with GalleryWriter(path, "Photos") as writer:
        for place, score in enumerate(scores):
            writer.add(f"{place}.png", SMALL, None, None, make_row(score))
    order = np.argsort(scores, kind="stable")
    assert files(path) == [f"{place}.png" for place in order]
    assert [row[1] for row in content(path)["rows"]][:3] == ["−20", "−20", "−19"]


def test_rows_and_images_are_limited_to_the_most_anomalous(path: Path) -> None:
    scores = np.random.default_rng(0).permutation(200)
    writer = GalleryWriter(path, "Photos", shown=30, rows=100)
    for score in scores:
        writer.add(f"{score}.png", SMALL + np.uint8(score // 4), None, None, make_row(score))
    writer.close()
    listed = [*range(100), *range(200 - gallery.MOST_NORMAL, 200)]
    assert files(path) == [f"{score}.png" for score in listed]
    kept = content(path)["images"]
    assert [int(rank) for rank in kept] == [*range(30), *range(100, 100 + gallery.MOST_NORMAL)]
    for rank, (original, reconstructed, heat) in kept.items():
        shown = SMALL[..., 0] + np.uint8(listed[int(rank)] // 4)
        np.testing.assert_array_equal(decode(original), shown)
        assert reconstructed is heat is None


def test_more_small_images_than_large_ones_are_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "IMAGE_BYTES", 60_000)
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    scores = np.random.default_rng(1).permutation(1000)
    for image, fewest, most in ((SMALL, 300, 700), (noise, 3, 20)):
        with GalleryWriter(path, "Photos") as writer:
            for score in scores:
                writer.add(f"{score}.png", image, None, None, make_row(score))
            assert not writer.wants(make_row(most))
        kept = content(path)["images"]
        most_anomalous = len(kept) - gallery.MOST_NORMAL
        assert fewest < most_anomalous < most
        assert [int(rank) for rank in kept][:most_anomalous] == list(range(most_anomalous))
        assert sum(len(kept[str(rank)][0]) for rank in range(most_anomalous)) <= 60_000


def test_memory_does_not_grow_with_the_number_of_files(path: Path) -> None:
    """Each image is more anomalous than all before, so each replaces another."""
    writer = GalleryWriter(path, "Photos", shown=5, rows=20)
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    held = []
    tracemalloc.start()
    for count in range(600):
        row = make_row(-float(count))
        writer.add(f"{count}.png", image, image, np.ones((32, 32)), row, f"sentence {count}")
        if count in (199, 599):
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert held[1] < held[0] + 20_000  # one more image of this kind is 4,000


def test_only_the_extremes_need_images(path: Path) -> None:
    writer = GalleryWriter(path, "Photos", shown=30)
    for score in range(200):
        assert writer.wants(make_row(score))  # the most normal so far
        writer.add(f"{score}.png", SMALL, None, None, make_row(score))
    wanted = [score for score in range(-1, 201) if writer.wants(make_row(score))]
    assert wanted == [*range(-1, 29), *range(177, 201)]
    assert not writer.wants({"error": "damaged"})


@pytest.mark.parametrize("score", ["", None, float("nan")])
def test_a_row_without_a_score_comes_first(path: Path, score: object) -> None:
    with GalleryWriter(path, "Photos") as writer:
        for name, each in (("low", -1e9), ("none", score), ("high", 1e9)):
            writer.add(name, SMALL, None, None, make_row(0.0) | {"score": each})
    assert files(path) == ["none", "low", "high"]
    assert content(path)["rows"][0][1] == ""


def test_original_reconstruction_and_heatmap_are_shown_as_given(
    path: Path, digits: Dataset
) -> None:
    images = digits.test.images[:6, ..., None]
    reconstructed = images.mean(0, keepdims=True).repeat(6, 0).astype(np.float32) / 255
    heat = heatmaps(images, reconstructed, 0.2)
    with GalleryWriter(path, "Digits") as writer:
        for place in range(6):
            row = make_row(place, verdict="anomalous" if place < 2 else "normal")
            writer.add(f"{place}.png", images[place], reconstructed[place], heat[place], row)
    warm = overlay(images, heat)
    for place in range(6):
        shown = [decode(uri) for uri in content(path)["images"][str(place)]]
        np.testing.assert_array_equal(shown[0], images[place, ..., 0])
        np.testing.assert_array_equal(shown[1], np.rint(255 * reconstructed[place, ..., 0]))
        np.testing.assert_array_equal(shown[2], warm[place])


def test_a_row_shows_all_its_values(path: Path) -> None:
    further = {"knn": -0.123456, "p_value_class": 0.01}
    with GalleryWriter(path, "Photos", alpha=0.01, score_function="re") as writer:
        writer.add("new/a.png", SMALL, None, None, make_row(-2.5, **further), "looks dark: 3 % do.")
        writer.add("new/b.png", SMALL, None, None, make_row(3, **further) | {"class": "cup"})
    found = content(path)
    assert found["further"] == ["pp", "p-value in its class", "knn"]
    assert found["rows"][0] == [
        "new/a.png", "−2.5", "0.25", "normal", "4", "Looks dark: 3\u00a0% do.",
        ["0.5", "0.01", "−0.1235"], "",
    ]  # fmt: skip
    assert found["rows"][1][4:6] == ["cup", ""]
    assert found["score"] == "score (re)"


def test_files_that_cannot_be_scored_come_last_with_their_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "BAD_ROWS", 3)
    with GalleryWriter(path, "Photos") as writer:
        for place in range(5):
            row = {"file": "", "score": "", "verdict": "", "error": f"{place} is damaged"}
            writer.add(f"bad {place}.png", None, None, None, row)
        writer.add("good.png", SMALL, None, None, make_row(5))
    assert files(path) == ["good.png", "bad 0.png", "bad 1.png", "bad 2.png"]
    last = content(path)["rows"][-1]
    assert (last[3], last[7]) == ("not scored", "2 is damaged")
