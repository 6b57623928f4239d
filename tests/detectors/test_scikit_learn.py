"""Detectors among scikit-learn's tools: cross-validation, pipelines, other people's conventions."""

import numpy as np
import pytest
from sklearn.base import OutlierMixin, is_outlier_detector
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


def test_our_scorer_compares_anomalies_that_fit_left_out(few):
    images, labels, anomalies = few
    X = np.concatenate([images, anomalies])
    y = np.concatenate([labels, np.full(len(anomalies), -1)])
    folds = StratifiedKFold(2, shuffle=True, random_state=0)
    found = cross_val_score(quick(), X, y, scoring=anomaly_scorer, cv=folds, error_score="raise")
    for value, (training, test) in zip(found, folds.split(X, y), strict=True):
        known = training[y[training] >= 0]
        detector = quick().fit(X[known], y[known])
        scores, anomalous = detector.score_samples(X[test]), y[test] == -1
        assert value == pytest.approx(auroc(scores[~anomalous], scores[anomalous])) and value > 0.7
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


def test_a_pipeline_with_a_step_before(few):
    images, labels, anomalies = few
    inverse = FunctionTransformer(lambda pixels: 255 - pixels)
    pipeline = Pipeline([("inverse", inverse), ("d", quick())]).fit(255 - images, labels)
    want = quick().fit(images, labels).predict(anomalies)
    np.testing.assert_array_equal(pipeline.predict(255 - anomalies), want)
