"""Training on a GPU: pytest -m gpu."""

import pytest
import torch
from conftest import make_scenario
from named import Training, train

from gcr.memory import POLICIES, Policy
from gcr.methods import METHODS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("method", METHODS, ids=[m.name for m in METHODS])
@pytest.mark.parametrize("sampling", ["coin", "split"])
def test_cpu_and_gpu_train_alike(method, sampling):
    """The same draws on both: after a few steps the networks differ by rounding only."""
    selector = next(p for p in POLICIES if p.name == method.default_selector)()
    policy = Policy(buffer=12, selector=selector, sampling=sampling, replay_batch=8)
    training = Training(epochs=1, lr=0.05, batch=8, precision="fp32")
    ours, theirs = (
        train(make_scenario(channels=3), "convnet", method(), policy, training, 0, device) for device in ("cpu", "cuda")
    )
    for a, b in zip(ours.state.net.parameters(), theirs.state.net.parameters(), strict=True):
        torch.testing.assert_close(a, b.cpu(), atol=2e-3, rtol=2e-2)
    if ours.state.memory is not None:
        assert torch.equal(ours.state.memory.columns["label"][:12], theirs.state.memory.columns["label"][:12].cpu())
