"""SPO-tree (segments): numbers worked out by hand."""

from __future__ import annotations

import pytest

from mmgrpo.errors import ConfigError
from mmgrpo.methods.credit.spo_segment_policy import unlikely
from tests.configs.method_steps import Step, advantages_of, assert_credit, config_of

# values of the prompt 3/4, of its segments 1 and 1/2, of the second's ends 1 and 0
CREDIT = (
    Step(
        reward=(1, 1, 1, 0),
        states=((0, 1, 2), (0, 1, 3), (0, 4, 5), (0, 4, 6)),
        old_logprob=[[-1.0] * 3] * 4,
    ),
    [[0.25, 0.0, 0.0]] * 2 + [[-0.25, 0.5, 0.5], [-0.25, -0.5, -0.5]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("spo--segment-policy", *CREDIT)


def test_likely_tokens_do_not_train() -> None:
    result = advantages_of(
        config_of("spo--segment-policy"), Step(reward=(1, 0), old_logprob=((-0.05, -0.2), (-0.2, -0.05)))
    )
    assert result.mask_BT.tolist() == [[False, True], [True, False]]  # 0.951 and 0.819


def test_a_bound_is_a_probability_above_0() -> None:
    unlikely(below=1.0)
    for below in (0.0, 1.1):
        with pytest.raises(ConfigError, match="above 0 and at most 1"):
            unlikely(below=below)
