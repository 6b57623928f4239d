"""Surprise beyond all normal images, references within classes, and Bonferroni's rule."""

import numpy as np
import pytest

from anocaps.judging.combining import ClassReferences, Reference, bonferroni


def test_surprise_grows_as_scores_fall_also_beyond_all_normal_ones():
    reference = Reference.fit(np.random.default_rng(0).normal(size=500))
    scores = np.linspace(-20, 5, 200)
    surprises = reference.surprise(scores)
    assert (np.diff(surprises) <= 0).all() and (np.diff(surprises[scores < -2]) < 0).all()


def test_inside_the_normal_scores_it_is_the_p_value():
    normal = np.arange(99.0)
    p = np.exp(-Reference.fit(normal).surprise(np.array([98.0, 49.0, 24.0])))
    np.testing.assert_allclose(p, [1.0, 0.51, 0.26])


def test_the_tail_is_that_of_exponential_scores():
    normal = -np.random.default_rng(0).exponential(size=20_000)
    surprise = Reference.fit(normal).surprise(np.array([-12.0]))
    assert surprise == pytest.approx(12, rel=0.1)  # no normal score is that low


@pytest.mark.parametrize("normal", [[1.0], [1.0] * 50])
def test_few_or_equal_normal_scores_are_no_error(normal):
    surprises = Reference.fit(np.array(normal)).surprise(np.array([0.0, 1.0, 2.0]))
    assert np.isfinite(surprises).all() and surprises[0] > surprises[1]


def test_a_class_with_enough_images_has_its_own_reference():
    generator = np.random.default_rng(0)
    scores = np.concatenate([generator.normal(0, 1, 300), generator.normal(10, 1, 300)])
    classes = np.repeat([0, 1], 300)
    references = ClassReferences.fit(scores, classes)
    usual, unusual = references.surprise(np.array([0.0, 0.0]), np.array([0, 1]))
    assert unusual > usual + 5
    few = ClassReferences.fit(scores, np.where(np.arange(600) < 5, 0, 1))
    assert set(few.of_class) == {1}


def test_bonferroni_takes_the_strongest_evidence_less_its_price():
    found = bonferroni({"a": np.array([5.0, 0.0]), "b": np.array([0.0, 5.0])}, {"a": 0.9, "b": 0.1})
    np.testing.assert_allclose(found, [5 + np.log(0.9), 5 + np.log(0.1)])
