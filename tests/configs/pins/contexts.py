"""Methods whose groups see several prompts or given answers, and those that choose prompts by what they earned."""

from __future__ import annotations

from tests.configs.method_steps import Step
from tests.configs.pins.rows import ONE_OF_TWO

PAIR = Step(reward=ONE_OF_TWO, lengths=[1, 1])
GIVEN = (0, 0, 2)


ELSEWHERE = {"vcrl"}
