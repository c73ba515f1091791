from __future__ import annotations

import itertools
import math
import random

import pytest
from mmgrpo.rewards.groups.pairs import PairwiseWinRate, Tournament, bracket, shared_places
from mmgrpo.rewards.groups.pairwise_comparisons import both_orders, preference_of_scores

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.types import Sample, Score
from tests.rewards.grouped import column_score, in_group, members, plain, scored


class Counting:
    """A judge of pairs that prefers the longer text, and records the pairs."""

    def __init__(self) -> None:
        self.compared: list[tuple[str | None, str | None]] = []

    def __call__(self, first: Sample, second: Sample) -> float:
        self.compared.append((first.text, second.text))
        a, b = len(first.text or ""), len(second.text or "")
        return 0.5 if a == b else float(a > b)


def test_win_rates_by_hand():
    # 3 beats both others, the two 1s tie: (0 + 1/2) / 2, the same, 2 / 2
    assert plain(PairwiseWinRate(of=column_score)(scored(1, 3, 1))) == [0.25, 1.0, 0.25]
    # logistic(2 / 2) and logistic(0): the losers have the mean of 1 - 0.731.. and 1/2
    win = 1 / (1 + math.exp(-1))
    soft = PairwiseWinRate(of=column_score, soft=True, temperature=2.0)
    assert plain(soft(scored(1, 3, 1))) == pytest.approx([(1 - win + 0.5) / 2, win, (1 - win + 0.5) / 2])


def test_groups_are_separate_and_may_differ_in_size():
    samples = [*scored(5, 1, 3, group=7), *scored(2, 9, group=3), *scored(4, group=5)]
    assert plain(PairwiseWinRate(of=column_score)(samples)) == [1, 0, 0.5, 0, 1, None]


def test_a_judge_of_pairs_is_called_in_both_orders():
    judge = Counting()
    assert plain(PairwiseWinRate(judge)(members("a", "bb", "cc"))) == [0, 0.75, 0.75]
    assert sorted(judge.compared) == sorted(itertools.permutations(["a", "bb", "cc"], 2))
    judge = Counting()
    plain(PairwiseWinRate(judge, swap=False)(members("a", "bb", "cc")))
    assert judge.compared == [("a", "bb"), ("a", "cc"), ("bb", "cc")]


def test_a_judge_that_prefers_the_first_has_no_effect():
    samples = members("a", "b", "c")
    assert plain(PairwiseWinRate(lambda first, second: 1.0)(samples)) == [0.5, 0.5, 0.5]
    assert plain(PairwiseWinRate(lambda first, second: 1.0, swap=False)(samples)) == [1.0, 0.5, 0.0]
    assert both_orders(0.75, 0.5) == 0.625  # (0.75 + 1 - 0.5) / 2


def test_pairs_without_an_outcome_are_left_out():
    samples = scored(2, None, 1, math.nan)
    # 0 beats 2; a member that is paired with None alone is None, with NaN alone a failure
    assert plain(PairwiseWinRate(of=column_score)(samples)) == pytest.approx([1, None, 0, math.nan], nan_ok=True)
    silent = PairwiseWinRate(lambda first, second: None if "b" in (first.text, second.text) else 1.0, swap=False)
    assert plain(silent(members("a", "b", "c"))) == [1, None, 0]
    failing = PairwiseWinRate(lambda first, second: math.nan)
    assert plain(failing(members("a", "b"))) == pytest.approx([math.nan, math.nan], nan_ok=True)


def test_comparisons_explain_the_opponents_of_a_sample():
    def judge(first: Sample, second: Sample) -> float | None:
        return None if "?" in (first.text, second.text) else Counting()(first, second)

    values = PairwiseWinRate(judge)(members("a", "bb", "cc", "?"))
    counts = {"wins": 1, "ties": 1, "defeats": 0, "undecided": 1}
    assert values[1] == Score(0.75, {"parts": counts, "matches": [[0, 1.0], [2, 0.5], [3, None]]})
    assert values[3] is None
    many = PairwiseWinRate(Counting(), swap=False)(members(*("x" * i for i in range(40))))[0]
    assert many is not None
    assert many.explanation["parts"] == {"wins": 0, "ties": 0, "defeats": 39, "undecided": 0}
    assert len(many.explanation["matches"]) == 30


def test_a_tournament_explains_the_opponents_of_a_sample():
    loser, winner = Tournament(of=column_score, temperature=1.0)(scored(1, 3))  # logistic(2) = 0.88080
    won = {"wins": 1, "ties": 0, "defeats": 0, "undecided": 0}
    assert winner == Score(1, {"parts": {"place": 1, "points": 0.8808, **won}, "matches": [[0, 0.8808]]})
    assert loser is not None
    assert loser.explanation["parts"]["place"] == 2
    assert loser.explanation["matches"] == [[1, 0.1192]]


def test_no_probability_is_an_error():
    with pytest.raises(RewardError, match=r"from 0 to 1, got 7\.0"):
        plain(PairwiseWinRate(lambda first, second: 7)(members("a", "b")))


