"""Numbers of the methods whose rows begin as something that is given, or are drawn beside others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from mmgrpo.policies.sampling import semantic_entropy

from mmgrpo.algorithm import Algorithm, course_of, strategy_of
from mmgrpo.data.contexts import solution_prefix
from mmgrpo.data.history import History
from mmgrpo.errors import ConfigError
from mmgrpo.maths.columns import column_of
from mmgrpo.maths.strategies import Branch, Setting
from mmgrpo.maths.strategies.branch_points import Row, height, meanings_part
from mmgrpo.memory import Memory
from mmgrpo.methods.credit.rose import branch_one_by_one, shorter_branches
from mmgrpo.methods.strategies.aepo import with_tempered
from mmgrpo.methods.strategies.seele import Curve, adaptive_hints, fitted
from mmgrpo.training.prompt_stats import PromptStats, update_prompt_stats
from mmgrpo.types import Prompt
from tests.configs.method_steps import config_of
from tests.maths.test_strategies import answered

FOUR = Setting(step=0, num_prompts=4, group_size=2)


@pytest.mark.parametrize(
    ("temperature", "most", "rewards", "room", "placed"),
    [
        (1.2, 60, [1, 0], 1, [1, 0]),  # (1 - 1/2) / 0.71 > 0.05 for the right one alone
        (1.2, 60, [1, 1], 0, [0, 0]),  # nobody beats a group that is right
        (0.8, 60, [0, 1], 0, [0, 0]),  # half of one, rounded down, as the code's // 2
    ],
)
def test_positives_take_the_places_of_the_first_rows(
    temperature: float, most: int, rewards: list[int], room: int, placed: list[int]
) -> None:
    """_select_by_advantage and the entropy_batch of AEPO's ray_trainer.py: positives first, then batch[sample_num:]."""
    strategy = with_tempered(temperature=temperature, most=most)
    first = answered(strategy.ask((), FOUR), [0] * 8)
    (again,) = strategy.ask([first], FOUR)  # the first quarter of four prompts
    assert (again.prompt, again.members, again.settings) == (0, (2, 3), {"temperature": temperature})
    assert (again.behind_prompt, again.as_own) == (True, True)
    rounds = [first, answered([again], rewards)]
    assert strategy.ask(rounds, FOUR) == ()
    kept = [keep_B.int().tolist() for keep_B in strategy.kept(rounds, FOUR)]
    assert kept == [[0] * room + [1] * (8 - room), placed]


def test_few_positives_and_all_prompts() -> None:
    strategy = with_tempered(share=1.0, most=2, temperature=1.2)
    first = answered(strategy.ask((), FOUR), [0] * 8)
    second = answered(strategy.ask([first], FOUR), [0, 1] * 4)
    assert [keep_B.int().tolist() for keep_B in strategy.kept([first, second], FOUR)] == [
        [0, 0, 1, 1, 1, 1, 1, 1],
        [0, 1, 0, 1, 0, 0, 0, 0],
    ]
    cold = with_tempered(share=1.0, most=4, temperature=0.8)
    assert [int(keep_B.sum()) for keep_B in cold.kept([first, second], FOUR)] == [6, 2]
    with pytest.raises(ConfigError, match="with_tempered needs"):
        with_tempered(share=0.0)


def test_the_temperature_follows_the_entropy() -> None:
    """AEPO's entropy_base of 0.5: 1.2 up to it, at the first step too, and 0.8 above."""
    config, memory = config_of("aepo"), Memory()
    course, found = course_of(config), []
    for logprob in (-0.6, -0.5, -0.4):
        memory = course.controlled(memory, {"rollout/logprob_mean": logprob})
        found.append(course.at(1, memory).values["rollout.strategy.temperature"])
    assert found == [0.8, 1.2, 1.2]
    strategy = strategy_of(course.at(0, Memory()).config.rollout)
    requests = strategy.ask([answered(strategy.ask((), FOUR), [0] * 8)], FOUR)
    assert requests[0].settings == {"temperature": 1.2}
    three = replace(FOUR, num_prompts=3)  # of which a quarter is less than one
    assert [one.prompt for one in strategy.ask([answered(strategy.ask((), three), [0] * 6)], three)] == [0]


def test_what_means_the_same_is_no_place_to_part() -> None:
    """ROSE's -cosine_weighted_entropy * standard_entropy: two tokens of 1/2, H = log 2, 2 p_0 p_1 cos = cos / 2."""
    even_MV = torch.zeros(1, 2)
    for other, alike in (([2.0, 0.0], 1.0), ([0.0, 3.0], 0.0), ([-1.0, 0.0], -1.0)):
        found_M = semantic_entropy(even_MV, torch.tensor([[1.0, 0.0], other]))
        assert found_M.item() == pytest.approx(-alike / 2 * 0.6931472, abs=1e-6)
    # of three tokens the two likeliest alone: p = 0.5, 0.3, H = 0.3465736 + 0.3611918, -0.3 H of vectors alike
    three_MV, same_VD = torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.ones(3, 2)
    assert semantic_entropy(three_MV, same_VD, num=2).item() == pytest.approx(-0.3 * 0.7077654, abs=1e-6)


