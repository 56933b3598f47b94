"""Training as tests write it: a model by name, our SGD with the learning rate of ``Training``."""

from dataclasses import dataclass

import torch

from gcr import training as core
from gcr.models import build
from gcr.training.loop import incoming
from gcr.training.state import RunState
from gcr.training.step import train_step


@dataclass(frozen=True)
class Training(core.Training):
    lr: float = 0.03
    weight_decay: float = 0.0


def objects(scenario, model, training, seed):
    net = build(model, scenario.image_shape, scenario.n_classes, seed)
    return net, core.Sgd(net.parameters(), training.lr, training.weight_decay)


def train(scenario, model, method, policy, training, seed, how="cpu", **rest):
    return core.train(scenario, *objects(scenario, model, training, seed), method, policy, seed, training, how, **rest)


def new_run(scenario, model, method, policy, training, seed, how, **rest):
    return core.Run(scenario, *objects(scenario, model, training, seed), method, policy, seed, training, how, **rest)


def fresh_state(scenario, model, method, policy, training, seed, device=torch.device("cpu")):  # noqa: B008
    return RunState.of_scenario(scenario, *objects(scenario, model, training, seed), method, policy, device)


def one_step(state, scenario, method, policy, draws):
    train_step(state, incoming(scenario, policy, draws), scenario.views, method, policy, draws)
