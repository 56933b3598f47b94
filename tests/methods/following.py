"""Steps of a method and of its plain form, which keeps the task of every example, side by side."""

from reference.driving import drive, fresh, same_network, same_rows

from gcr.memory.randomness import selection_draws
from gcr.training.reselect import reselect

__all__ = ["follow", "fresh"]


def follow(state, plain, scenario, method, policy, n_stages):
    """Losses, weights, running statistics and memory agree all along, selections at the end of stages included."""

    def same_memory():
        assert int(state.memory.kept) == len(plain.kept)
        same_rows(state.memory, plain.kept)
        assert state.memory.columns["task"][: len(plain.kept)].tolist() == [entry[3] for entry in plain.kept]

    def check():
        same_network(state.net, plain.net)
        same_memory()

    def end_stage(stage):
        if policy.selects:
            n_rows = len(state.memory.filled_rows())
            reselect(state.memory, policy, method, state.net, scenario.views, (3, stage))
            plain.end_stage(selection_draws((3, stage), n_rows).tolist())
            same_memory()

    def step(draws, replay, stage):
        return plain.step(draws.rows.tolist(), draws, replay, stage)

    drive(state, scenario, method, policy, step, check, end_stage, n_stages)
