"""Settings that are true or false."""

import pytest

from gcr.scenarios import Stream
from gcr.settings import BadInput


@pytest.mark.parametrize(("given", "value"), [(True, True), (False, False), ("true", True), ("false", False)])
def test_true_or_false(given, value):
    assert Stream(online=given).online is value


@pytest.mark.parametrize("given", ["True", "yes", "1", "", 1, 0, 1.0, None, ["true"]])
def test_neither_true_nor_false(given):
    with pytest.raises(BadInput, match="online must be true or false, got"):
        Stream(online=given)
