"""A learner in river: one digit at a time, predicted before it is learned, behind river's own scaler."""

import torch
from sklearn.datasets import load_digits

import gcr

try:
    from river import base, evaluate, metrics, preprocessing, stream
except ImportError:
    raise SystemExit("this example needs river: pip install river") from None


class Replay(base.Classifier):
    """What river's tools want of a classifier."""

    _multiclass = True

    def __init__(self, learner):
        self.learner = learner

    def learn_one(self, x, y):
        self.learner.learn_one(x, y)

    def predict_one(self, x):
        return self.learner.predict_one(x)

    def predict_proba_one(self, x):
        return self.learner.predict_proba_one(x)


torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.ReLU(), torch.nn.Linear(100, 1))  # the head grows
model = preprocessing.StandardScaler() | Replay(gcr.Learner(net, memory=100))
digits = stream.iter_sklearn_dataset(load_digits())  # dicts of 64 numbers, and labels
accuracy = evaluate.progressive_val_score(digits, model, metrics.Accuracy())
print(f"accuracy {100 * accuracy.get():.1f} % over a stream of digits")
