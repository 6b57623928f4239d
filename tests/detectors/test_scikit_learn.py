"""Detectors among scikit-learn's tools: cross-validation, pipelines, other people's conventions."""

import numpy as np
import pytest
from sklearn.base import OutlierMixin, is_outlier_detector
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from anocaps import CapsNetDetector, anomaly_scorer
from anocaps.base.errors import InputError
from anocaps.judging.metrics import auroc


def quick(**options):
    settings = {"epochs": 5, "device": "cpu", "score_function": "knn", "calibration": 0.2}
    return CapsNetDetector("quick", **(settings | options))


@pytest.fixture(scope="module")
def few(digits):
    """Digits 0 to 3, and 4 to 9 as anomalies."""
    known = digits.train.labels < 4
    return digits.train.images[known], digits.train.labels[known], digits.train.images[~known]


def test_cross_validation_over_arrays(few):
    images, labels, anomalies = few

    def accuracy(detector, images, labels):
        return np.mean(detector.classify(images) == labels)

    def separation(detector, images, labels):
        return auroc(detector.score_samples(images), detector.score_samples(anomalies))

    folds = StratifiedKFold(2, shuffle=True, random_state=0)
    for scoring, least in ((accuracy, 0.8), (separation, 0.7)):
        found = cross_val_score(quick(), images, labels, scoring=scoring, cv=folds)
        assert found.shape == (2,) and (found > least).all(), scoring
        assert found[0] != found[1]


def test_our_scorer_compares_anomalies_that_fit_left_out(few):
    images, labels, anomalies = few
    X = np.concatenate([images, anomalies])
    y = np.concatenate([labels, np.full(len(anomalies), -1)])
    folds = StratifiedKFold(2, shuffle=True, random_state=0)
    found = cross_val_score(quick(), X, y, scoring=anomaly_scorer, cv=folds, error_score="raise")
    for value, (training, test) in zip(found, folds.split(X, y), strict=True):
        known = training[y[training] >= 0]
        detector = quick().fit(X[known], y[known])
        scores, odd = detector.score_samples(X[test]), y[test] == -1
        assert value == pytest.approx(auroc(scores[~odd], scores[odd])) and value > 0.7
    with pytest.raises(InputError, match="−1"):
        anomaly_scorer(detector, images, labels)


def test_a_grid_search_with_our_scorer(few):
    images, labels, anomalies = (part[:150] for part in few)
    X = np.concatenate([images, anomalies])
    y = np.concatenate([labels, np.full(len(anomalies), -1)])
    folds = StratifiedKFold(2, shuffle=True, random_state=0)
    search = GridSearchCV(quick(), {"epochs": [1, 12]}, scoring=anomaly_scorer, cv=folds)
    search.fit(X, y)
    assert search.best_params_ == {"epochs": 12}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.classes_.tolist() == [0, 1, 2, 3]


def test_it_is_an_outlier_detector(few):
    assert is_outlier_detector(quick()) and isinstance(quick(), OutlierMixin)
    images, labels, _ = (part[:120] for part in few)
    detector = quick(epochs=1)
    verdicts = detector.fit_predict(images, labels)
    np.testing.assert_array_equal(verdicts, detector.predict(images))
    assert detector.n_features_in_ == 64 and detector.classes_.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(
        detector.decision_function(images), detector.score_samples(images) - detector.offset_
    )


def test_cross_validation_of_verdicts_with_few_images(few):
    """Half of 200 images are enough to judge by the usual alpha."""
    images, labels, _ = (part[:200] for part in few)

    def spared(detector, images, labels):
        return np.mean(detector.predict(images) == 1)

    detector = CapsNetDetector("quick", epochs=5, device="cpu", score_function="knn")
    found = cross_val_score(detector, images, labels, scoring=spared, cv=2, error_score="raise")
    assert (found > 0.6).all()


def test_labels_are_optional(few):
    """As scikit-learn's and PyOD's detectors have it."""
    images, _, anomalies = few
    pipeline = Pipeline([("d", quick())]).fit(images)
    normal, odd = (np.mean(pipeline.predict(each) == 1) for each in (images, anomalies))
    assert normal > odd


def test_cross_validation_must_be_told_what_to_measure(few):
    images, labels, _ = few
    with pytest.raises(TypeError, match="should have a 'score' method"):
        cross_val_score(quick(epochs=1), images, labels, cv=2, error_score="raise")


def test_a_pipeline_of_one(few):
    images, labels, anomalies = few
    alone = quick().fit(images, labels)
    pipeline = Pipeline([("d", quick())]).fit(images, labels)
    np.testing.assert_array_equal(pipeline.score_samples(anomalies), alone.score_samples(anomalies))
    np.testing.assert_array_equal(pipeline.predict(anomalies), alone.predict(anomalies))
    np.testing.assert_array_equal(
        pipeline.decision_function(anomalies), alone.decision_function(anomalies)
    )
    assert pipeline.set_params(d__seed=3).named_steps["d"].seed == 3


def test_a_pipeline_with_a_step_before(few):
    images, labels, anomalies = few
    inverse = FunctionTransformer(lambda pixels: 255 - pixels)
    pipeline = Pipeline([("inverse", inverse), ("d", quick())]).fit(255 - images, labels)
    want = quick().fit(images, labels).predict(anomalies)
    np.testing.assert_array_equal(pipeline.predict(255 - anomalies), want)


def test_the_threshold_is_zero_and_moves_with_alpha(few):
    images, labels, anomalies = few
    detector = quick().fit(images, labels)
    strict, loose = (detector.decision_function(anomalies, alpha) for alpha in (0.02, 0.2))
    assert (strict > loose).all()
    for alpha, decision in ((0.02, strict), (0.2, loose)):
        np.testing.assert_array_equal(decision < 0, detector.predict(anomalies, alpha) == -1)


def test_the_recipe_for_pyod_conventions(few):
    """PyOD: labels 1 for an anomaly and 0 for a normal image, and scores that rise with oddness."""
    images, labels, anomalies = few
    detector = quick().fit(images, labels)
    everything = np.concatenate([images, anomalies])
    odd = np.repeat([0, 1], [len(images), len(anomalies)])

    found = (detector.predict(everything, alpha=0.05) == -1).astype(int)
    oddness = -detector.score_samples(everything)

    assert set(found) == {0, 1} and np.mean(found == odd) > 0.6
    separation = auroc(detector.score_samples(images), detector.score_samples(anomalies))
    assert roc_auc_score(odd, oddness) == pytest.approx(separation) and separation > 0.7
