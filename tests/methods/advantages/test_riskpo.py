"""RiskPO: numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.methods.advantages.riskpo import risk_advantage
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit

# sheets of 5 and 0: quantiles 1 and 4.5. Of 5: (4 - 0.5 + 1 - 4.5) / 0.7 = 0. Of 0: R = (1 - 4.5) / 0.700001 =
# -4.999993, C = -1 / 0.200001 = -4.999975, (1.5 C + R) / 2.5 = -4.999982, / 3.535535 / 0.707108 = -1.999990
CREDIT = (
    Step(reward=ONE_OF_TWO * 5, groups=[0, 0, 1, 1, 2, 2, 3, 3, 4, 4], lengths=[1] * 10),
    [[0.0], [-1.999990]] * 5,
)


def test_advantages_of_the_method() -> None:
    assert_credit("riskpo", *CREDIT)


@pytest.mark.parametrize("numbers", [{"bundle": 0}, {"low": 0.0}, {"low": 0.5, "high": 0.5}, {"high": 1.1}])
def test_quantiles_and_bundles_out_of_range_raise(numbers: dict[str, float]) -> None:
    risk_advantage(torch.tensor([[1.0, 0.0]]), bundle=1, high=1.0)
    with pytest.raises(ConfigError, match="0 < low < high <= 1"):
        risk_advantage(torch.tensor([[1.0, 0.0]]), **numbers)  # pyrefly: ignore[bad-argument-type]
