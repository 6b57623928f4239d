"""What may be handed to a detector as X and y: arrays, paths, folders, and the mark −1."""

import numpy as np
import pytest
from PIL import Image

from anocaps import CapsNetDetector, ImageFolder
from anocaps.base.errors import AnocapsError, InputError
from anocaps.detectors.gate import indexed, marked


def quick(**options):
    settings = {"epochs": 2, "device": "cpu", "calibration": 0.25}
    return CapsNetDetector("quick", **(settings | options))


@pytest.fixture
def folder(tmp_path, two_classes):
    """48 files of 8×8 pixels, half of them in each of two folders."""
    for k, (image, label) in enumerate(zip(*two_classes)):
        path = tmp_path / "photos" / ("left", "right")[label] / f"{k:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return ImageFolder(tmp_path / "photos")


# ── images ───────────────────────────────────────────────────────────────────────────────────


def test_files_folders_and_arrays_are_fitted_and_scored_alike(folder):
    by_array = quick().fit(folder.images, folder.labels)
    by_folder = quick().fit(folder)
    by_paths = quick().fit([str(file) for file in folder.files], folder.labels)
    assert by_folder.classes_.tolist() == ["left", "right"]
    assert by_folder.card_["fit"] and by_array.card_["fit"] is None
    want = by_array.score_samples(folder.images)
    for detector in (by_folder, by_paths):
        assert detector.record_["fit"]["how"] == "resize"
        for images in (folder.images, folder, list(folder.files), np.array(folder.files)):
            np.testing.assert_array_equal(detector.score_samples(images), want)
            np.testing.assert_array_equal(detector.judge(images).scores["combined"], want)
    assert by_folder.reconstruct(list(folder.files)).shape == folder.images.shape


def test_a_folder_of_another_size_is_read_as_in_training(folder, tmp_path):
    detector = quick().fit(folder)
    other = ImageFolder(tmp_path / "photos", size=12)
    want = detector.score_samples(folder)
    np.testing.assert_array_equal(detector.score_samples(other), want)


def test_paths_that_cannot_be_read_are_named(folder, tmp_path):
    detector = quick(epochs=1).fit(folder)
    (tmp_path / "bad.png").write_bytes(b"no image")
    for use in (detector.score_samples, quick().fit):
        with pytest.raises(AnocapsError, match=r"bad\.png"):
            use([*folder.files, tmp_path / "bad.png"])
        with pytest.raises(InputError, match="give a list of paths"):
            use(str(tmp_path / "photos"))


def test_channels_first_are_told_to_move(two_classes):
    images, labels = two_classes
    first = np.repeat(images[:, None], 3, axis=1)  # N×3×8×8
    with pytest.raises(InputError, match="move channels last"):
        quick().fit(first, labels)
    detector = quick(epochs=1).fit(np.moveaxis(first, 1, -1), labels)
    with pytest.raises(InputError, match="move channels last"):
        detector.score_samples(first)


# ── labels and numbers ───────────────────────────────────────────────────────────────────────


def test_anomalies_are_neither_trained_nor_calibrated_on(two_classes):
    images, labels = two_classes
    anomalies = 255 - images[:10]
    everything = np.concatenate([anomalies, images])
    marks = np.concatenate([np.full(10, -1), labels])
    with_marks, without = quick().fit(everything, marks), quick().fit(images, labels)
    assert with_marks.classes_.tolist() == [0, 1]
    assert with_marks.card_["images"] == 48 and with_marks.card_["accuracy"]["images"] == 12
    np.testing.assert_array_equal(
        with_marks.score_samples(everything), without.score_samples(everything)
    )
    for name, scores in without.calibration_scores_.items():
        np.testing.assert_array_equal(with_marks.calibration_scores_[name], scores)


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ([-1, 2, 2], [True, False, False]),
        ([-1.0, 2.5, 2.5], [True, False, False]),
        (np.array([-1, "cup", "cup"], dtype=object), [True, False, False]),
        (["-1", "-1", "cup"], [False, False, False]),
        ([True, False, True], [False, False, False]),
    ],
)
def test_the_number_marks_an_anomaly_and_text_does_not(labels, found):
    assert marked(labels).tolist() == found


def test_labels_of_text_beside_marks_stay_text():
    classes, index = indexed(np.array([-1, "cup", "bowl", "cup", "bowl"], dtype=object), 5)
    assert classes.tolist() == ["bowl", "cup"] and index.tolist() == [-1, 1, 0, 1, 0]
    with pytest.raises(InputError, match="every label is −1"):
        indexed([-1, -1], 2)


def test_numpy_scalars_are_numbers(two_classes):
    images, labels = two_classes
    options = {
        "epochs": np.int32(1), "seed": np.uint8(3), "calibration": np.float32(0.25),
        "batch_size": np.int64(16), "learning_rate": np.float32(0.004), "shift": np.int16(1),
        "reconstruction_weight": np.float64(0.02), "final_share": np.float32(0.5),
        "crop": np.int64(7),
    }  # fmt: skip
    detector = quick(**options).fit(images, labels)
    for alpha in (np.float32(0.2), np.float64(0.2), np.float16(0.2)):
        assert set(detector.predict(images, alpha=alpha)) <= {-1, 1}
        assert detector.decision_function(images, alpha=alpha).shape == (48,)
