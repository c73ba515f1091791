"""Competence-based curriculum: numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from mmgrpo.algorithm import prompt_sampler
from mmgrpo.data.samplers import Pool
from mmgrpo.errors import ConfigError
from mmgrpo.memory import Memory
from mmgrpo.methods.memory.competence_curriculum import curriculum
from mmgrpo.types import Prompt
from tests.configs.method_rows import A_TWO, ONE_OF_TWO, UP
from tests.configs.method_steps import Step, assert_loss, config_of

LOSS = (Step(reward=ONE_OF_TWO, log_ratio=((UP,), (0.0,))), A_TWO * (1 - 1.2) / 2)


def test_loss_of_the_method() -> None:
    assert_loss("competence-curriculum", *LOSS)


def test_the_curriculum_opens() -> None:
    """Of 200 prompts 2 are open at first, round(200 (0.01 + 0.99 / 2)) = 101 halfway."""
    config = config_of("competence-curriculum")
    assert config.prompts is not None
    assert config.prompts.sampler is not None
    sampler = prompt_sampler(config.prompts.sampler)
    prompts = [Prompt(str(n), columns={"difficulty": 200 - n}) for n in range(200)]
    pool = Pool(tuple(prompt.text for prompt in prompts), prompts)
    memory = Memory().declared(sampler.columns)
    assert set(sampler.draw(memory, 0, pool, 2, 0)) == {198, 199}
    assert set(sampler.draw(memory, 50, pool, 101, 0)) == set(range(99, 200))
    # fewer than are open come from all of them, and not from the easiest alone
    indices = set(sampler.draw(memory, 50, pool, 50, 0))
    assert indices <= set(range(99, 200))
    assert not indices <= set(range(150, 200))


@pytest.mark.parametrize("numbers", [{"steps": 0}, {"steps": 1, "start": 0.0}, {"steps": 1, "start": 1.5}])
def test_a_curriculum_that_opens_nothing_raises(numbers: dict[str, Any]) -> None:
    curriculum(by="difficulty", steps=1, start=1.0)
    with pytest.raises(ConfigError, match="curriculum needs"):
        curriculum(by="difficulty", **numbers)
