"""The callback in the real Lightning, where it is installed: make lightning."""

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from gcr.memory import BalancedReservoir, Policy
from gcr.methods import DerPlusPlus
from gcr.settings import BadInput

try:
    import lightning.pytorch as pl
except ImportError:
    pl = pytest.importorskip("pytorch_lightning")

from gcr.integrations.lightning import ReplayCallback

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore")
Y = torch.arange(160) % 4
X = 2 + 2 * torch.eye(4)[Y] + 0.3 * torch.randn(160, 4, generator=torch.Generator().manual_seed(0))
TASKS = [(X[rows], Y[rows]) for rows in (Y < 2, Y >= 2)]


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Sequential(nn.Linear(4, 32), nn.ReLU()), nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.body(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader(task=0):
    return DataLoader(TensorDataset(*TASKS[task]), batch_size=16)


def fit(module, *callbacks, task=0, epochs=2, path=None, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": any(isinstance(one, pl.callbacks.ModelCheckpoint) for one in callbacks)}
    trainer = pl.Trainer(max_epochs=epochs, accelerator="cpu", callbacks=list(callbacks), **quiet, **options)
    trainer.fit(module, loader(task), ckpt_path=path)
    return trainer


def first_task_accuracy(module):
    with torch.no_grad():
        return float((module(TASKS[0][0]).argmax(1) == TASKS[0][1]).float().mean())


def test_it_remembers_the_first_task():
    plain, with_replay, replay = Classifier(), Classifier(), ReplayCallback(memory=16)
    for task in range(2):
        fit(plain, task=task, epochs=20)
        fit(with_replay, replay, task=task, epochs=20)
    assert first_task_accuracy(plain) < 0.2
    assert first_task_accuracy(with_replay) > 0.8
    assert int(replay.memory.kept) == 16
    assert sorted(replay.memory.labels.unique().tolist()) == [0, 1, 2, 3]
    assert len(replay.selections) == 2
    assert "training_step" not in vars(with_replay)


def test_a_checkpoint_holds_memory_and_a_fit_goes_on_exactly(tmp_path):
    whole, replay = Classifier(), ReplayCallback(memory=16, seed=1)
    fit(whole, replay, epochs=4)
    stopped = Classifier()
    saving = pl.callbacks.ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    fit(stopped, ReplayCallback(memory=16, seed=1), saving, epochs=2)
    resumed, its_replay = Classifier(), ReplayCallback(memory=16, seed=1)
    fit(resumed, its_replay, epochs=4, path=str(tmp_path / "epoch=1.ckpt"))
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(replay.memory.images, its_replay.memory.images)
    assert torch.equal(replay.memory.weights, its_replay.memory.weights)


def test_the_step_is_as_before_after_an_error():
    class Failing(Classifier):
        def training_step(self, batch, batch_idx):
            if batch_idx == 2:
                raise RuntimeError("out of luck")
            return super().training_step(batch, batch_idx)

    module = Failing()
    with pytest.raises(RuntimeError, match="out of luck"):
        fit(module, ReplayCallback(memory=16))
    assert "training_step" not in vars(module)


def test_a_dict_and_a_step_that_is_skipped():
    class Skipping(Classifier):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return {"loss": loss, "more": 1} if batch_idx else None

    replay = ReplayCallback(Policy(buffer=100, selector=BalancedReservoir()), DerPlusPlus())
    fit(Skipping(), replay, epochs=1)
    assert len(replay.memory) == len(Y) // 2 - 16


def test_several_batches_for_one_step():
    replay = ReplayCallback(memory=16)
    fit(Classifier(), replay, accumulate_grad_batches=2)
    assert replay.rehearsal.steps == 2 * len(loader())


def test_batches_that_are_dicts_and_a_classifier_by_name():
    class Named(Classifier):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(self.body, self.head)

        def training_step(self, batch, batch_idx):
            x, y = batch
            return F.cross_entropy(self.head(self.body(x)), y)

    with pytest.raises(BadInput, match='name it by net="NAME"; these could be it: body, head'):
        fit(Named(), ReplayCallback(memory=16))

    class ByNet(Named):
        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self.net(batch["x"]), batch["y"])

        def on_before_batch_transfer(self, batch, dataloader_idx):
            return {"x": batch[0], "y": batch[1]}

    replay = ReplayCallback(memory=16, net="net")
    fit(ByNet(), replay)
    assert int(replay.memory.kept) == 16


def test_a_classifier_that_takes_named_inputs_and_returns_an_object():
    class Scaled(Classifier):
        def forward(self, x=None, scale=None, more=None):
            return SimpleNamespace(logits=self.head(self.body(x) * scale[:, None]))

        def training_step(self, batch, batch_idx):
            x, y = batch
            return F.cross_entropy(self(x=x, scale=torch.ones(len(y)), more=None).logits, y)

    replay = ReplayCallback(memory=16)
    fit(Scaled(), replay)
    assert int(replay.memory.kept) == 16
    assert replay.rehearsal.layout.inputs(replay.memory.images)["x"].shape == (16, 4)


def test_what_it_cannot_do_is_said():
    class Manual(Classifier):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

    with pytest.raises(BadInput, match="automatic_optimization must be True"):
        fit(Manual(), ReplayCallback(memory=16))

    class Triples(Classifier):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            return (*batch, 0)

        def training_step(self, batch, batch_idx):
            return super().training_step(batch[:2], batch_idx)

    with pytest.raises(BadInput, match="labels of a batch cannot be found; give ReplayCallback"):
        fit(Triples(), ReplayCallback(memory=16))
    replay = ReplayCallback(memory=16, labels=lambda batch: batch[1])
    fit(Triples(), replay)
    assert int(replay.memory.kept) == 16
