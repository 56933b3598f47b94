"""Admission by scores alone, without a network."""

import pytest
import torch

from gcr.memory import Buffer, GssGreedy, Policy
from gcr.memory.gss_greedy import Scores, offer_by_scores, rows_to_compare, scores
from gcr.select import LastLayerGradients
from gcr.settings import BadInput
from gcr.training.randomness import DrawPlan, EpochDraws


def full_memory(remembered):
    memory = Buffer.empty(len(remembered), 0, (1, 1, 1), 2, scored=True)
    offer(memory, list(range(len(remembered))))
    memory.columns["score"][: len(remembered)] = torch.tensor(remembered)
    return memory


def offer(memory, labels, batch_score=None, each=None, draws=None, admitted=None):
    image = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    scored = None
    if batch_score is not None:
        scored = Scores(torch.tensor(batch_score).double(), torch.tensor(each).double())
    offer_by_scores(
        memory,
        {"image": image, "label": torch.tensor(labels)},
        scored,
        None if draws is None else torch.tensor(draws),
        None if admitted is None else torch.tensor(admitted),
    )


def labels(memory):
    return memory.columns["label"][: memory.capacity].tolist()


def test_the_first_examples_enter_while_there_is_room():
    memory = Buffer.empty(3, 0, (1, 1, 1), 2, scored=True)
    offer(memory, [1, 2, 3, 4])
    assert labels(memory) == [1, 2, 3]
    assert memory.columns["score"][:3].tolist() == pytest.approx([0.1] * 3)
    assert int(memory.kept) == 3


def test_while_there_is_room_a_batch_enters_whatever_its_score():
    memory = Buffer.empty(3, 0, (1, 1, 1), 2, scored=True)
    offer(memory, [1])
    offer(memory, [2, 3, 4], batch_score=1.9, each=[1.8, 1.7, 1.6], draws=[[0.0, 0.0]] * 3)
    assert labels(memory) == [1, 2, 3]
    assert memory.columns["score"][:3].tolist() == pytest.approx([0.1, 1.8, 1.7])


def test_a_batch_like_memory_is_refused_whole():
    memory = full_memory([1.0, 1.0])
    offer(memory, [7, 8], batch_score=1.0, each=[0.0, 0.0], draws=[[0.0, 0.0], [0.9, 0.0]])
    assert labels(memory) == [0, 1]


def test_slots_by_score_and_coins_by_both_scores():
    memory = full_memory([1.0, 3.0, 0.0, 4.0])
    offer(memory, [7], batch_score=0.5, each=[1.0], draws=[[0.12, 0.49]])  # slot 0: 1 / (1 + 1)
    assert labels(memory) == [7, 1, 2, 3]
    offer(memory, [8], batch_score=0.5, each=[1.0], draws=[[0.13, 0.76]])  # slot 1: 3 / (3 + 1)
    assert labels(memory) == [7, 1, 2, 3]
    offer(memory, [9], batch_score=0.5, each=[1.0], draws=[[0.5, 0.79]])  # slot 3, as slot 2 has no score
    assert labels(memory) == [7, 1, 2, 9]


def test_the_later_example_has_the_slot_and_those_not_admitted_have_none():
    memory = full_memory([1.0, 1.0])
    draws = [[0.1, 0.0], [0.2, 0.0], [0.3, 0.0]]
    offer(memory, [7, 8, 9], batch_score=0.5, each=[0.3, 0.4, 0.5], draws=draws, admitted=[True, True, False])
    assert labels(memory) == [8, 1]
    assert float(memory.columns["score"][0]) == pytest.approx(0.4)


def test_slots_are_drawn_in_proportion_to_the_scores():
    counts = torch.zeros(3)
    for slot in torch.linspace(0, 0.999, 1000).tolist():
        memory = full_memory([0.5, 1.0, 0.5])
        offer(memory, [9], batch_score=0.1, each=[0.1], draws=[[slot, 0.0]])
        counts += memory.columns["label"][:3] == 9
    assert (counts / 1000).tolist() == pytest.approx([0.25, 0.5, 0.25], abs=0.01)


def test_scores_equal_those_of_gradients_written_out():
    generator = torch.Generator().manual_seed(0)
    new, old = (
        LastLayerGradients(torch.randn(n, 4, generator=generator), torch.randn(n, 3, generator=generator))
        for n in (5, 6)
    )
    cosine = torch.nn.functional.cosine_similarity
    g, others = new.explicit().double(), old.explicit().double()
    found = scores(new, old)
    for i in range(5):
        assert float(found.each[i]) == pytest.approx(1 + float(cosine(g[i : i + 1], others).max()))
    assert float(found.batch) == pytest.approx(1 + float(cosine(g.mean(0, keepdim=True), others).max()))


def test_a_gradient_of_zero_looks_like_nothing():
    nothing = LastLayerGradients(torch.ones(2, 3), torch.zeros(2, 2))
    found = scores(nothing, LastLayerGradients(torch.ones(1, 3), torch.ones(1, 2)))
    assert (float(found.batch), found.each.tolist()) == (1.0, [1.0, 1.0])


def test_rows_to_compare_are_filled_ones():
    memory = Buffer.empty(9, 0, (1, 1, 1), 2, scored=True)
    offer(memory, [1, 2, 3])
    assert rows_to_compare(memory, torch.tensor([0.0, 0.34, 0.99999997])).tolist() == [0, 1, 2]


def test_other_draws_stay_as_they_are():
    plans = [DrawPlan(8, (4, 2), 4, (("weak",),), compared) for compared in (0, 5)]
    plain, more = (EpochDraws(plan, 3, torch.device("cpu")) for plan in plans)
    for made in (plain, more):
        made.fill((0, 1, 2), torch.arange(20), 3)
    a, b = (made.at(torch.tensor(2), 4, replaying=True) for made in (plain, more))
    assert torch.equal(a.views, b.views)
    assert torch.equal(a.replays[0].rows, b.replays[0].rows)
    assert torch.equal(a.replays[0].views[0], b.replays[0].views[0])
    assert a.admission is None
    assert (b.admission.compared.shape, b.admission.slots.shape) == ((5,), (4, 2))
    assert more.at(torch.tensor(0), 8, replaying=False).admission is None
    assert b.admission.of(torch.tensor([3, 0])).slots.tolist() == b.admission.slots[[3, 0]].tolist()


def test_only_memory_of_this_policy_has_scores():
    assert "score" not in Buffer.empty(2, 0, (1, 1, 1), 2).columns
    assert Policy(selector=GssGreedy(compared=7)).compared == 7
    assert Policy().compared == 0
    with pytest.raises(BadInput, match="candidates needs a selector, but memory is gss-greedy"):
        Policy(selector=GssGreedy(), candidates=50)
