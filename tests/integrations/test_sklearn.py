"""``gcr.sklearn.ReplayClassifier`` and ``gcr.CoresetSelector``: scikit-learn's own checks, its tools, classes that
come later, bad input."""

import pickle
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import gcr
from gcr.integrations.sklearn import ReplayClassifier
from gcr.methods import DerPlusPlus
from gcr.settings import BadInput


@parametrize_with_checks([ReplayClassifier(memory=50, epochs=10)])  # none is expected to fail
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    return x[::2], y[::2], x[1::2], y[1::2]


@pytest.fixture(scope="module")
def blobs():
    """Four classes, well apart, and names for them."""
    rng = np.random.default_rng(0)
    number = np.arange(120) % 4
    x = rng.normal(size=(120, 5)) + 8 * np.eye(4, 5)[number]
    return x, np.array(["dog", "ant", "cat", "bee"])[number]


def small(**given):
    return ReplayClassifier(
        **{"memory": 20, "epochs": 10, "hidden_layer_sizes": (16,), "learning_rate": 1e-2, "random_state": 0} | given
    )


def test_parameters_that_would_have_no_effect_are_refused(blobs):
    x, y = blobs
    classifier = small(class_weight={"dog": 2.0}).partial_fit(x, y)
    classifier = pickle.loads(pickle.dumps(classifier)).set_params(epochs=1, hidden_layer_sizes=np.array([16]))
    classifier.partial_fit(x, y)
    with pytest.raises(BadInput, match="random_state cannot change between calls of partial_fit"):
        pickle.loads(pickle.dumps(classifier)).set_params(random_state=7).partial_fit(x, y)
    with pytest.raises(BadInput, match="learning_rate cannot change between calls of partial_fit"):
        classifier.set_params(learning_rate=0.5).partial_fit(x, y)
    assert classifier.fit(x, y).learner_.optimizer.param_groups[0]["lr"] == 0.5


def test_the_path_of_attributes():
    assert gcr.sklearn.ReplayClassifier is ReplayClassifier


def test_classes_that_come_later_are_learned_and_old_ones_stay(digits):
    x, y, x_test, y_test = digits
    classifier = ReplayClassifier(memory=100, epochs=10, random_state=0)
    for first in (8, 6, 4, 2, 0):  # in falling order: classes_ is sorted all the same
        now = (y == first) | (y == first + 1)
        classifier.partial_fit(x[now], y[now])
        assert classifier.classes_.tolist() == list(range(first, 10))
    assert classifier.score(x_test, y_test) > 0.8
    assert len(classifier.learner_.memory) == 100


def test_probabilities_are_in_the_order_of_classes(blobs):
    x, y = blobs
    later = np.isin(y, ["ant", "bee"])
    classifier = small().partial_fit(x[~later], y[~later]).partial_fit(x[later], y[later])
    assert classifier.classes_.tolist() == ["ant", "bee", "cat", "dog"]
    assert classifier.learner_.classes == ["cat", "dog", "ant", "bee"]
    probabilities = classifier.predict_proba(x)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert (classifier.classes_[probabilities.argmax(1)] == y).mean() > 0.95
    assert (classifier.predict(x) == y).mean() > 0.95