def test_the_highest_place_of_all_rows_is_gone_on_from() -> None:
    row = Row(num_decisions=4, value_T=torch.tensor([9.0, -2.0, -0.5, -1.0]))
    places = meanings_part()(row)
    assert (places, height(row, places), height(row, [])) == ([2, 3, 1], -0.5, float("-inf"))
    three = replace(FOUR, num_prompts=1, group_size=3)
    strategy, rounds = branch_one_by_one(from_root=0.0), []
    for found, high in (((2, 1), -0.5), ((3,), -0.5)):
        (request,) = strategy.ask(rounds, three)
        assert request.members == (len(rounds),)
        rounds.append(replace(answered([request], [0]), places_B=[found], heights_B=[high]))
    (last,) = strategy.ask(rounds, three)  # of equal ones the first row's
    assert (rounds[1].requests[0].continues, last.continues) == (Branch(0, 2), Branch(0, 2))
    higher = replace(rounds[1], heights_B=[-0.4])
    assert strategy.ask([rounds[0], higher], three)[0].continues == Branch(1, 3)
    assert branch_one_by_one(from_root=1.0).ask(rounds, three)[0].continues is None
    assert strategy.ask([replace(rounds[0], places_B=[()])], three)[0].continues is None
    assert strategy.ask([*rounds, rounds[1]], three) == ()
    with pytest.raises(ConfigError, match="with a probability"):
        branch_one_by_one(from_root=2.0)
    with pytest.raises(ConfigError, match="a power above 0"):
        shorter_branches(power=0.0)


def test_half_are_right_where_the_curve_says() -> None:
    """Of SEELE's figure 3: k = 19.03, mu = -0.64 and b = 0.45, whose f(p) = 1/2 has 1 + e^(-k (p + mu)) = 11."""
    curve = Curve(19.03, 0.64, 0.45)
    assert curve.share_for(0.5) == pytest.approx(0.64 - 2.302585 / 19.03)
    assert curve(curve.share_for(0.5)) == pytest.approx(0.5)
    assert (curve.share_for(0.4), Curve(1.0, 0.9, 0.0).share_for(0.9)) == (0.0, 1.0)  # easier, and harder, than asked


def test_the_curve_goes_through_the_rounds_so_far() -> None:
    known = Curve(10.0, 0.4, 0.1)
    found = fitted([(share, known(share)) for share in (0.0, 0.3, 0.5, 1.0)])
    assert (found.slope, found.middle, found.floor) == pytest.approx((10.0, 0.4, 0.1))
    # of one share the mean counts
    twice = fitted([(0.3, known(0.3) - 0.1), (0.3, known(0.3) + 0.1), *[(p, known(p)) for p in (0.0, 0.5, 1.0)]])
    assert (twice.slope, twice.middle) == pytest.approx((10.0, 0.4))
    # with (0, 0) and (1, 1): half are right at the half where half were
    assert fitted([(0.5, 0.5)]).share_for(0.5) == pytest.approx(0.5, abs=1e-6)


def test_each_round_shows_what_makes_half_of_it_right() -> None:
    strategy = Algorithm.of(config_of("seele")).strategy
    memory = Memory().declared([column_of("share")]).write("share", ["1"], torch.tensor([0.25], dtype=torch.float64))
    setting = replace(FOUR, num_prompts=2, group_size=8, memory=memory)
    rounds, shares = [], []
    for rewards in ([1, 1, 0, 1], [0, 0, 1, 0], [1, 0, 1, 0], [1, 0, 0, 1]):
        requests = strategy.ask(rounds, setting)
        assert [request.members for request in requests] == [(2 * len(rounds), 2 * len(rounds) + 1)] * 2
        assert {request.context for request in requests} == {"begun"}
        shares.append([request.share for request in requests])
        rounds.append(answered(requests, rewards))
    assert strategy.ask(rounds, setting) == ()
    assert shares[0] == [0.99, 0.25]  # never seen, and where it ended
    assert shares[1] == [fitted([(0.99, 1.0)]).share_for(0.5), fitted([(0.25, 0.5)]).share_for(0.5)]
    second = [(0.99, 1.0), (shares[1][0], 0.0)], [(0.25, 0.5), (shares[1][1], 0.5)]
    assert shares[2] == [fitted(points).share_for(0.5) for points in second]
    with pytest.raises(ConfigError, match="equal rounds"):
        strategy.ask((), replace(setting, group_size=6))
    with pytest.raises(ConfigError, match="adaptive_hints needs"):
        adaptive_hints(context="begun", target=1.0)


def test_the_last_share_is_remembered() -> None:
    facts = PromptStats(keys=["a"], reward_B=torch.ones(1), valid_B=torch.ones(1).bool(), step=0, shares={"a": 0.5})
    memory = update_prompt_stats(Memory().declared([column_of("share")]), facts)
    assert memory.read("share", ["a", "b"]).tolist() == [0.5, -1.0]
    assert update_prompt_stats(Memory(), facts) == Memory()


def test_a_context_shows_as_much_as_the_planner_says() -> None:
    prompt, show = Prompt("why", columns={"solution": "a b c d"}), solution_prefix()
    shown = show(prompt, 0, History(share=0.5))
    assert shown is not None
    assert shown.prefix == "a b "
    with pytest.raises(ConfigError, match="needs a share"):
        show(prompt, 0, History())
