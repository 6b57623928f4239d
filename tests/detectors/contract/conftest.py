"""Fixtures of the contract suite: each test runs on every method and form."""

import numpy as np
import pytest
from forms import CHEAP, FEW, FORMS, METHODS, OWN, SIDE

from anocaps.base.extras import pretrained_available
from anocaps.data.dataset import Split
from anocaps.detectors import find_method
from anocaps.study.studies import accepted


def pytest_generate_tests(metafunc):
    if "form" in metafunc.fixturenames:
        own = metafunc.config.getoption("--method")
        forms = [find_method(own).method] if own else [*METHODS, *FORMS]
        metafunc.parametrize("form", forms, scope="module")


@pytest.fixture(scope="module")
def method(form):
    return FORMS[form][0] if form in FORMS else form


@pytest.fixture(scope="module")
def make(form, method):
    if form == "capsnet, photo" and not pretrained_available():
        pytest.skip("the extra photo is not installed")
    cheap = CHEAP | OWN.get(method, {}) | FORMS.get(form, (method, {}))[1]
    return lambda **options: find_method(method)(**accepted(method, cheap | options))


@pytest.fixture(scope="module")
def side(form):
    return SIDE.get(form, 8)


@pytest.fixture(scope="module")
def every_digit(digits, side):
    """Digits 0, 1 and 2 as normal images, and 7 as the anomaly, side×side pixels."""
    nearest = np.arange(side) * 8 // side
    train, test = (
        Split(part.images[:, nearest][:, :, nearest], part.labels)
        for part in (digits.train, digits.test)
    )
    kept = np.isin(train.labels, (0, 1, 2))
    return train.images[kept], train.labels[kept] * 10 + 5, test.images[test.labels == 7]


@pytest.fixture(scope="module")
def digit_split(form, every_digit):
    images, labels, anomalies = every_digit
    if form not in FORMS:
        return every_digit
    few = np.sort(np.concatenate([np.flatnonzero(labels == k)[:FEW] for k in np.unique(labels)]))
    return images[few], labels[few], anomalies[:FEW]


@pytest.fixture
def two_classes(two_classes, side):
    nearest = np.arange(side) * 8 // side
    images, labels = two_classes
    return images[:, nearest][:, :, nearest], labels


@pytest.fixture(scope="module")
def fitted(make, digit_split):
    images, labels, _ = digit_split
    return make().fit(images, labels)
