from __future__ import annotations

import math

import pytest

from mmgrpo.errors import ConfigError
from mmgrpo.rewards.groups.votes import MajorityVote, SemanticClusters, entropy, relative_entropy
from mmgrpo.types import Sample
from tests.rewards.grouped import members


def test_majority_by_hand():
    samples = members("<answer>7</answer>", "<answer> 7</answer>", "<answer>8</answer>", "seven", None)
    assert MajorityVote(extract="tag")(samples) == [1, 1, 0, 0, None]
    assert MajorityVote("share", extract="tag")(samples) == [0.5, 0.5, 0.25, 0, None]  # of the four that wrote


def test_ties_share_the_majority():
    assert MajorityVote()(members("a", "b", "A", "b", "c")) == [0.5, 0.5, 0.5, 0.5, 0]
    assert MajorityVote(ignore_case=False)(members("a", "b", "A", "b", "c")) == [0, 1, 0, 1, 0]
    assert MajorityVote()(members("a", "b", "c")) == pytest.approx([1 / 3] * 3)
    assert MajorityVote()(members("", " ", "\n")) == [0, 0, 0]


def test_entropy_by_hand():
    # 3/4 and 1/4: (3 log(4/3) + log 4) / 4; divided by log 2
    nats = (3 * math.log(4 / 3) + math.log(4)) / 4
    assert entropy(["a", "a", "a", "b", None]) == pytest.approx(nats)
    assert relative_entropy(["a", "a", "a", "b", None]) == pytest.approx(nats / math.log(2))
    assert relative_entropy(["a", "b", "c"]) == pytest.approx(1)
    assert relative_entropy(["a", "a"]) == relative_entropy([None]) == entropy([]) == 0
    values = MajorityVote("share", entropy=0.75)(members("a", "a", "a", "b"))
    off = 0.75 * nats / math.log(2)
    assert values == pytest.approx([0.75 - off, 0.75 - off, 0.75 - off, 0.25 - off])


def test_groups_vote_apart():
    samples = [*members("a", "b", "b", group=2), *members("a", group=1), *members("a", "a", group=5)]
    assert MajorityVote()(samples) == [0, 1, 1, 1, 1, 1]
    assert SemanticClusters()(samples) == pytest.approx([1 / 3, 2 / 3, 2 / 3, 1, 1, 1])


def test_clusters_by_answer():
    samples = members("A cat", "a  cat", "a dog", "", "", None)
    assert SemanticClusters()(samples) == [0.4, 0.4, 0.2, 0.2, 0.2, None]  # nothing said is like nothing else


def shares_a_word(first: Sample, second: Sample) -> float:
    """Entailment: every word of the second is in the first."""
    return float(set((second.text or "").split()) <= set((first.text or "").split()))


def test_clusters_by_entailment_need_both_directions():
    # "a b" says "b a" and the other way round; "a b c" says both, but neither says it
    assert SemanticClusters(shares_a_word)(members("a b", "b a", "a b c", "d")) == [0.5, 0.5, 0.25, 0.25]


def test_clusters_are_what_pairs_connect():
    def near(first: Sample, second: Sample) -> float:
        return 1 / (1 + abs(int(first.text or 0) - int(second.text or 0)))

    # 1 - 2 - 3 hang together by pairs of distance 1 (0.5 > 0.4), 9 does not
    assert SemanticClusters(near, threshold=0.4)(members("1", "3", "9", "2")) == [0.75, 0.75, 0.25, 0.75]
    assert SemanticClusters(near, threshold=0.5)(members("1", "3", "9", "2")) == [0.25] * 4


def test_settled_and_hopeless_groups_are_left_out():
    reward = SemanticClusters(entropy_min=0.1, entropy_max=1.0)
    samples = [*members("a", "a", group=0), *members("a", "b", group=1), *members("a", "b", "c", group=2)]
    assert reward(samples) == [None, None, 0.5, 0.5, None, None, None]  # 0, log 2 = 0.69, log 3 = 1.10


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="mode must be one of agreement, share"):
        MajorityVote("most")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least 0, got -1"):
        MajorityVote(entropy=-1)
    with pytest.raises(ConfigError, match="entropy_min <= entropy_max"):
        SemanticClusters(entropy_min=1, entropy_max=0)
