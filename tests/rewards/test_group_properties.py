"""Any group: the order of samples and the numbers of groups have no effect, and ranges hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmgrpo.rewards.groups.diversity import DiversityAdjusted
from mmgrpo.rewards.groups.likelihoods import Unlikeliness
from mmgrpo.rewards.groups.pairs import PairwiseWinRate, Tournament
from mmgrpo.rewards.groups.verifiers import Conciseness
from mmgrpo.rewards.groups.votes import MajorityVote, SemanticClusters

from mmgrpo.types import Prompt, Sample, Score
from tests.rewards.grouped import column_score, plain
from tests.rewards.test_groups import REWARDS_OF_GROUPS

SCORES = st.sampled_from([-1.0, 0.0, 0.2, 0.5, 1.0, 1.0, 2.0])
GAPS = st.one_of(SCORES, st.sampled_from([None, float("nan")]))
TEXTS = st.one_of(st.none(), st.sampled_from(["a b", "a", "A", "b c", "c", "", "<answer>a</answer>"]))


@st.composite
def samples_of(draw: st.DrawFn, scores: st.SearchStrategy[float | None] = GAPS) -> list[Sample]:
    """One to three groups of one to six."""
    result = []
    for group in draw(st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True)):
        for member in range(draw(st.integers(1, 6))):
            columns = {"score": draw(scores), "chance": draw(st.floats(0, 1))}
            tokens = [1] * draw(st.integers(0, 9))
            sample = Sample(Prompt("q", columns=columns), group, member, text=draw(TEXTS), tokens=tokens)
            result.append(replace(sample, logprob=-draw(st.floats(0, 5)), values={"certainty": draw(st.floats(0, 5))}))
    return result


def reasons(values: Sequence[float | Score | None]) -> list[object]:
    return [value.explanation if isinstance(value, Score) else None for value in values]


def by_group(samples: Sequence[Sample], values: Sequence[float | None]) -> list[list[float]]:
    """The values of each group in which every sample has one."""
    groups = [[v for s, v in zip(samples, values, strict=True) if s.group == g] for g in {s.group for s in samples}]
    return [[v for v in group if v is not None] for group in groups if None not in group]


@pytest.mark.first_case
@pytest.mark.parametrize("name", REWARDS_OF_GROUPS)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), samples=samples_of())
def test_neither_order_nor_group_numbers_matter(name: str, data: st.DataObject, samples: list[Sample]):
    reward = REWARDS_OF_GROUPS[name]
    order = data.draw(st.permutations(range(len(samples))))
    numbers = data.draw(st.permutations(range(100, 110)))
    values = reward(samples)
    moved = reward([replace(samples[row], group=numbers[samples[row].group]) for row in order])
    assert plain(moved) == pytest.approx([plain(values)[row] for row in order], nan_ok=True)
    assert reasons(moved) == [reasons(values)[row] for row in order]


@settings(max_examples=50, deadline=None)
@given(samples=samples_of(SCORES))
def test_comparisons_have_the_mean_of_a_coin(samples: list[Sample]):
    """One half of every group of two or more, and the scores turned round turn the rates round."""
    turned = [replace(s, prompt=Prompt("q", columns={"score": -s.prompt.columns["score"]})) for s in samples]
    for reward in (PairwiseWinRate(of=column_score), PairwiseWinRate(of=column_score, soft=True, temperature=0.5)):
        values = plain(reward(samples))
        assert plain(reward(turned)) == pytest.approx([None if value is None else 1 - value for value in values])
        assert all(sum(group) / len(group) == pytest.approx(0.5) for group in by_group(samples, values))
    for placing in ("points", "matches"):
        values = plain(Tournament(of=column_score, placing=placing)(samples))
        assert all(0 <= value <= 1 for group in by_group(samples, values) for value in group)
        assert all(sum(group) / len(group) == pytest.approx(0.5) for group in by_group(samples, values))


@settings(max_examples=50, deadline=None)
@given(samples=samples_of(SCORES))
def test_votes_are_shares(samples: list[Sample]):
    for value in plain(SemanticClusters()(samples)):
        assert value is None or 1 / 6 <= value <= 1
    agreed, shared = plain(MajorityVote()(samples)), plain(MajorityVote("share")(samples))
    for of_agreement, of_share in zip(by_group(samples, agreed), by_group(samples, shared), strict=True):
        assert sum(of_agreement) == pytest.approx(0) or max(of_share) in [
            share for agreement, share in zip(of_agreement, of_share, strict=True) if agreement > 0
        ]


@settings(max_examples=50, deadline=None)
@given(samples=samples_of(SCORES))
def test_reductions_keep_the_sign(samples: list[Sample]):
    """A positive reward stays above 0 and is not raised; one that is not positive is not made worse."""
    lowered = [DiversityAdjusted(column_score), Unlikeliness(column_score), Conciseness(column_score)]
    for values in (plain(reward(samples)) for reward in lowered):
        for sample, value in zip(samples, values, strict=True):
            before = sample.prompt.columns["score"]
            assert value is None or (0 < value <= before if before > 0 else before <= value <= 0)
