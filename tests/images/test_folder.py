"""A folder of images becomes one array with labels; files that cannot be used are named."""

import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from image_files import write_digits

from anocaps.base.errors import DataError, InputError
from anocaps.images import ImageFolder
from anocaps.images.decode import Fit, read_image
from anocaps.images.folder import find_classes


@pytest.fixture
def photos(tmp_path, digits) -> Path:
    """Digits 0 to 2 as PNG files, 20 of each: photos/CLASS/*.png."""
    return write_digits(tmp_path / "photos", digits, range(3), 20)


def test_classes_are_the_sorted_sub_folders(photos, digits):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # 20 images of each class are enough
        folder = ImageFolder(photos)
    assert folder.class_names == ("digit 0", "digit 1", "digit 2")
    assert folder.labels.tolist() == [name for name in folder.class_names for _ in range(20)]
    assert folder.images.shape == (60, 8, 8, 1) and folder.images.dtype == np.uint8
    assert folder.fit == Fit(8, 8, 1, "resize")
    assert folder.skipped == ()
    assert list(folder.files) == sorted(photos.rglob("*.png"))
    for file, image in zip(folder.files, folder.images):
        np.testing.assert_array_equal(image, read_image(file, folder.fit))


def test_a_folder_is_walked_once(photos, monkeypatch):
    (photos / "digit 0" / "notes.txt").touch()
    found = find_classes(photos)
    monkeypatch.setattr(os, "scandir", None)
    folder = ImageFolder(found)
    assert folder.passed.others == {".txt": 1}


def test_a_flat_folder_is_one_class(photos, monkeypatch):
    folder = ImageFolder(photos / "digit 1")
    assert folder.class_names == ("digit 1",)
    assert set(folder.labels) == {"digit 1"} and len(folder.images) == 20
    monkeypatch.chdir(photos / "digit 1")
    assert ImageFolder(".").class_names == ("digit 1",)


def test_a_fit_is_chosen_changed_in_part_or_given(photos):
    assert ImageFolder(photos, size=16).fit == Fit(16, 16, 1, "resize")
    assert ImageFolder(photos, how="letterbox").fit == Fit(8, 8, 1, "letterbox", bars="border")
    assert ImageFolder(photos, channels=3).images.shape == (60, 8, 8, 3)
    given = Fit(12, 10, 3, "crop")
    folder = ImageFolder(photos, fit=given)
    assert folder.fit == given and folder.images.shape == (60, 12, 10, 3)
    with pytest.raises(InputError, match="fit excludes"):
        ImageFolder(photos, size=16, fit=given)
    with pytest.raises(InputError, match="height"):
        ImageFolder(photos, size=-1)


@pytest.mark.filterwarnings("ignore:few images")
def test_all_bad_files_are_named_or_skipped(photos):
    bad = {
        "digit 0/03.png": b"",
        "digit 0/04.png": b"hello",
        "digit 2/05.png": (photos / "digit 2" / "05.png").read_bytes()[:60],
    }
    for name, content in bad.items():
        (photos / name).write_bytes(content)
    with pytest.raises(DataError, match=f"3 of 60 images in {photos} cannot be used") as caught:
        ImageFolder(photos)
    message = str(caught.value)
    assert all(str(photos / name) in message for name in bad)
    assert "02.png" not in message and "skip_bad" in message and "\n" not in message

    folder = ImageFolder(photos, skip_bad=True)
    assert [file for file, _ in folder.skipped] == [photos / name for name in bad]
    assert len(folder.images) == len(folder.labels) == len(folder.files) == 57
    assert not set(folder.files) & {file for file, _ in folder.skipped}
    for file, label, image in zip(folder.files, folder.labels, folder.images):
        assert file.parent.name == label
        np.testing.assert_array_equal(image, read_image(file, folder.fit))


def test_a_class_of_three_images_is_refused(photos):
    for file in sorted((photos / "digit 1").iterdir())[3:]:
        file.unlink()
    with pytest.raises(DataError, match="digit 1"):
        ImageFolder(photos)
    assert (ImageFolder(photos, fewest=1).labels == "digit 1").sum() == 3


def test_a_class_with_too_few_good_files_is_refused(photos):
    for file in sorted((photos / "digit 1").iterdir())[1:]:
        file.write_bytes(b"junk")
    with pytest.raises(DataError, match="digit 1"):
        ImageFolder(photos, skip_bad=True)


# ── copies ───────────────────────────────────────────────────────────────────────────────────────


def test_copies_are_used_once(photos):
    plain = ImageFolder(photos)
    for file in plain.files:
        shutil.copy(file, file.with_stem(f"{file.stem}x"))
    doubled = ImageFolder(photos)
    np.testing.assert_array_equal(doubled.images, plain.images)
    assert doubled.files == plain.files and doubled.labels.tolist() == plain.labels.tolist()
    assert doubled.duplicates == tuple((f.with_stem(f"{f.stem}x"), f) for f in plain.files)
    assert plain.duplicates == doubled.skipped == ()
    assert len(np.unique(doubled.images, axis=0)) == len(doubled.images) == 60


def test_copies_are_kept_for_scoring(photos):
    shutil.copy(photos / "digit 0" / "00.png", photos / "digit 0" / "copy.png")
    shutil.copy(photos / "digit 0" / "00.png", photos / "digit 1" / "stray.png")
    folder = ImageFolder(photos, fewest=1)
    assert len(folder.images) == 62 and folder.duplicates == folder.skipped == ()


def test_one_image_in_two_classes_is_refused_or_skipped(photos):
    first, stray = photos / "digit 0" / "07.png", photos / "digit 2" / "stray.png"
    again = photos / "digit 0" / "again.png"
    for copy in (stray, again):
        shutil.copy(first, copy)
    with pytest.raises(DataError, match=f"3 of 62 images in {photos} cannot be used") as caught:
        ImageFolder(photos)
    message = str(caught.value)
    assert str(first) in message and str(stray) in message and "skip_bad" in message
    with pytest.warns(UserWarning, match=r"few images in digit 0 \(19\)"):
        folder = ImageFolder(photos, skip_bad=True)
    assert [file for file, _ in folder.skipped] == [first, again, stray]
    assert len(folder.images) == 59 and folder.duplicates == ()
    assert not {first, again, stray} & set(folder.files)
    for file, image in zip(folder.files, folder.images, strict=True):
        np.testing.assert_array_equal(image, read_image(file, folder.fit))


# ── folders ──────────────────────────────────────────────────────────────────────────────────


def test_unusable_folders_are_refused(tmp_path, photos):
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="nothing"):
        ImageFolder(tmp_path / "nothing")
    for path in (tmp_path / "nowhere", photos / "digit 0" / "00.png"):
        with pytest.raises(DataError, match="is not a folder"):
            ImageFolder(path)
    (photos / "hollow").mkdir()
    with pytest.raises(DataError, match="hollow"):
        ImageFolder(photos)
    (photos / "loose.png").touch()
    with pytest.raises(DataError, match=r"loose\.png.*digit 0"):
        ImageFolder(photos)


def test_one_folder_under_two_names_is_refused(photos):
    (photos / "digit 9").symlink_to(photos / "digit 2")
    with pytest.raises(DataError, match=r"digit 2 and .*digit 9"):
        ImageFolder(photos)


@pytest.mark.filterwarnings("ignore:few images")
def test_progress_counts_every_file(photos):
    (photos / "digit 0" / "00.png").write_bytes(b"junk")
    told = []
    ImageFolder(photos, skip_bad=True, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (60, 60)
    assert told == sorted(told)
