"""A deployed classifier learns new digits. The pictures of the old ones are gone; 100 remembered ones are not.

python examples/new_classes.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import gcr

torch.set_num_threads(1)
digits = load_digits()
images, labels = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1), digits.target
train, test = slice(0, 1400), slice(1400, None)

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(),
    nn.Linear(64, 2),
)  # fmt: skip
learner = gcr.Learner(net, memory=100, optimizer=torch.optim.AdamW(net.parameters(), lr=3e-3))

for first in range(0, 10, 2):
    new = (labels[train] >= first) & (labels[train] < first + 2)
    learner.fit(images[train][new], labels[train][new], epochs=8)
    learner.save("digits-state")  # atomic; the version before it stays
    seen = labels[test] < first + 2
    print(
        f"{len(learner.classes)} classes: accuracy {100 * learner.score(images[test][seen], labels[test][seen]):.1f} %"
    )

print(learner.memory, learner.memory.counts())
