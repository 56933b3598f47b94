from sklearn.utils.estimator_checks import parametrize_with_checks
from gcr.integrations.sklearn import ReplayClassifier
@parametrize_with_checks([ReplayClassifier(memory=50)])
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)
