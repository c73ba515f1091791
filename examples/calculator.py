"""Products of two numbers with a calculator tool: a model too small to multiply learns to call a function.

In the warm-up most products are answered directly, some by a tool call whose result is repeated. GRPO then only rewards
whether the last turn is correct.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random

from mmgrpo.examples.language_models import CALL_PIECES, END

from mmgrpo.errors import DataError
from mmgrpo.types import Example, Prompt, Sample

LOW, HIGH = 10, 100  # factors, the upper end excluded
SPLIT_SEED = 0


def multiply(a: int, b: int) -> int:
    """Multiplies two numbers.

    Args:
        a: a number.
        b: another.

    Returns:
        Their product.
    """
    return a * b


def products() -> list[Prompt]:
    """80 % of the 8,100 products, such as ``34*58=``, with the result as text in the column ``answer``."""
    return [_prompt(*factors) for factors in _pairs()[0]]


def held_out_products() -> list[Prompt]:
    """500 of the others, not used in warm-up and rollouts."""
    return [_prompt(*factors) for factors in _pairs()[1][:500]]


def examples(called: float = 0.25, seed: int = 0) -> list[Example]:
    """Demonstrations: the fraction ``called`` of the products by a call and its result, the others directly.

    A call gives two examples: the call, and the answer after the call and the tool's result.

    Raises: DataError if the share is outside [0, 1].
    """
    if not 0 <= called <= 1:
        raise DataError(f"the share of called products must be in [0, 1], got {called}")
    pairs = _pairs()[0]
    by_call = set(Random(seed).sample(range(len(pairs)), round(called * len(pairs))))
    demonstrations = []
    for i, (a, b) in enumerate(pairs):
        prompt, result = _prompt(a, b), str(a * b)
        if i not in by_call:
            demonstrations.append(Example(prompt, result))
            continue
        demonstrations.append(Example(prompt, _call(a, b)))
        demonstrations.append(Example(Prompt(f"{prompt.text}{_call(a, b)}{END}{result}"), result))
    return demonstrations


def right(samples: Sequence[Sample]) -> list[float | None]:
    """Reward: whether the last turn is exactly the product; None for a row without the answer."""
    answers = [sample.prompt.columns.get("answer") for sample in samples]
    return [
        None if answer is None else float(list(sample.turn_texts[-1:]) == [answer])
        for sample, answer in zip(samples, answers, strict=True)
    ]


def called(samples: Sequence[Sample]) -> list[float]:
    """Reward for monitoring: whether the tool was called."""
    return [float(any(CALL_PIECES[0] in turn for turn in sample.turn_texts)) for sample in samples]


def _call(a: int, b: int) -> str:
    before, between, after = CALL_PIECES
    return f"{before}{a}{between}{b}{after}"


@lru_cache(maxsize=1)
def _pairs() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The training and held-out pairs of factors, 80 to 20, in a fixed random order."""
    pairs = [(a, b) for a in range(LOW, HIGH) for b in range(LOW, HIGH)]
    Random(SPLIT_SEED).shuffle(pairs)
    cut = len(pairs) * 4 // 5
    return pairs[:cut], pairs[cut:]


def _prompt(a: int, b: int) -> Prompt:
    return Prompt(f"{a}*{b}=", columns={"answer": str(a * b)})
