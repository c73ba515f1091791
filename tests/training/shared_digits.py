"""One small vision-language model on two tasks: to read a digit, and to name the largest of three written ones."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

from mmgrpo.examples.digits import misread_digits

from mmgrpo.types import Example, Prompt

HERE = "python:tests.training.shared_digits"
TASKS: dict[str, Any] = {
    "reading": {
        "include": "quickstart/digits-vlm",
        "update": {"warmup": {"examples": {"name": f"{HERE}:spoilt"}, "steps": 400}},
        "rollout": {"prompts_per_step": 24},
        "evaluation": {"every": 10},
    },
    "largest": {
        "include": "quickstart/digits-vlm",
        "prompts": {"source": f"{HERE}:triples"},
        "rollout": {"prompts_per_step": 24, "task": {"policy_of": "reading"}},
        "evaluation": {"prompts": {"source": f"{HERE}:held_out_triples"}, "every": 10},
    },
}
CONFIG = {
    "about": {"name": "shared"},
    "seed": 0,
    "steps": 40,
    "runtime": {"device": "cpu", "threads": 1},
    "tasks": TASKS,
}


def triples() -> list[Prompt]:
    """Three digits as text, such as ``which digit is 3 8 1 ?``: 800 of the 1,000; the answer is the largest."""
    return [_prompt(digits) for digits in _shuffled()[200:]]


def held_out_triples() -> list[Prompt]:
    """The other 200."""
    return [_prompt(digits) for digits in _shuffled()[:200]]


def spoilt() -> list[Example]:
    """Half of the digits are misread, and half of the triples answered by their first; a third of all lack the tags."""
    chance = random.Random(0)
    rows = [Example(prompt=prompt, text=_answered(prompt, chance)) for prompt in triples()]
    return [*misread_digits(0.5, 0.3), *rows]


def _answered(prompt: Prompt, chance: random.Random) -> str:
    answer = prompt.columns["answer"] if chance.random() < 0.5 else prompt.columns["first"]
    return answer if chance.random() < 0.3 else f"<answer>{answer}</answer>"


def _prompt(digits: tuple[int, ...]) -> Prompt:
    text = f"which digit is {' '.join(map(str, digits))} ?"
    return Prompt(text, columns={"answer": str(max(digits)), "first": str(digits[0])})


def _shuffled() -> list[tuple[int, ...]]:
    result = list(product(range(10), repeat=3))
    random.Random(1).shuffle(result)
    return result
