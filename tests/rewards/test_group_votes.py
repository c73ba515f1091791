from __future__ import annotations

import math

import pytest
from mmgrpo.rewards.groups.votes import MajorityVote, SemanticClusters, entropy, relative_entropy

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score
from tests.rewards.grouped import members, plain


def test_majority_by_hand():
    samples = members("<answer>7</answer>", "<answer> 7</answer>", "<answer>8</answer>", "seven", None)
    assert plain(MajorityVote(extract="tag")(samples)) == [1, 1, 0, 0, None]
    assert plain(MajorityVote("share", extract="tag")(samples)) == [0.5, 0.5, 0.25, 0, None]  # of the four that wrote


def test_ties_share_the_majority():
    assert plain(MajorityVote()(members("a", "b", "A", "b", "c"))) == [0.5, 0.5, 0.5, 0.5, 0]
    assert plain(MajorityVote(ignore_case=False)(members("a", "b", "A", "b", "c"))) == [0, 1, 0, 1, 0]
    assert plain(MajorityVote()(members("a", "b", "c"))) == pytest.approx([1 / 3] * 3)
    assert plain(MajorityVote()(members("", " ", "\n"))) == [0, 0, 0]


def test_entropy_by_hand():
    # 3/4 and 1/4: (3 log(4/3) + log 4) / 4; divided by log 2
    nats = (3 * math.log(4 / 3) + math.log(4)) / 4
    assert entropy(["a", "a", "a", "b", None]) == pytest.approx(nats)
    assert relative_entropy(["a", "a", "a", "b", None]) == pytest.approx(nats / math.log(2))
    assert relative_entropy(["a", "b", "c"]) == pytest.approx(1)
    assert relative_entropy(["a", "a"]) == relative_entropy([None]) == entropy([]) == 0
    values = plain(MajorityVote("share", entropy=0.75)(members("a", "a", "a", "b")))
    off = 0.75 * nats / math.log(2)
    assert values == pytest.approx([0.75 - off, 0.75 - off, 0.75 - off, 0.25 - off])


def test_groups_vote_separately():
    samples = [*members("a", "b", "b", group=2), *members("a", group=1), *members("a", "a", group=5)]
    assert plain(MajorityVote()(samples)) == [0, 1, 1, 1, 1, 1]
    assert plain(SemanticClusters()(samples)) == pytest.approx([1 / 3, 2 / 3, 2 / 3, 1, 1, 1])


def test_clusters_by_answer():
    samples = members("A cat", "a  cat", "a dog", "", "", None)
    assert plain(SemanticClusters()(samples)) == [0.4, 0.4, 0.2, 0.2, 0.2, None]  # nothing said is like nothing else


def shares_a_word(first: Sample, second: Sample) -> float:
    """Entailment: every word of the second is in the first."""
    return float(set((second.text or "").split()) <= set((first.text or "").split()))


def test_clusters_by_entailment_need_both_directions():
    # "a b" says "b a" and the other way round; "a b c" says both, but neither says it
    assert plain(SemanticClusters(shares_a_word)(members("a b", "b a", "a b c", "d"))) == [0.5, 0.5, 0.25, 0.25]


def test_clusters_are_connected_by_pairs():
    def near(first: Sample, second: Sample) -> float:
        return 1 / (1 + abs(int(first.text or 0) - int(second.text or 0)))

    # 1 - 2 - 3 hang together by pairs of distance 1 (0.5 > 0.4), 9 does not
    assert plain(SemanticClusters(near, threshold=0.4)(members("1", "3", "9", "2"))) == [0.75, 0.75, 0.25, 0.75]
    assert plain(SemanticClusters(near, threshold=0.5)(members("1", "3", "9", "2"))) == [0.25] * 4


def test_settled_and_hopeless_groups_are_left_out():
    reward = SemanticClusters(entropy_min=0.1, entropy_max=1.0)
    samples = [*members("a", "a", group=0), *members("a", "b", group=1), *members("a", "b", "c", group=2)]
    assert plain(reward(samples)) == [None, None, 0.5, 0.5, None, None, None]  # 0, log 2 = 0.69, log 3 = 1.10


def test_votes_explain_their_counts():
    first, *_, silent = MajorityVote(extract="tag", entropy=1.0)(
        members("<answer>7</answer>", "<answer> 7</answer>", "<answer>8</answer>", "seven")
    )
    # two of three for one of two answers: (2/3 log 3/2 + 1/3 log 3) / log 2 = 0.9183 of the most there can be
    parts = {"voters": 4, "answers": 2, "relative_entropy": 0.9183}
    assert first is not None
    assert silent is not None
    assert first.explanation == {"parsed": "7", "majority": ["7"], "parts": {"votes": 2, **parts}}
    assert silent.explanation == {"parsed": None, "majority": ["7"], "parts": {"votes": 0, **parts}}
    (tie, *_) = MajorityVote()(members(*(f"{i:03}" + "x" * 500 for i in range(20))))
    assert tie is not None
    assert len(tie.explanation["majority"]) == 8
    assert [len(named) for named in tie.explanation["majority"]] == [200] * 8


def test_clusters_explain_their_counts():
    a_cat, same, dog = SemanticClusters()(members("A cat", "a  cat", "a dog"))
    parts = {"voters": 3, "clusters": 2, "entropy": 0.6365}  # 2/3 log 3/2 + 1/3 log 3
    assert a_cat == same == Score(2 / 3, {"parsed": "a cat", "parts": {"votes": 2, **parts}})
    assert dog == Score(1 / 3, {"parsed": "a dog", "parts": {"votes": 1, **parts}})
    scores = SemanticClusters(shares_a_word)(members("a b", "b a"))
    assert scores == [Score(1, {"parts": {"votes": 2, "voters": 2, "clusters": 1, "entropy": 0}})] * 2


def test_invalid_settings_raise():
    with pytest.raises(ConfigError, match="mode must be one of agreement, share"):
        MajorityVote("most")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least 0, got -1"):
        MajorityVote(entropy=-1)
    with pytest.raises(ConfigError, match="entropy_min <= entropy_max"):
        SemanticClusters(entropy_min=1, entropy_max=0)
