"""Delethink: numbers worked out by hand."""

from __future__ import annotations

import pytest

from mmgrpo.errors import ConfigError
from mmgrpo.methods.strategies.delethink import carried_over


@pytest.mark.parametrize("numbers", [{"tail": 0}, {"tail": 4, "head": -1}])
def test_a_context_that_carries_nothing_over_raises(numbers: dict[str, int]) -> None:
    carried_over(tail=1, head=0)
    with pytest.raises(ConfigError):
        carried_over(**numbers)
