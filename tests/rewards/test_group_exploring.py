from __future__ import annotations

import pytest
from mmgrpo.rewards.groups.explorability import Explorability

from mmgrpo.errors import ConfigError
from tests.rewards.grouped import column_score, members, plain


def test_advantages_times_entropies_by_hand():
    # two of four are right: advantages of 1; the right ones' entropies have the mean 0.4, times 1.5 is 0.6
    samples = members(*"abcde", scores=[1, 1, 0, 0, None], values=[{"entropy": h} for h in (0.3, 0.5, 0.6, 0.61, 9.0)])
    result = plain(Explorability(column_score)(samples))
    assert result[:4] == pytest.approx([0.3, 0.5, 0.6, 0.0])
    assert result[4] is None
    # one of four: 0.75 / 0.4330127 and 0.25 / 0.4330127
    single_right = members(*"abcd", scores=[1, 0, 0, 0], values=[{"entropy": 1.0}] * 4)
    assert plain(Explorability(column_score)(single_right)) == pytest.approx([1.7320508] + [0.5773503] * 3)


def test_groups_that_agree_score_zero():
    for score in (0, 1):
        samples = members(*"ab", scores=[score] * 2, values=[{"entropy": 1.0}] * 2)
        assert plain(Explorability(column_score)(samples)) == [0.0, 0.0]


def test_samples_without_values_are_not_scored():
    assert Explorability(column_score)(members("a", scores=[1], values=[{}])) == [None]
    assert Explorability(column_score).needs_values == ("entropy",)
    with pytest.raises(ConfigError, match="ratio must be at least 0"):
        Explorability(column_score, ratio=-1)
