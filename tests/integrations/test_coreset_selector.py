"""``gcr.CoresetSelector``: scikit-learn's own checks, its tools, and bad input."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import gcr
from gcr.settings import BadInput


@parametrize_with_checks([gcr.CoresetSelector(5), gcr.CoresetSelector(0.5, selector="k-centre", random_state=0)])
def test_the_checks_of_scikit_learn_for_a_selector(estimator, check):
    check(estimator)


@pytest.mark.parametrize("selector", ["matching", "k-centre", "random"])
def test_support_of_equal_shares(selector):
    x, y = load_digits(return_X_y=True)
    chosen = gcr.CoresetSelector(0.1, selector=selector, random_state=0).fit(x, y)
    mask, rows = chosen.get_support(), chosen.get_support(indices=True)
    assert np.array_equal(np.nonzero(mask)[0], rows)
    assert len(rows) == len(chosen.weights_) == 180
    assert np.bincount(y[rows]).tolist() == [18] * 10
    small_x, small_y = chosen.fit_resample(x, y)
    assert np.array_equal(small_x, x[rows])
    assert np.array_equal(small_y, y[rows])


def test_without_labels():
    rows = np.random.default_rng(0).normal(size=(40, 5)) + 1
    chosen = gcr.CoresetSelector(6).fit(rows)
    assert chosen.support_.tolist() == gcr.select_coreset(np.hstack([rows, np.ones((40, 1))]), 6).rows.tolist()


def test_the_last_step_of_a_pipeline_prunes_the_training_set():
    x, y = load_digits(return_X_y=True)
    pruned = gcr.CoresetSelector(200, estimator=LogisticRegression(max_iter=300))
    pipeline = make_pipeline(StandardScaler(), pruned).fit(x[::2], y[::2])
    assert pipeline.score(x[1::2], y[1::2]) > 0.8
    assert pipeline.predict_proba(x[:3]).shape == (3, 10)
    assert pipeline[-1].get_support().sum() == 200


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 0}, "The 'budget' parameter must be a number of rows or a share below 1, got 0"),
        ({"budget": 1.5}, "got 1.5"),
        ({"selector": "best"}, "The 'selector' parameter must be one of matching, k-centre, random, got 'best'"),
    ],
)
def test_bad_settings_of_a_selector(settings, message):
    with pytest.raises(BadInput) as caught:
        gcr.CoresetSelector(**settings).fit(np.ones((4, 2)), [0, 1, 0, 1])
    assert message in str(caught.value)
