"""Replay in Lightning: an ordinary module, a fit for each task, and a callback that remembers."""

import logging
import warnings

import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning
except ImportError:
    raise SystemExit("this example needs Lightning: pip install lightning") from None

from gcr.integrations.lightning import ReplayCallback


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch):  # knows nothing of replay
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")
digits = load_digits()
images, labels = torch.tensor(digits.images / 16, dtype=torch.float32).flatten(1), torch.tensor(digits.target)
train, test = torch.arange(1400), torch.arange(1400, len(labels))
quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False}

accuracy = {}
for name, callbacks in (("with", [ReplayCallback(memory=100)]), ("without", [])):
    lightning.seed_everything(0, verbose=False)
    module = Classifier()
    for task in range(5):  # two classes each, and a fit for each task
        rows = train[labels[train] // 2 == task]
        loader = DataLoader(TensorDataset(images[rows], labels[rows]), batch_size=32, shuffle=True)
        lightning.Trainer(max_epochs=10, accelerator="cpu", callbacks=callbacks, **quiet).fit(module, loader)
    with torch.no_grad():
        accuracy[name] = 100 * (module(images[test]).argmax(1) == labels[test]).float().mean()
print(f"accuracy {accuracy['with']:.1f} with replay, {accuracy['without']:.1f} without")
