"""G2RPO-A: numbers worked out by hand."""

from __future__ import annotations

import pytest

from mmgrpo.algorithm import schedules_of
from mmgrpo.maths.strategies import Setting
from mmgrpo.memory import Memory
from tests.configs.method_rounds import strategy_of
from tests.configs.method_rows import A_TWO, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit, config_of

PAIR = Step(reward=ONE_OF_TWO, lengths=[1, 1])
CREDIT = (PAIR, [[A_TWO], [-A_TWO]])


def test_advantages_of_the_method() -> None:
    assert_credit("g2rpo-a", *CREDIT)


def test_guidance_grows_by_as_much_as_success_falls() -> None:
    config = config_of("g2rpo-a")
    requests = strategy_of("g2rpo-a").ask((), Setting(step=0, num_prompts=1, group_size=12))
    assert [(request.prompt_template, len(request.members)) for request in requests] == [("guided", 2), (None, 10)]
    schedules, memory, shares = schedules_of(config), Memory(), []
    for step, rate in enumerate((0.4, 0.6, 0.8, 0.5, 0.5, 0.4, 0.1, 0.1, 0.9)):
        shares.append(schedules.at(step, memory).values["rollout.prompt_templates.guided.share"])
        memory = schedules.updated(memory, {"reward/mean": rate})
    # 0.5 / 0.8 = 0.625 of all; 0.5 / 0.4 = 1.25 of that
    assert shares == pytest.approx([1.0] * 3 + [0.625] * 3 + [0.78125] * 3)
    assert schedules.at(9, memory).values["rollout.prompt_templates.guided.share"] == pytest.approx(0.78125 / 9)