def test_a_class_whose_fit_was_broken_off_has_a_column(blobs, monkeypatch):
    x, y = blobs
    later = np.isin(y, ["ant", "bee"])
    classifier = small().partial_fit(x[~later], y[~later])

    def fit(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(gcr.Learner, "fit", fit)
        with pytest.raises(KeyboardInterrupt):
            classifier.partial_fit(x[later], y[later])
    np.testing.assert_allclose(classifier.predict_proba(x).sum(1), 1, rtol=1e-5)
    assert classifier.partial_fit(x[later], y[later]).score(x, y) > 0.95


def test_classes_may_be_named_before_they_come(blobs):
    x, y = blobs
    now = np.isin(y, ["dog", "cat"])
    classifier = small().partial_fit(x[now], y[now], classes=["dog", "cat", "emu"])
    assert classifier.classes_.tolist() == ["cat", "dog", "emu"]
    assert classifier.predict_proba(x).shape == (120, 3)
    classifier.partial_fit(x[~now], y[~now], classes=["fox"])  # neither all, nor only, those that come
    assert classifier.classes_.tolist() == ["ant", "bee", "cat", "dog", "emu", "fox"]
    assert classifier.score(x, y) > 0.95


def test_labels_keep_their_type(blobs):
    x, names = blobs
    numbers = np.unique(names, return_inverse=True)[1]
    for y in (numbers.astype(np.int16), numbers.astype(float), numbers > 1, names.astype(object)):
        predicted = small().fit(x, y).predict(x)
        assert predicted.dtype == y.dtype
        assert (predicted == y).mean() > 0.95
    classifier = small().partial_fit(x, numbers, classes=[0.0, 1.0, 2.0, 3.0]).partial_fit(x, numbers.astype(float))
    assert classifier.classes_.tolist() == [0, 1, 2, 3]
    for others in (names, names.astype(object)):
        with pytest.raises(BadInput, match=r"labels must be of one type, got 0\.0 and 'ant'"):
            classifier.partial_fit(x, others)
        with pytest.raises(BadInput, match="labels must be of one type, got 1 and 'dog'"):
            small().partial_fit(x, others, classes=[1, 2])
    assert classifier.classes_.tolist() == [0, 1, 2, 3]
    assert len(classifier.learner_.classes) == 4


def test_fit_starts_afresh_and_repeats(blobs):
    x, y = blobs
    classifier = small().fit(x, y)
    first = classifier.predict_proba(x)
    assert (classifier.fit(x, y).predict_proba(x) == first).all()
    now = np.isin(y, ["dog", "cat"])
    assert classifier.fit(x[now], y[now]).classes_.tolist() == ["cat", "dog"]


def test_a_pickled_classifier_goes_on_where_it_was(blobs):
    x, y = blobs
    now = np.isin(y, ["dog", "cat"])
    for method in (None, DerPlusPlus()):
        classifier = small(method=method).partial_fit(x[now], y[now])
        other = pickle.loads(pickle.dumps(classifier))
        assert (other.predict_proba(x) == classifier.predict_proba(x)).all()
        for each in (classifier, other):
            each.partial_fit(x[~now], y[~now])
        assert (other.predict_proba(x) == classifier.predict_proba(x)).all()


def test_clones_pipelines_and_grid_search(blobs):
    x, y = blobs
    fitted = small(memory=30).fit(x, y)
    assert clone(fitted).get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        clone(fitted).predict(x)
    pipeline = make_pipeline(StandardScaler(), small(epochs=5))
    assert cross_val_score(pipeline, 1000 * x, y, cv=3).min() > 0.9
    grid = {"replayclassifier__learning_rate": [1e-7, 1e-2], "replayclassifier__memory": [10]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(x, y)
    assert search.best_params_["replayclassifier__learning_rate"] == 1e-2
    assert search.predict(x[:3]).tolist() == y[:3].tolist()


def make_convnet(shape, n_classes):
    sizes = (torch.nn.Conv2d(shape[0], 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, n_classes))
    return torch.nn.Sequential(*sizes)


def test_a_network_of_ones_own_takes_images(digits):
    x, y, x_test, y_test = digits
    images, test = ((255 * part).astype(np.uint8).reshape(-1, 1, 8, 8) for part in (x, x_test))
    classifier = ReplayClassifier(net=make_convnet, epochs=3, random_state=0)
    for part in (y < 5, y >= 5):
        classifier.partial_fit(images[part], y[part])
    assert classifier.score(test, y_test) > 0.7
    assert classifier.learner_.memory.examples.dtype == torch.uint8
    assert pickle.loads(pickle.dumps(classifier)).score(test, y_test) == classifier.score(test, y_test)


def test_a_module_is_copied(blobs):
    x, y = blobs
    torch.manual_seed(0)
    net = torch.nn.Linear(5, 4)
    before = net.weight.clone()
    classifier = small(net=net, epochs=20).fit(x, y)
    assert torch.equal(net.weight, before)
    assert classifier.score(x, y) > 0.95
    assert clone(classifier).fit(x, y).score(x, y) == classifier.score(x, y)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"memory": 0}, "memory must be"),
        ({"memory": 3}, "memory must hold an example of each class, 4"),
        ({"epochs": 0}, "epochs must be"),
        ({"batch_size": 2.5}, "batch_size must be"),
        ({"learning_rate": -1}, "learning_rate must be a number > 0, got -1"),
        ({"hidden_layer_sizes": (10, 0)}, "hidden_layer_sizes must be"),
        ({"net": lambda features, classes: "net"}, "net must return a torch.nn.Module, got str"),
        ({"class_weight": "equal"}, "class_weight must be"),
        ({"class_weight": {"ant": 2.0, "Bee": 3.0}}, "labels of y as keys, got 'Bee', while 'bee' has no weight"),
    ],
)
def test_bad_parameters_are_named_when_it_is_fitted(blobs, given, message):
    classifier = small(**given)
    with pytest.raises(BadInput, match=message):
        classifier.fit(*blobs)
    with pytest.raises(NotFittedError):
        classifier.predict(blobs[0])


