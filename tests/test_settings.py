"""Settings: what is true or false, and numbers that are too large."""

import pytest

from gcr.experiments.experiment import compose
from gcr.scenarios import Stream
from gcr.settings import BadInput


@pytest.mark.parametrize(("given", "value"), [(True, True), (False, False), ("true", True), ("false", False)])
def test_true_or_false(given, value):
    assert Stream(online=given).online is value


@pytest.mark.parametrize("given", ["True", "yes", "1", "", 1, 0, 1.0, None, ["true"]])
def test_neither_true_nor_false(given):
    with pytest.raises(BadInput, match="online must be true or false, got"):
        Stream(online=given)


@pytest.mark.parametrize(
    ("given", "meant"), [("GCR+", "gcr+"), ("gcr-plus", "gcr+"), ("derpp", "der++"), ("ERACE", "")]
)
def test_a_method_by_the_name_of_its_folder(given, meant):
    with pytest.raises(BadInput, match="unknown method") as error:
        compose("seq-digits", given)
    assert ("did you mean" in str(error.value)) == bool(meant)
    assert f'(did you mean "{meant}"?)' in str(error.value) or not meant


def test_a_replay_minibatch_that_no_machine_has_room_for():
    with pytest.raises(BadInput, match="replay_batch must be"):
        compose("seq-digits", "er", overrides={"replay_batch": 2**31})


def test_a_whole_number_that_is_too_large():
    with pytest.raises(BadInput, match="batch must be a whole number"):
        compose("seq-digits", "er", overrides={"batch": 10**400})
