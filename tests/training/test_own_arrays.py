"""Own data from end to end: float images, HWC arrays and text labels train as well as bytes do."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import make_scenario
from named import Training, train

from gcr.memory import Policy
from gcr.methods import Er, Gcr
from gcr.scenarios import from_arrays, memory_bytes
from gcr.select import GradApprox

NAMES = np.array(["owl", "cat", "rat", "dog", "hen", "ape"])


def trained(scenario, method=None, memory=None):
    memory = memory or Policy(buffer=30)
    return train(scenario, "mlp", method or Er(), memory, Training(epochs=6, batch=16, lr=0.1), 0)


def arrays():
    """Train and test pairs of uint8 HWC images with text labels."""
    made = make_scenario(n_per_class=40, channels=3)
    parts = (made.train, made.test)
    return [(part.pixels.permute(0, 2, 3, 1).numpy(), NAMES[part.labels.numpy()]) for part in parts]


def as_floats(pairs, low=0.0, high=1.0):
    return [((low + (high - low) * images / 255.0).astype(np.float32), labels) for images, labels in pairs]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 5.0)])
def test_float_images_learn_what_their_bytes_learn(low, high):
    by_bytes = trained(from_arrays(*arrays(), tasks=3))
    by_floats = trained(from_arrays(*as_floats(arrays(), low, high), tasks=3))
    assert by_floats.state.memory.images.dtype == torch.float32
    assert by_bytes.class_il["accuracy"] > 60  # chance is 17
    assert by_floats.class_il["accuracy"] == pytest.approx(by_bytes.class_il["accuracy"], abs=7)


def test_strong_views_and_selection_take_float_images():
    """GCR has strong views and a selector; geometric ones where values leave [0, 1]."""
    memory = Policy(buffer=30, selector=GradApprox())
    for low, high in ((0.0, 1.0), (-3.0, 5.0)):
        scenario = from_arrays(*as_floats(arrays(), low, high), tasks=3)
        outcome = trained(scenario, Gcr(), memory)
        assert outcome.class_il["accuracy"] > 40
        held = outcome.state.memory
        assert held.nbytes == memory_bytes(memory, scenario)
        stored = {image.numpy().tobytes() for image in held.images}
        assert stored <= {image.numpy().tobytes() for image in scenario.train.pixels}


def test_text_labels_and_hwc_arrays_train_in_a_stream():
    scenario = from_arrays(*arrays(), tasks=(("owl", "ape"), ("cat", "rat"), ("dog", "hen")), stream=40)
    outcome = trained(scenario)
    assert scenario.class_names == tuple(sorted(NAMES))
    assert outcome.class_il["accuracy"] > 50
    assert set(outcome.state.memory.labels.tolist()) <= set(range(6))


def test_images_that_stay_on_the_host_may_be_floats():
    scenario = from_arrays(*as_floats(arrays()), tasks=3)
    on_host = replace(scenario, train=replace(scenario.train, resident=False))
    ours, theirs = trained(on_host), trained(scenario)
    assert ours.class_il["matrix"] == theirs.class_il["matrix"]
