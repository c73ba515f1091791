"""The rewards of an environment for the turns of a sample."""

from __future__ import annotations

import pytest
from mmgrpo.rewards.text.environment_return import EnvironmentReturn

from mmgrpo.errors import ConfigError
from mmgrpo.types import Prompt, Sample


def test_returns_by_hand() -> None:
    samples = [
        Sample(Prompt("q"), 0, 0, turn_rewards=[1.0, None, 2.0]),
        Sample(Prompt("q"), 0, 1, turn_rewards=[None, None]),
        Sample(Prompt("q"), 0, 2),
        Sample(Prompt("q"), 0, 3, turn_rewards=[0.0]),
    ]
    assert EnvironmentReturn()(samples) == [3.0, None, None, 0.0]
    assert EnvironmentReturn(discount=0.5)(samples) == [1.5, None, None, 0.0]  # 1 + 0.25 * 2
    with pytest.raises(ConfigError, match="discount must be in"):
        EnvironmentReturn(discount=1.5)
