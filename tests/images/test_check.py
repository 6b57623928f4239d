"""Checking a folder finds what is wrong with it before anything is trained."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from image_files import save, write_digits
from PIL import Image

from anocaps.base.errors import DataError
from anocaps.images import ImageFolder
from anocaps.images.check import check_folder, sentences
from anocaps.images.decode import Fit
from anocaps.images.sizes import Sizes


@pytest.fixture
def photos(tmp_path, digits) -> Path:
    """Digits 0 to 2 at 32×32, 20 different images of each."""
    folder = write_digits(tmp_path / "photos", digits, range(3), 20, enlarge=4)
    for label in range(3):
        (folder / f"digit {label}").rename(folder / str(label))
    return folder


def refuses(photos, **options) -> bool:
    try:
        ImageFolder(photos, **options)
    except DataError:
        return True
    return False


def test_a_good_folder(photos):
    check = check_folder(photos)
    assert check.classes == {"0": 20, "1": 20, "2": 20}
    assert check.formats == {"PNG": 60} and check.modes == {"L": 60}
    assert check.sizes == Sizes(60, (32, 32), (32, 32), (32, 32), 60)
    assert check.fit == Fit(32, 32, 1, "resize")
    wrong = check.unreadable, check.duplicates, check.unusual_sizes, check.several, check.others
    assert not any([*wrong, check.too_few, check.few, check.refused])


@pytest.mark.parametrize("installed", [True, False])
def test_the_fit_is_that_of_training(tmp_path, monkeypatch, installed):
    monkeypatch.setattr("anocaps.images.fitting.pretrained_available", lambda: installed)
    noise = np.random.default_rng(0).integers(0, 256, (6, 400, 300), dtype=np.uint8)
    for k, image in enumerate(noise):
        save(tmp_path / "photos" / f"{k}.png", image)
    check, folder = check_folder(tmp_path / "photos"), ImageFolder(tmp_path / "photos")
    assert check.fit == folder.fit and check.photo is folder.photo is installed
    assert check.sizes == folder.sizes
    becomes = "192×256" if installed else "96×128"
    assert any(f"300×400 becomes {becomes}." in line for line in sentences(check))


def test_unreadable_files_are_named(photos):
    good = (photos / "1" / "05.png").read_bytes()
    for name, content in {"0/01.png": b"", "1/05.png": good[:-40], "2/07.png": b"junk"}.items():
        (photos / name).write_bytes(content)
    told = []
    check = check_folder(photos, progress=lambda done, total: told.append((done, total)))
    assert [Path(file).name for file, _ in check.unreadable] == ["01.png", "05.png", "07.png"]
    assert check.classes == {"0": 19, "1": 19, "2": 19} and len(check.few) == 3
    assert "0/01.png" in "\n".join(sentences(check))
    assert told[-1] == (60, 60) and told == sorted(told)


def test_duplicates_are_found_by_bytes_and_by_pixels(photos):
    (photos / "0" / "copy.png").write_bytes((photos / "0" / "03.png").read_bytes())
    image = Image.open(photos / "1" / "04.png")
    image.convert("RGB").save(photos / "1" / "again.bmp")  # other bytes, other mode, same pixels
    image = Image.open(photos / "2" / "00.png")
    image.save(photos / "0" / "stray.tif")  # and in another class
    check = check_folder(photos)
    found = [([Path(f).name for f in d.files], d.classes, d.same) for d in check.duplicates]
    assert found == [
        (["stray.tif", "00.png"], ("0", "2"), "pixels"),  # the contradiction comes first
        (["03.png", "copy.png"], ("0",), "bytes"),
        (["04.png", "again.bmp"], ("1",), "pixels"),
    ]


def test_copies_in_a_class_count_once(photos):
    for number in range(3):
        shutil.copy(photos / "0" / "00.png", photos / "0" / f"copy{number}.png")
    check = check_folder(photos)
    assert check.classes["0"] == 23 and check.usable == {"0": 20, "1": 20, "2": 20}
    assert not check.refused and not refuses(photos)
    for file in sorted((photos / "1").iterdir())[4:]:
        shutil.copy(photos / "1" / "00.png", file)
    check = check_folder(photos)
    assert check.classes["1"] == 20 and check.usable["1"] == 4 and check.too_few == ["1"]
    assert check.refused and refuses(photos)


@pytest.mark.filterwarnings("ignore:few images")
def test_a_folder_is_refused_exactly_if_training_refuses_it(photos):
    shutil.copy(photos / "0" / "03.png", photos / "1" / "03.png")  # one image, two classes
    check = check_folder(photos)
    assert check.refused and refuses(photos) and not refuses(photos, skip_bad=True)
    assert check.usable == {"0": 19, "1": 19, "2": 20} and check.few == ["0", "1"]
    (photos / "1" / "03.png").write_bytes(b"junk")
    assert check_folder(photos).refused and refuses(photos) and not refuses(photos, skip_bad=True)
    for file in sorted((photos / "2").iterdir())[4:]:
        file.unlink()
    assert check_folder(photos).refused and refuses(photos, skip_bad=True)


def test_images_that_differ_above_eight_bits_are_no_copies(photos):
    """Ten bits in sixteen: divided by 65535 they would all be black."""
    for file in photos.rglob("*.png"):
        save(file, np.array(Image.open(file)).astype(np.uint16) * 4)
    check = check_folder(photos)
    assert check.duplicates == [] and check.fit.white == 1023


def test_unusual_sizes_are_named(photos, digits):
    save(photos / "1" / "wide.png", digits.train.images[0].repeat(2, 0).repeat(8, 1))
    save(photos / "1" / "tiny.png", digits.train.images[1])
    save(photos / "1" / "near.png", digits.train.images[2].repeat(4, 0).repeat(4, 1)[:30])
    check = check_folder(photos)
    assert [(Path(f).name, w, h) for f, w, h in check.unusual_sizes] == [
        ("tiny.png", 8, 8),
        ("wide.png", 64, 16),
    ]
    assert check.sizes == Sizes(63, (8, 64), (8, 32), (32, 32), 60)


def test_sizes_that_vary_are_not_unusual(tmp_path, digits):
    generator = np.random.default_rng(0)
    for number in range(30):
        width, height = generator.integers(30, 90, 2)
        image = Image.fromarray(digits.train.images[number]).resize((int(width), int(height)))
        save(tmp_path / "a" / f"{number}.png", image)
    assert check_folder(tmp_path).unusual_sizes == []


def test_small_and_empty_classes_are_named(photos):
    for file in sorted((photos / "2").iterdir())[3:]:
        file.unlink()
    (photos / "3").mkdir()
    check = check_folder(photos)
    assert check.classes == {"0": 20, "1": 20, "2": 3, "3": 0}
    assert check.too_few == ["2", "3"] and check.few == []


def test_several_frames_and_other_files_are_named(photos):
    frames = [Image.new("L", (32, 32), value) for value in (1, 2)]
    frames[0].save(photos / "0" / "pages.tif", save_all=True, append_images=frames[1:])
    for name in ("a.heic", "b.HEIC", "notes.txt", "README"):
        (photos / "1" / name).write_text("…")
    check = check_folder(photos)
    assert check.several == [str(photos / "0" / "pages.tif")]
    assert check.others == {".heic": 2, ".txt": 1, "": 1}


def test_a_folder_without_a_readable_image(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(b"junk")
    check = check_folder(tmp_path)
    assert check.fit is None and check.classes == {"a": 0} and check.refused
    assert "x.png" in "\n".join(sentences(check))


def test_the_result_is_json_and_keeps_names_that_are_not_text(photos):
    name = os.fsdecode(b"z\xe9.png")
    try:
        shutil.copy(photos / "0" / "00.png", photos / "0" / name)
    except OSError:
        pytest.skip("this file system refuses names that are not text")
    check = check_folder(photos)
    told = json.loads(json.dumps(dataclasses.asdict(check)))
    assert told["duplicates"][0]["files"][1] == str(photos / "0" / name)
    assert Fit(**told["fit"]) == check.fit and told["refused"] is False
    assert r"z\xe9.png" in "\n".join(sentences(check)).encode("utf-8").decode()
