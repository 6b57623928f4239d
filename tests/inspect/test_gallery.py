"""The gallery keeps the most anomalous images, in bounded memory, and shows them first."""

import base64
import gc
import io
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gallery_rows import SMALL, content, make_row
from html_page import Page
from image_files import save
from PIL import Image

from anocaps.data import Dataset
from anocaps.inspect import gallery
from anocaps.inspect.gallery import About, GalleryWriter


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
    for rank, (original, reconstructed, heat, width, height) in kept.items():
        shown = SMALL[..., 0] + np.uint8(listed[int(rank)] // 4)
        np.testing.assert_array_equal(decode(original), shown)
        assert reconstructed is heat is None and (width, height) == (8, 8)


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


def test_photo_reconstruction_and_heat_are_shown_as_given(path: Path, digits: Dataset) -> None:
    images = digits.test.images[:6, ..., None]
    reconstructed = images.mean(0, keepdims=True).repeat(6, 0).astype(np.float32) / 255
    heat = np.linspace(0, 1, 64).reshape(8, 8)
    with GalleryWriter(path, "Digits") as writer:
        for place in range(6):
            row = make_row(place, verdict="anomalous" if place < 2 else "normal")
            writer.add(f"{place}.png", images[place], reconstructed[place], heat, row)
    for place in range(6):
        shown = [decode(uri) for uri in content(path)["images"][str(place)][:3]]
        np.testing.assert_array_equal(shown[0], images[place, ..., 0])
        np.testing.assert_array_equal(shown[1], np.rint(255 * reconstructed[place, ..., 0]))
        assert shown[2].shape == (8, 8, 4)
        strength = shown[2][..., 3].ravel().astype(int)
        assert strength[0] < 20 and strength[-1] > 230 and (np.diff(strength) > -12).all()


def test_a_large_photo_becomes_a_thumbnail(path: Path) -> None:
    photo = np.zeros((900, 1200, 3), np.uint8)
    photo[:450] = (200, 30, 30)
    with GalleryWriter(path, "Photos") as writer:
        writer.add("a.jpg", photo, None, np.ones((300, 400)), make_row(1))
    uri, _, layer, width, height = content(path)["images"]["0"]
    assert uri.startswith("data:image/jpeg") and decode(uri).shape == (384, 512, 3)
    assert abs(decode(uri)[100, 100].astype(int) - (200, 30, 30)).max() < 12
    assert max(decode(layer).shape) <= 128 and (width, height) == (1200, 900)


def test_files_are_linked_from_the_page(path: Path, tmp_path: Path) -> None:
    names = ["photos/a b#1?.png", "photos/javascript:x", "new/gallery.png"]
    with GalleryWriter(path, "Photos") as writer:  # in tmp_path / "new"
        for place, name in enumerate(names):
            writer.add(str(tmp_path / name), None, None, None, make_row(place))
    links = [row[9] for row in content(path)["rows"]]
    assert links == ["../photos/a%20b%231%3F.png", "../photos/javascript%3Ax", "gallery.png"]


@pytest.mark.parametrize(
    ("size", "p_value", "says"),
    [
        (199, 1 / 200, "all 199 normal photos"),
        (199, 2.5 / 200, "99 of 100 normal photos"),
        (199, 11 / 200, "94 of 100 normal photos"),
        (49, 2 / 50, "48 of 49 normal photos"),
        (1999, 4 / 2000, "998 of 1,000 normal photos"),
        (1999, 1.0, "0 of 100 normal photos"),
        (0, float("nan"), ""),
    ],
)
def test_a_p_value_is_told_as_a_rank(path: Path, size: int, p_value: float, says: str) -> None:
    with GalleryWriter(path, "Photos", 0.05, about=About(calibration_size=size)) as writer:
        writer.add("a.png", None, None, None, make_row(1, p_value=p_value))
    rank = content(path)["rows"][0][8]
    assert rank.endswith(says) and bool(rank) == bool(says)


def test_near_copies_are_grouped(path: Path) -> None:
    rng = np.random.default_rng(0)
    scenes = rng.integers(0, 256, (3, 40, 60, 3), dtype=np.uint8)
    with GalleryWriter(path, "Photos") as writer:
        for place in range(9):  # frames of three videos
            noise = rng.integers(0, 8, scenes[0].shape, dtype=np.uint8)
            frame = np.clip(scenes[place % 3], 0, 247) + noise
            writer.add(f"{place}.png", frame, None, None, make_row(place))
    assert content(path)["copies"] == {str(k): k % 3 for k in range(3, 9)}


def test_the_most_similar_normal_photo_is_shown_if_it_is_still_there(
    path: Path, tmp_path: Path
) -> None:
    photo = np.full((300, 400, 3), 90, np.uint8)
    save(tmp_path / "training" / "cup" / "1.png", photo)
    save(tmp_path / "secret.png", photo)
    names = ["cup/1.png", "cup/gone.png", "../secret.png", str(tmp_path / "secret.png"), ""]
    with GalleryWriter(path, "Photos") as writer:
        writer.training = tmp_path / "training"
        for place, name in enumerate(names):
            writer.add(f"{place}.png", SMALL, None, None, make_row(place), nearest=name)
    found = content(path)
    assert [row[10] for row in found["rows"]] == names
    assert list(found["normal"]) == ["cup/1.png"]
    assert max(decode(found["normal"]["cup/1.png"]).shape) == 256


def page_of(path: Path, flags: list[bool], about: About) -> Page:
    with GalleryWriter(path, "Photos", 0.05, about=about) as writer:
        for place, flagged in enumerate(flags):
            row = make_row(place, verdict="anomalous" if flagged else "normal")
            writer.add(f"{place}.png", None, None, None, row)
    return Page(path)


def test_the_page_says_what_the_model_is_worth(path: Path) -> None:
    for level in ("good", "partly", "bad", "unknown"):
        about = About("bolts.onnx", "2031-05-06", level, "Said of it.", 99, "pretrained on Ours")
        page = page_of(path, [False] * 5, about)
        text = "".join(page.text)
        assert "bolts.onnx" in text and "2031-05-06" in text and "Said of it." in text
        assert "pretrained on Ours" in text
        assert f"verdict {level}" in page.attributes("span", "class")


def test_far_more_flagged_images_than_alpha_are_told(path: Path) -> None:
    about = About(calibration_size=199)
    calm = page_of(path, [k % 25 == 0 for k in range(300)], about)
    assert "svg" in dict(calm.tags) and not any("bad" in c for c in calm.attributes("p", "class"))
    many = page_of(path, [k % 3 == 0 for k in range(300)], about)
    assert any("bad" in kind for kind in many.attributes("p", "class"))
    assert "svg" not in dict(page_of(path, [True] * 50, about).tags)  # too few for a chart
    assert "svg" not in dict(page_of(path, [True] * 300, About()).tags)  # no verdicts


def test_a_row_shows_all_its_values(path: Path) -> None:
    further = {"knn": -0.123456, "p_value_class": 0.01}
    with GalleryWriter(path, "Photos", alpha=0.01, score_function="re") as writer:
        writer.add("new/a.png", SMALL, None, None, make_row(-2.5, **further), "looks dark: 3 % do.")
        writer.add("new/b.png", SMALL, None, None, make_row(3, **further) | {"class": "cup"})
    found = content(path)
    assert found["further"] == ["pp", "p-value in its class", "knn"]
    assert found["rows"][0][:8] == [
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
