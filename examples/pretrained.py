"""A pretrained backbone, frozen: only a new head learns, on features that are computed once. Memory holds features.

python examples/pretrained.py            # a timm model where timm is installed, else a small one of our own
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import gcr
from gcr.models import build


def backbone() -> nn.Module:
    try:
        import timm
    except ImportError:
        return build("convnet", (3, 32, 32), 2, seed=0)
    return timm.create_model("resnet18", pretrained=False, num_classes=2)  # pretrained=True downloads weights


torch.set_num_threads(1)
digits = load_digits()
small = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)[:400]
images = nn.functional.interpolate(small, size=32).expand(-1, 3, -1, -1).contiguous()
labels = [f"digit {number}" for number in digits.target[:400]]

torch.manual_seed(0)
learner = gcr.Learner(
    backbone(), memory=60, frozen=True, optimizer=lambda parameters: torch.optim.Adam(parameters, 0.01)
)
for wanted in (("digit 0", "digit 1"), ("digit 2", "digit 3")):
    rows = [row for row, label in enumerate(labels) if label in wanted]
    learner.fit(images[rows], [labels[row] for row in rows], epochs=20)

rows = [row for row, label in enumerate(labels) if label in learner.classes]
print(f"accuracy {100 * learner.score(images[rows], [labels[row] for row in rows]):.1f} % on {learner.classes}")
print(learner.memory, tuple(learner.memory.examples.shape))
