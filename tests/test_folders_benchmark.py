"""benchmarks/folders.py and rivals.py: from digits to folders, models, figures and a table."""

import json
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.neighbors import NearestNeighbors

from anocaps import ImageFolder

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
NORB = {
    "training": "smallnorb-5x46789x9x18x6x2x96x96-training",
    "testing": "smallnorb-5x01235x9x18x6x2x96x96-testing",
}


@pytest.fixture
def folders(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import folders

    return folders


@pytest.fixture
def rivals(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import rivals

    return rivals


@pytest.fixture
def step(folders, monkeypatch, tmp_path, capsys):
    """Runs a step on a few digits: what it printed, and the file of results."""

    def run(*words):
        more = ("--folders", tmp_path, "--out", tmp_path / "folders.json", "--device", "cpu")
        every = ["folders.py", *words, "digits:4:12", "--epochs", 1, *more]
        monkeypatch.setattr(sys, "argv", list(map(str, every)))
        folders.main()
        return capsys.readouterr().out, folders.rows_and_folders(tmp_path / "folders.json")

    return run


# ── folders ──────────────────────────────────────────────────────────────────────────────────


def test_a_folder_holds_the_pictures_and_the_class_left_out_is_only_odd(step, tmp_path, digits):
    (tmp_path / "digits-4-12.unfinished" / "train" / "of a run that was stopped").mkdir(
        parents=True
    )
    step("make")
    place = tmp_path / "digits-4-12"
    assert sorted(f.name for f in tmp_path.iterdir()) == ["digits-4-12"]
    train = ImageFolder(place / "train", size=8)
    assert train.class_names == tuple("012356789") and len(train.files) == 9 * 12
    test = ImageFolder(place / "test", size=8)
    assert test.class_names == ("normal", "odd")
    for found, split in ((train, digits.train), (test, digits.test)):
        numbers = [int(file.stem.split("-")[1]) for file in found.files]
        np.testing.assert_array_equal(found.images[..., 0], split.images[numbers])
        assert len(set(numbers)) == len(numbers)
        if found is test:
            np.testing.assert_array_equal(found.labels == "odd", split.labels[numbers] == 4)
        else:
            np.testing.assert_array_equal(found.labels, split.labels[numbers].astype(str))
    about = json.loads((place / "folder.json").read_text())
    assert about["images"] == {"train": 108, "normal": 808, "odd": 90}
    assert about["left_out"] == "4" and about["size"] == [8, 8] and about["official"]

    (place / "test" / "odd").rename(place / "test" / "moved")
    said, _ = step("make")
    assert "is there" in said and (place / "test" / "moved").exists()


def write_mat(path: Path, array: np.ndarray) -> None:
    sizes = (*array.shape, 1, 1)[: max(3, array.ndim)]
    magic = {"uint8": 0x1E3D4C55, "int32": 0x1E3D4C54}[str(array.dtype)]
    head = struct.pack(f"<Ii{len(sizes)}i", magic, array.ndim, *sizes)
    path.write_bytes(head + array.tobytes())


def test_small_norb_is_written_at_full_size_from_the_left_camera(folders, tmp_path):
    data = tmp_path / "data" / "small-norb"
    data.mkdir(parents=True)
    generator = np.random.default_rng(0)
    categories = np.arange(10, dtype=np.int32) % 5
    pairs = {}
    for kind, prefix in NORB.items():
        pairs[kind] = generator.integers(0, 256, (10, 2, 96, 96), dtype=np.uint8)
        write_mat(data / f"{prefix}-dat.mat", pairs[kind])
        write_mat(data / f"{prefix}-cat.mat", categories)
        write_mat(data / f"{prefix}-info.mat", np.zeros((10, 4), np.int32))
    place = tmp_path / "small-norb-truck"
    folders.make("small-norb:truck", place, tmp_path / "data")
    files = sorted(file for file in place.rglob("*.png"))
    assert len(files) == 8 + 10
    for file in files:
        kind = "training" if "train" in file.relative_to(place).parts else "testing"
        number = int(file.stem.split("-")[1])
        np.testing.assert_array_equal(np.asarray(Image.open(file)), pairs[kind][number, 0])
    assert sorted(p.name for p in (place / "train").iterdir()) == [
        "airplane", "animal", "car", "human",
    ]  # fmt: skip
    assert [p.name for p in sorted((place / "test" / "odd").iterdir())] == [
        "truck-00003.png", "truck-00008.png",
    ]  # fmt: skip
    assert not json.loads((place / "folder.json").read_text())["official"]


# ── rows ─────────────────────────────────────────────────────────────────────────────────────


def test_every_method_is_measured_once(step, folders, monkeypatch, tmp_path):
    step("make")
    step("cnn")
    said, found = step("anocaps")
    assert found["folders"]["digits-4-12"]["left_out"] == "4"
    rows = {row["method"]: row for row in found["rows"]}
    assert list(rows) == [*folders.METHODS[:3]]
    assert rows["anocaps"]["score"] in ("knn", "pp", "re", "pp+re")
    for row in rows.values():
        assert row["folder"] == "digits-4-12"
        low, high = row["auroc_interval"]
        assert 0.2 < low <= row["auroc"] <= high <= 1
        # 22 calibration images cannot say 0.01
        assert row["calibration_images"] == 22 and list(row["false_alarms"]) == ["0.05"]
        assert 0 <= row["false_alarms"]["0.05"] < 0.4
        assert row["training_seconds"] > 0 and row["device"].endswith("CPU")
        assert row["training"]["epochs"] == 1 and row["versions"]["torch"]
    # the deep network chooses its epoch on some of the images, where there are enough of them
    assert {row["training_images"] for row in rows.values()} == {86}

    ours = rows["anocaps"]
    assert set(ours["auroc_by_score"]) == {"knn", "pp", "re", "pp+re", "mse"}
    assert ours["auroc_by_score"][ours["score"]] == ours["auroc"]
    model = tmp_path / "digits-4-12" / "model.safetensors"
    assert ours["model_mb"] == pytest.approx(model.stat().st_size / 1e6, abs=0.01)
    assert set(ours["self_check"]["auroc"]) == set(ours["auroc_by_score"])
    assert all(seconds > 0 for seconds in ours["command_seconds"].values())

    def fail(*_):
        raise AssertionError("measured again")

    monkeypatch.setitem(folders.STEPS, "anocaps", folders.Step(("anocaps",), fail))
    said, again = step("anocaps")
    assert "measured before" in said and again == found


def test_a_row_with_other_settings_takes_the_place_of_the_old_one(folders, monkeypatch, tmp_path):
    place, out = tmp_path / "digits-4-12", tmp_path / "folders.json"
    folders.make("digits:4:5", place, None)

    class Options:
        epochs = None

    Options.out = out
    found = iter((0.25, 0.75))

    def measure(*_):
        yield {"method": "anocaps", "auroc": next(found), "false_alarms": {}}

    monkeypatch.setitem(folders.STEPS, "anocaps", folders.Step(("anocaps",), measure))
    folders.keep(out, {"left_out": "x"}, {"folder": "other", "method": folders.ECOD})
    for epochs in (None, None, 3):
        Options.epochs = epochs
        folders.run("anocaps", place, Options)
    stored = folders.rows_and_folders(out)
    assert set(stored["folders"]) == {"digits-4-12", "other"}
    assert [(row["folder"], row.get("auroc")) for row in stored["rows"]] == [
        ("digits-4-12", 0.75), ("other", None),
    ]  # fmt: skip
    with pytest.raises(SystemExit, match="run the step make first"):
        folders.run("anocaps", tmp_path / "nowhere", Options)


def test_rates_are_counted_on_the_right_images(folders):
    scores = np.array([5.0, 1, 4, 3, 2, 0, 6, 7, 8, 9])
    odd = np.array([0, 1, 0, 0, 1, 1, 0, 0, 0, 0], bool)
    row = folders.judged(scores, odd, {0.05: scores < 4})
    assert row["auroc"] == 1
    assert row["false_alarms"] == {"0.05": round(1 / 7, 5)} and row["found"] == {"0.05": 1}
    assert row["found_at_equal_rates"] == {"0.01": 1, "0.05": 1}
    assert folders.judged(-scores, odd, {})["auroc"] == 0
    p = np.array([0.01, 0.05, 0.06, 1])
    alarms = folders.alarms_of(p, 99)
    assert [alarms[a].tolist() for a in (0.01, 0.05)] == [[1, 0, 0, 0], [1, 1, 0, 0]]
    assert list(folders.alarms_of(p, 98)) == [0.05] and folders.alarms_of(p, 5) == {}


# ── the others ───────────────────────────────────────────────────────────────────────────────


def test_the_cnn_learns_and_finds_what_is_odd(rivals, two_classes):
    images, labels = two_classes
    detector = rivals.trained_cnn(images[..., None], labels, 0.25, "cpu", 4)
    losses = detector.record_["losses"]
    assert losses[-1] < losses[0] / 2
    assert detector.record_["training"]["batch_size"] == 32
    assert detector.preprocessing_.shift == 0  # a sixteenth of 8 pixels
    odd = np.random.default_rng(1).integers(100, 255, (24, 8, 8, 1), dtype=np.uint8)
    normal, anomalous = (detector.all_scores(x) for x in (images[..., None], odd))
    assert np.median(normal["knn"]) > anomalous["knn"].max()
    assert normal["softmax"].min() > 0.5 and len(np.unique(normal["softmax"])) == len(images)


def test_the_cnn_trains_by_the_rule_of_the_deep_preset(rivals, monkeypatch):
    monkeypatch.setattr(rivals.CNNDetector, "fit", lambda *_: None)
    images = np.zeros((6000, 32, 28, 1), np.uint8)
    detector = rivals.trained_cnn(images, np.zeros(6000), 0.1, "cpu", None)
    assert (detector.epochs, detector.batch_size, detector.shift) == (23, 128, 1)
    assert rivals.trained_cnn(images[:1000], np.zeros(1000), 0.1, "cpu", None).epochs == 34


def test_neighbours_are_counted_as_pyod_counts(rivals, two_classes):
    images, labels = two_classes
    detector = rivals.trained_cnn(images[..., None], labels, 0.25, "cpu", 1)
    kept = detector.features_.numpy()
    generator = np.random.default_rng(2)
    new = generator.integers(0, 255, (9, 8, 8, 1), dtype=np.uint8)
    features = np.concatenate(
        list(detector._each(new, lambda x: detector.network_(x)[0].double().numpy()))
    )
    distances, _ = NearestNeighbors(n_neighbors=5).fit(kept).kneighbors(features)
    found = detector.score_samples(new, "knn")
    np.testing.assert_allclose(found, -distances[:, 4], rtol=1e-6)
    knn = pytest.importorskip("pyod.models.knn", reason="PyOD is not installed").KNN
    np.testing.assert_allclose(found, -knn().fit(kept).decision_function(features), rtol=1e-6)


def test_pyod_on_pixels(step, rivals, two_classes):
    pytest.importorskip("pyod", reason="PyOD is not installed")
    step("make")
    _, found = step("pyod")
    rows = {row["method"]: row for row in found["rows"]}
    assert list(rows) == ["PyOD ECOD, pixels", "PyOD kNN, pixels"]
    for row in rows.values():
        assert row["pixels"] == 8 and row["training_images"] == 108 and row["versions"]["pyod"]
        assert list(row["false_alarms"]) == ["0.01", "0.05"]
    assert rows["PyOD kNN, pixels"]["auroc"] > 0.9

    images = two_classes[0][..., None]
    for name in ("ECOD", "KNN"):
        detector = rivals.PyOD(name, images[:40])
        contaminated = type(detector.detector)(contamination=0.2).fit(rivals._flat(images[:40]))
        assert detector.threshold(0.2) == -contaminated.threshold_
        called = detector.score(images) < detector.threshold(0.2)
        np.testing.assert_array_equal(called, contaminated.predict(rivals._flat(images)) == 1)