@pytest.mark.parametrize(
    ("labels", "refused"),
    [(["ant", "emu"], True), ([0, 1], True), (["ant", "bee"], False), (["ant", "bee", "cat", "dog", "emu"], False)],
)
def test_labels_in_class_weight_are_refused_where_scikit_learn_does(blobs, labels, refused):
    weights = dict.fromkeys(labels, 2.0)
    for classifier in (LogisticRegression(class_weight=weights), small(class_weight=weights)):
        with pytest.raises(ValueError, match="class_weight") if refused else nullcontext():
            classifier.fit(*blobs)


def test_class_weight_may_name_classes_that_come_later(blobs):
    x, y = blobs
    later = y == "ant"
    classifier = small(class_weight={"ant": 3.0}).partial_fit(x[~later], y[~later]).partial_fit(x[later], y[later])
    weights = classifier.learner_.engine.state.class_weights.tolist()
    assert dict(zip(classifier.learner_.classes, weights, strict=True)) == {"bee": 1, "cat": 1, "dog": 1, "ant": 3}


# --- `gcr.CoresetSelector`: scikit-learn's own checks, its tools, and bad input


@parametrize_with_checks(
    [
        gcr.CoresetSelector(5),
        gcr.CoresetSelector(0.5, selector="k-centre", random_state=0),
        gcr.CoresetSelector(0.5, estimator=LogisticRegression()),
    ]
)
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


def test_classes_that_get_no_row_are_counted():
    x, y = load_digits(return_X_y=True)
    for selector in ("matching", "k-centre", "random"):
        with pytest.warns(UserWarning, match="4 of 10 classes have no row in a budget of 6"):
            gcr.CoresetSelector(6, selector=selector).fit(x, y)


def test_rows_that_do_not_fit_in_memory(monkeypatch):
    rows = np.broadcast_to(np.float32(1.0), (10**8, 10**4))
    with pytest.raises(BadInput, match="X in float64 must fit in memory"):
        gcr.CoresetSelector(6).fit(rows, np.broadcast_to(0, 10**8))


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


def test_around_a_classifier_it_is_one():
    x, y = load_digits(n_class=2, return_X_y=True)
    pruned = gcr.CoresetSelector(0.2, estimator=LogisticRegression())
    assert is_classifier(pruned)
    assert not is_classifier(gcr.CoresetSelector(0.2))
    assert cross_val_score(pruned, x, y, scoring="roc_auc", cv=2).min() > 0.9
    pruned.fit(x, y)
    assert np.array_equal(pruned.decision_function(x) > 0, pruned.predict(x) == 1)
    assert not hasattr(gcr.CoresetSelector(0.2, estimator=GaussianNB()), "decision_function")
    with pytest.raises(BadInput, match="LogisticRegression requires y to be passed, but the target y is None"):
        pruned.fit(x)
    clusters = gcr.CoresetSelector(20, estimator=KMeans(2, n_init=1, random_state=0)).fit(x)
    assert clusters.predict(x).shape == y.shape


@pytest.mark.parametrize(
    ("budget", "rows"), [(np.float32(0.1), 4), (1.0, 40), (1, 1), (np.int64(6), 6), (np.float64(0.5), 20), (100, 40)]
)
def test_budgets_of_any_kind_of_number(budget, rows):
    x = np.random.default_rng(0).normal(size=(40, 3))
    assert gcr.CoresetSelector(budget, selector="random", random_state=0).fit(x).get_support().sum() == rows


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 0}, "The 'budget' parameter must be a whole number of rows >= 1, or a share of them as a float"),
        ({"budget": True}, "got True"),
        ({"budget": "half"}, "got 'half'"),
        ({"budget": 1.5}, "got 1.5"),
        ({"selector": "best"}, "The 'selector' parameter must be one of matching, k-centre, random, got 'best'"),
    ],
)
def test_bad_settings_of_a_selector(settings, message):
    with pytest.raises(BadInput) as caught:
        gcr.CoresetSelector(**settings).fit(np.ones((4, 2)), [0, 1, 0, 1])
    assert message in str(caught.value)