@pytest.mark.parametrize("reward", [PairwiseWinRate, Tournament])
def test_invalid_settings_raise(reward: type[PairwiseWinRate] | type[Tournament]):
    with pytest.raises(ConfigError, match="either judge or of"):
        reward()
    with pytest.raises(ConfigError, match="either judge or of"):
        reward(Counting(), of=column_score)
    with pytest.raises(ConfigError, match="temperature must be >= 0 and workers >= 1, got -1 and 1"):
        reward(of=column_score, temperature=-1)
    with pytest.raises(ConfigError, match="anchor or random"):
        Tournament(of=column_score, placing="medals")  # type: ignore[arg-type]


def test_threads_find_the_same():
    samples = members(*("x" * (7 * i % 5) for i in range(9)))
    assert plain(PairwiseWinRate(Counting(), workers=4)(samples)) == plain(PairwiseWinRate(Counting())(samples))


def test_preference_has_no_order():
    for first, second, temperature in [(1.0, 3.0, 0.0), (1.0, 3.0, 0.7), (2.0, 2.0, 0.0), (-900.0, 900.0, 0.1)]:
        preference, other = (preference_of_scores(*pair, temperature) for pair in [(first, second), (second, first)])
        assert preference is not None
        assert other is not None
        assert preference + other == 1


def test_bracket_separates_the_best():
    assert bracket(1) == [0]
    assert bracket(2) == [0, 1]
    assert bracket(4) == [0, 3, 1, 2]
    assert bracket(7) == [0, 7, 3, 4, 1, 6, 2, 5]


def test_places_are_shared():
    assert shared_places([[2], [0, 3], [1]]) == {2: 0, 0: 1.5, 3: 1.5, 1: 3}  # 1 and 2 are shared
    assert shared_places([[4]]) == {4: 0}


def test_a_tournament_by_hand():
    """Random seeds, scores 4 > 3 > 2 > 1: in every draw, 4 wins and one of the first losers is 1."""
    for seed in range(20):
        values = plain(Tournament(of=column_score, seeding="random", seed=seed)(scored(1, 2, 3, 4)))
        assert values[3] == 1
        # finalist 2/3; both who lost at once have 0 points and share the places of 1/3 and 0
        assert sorted(value or 0 for value in values) == pytest.approx([1 / 6, 1 / 6, 2 / 3, 1])
        assert values[0] == pytest.approx(1 / 6) or values[0] == pytest.approx(2 / 3)


def test_losers_play_on_for_their_places():
    for seed in range(20):
        reward = Tournament(of=column_score, seeding="random", placing="matches", seed=seed)
        values = plain(reward(scored(1, 2, 3, 4)))
        assert values[3] == 1
        assert values[0] == 0  # the weakest loses its first match, and the one for the third place
        assert sorted(value or 0 for value in values) == pytest.approx([0, 1 / 3, 2 / 3, 1])


@pytest.mark.parametrize("num", [2, 3, 5, 8, 13])
def test_with_seeds_that_are_right_the_places_are_those_of_the_scores(num: int):
    """A soft judge says by how much each beats the anchor, so the seeds are in the order of the scores."""
    scores = random.Random(num).sample(range(100), num)
    values = plain(Tournament(of=column_score, temperature=50.0, placing="matches")(scored(*scores)))
    better = [sum(other > score for other in scores) for score in scores]
    best_first = sorted(range(num), key=lambda i: better[i])
    assert [values[i] for i in best_first[:2]] == pytest.approx([1, 1 - 1 / (num - 1)])
    assert values[best_first[-1]] == pytest.approx(0)


@pytest.mark.parametrize("num", [2, 3, 6, 8, 16, 23])
def test_a_tournament_takes_few_comparisons(num: int):
    judge = Counting()
    samples = members(*("x" * i for i in range(num)))
    values = plain(Tournament(judge, swap=False)(samples))
    assert values[-1] == 1
    assert num - 1 <= len(judge.compared) <= 2 * (num - 1)
    assert len({frozenset(pair) for pair in judge.compared}) == len(judge.compared)


def test_a_tournament_is_a_function_of_its_seed():
    samples = [*scored(*random.Random(0).sample(range(50), 11), group=4), *scored(3, 1, 2, group=9)]

    def values(seed: int) -> list[float | None]:
        return plain(Tournament(of=column_score, seeding="random", seed=seed)(samples))

    assert values(1) == values(1)
    assert plain(Tournament(of=column_score, seeding="random", seed=1)(in_group(samples[:11], 77))) == values(1)[:11]
    assert len({tuple(values(seed)) for seed in range(5)}) > 1


def test_matches_without_an_outcome():
    alone = plain(Tournament(of=column_score)([*scored(1, group=0), *scored(1, 2, group=1)]))
    assert alone == [None, 0, 1]
    assert plain(Tournament(lambda first, second: None)(members("a", "b"))) == [None, None]
    failed = plain(Tournament(lambda first, second: math.nan)(members("a", "b")))
    assert failed == pytest.approx([math.nan, math.nan], nan_ok=True)


def test_ties_all_around_are_a_flat_group():
    values = plain(PairwiseWinRate(of=column_score)(scored(*[1] * 6)))
    assert values == [0.5] * 6
