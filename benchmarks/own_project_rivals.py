"""What ``benchmarks/own_project.py`` compares. Each learns step after step and gives a way to predict after each.

    python benchmarks/own_project_rivals.py DATA.npz OUT.json 0 1 2    Avalanche's replay, where avalanche-lib is

Networks, optimizer, epochs, batches and numbers of remembered examples are the same; nothing is tuned.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from own_project_data import Data
from torch import Tensor, nn

EPOCHS, BATCH, LR, HIDDEN = 10, 32, 1e-3, 256  # the first three are the defaults of gcr.Learner
AVALANCHE = "Avalanche's Replay"

Steps = list[tuple[Tensor, Tensor]]
Predict = Callable[[Tensor], Any]  # [n, d] -> [n] labels
Rival = Callable[[Steps, int, int], Iterator[tuple[Predict, int]]]  # steps, seed, keep -> after each: predict, bytes


def make_net(inputs: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))


def learner(steps: Steps, seed: int, keep: int, **settings: Any) -> Iterator[tuple[Predict, int]]:
    import gcr

    learner = gcr.Learner(make_net(steps[0][0].shape[1], seed), memory=keep, seed=seed, **settings)
    for x, y in steps:
        learner.fit(x, y, epochs=EPOCHS, batch=BATCH, progress=False)
        yield learner.predict, learner.memory.nbytes


def learner_with_gcr_plus(steps: Steps, seed: int, keep: int) -> Iterator[tuple[Predict, int]]:
    import gcr

    return learner(steps, seed, keep, method=gcr.methods.GcrPlus())


def reservoir_by_hand(steps: Steps, seed: int, keep: int) -> Iterator[tuple[Predict, int]]:
    """Experience replay as one writes it in an afternoon: reservoir sampling, new and old examples in one batch."""
    net = make_net(steps[0][0].shape[1], seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=LR)
    memory: list[tuple[Tensor, Tensor]] = []
    seen = 0
    for x, y in steps:
        for epoch in range(EPOCHS):
            for rows in torch.randperm(len(y)).split(BATCH):
                inputs, labels = x[rows], y[rows]
                if memory:
                    drawn = [memory[row] for row in torch.randint(len(memory), (BATCH,)).tolist()]
                    inputs = torch.cat([inputs, torch.stack([old for old, _ in drawn])])
                    labels = torch.cat([labels, torch.stack([label for _, label in drawn])])
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
                for example in zip(x[rows], y[rows], strict=True) if keep and epoch == 0 else ():
                    seen += 1
                    if len(memory) < keep:
                        memory.append(example)
                    elif (slot := int(torch.randint(seen, ()))) < keep:
                        memory[slot] = example
        yield lambda test: net(test).argmax(1), sum(old.nbytes + label.nbytes for old, label in memory)


def fine_tuning(steps: Steps, seed: int, keep: int) -> Iterator[tuple[Predict, int]]:
    return reservoir_by_hand(steps, seed, 0)


def keep_everything(steps: Steps, seed: int, keep: int) -> Iterator[tuple[Predict, int]]:
    """An upper bound: in every step the network goes on with all examples so far."""
    whole = [tuple(torch.cat(parts) for parts in zip(*steps[: n + 1], strict=True)) for n in range(len(steps))]
    for (predict, _), (x, y) in zip(reservoir_by_hand(whole, seed, 0), whole, strict=True):  # type: ignore[arg-type]
        yield predict, x.nbytes + y.nbytes


def sgd_classifier(steps: Steps, seed: int, keep: int) -> Iterator[tuple[Predict, int]]:
    """scikit-learn's linear model: all classes named at the start, as many passes, no memory."""
    import numpy as np
    from sklearn.linear_model import SGDClassifier

    model, rng = SGDClassifier(random_state=seed), np.random.default_rng(seed)
    for x, y in steps:
        for _ in range(EPOCHS):
            order = rng.permutation(len(y))
            model.partial_fit(x.numpy()[order], y.numpy()[order], classes=np.arange(10))
        yield (lambda test: model.predict(test.numpy())), 0


def avalanche_replay(steps: Steps, seed: int, keep: int) -> Iterator[tuple[Predict, int]]:
    """Avalanche's ``Naive`` strategy with its ``ReplayPlugin``: as many replayed as new examples in a batch."""
    from against_avalanche import ImagesAndTargets
    from avalanche.benchmarks import nc_benchmark
    from avalanche.training import Naive
    from avalanche.training.plugins import ReplayPlugin

    net = make_net(steps[0][0].shape[1], seed)
    order = [int(label) for _, y in steps for label in y.unique()]
    whole = ImagesAndTargets(*(torch.cat(parts) for parts in zip(*steps, strict=True)))
    benchmark = nc_benchmark(whole, whole, len(steps), task_labels=False, shuffle=False, fixed_class_order=order)
    strategy = Naive(
        model=net,
        optimizer=torch.optim.AdamW(net.parameters(), lr=LR),
        train_mb_size=BATCH,
        train_epochs=EPOCHS,
        plugins=[ReplayPlugin(mem_size=keep)],
        evaluator=None,
    )
    size = steps[0][0][0].nbytes + 8
    for experience in benchmark.train_stream:
        strategy.train(experience)
        yield lambda test: net.eval()(test).argmax(1), keep * size


RIVALS: dict[str, Rival] = {
    "gcr.Learner": learner,
    "gcr.Learner with GCR+": learner_with_gcr_plus,
    "reservoir by hand": reservoir_by_hand,
    "SGDClassifier.partial_fit": sgd_classifier,
    "fine-tuning": fine_tuning,
    "keep everything": keep_everything,
}


def warm_up(rivals: Iterable[Rival]) -> None:
    """What is imported when it is first used is not to count."""
    x, y = torch.rand(40, 8), torch.arange(40) % 10
    for rival in rivals:
        deque(rival([(x[y == label], y[y == label]) for label in range(10)], 0, 10), maxlen=0)


def run(name: str, rival: Rival, data: Data, seed: int) -> dict[str, Any]:
    """The accuracy matrix in percent, CPU seconds of training on one thread, bytes kept of the past."""
    train, test = data.steps(seed)
    matrix, seconds, nbytes = [], 0.0, 0
    learning = rival(train, seed, data.keep)
    for _ in train:
        began = time.process_time()
        predict, nbytes = next(learning)
        seconds += time.process_time() - began
        with torch.no_grad():
            rows = [100 * float((torch.as_tensor(predict(x)) == y).double().mean()) for x, y in test]
        matrix.append([round(accuracy, 3) for accuracy in rows])
    return {
        "data": data.name,
        "name": name,
        "seed": seed,
        "matrix": matrix,
        "seconds": round(seconds, 3),
        "bytes": nbytes,
    }


def main() -> None:
    from against_avalanche import make_torchvision_importable

    declared = make_torchvision_importable()
    warnings.showwarning = lambda *args, **kwargs: None  # Avalanche's own deprecations
    data, seeds = Data.load(Path(sys.argv[1])), map(int, sys.argv[3:])
    torch.set_num_threads(1)
    warm_up([avalanche_replay])
    rows = [run(AVALANCHE, avalanche_replay, data, seed) for seed in seeds]
    Path(sys.argv[2]).write_text(json.dumps(rows))
    del declared


if __name__ == "__main__":
    main()
