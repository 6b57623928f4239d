import numpy as np
import pytest

from anocaps.detectors import CapsNetDetector
from anocaps.judging.metrics import auroc
from anocaps.study.cell import measure_cell, run_cell
from anocaps.study.protocol import cell_data


@pytest.fixture(scope="module")
def cell(digits):
    detector = CapsNetDetector(preset="quick", epochs=3, calibration=0.0, device="cpu")
    return run_cell(detector, digits, (3, 5), seed=1)


def test_metrics_are_of_the_balanced_set_and_of_all_normals(cell):
    result, data = cell
    np.testing.assert_array_equal(result.index, data.balanced)
    np.testing.assert_array_equal(result.anomalous, data.anomalous[data.balanced])
    for name in result.scores:
        m = result.metrics[name]
        scores = result.scores[name]
        assert m.auroc == auroc(scores[~result.anomalous], scores[result.anomalous])
        assert m.auroc_low <= m.auroc <= m.auroc_high
        assert abs(result.auroc_all[name] - m.auroc) < 0.1


def test_scores_are_those_of_the_detector(digits):
    detector = CapsNetDetector(preset="quick", epochs=1, calibration=0.0, device="cpu")
    result, data = run_cell(detector, digits, (3,), seed=0)
    images = data.test_images[result.index]
    for name, values in detector.outputs(images).items():
        np.testing.assert_allclose(result.scores[name], values, rtol=1e-5 if name == "re" else 3e-4)
        anomalous = data.anomalous
        whole = auroc(
            *(detector.score_samples(data.test_images[k], name) for k in (~anomalous, anomalous))
        )
        assert result.auroc_all[name] == pytest.approx(whole, abs=1e-4)
    np.testing.assert_array_equal(result.scores["pp"], detector.score_samples(images, "pp"))
    names = np.asarray(digits.class_names)
    np.testing.assert_array_equal(names[result.predicted], detector.classify(images))
    np.testing.assert_array_equal(names[result.labels], data.test_labels[result.index])


def test_lengths_are_counted_by_image(cell):
    result, _ = cell
    for kind, chosen in (("normal", ~result.anomalous), ("anomalous", result.anomalous)):
        counts = result.lengths[kind]
        assert sum(counts["longest"]) == sum(counts["long"]) == chosen.sum()
        assert sum(counts["others"]) == 7 * chosen.sum()  # eight normal classes
        longer = (result.scores["pp"][chosen] > 0.5).sum()
        assert sum(counts["long"][1:]) == longer


def test_the_first_anomalies_are_kept_with_their_reconstruction(digits, cell):
    detector = CapsNetDetector(preset="quick", epochs=1, calibration=0.0, device="cpu")
    data = cell_data(digits, (3,), seed=0)
    detector.fit(data.train_images, data.train_labels)
    reconstructions = measure_cell(
        detector, digits, data, (3,), 0, reconstructions=4
    ).reconstructions
    assert reconstructions.shape == (4, 2, 8, 8, 1)
    first = data.test_images[data.anomalous][:4]
    np.testing.assert_array_equal(reconstructions[:, 0, :, :, 0], first)
    reconstructed = detector.reconstruct(first)
    np.testing.assert_allclose(reconstructions[:, 1, :, :, 0] / 255, reconstructed, atol=0.51 / 255)
    assert cell[0].reconstructions is None


def test_settings_that_were_left_open_are_told_as_used(cell, digits):
    settings = cell[0].settings
    assert settings["epochs"] == 3 and settings["start"] == "scaled"  # as given
    assert settings["batch_size"] == 32 and settings["learning_rate"] == 4e-3  # of "quick"
    assert settings["reconstruction_weight"] == 1.6 / 64
    assert (settings["shift"], settings["gradient"], settings["crop"]) == (0, "all", None)
    moved = CapsNetDetector("quick", epochs=1, calibration=0.0, device="cpu", shift=1,
                            gradient="last", reconstruction_weight=0.0)  # fmt: skip
    settings = run_cell(moved, digits, (3,), seed=0, limit=10)[0].settings
    assert (settings["shift"], settings["gradient"]) == (1, "last")
    assert settings["reconstruction_weight"] == 0.0
    assert moved.shift == 1 and moved.batch_size is None  # the detector's own stay as they were
