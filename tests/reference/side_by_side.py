"""Twenty steps of a method over two tasks against its plain version, a ``PlainReplay``."""

import torch
from conftest import make_scenario

from gcr.memory import Policy
from reference.driving import TRAINING, drive, fresh, same_network, same_rows


def side_by_side(method, make_plain, model, check=lambda state, plain: None, capacity=12, **policy_settings):
    """Every step's loss, weights and memory must agree; ``check`` compares what else there is. Returns both states.

    Slots of memory have weights 0.5, 1, 1.5 and so on, as a selector might have given them.
    """
    scenario, policy = make_scenario(n_per_class=20), Policy(buffer=capacity, replay_batch=6, **policy_settings)
    state = fresh(scenario, model, method, policy)
    plain = make_plain(state.net, scenario, lr=TRAINING.lr, capacity=capacity)
    plain.weights = [0.5 * (slot + 1) for slot in range(capacity)]
    steps = []

    def check_all():
        steps.append(None)
        same_network(state.net, plain.net)
        assert int(state.memory.kept) == len(plain.kept)
        same_rows(state.memory, plain.kept)
        check(state, plain)
        state.memory.columns["weight"][:capacity] = torch.tensor(plain.weights)

    drive(state, scenario, method, policy, lambda draws, replay, stage: plain.step(draws, replay), check_all)
    assert len(steps) == 20
    return state, plain
