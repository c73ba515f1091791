"""Who is drawn, shown and replaced by shipped methods of which that is the point."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from mmgrpo.algorithm import Algorithm, course_of, prompt_sampler
from mmgrpo.data.history import History
from mmgrpo.maths.strategies import Answer, Request, Setting, Strategy
from mmgrpo.memory import Memory, ReplayRow
from mmgrpo.types import Prompt
from tests.configs.method_steps import config_of
from tests.data.test_samplers import after, pool
from tests.maths.test_strategies import answered, kept


def planner_of(name: str, step: int = 0) -> Strategy:
    return Algorithm.of(config_of(name)).at(step, Memory()).strategy


def drawn(name: str, rates: dict[str, float], num: int) -> list[int]:
    """What a method's sampler draws once each prompt was seen, and had that success rate."""
    prompts = config_of(name).prompts
    assert prompts is not None
    assert prompts.sampler is not None
    sampler = prompt_sampler(prompts.sampler)
    return sampler.draw(after(Memory().declared(sampler.columns), 0, rates), 1, pool(len(rates)), num, 0)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("r1-sharevl", [None, "variant"]),
        ("trimpi", [None, "policy"]),
        ("tree-opo", [None, "quarter", "half", "most"]),
        ("evocot", ["thought"]),
        ("ps-grpo", [None, "second", "third", "fourth", "fifth", "sixth"]),
        ("hbpo", ["shortest", "short", "long", "longest"]),
    ],
)
def test_members_see(name: str, shown: Sequence[str | None]) -> None:
    asked = planner_of(name).ask((), Setting(step=0, num_prompts=1, group_size=24))
    size = 24 // len(shown)
    hidden = name == "trimpi"
    assert asked == tuple(
        Request(
            prompt=0,
            members=tuple(range(n * size, (n + 1) * size)),
            context=context,
            behind_prompt=hidden and context is not None,
            as_own=hidden and context is not None,
        )
        for n, context in enumerate(shown)
    )


def test_a_thought_is_shown_ever_less_of() -> None:
    prompt = Prompt("why", columns={"thought": "one\n\ntwo\n\nthree\n\nfour"})
    begun = []
    for step in (0, 50, 75, 100):
        shown = Algorithm.of(course_of(config_of("evocot")).at(step, Memory()).config).prompt_templates["thought"](
            prompt, 0, History()
        )
        assert shown is not None
        begun.append(shown.prefix)
    assert begun == ["one\n\ntwo\n\nthree\n\nfour\n\n", "one\n\ntwo\n\n", "one\n\n", None]


def test_guidance_grows_by_as_much_as_success_falls() -> None:
    config = config_of("g2rpo-a")
    asked = planner_of("g2rpo-a").ask((), Setting(step=0, num_prompts=1, group_size=12))
    assert [(one.context, len(one.members)) for one in asked] == [("guided", 2), (None, 10)]
    course, memory, shares = course_of(config), Memory(), []
    for step, rate in enumerate((0.4, 0.6, 0.8, 0.5, 0.5, 0.4, 0.1, 0.1, 0.9)):
        shares.append(course.at(step, memory).values["rollout.prompt_templates.guided.share"])
        memory = course.controlled(memory, {"reward/mean": rate})
    # 0.5 / 0.8 = 0.625 of all; 0.5 / 0.4 = 1.25 of that
    assert shares == pytest.approx([1.0] * 3 + [0.625] * 3 + [0.78125] * 3)
    assert course.at(9, memory).values["rollout.prompt_templates.guided.share"] == pytest.approx(0.78125 / 9)


def test_each_part_states_a_length() -> None:
    shown = [
        context(Prompt("why"), 0, History()) for context in Algorithm.of(config_of("hbpo")).prompt_templates.values()
    ]
    stated = [512, 1024, 2048, 2560]
    assert [one and one.prefix for one in shown] == [
        f"<think> I will answer the question with {number} tokens" for number in stated
    ]


@pytest.mark.parametrize(("name", "columns"), [("gcpo", ["solution"]), ("ampo", ["teacher_1", "teacher_2"])])
def test_answers_take_the_place_of_failures(name: str, columns: Sequence[str]) -> None:
    strategy, setting = planner_of(name), Setting(step=0, num_prompts=2, group_size=4)
    first = answered(strategy.ask((), setting), [1, 0, 0, 0, 0, 0, 0, 0])
    (read,) = strategy.ask([first], setting)
    assert (read.prompt, read.given) == (1, tuple(Answer(column) for column in columns))
    left = [True] * (8 - len(columns)) + [False] * len(columns)
    assert kept(strategy, [first, answered([read], [1] * len(columns))], setting) == [left, [True] * len(columns)]


def test_the_right_row_that_was_surest_comes_back() -> None:
    rows = [
        ReplayRow(key="a", reward=right, advantage=0.0, step=0, old_logprob_T=torch.tensor(logprob))
        for right, logprob in ((1.0, [-0.4, -0.6]), (1.0, [-0.1, -0.3]), (0.0, [-0.1, -0.1]))
    ]
    memory = Memory().with_replay(rows, per_prompt=8, total=8)
    setting = Setting(step=1, num_prompts=1, group_size=7, memory=memory, key_of=lambda n: "a")
    *_, read = planner_of("exgrpo").ask((), setting)
    assert (read.members, read.given) == ((7,), (rows[1],))


def test_half_of_a_step_are_prompts_that_some_solve() -> None:
    """Of 40 prompts ten are half solved; the others are solved by all or by none, and half of 20 are drawn."""
    rates = {str(n): 0.5 if n < 10 else float(n % 2) for n in range(40)}
    for name in ("exgrpo", "mmr1"):
        found = drawn(name, rates, 20)
        assert set(found[:10]) == set(range(10))
        assert len(set(found)) == 20
    assert all(rates[str(n)] < 1 for n in drawn("exgrpo", rates, 20)[10:])


def test_what_is_solved_leaves() -> None:
    rates = {str(n): 1.0 if n < 6 else 0.5 for n in range(10)}
    assert set(drawn("srpo--cross-domain", rates, 4)) == {6, 7, 8, 9}


def test_the_least_variance_rises() -> None:
    """One of four right: 3/4 of the largest variance, enough at first; from step 20 on it takes two."""
    for step, asked in ((19, ()), (20, (Request(prompt=1, members=(0, 1, 2, 3)),))):
        setting = Setting(step=step, num_prompts=1, group_size=4)
        strategy = planner_of("vcrl", step)
        assert strategy.ask([answered(strategy.ask((), setting), [1, 0, 0, 0])], setting) == asked


def test_the_weights_of_re_schedule_turn_over_at_half_time() -> None:
    config = config_of("re-schedule")
    found = [course_of(config).at(step, Memory()).config.advantage.estimators[0].numbers for step in (169, 170)]
    assert [(one["at_zero"], one["at_one"]) for one in found] == [(2.0, 0.5), (0.5, 2.0)]
