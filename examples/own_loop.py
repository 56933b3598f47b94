"""gcr.Buffer in a training loop of one's own: replay, and a gradient coreset after each task."""

import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

import gcr
from gcr.select import GradApprox

torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.images / 16, dtype=torch.float32).flatten(1), torch.tensor(digits.target)
train, test = torch.arange(1400), torch.arange(1400, len(labels))

body = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU())
head = torch.nn.Linear(128, 10)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
buffer = gcr.Buffer(capacity=100, candidates=100, seed=0)

for task in range(5):
    rows = train[labels[train] // 2 == task]
    for epoch in range(10):
        for batch in rows[torch.randperm(len(rows))].split(32):
            logits = head(body(images[batch]))
            loss = F.cross_entropy(logits, labels[batch])
            if len(buffer):
                old = buffer.sample(32)
                each = F.cross_entropy(head(body(old.images)), old.labels, reduction="none")
                loss = loss + (old.weights * each).sum() / old.weights.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if epoch == 9:
                buffer.add(images[batch], labels[batch])
    with torch.no_grad():
        features = body(buffer.images)
        residuals = head(features).softmax(1) - F.one_hot(buffer.labels, 10)
    buffer.reselect(GradApprox(), features, residuals)

with torch.no_grad():
    right = (head(body(images[test])).argmax(1) == labels[test]).float().mean()
print(f"accuracy {100 * right:.1f}, {len(buffer)} examples, {buffer.nbytes:,} bytes")
