"""scikit-learn's own checks of an outlier detector, run on detectors of images.

The checks hand in rows of numbers. An adapter makes an image of each row, so that those checks run
that are not about rows themselves.
"""

import warnings

import numpy as np
import pytest
from forms import CHEAP
from sklearn.exceptions import SkipTestWarning
from sklearn.utils.estimator_checks import estimator_checks_generator

from anocaps.base.errors import InputError
from anocaps.detectors import find_method
from anocaps.judging.calibration import threshold
from anocaps.study.studies import accepted

# What the checks are about is the same for all methods: a few kinds will do.
METHODS = ("capsnet", "cnn-ocsvm", "dbn", "vae", "kde")
SIDE = 8  # pixels of the images that rows become
ALPHA = 0.25  # the checks have 20 images or so: too few for the usual alpha
ROWS = "it is about the columns or the storage of rows, and images are no rows"
OTHER_WORDS = "it asks for words about rows; tests/detectors/contract asks for ours"
ROUNDING = "it allows 1e-7 where fp32 rounds by 1e-6; tests/detectors/contract allows that"
CANNOT_APPLY = {
    "check_methods_subset_invariance": ROUNDING,
    "check_methods_sample_order_invariance": ROUNDING,
    "check_n_features_in": ROWS,
    "check_n_features_in_after_fitting": ROWS,
    "check_f_contiguous_array_estimator": ROWS,
    "check_dtype_object": ROWS,
    "check_estimator_sparse_array": ROWS,
    "check_estimator_sparse_matrix": ROWS,
    "check_estimator_sparse_tag": ROWS,
    "check_complex_data": OTHER_WORDS,
    "check_estimators_empty_data_messages": OTHER_WORDS,
    "check_fit2d_1sample": OTHER_WORDS,
    "check_fit2d_predict1d": OTHER_WORDS,
    "check_array_api_input": "scikit-learn skips it where SciPy is not set up for it",
}


def images_of(X):
    """Rows N×columns as images N×8×8 with pixels in [0, 1], each image for itself."""
    X = np.asarray(X)
    if X.ndim != 2:
        return X
    if not np.isfinite(X).all():
        raise InputError("X: NaN or infinity")
    times = -(-SIDE * SIDE // X.shape[1])
    pixels = 1 / (1 + np.exp(-X.astype(np.float64)))
    return np.repeat(pixels, times, axis=1)[:, : SIDE * SIDE].reshape(-1, SIDE, SIDE)


def taking_rows(kind):
    """The method, for rows."""

    class OnRows(kind):
        def __sklearn_tags__(self):
            tags = super().__sklearn_tags__()
            tags.input_tags.two_d_array = True
            return tags

        def fit(self, X, y=None):
            super().fit(images_of(X))
            self.columns_ = np.asarray(X).shape[1]
            return self

        def _gate(self, X):
            self._check_fitted()
            X = np.asarray(X)
            if X.ndim == 2 and X.shape[1] != self.columns_:
                raise InputError("X: another number of columns")
            return super()._gate(images_of(X))

        def predict(self, X):
            return super().predict(self._gate(X), ALPHA)

        def decision_function(self, X):
            return super().decision_function(X, ALPHA)

        @property
        def offset_(self):
            return threshold(self.calibration_scores(), ALPHA)

    OnRows.__name__ = OnRows.__qualname__ = f"{kind.__name__}OnRows"
    globals()[OnRows.__name__] = OnRows  # where pickle looks for it
    return OnRows


KINDS = {method: taking_rows(find_method(method)) for method in METHODS}


def checks(method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)
        cheap = KINDS[method](**accepted(method, CHEAP | {"epochs": 1, "calibration": 0.5}))
        for detector, check in estimator_checks_generator(cheap, mark=None):
            yield pytest.param(detector, check, id=f"{method}-{check.func.__name__}")


@pytest.mark.filterwarnings("ignore:only one normal class")
@pytest.mark.parametrize(
    ("detector", "check"), [each for method in METHODS for each in checks(method)]
)
def test_scikit_learn_accepts_a_detector(detector, check):
    if reason := CANNOT_APPLY.get(check.func.__name__):
        pytest.skip(reason)
    check(detector)


@pytest.mark.parametrize("method", METHODS)
def test_most_checks_apply(method):
    """A check that is renamed is not left out in silence."""
    names = {each.values[1].func.__name__ for each in checks(method)}
    assert names >= set(CANNOT_APPLY) and len(names - set(CANNOT_APPLY)) > 25
