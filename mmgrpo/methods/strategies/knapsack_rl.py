"""Knapsack RL, arXiv:2509.25849.

The sampling budget of a step is allocated to prompts as a knapsack problem over their learning values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mmgrpo.errors import ConfigError
from mmgrpo.maths.columns import column_of
from mmgrpo.maths.pass_rate import largest_gains, pass_rates, sized
from mmgrpo.maths.strategies import STRATEGIES, Request, Round, Setting, strategy


def _check_by_learning_value(least: int, most: int, confidence: float) -> None:
    if not 1 <= least <= most or not 0 < confidence < 1:
        raise ConfigError(
            f"by_learning_value needs 1 <= least <= most and a confidence within 0 and 1, got {least}, {most}, "
            f"{confidence}"
        )


@STRATEGIES.register
@strategy(memory=(column_of("last_rate"), column_of("visits")), check=_check_by_learning_value)
def by_learning_value(
    rounds: Sequence[Round], setting: Setting, *, least: int = 2, most: int = 128, confidence: float = 0.9
) -> Sequence[Request]:
    """Allocates the step's samples by their value: group sizes of the largest total value, of the same sum.

    value(n, p) = (1 - p^n - (1 - p)^n) p (1 - p)^2: the probability that n samples are not all alike, times the gain of
    a prompt of rate p. p is the rate at the prompt's last visit; a prompt without visits gets the group size, every
    other ``least`` to ``most`` members. The value's gains fall with n, so taking the largest gain each time is exact.
    Where the prompts of 0 < p < 1 need fewer samples than there are, ln(1 - confidence) / ln max(p, 1 - p) each, those
    left go to prompts of rate 0, or else to those of rate 1, evenly.

    Units: members a group; confidence is dimensionless.   Raises: ConfigError unless 1 <= least <= most and
        0 < confidence < 1.
    Source: Knapsack RL, arXiv:2509.25849, and the solver that goes with it (``sampling_budget_by_knapsack``).
        Deviation: there, the value of the least members counts only for prompts that get more than those.
    """
    if rounds:
        return ()
    rates = pass_rates(setting)
    sizes = dict.fromkeys(range(setting.num_prompts), setting.group_size)
    sizes |= shared_out(rates, setting.group_size * len(rates), least=least, most=most, confidence=confidence)
    return sized(sizes)


def shared_out(
    rates: Mapping[int, float], total: int, *, least: int, most: int, confidence: float = 0.9
) -> dict[int, int]:
    """Group sizes of prompts by their rates, as in ``by_learning_value``, with the sum ``total``, if that is enough.

    Source: Knapsack RL, arXiv:2509.25849.
    """
    sizes = dict.fromkeys(rates, least)
    left = max(total - least * len(rates), 0)
    mixed = [prompt for prompt, rate in rates.items() if 0 < rate < 1]
    alike = [prompt for prompt, rate in rates.items() if rate <= 0] or [p for p, rate in rates.items() if rate >= 1]
    needed = sum(int(min(most, _samples_needed(rates[prompt], confidence))) for prompt in mixed)
    spare = max(left - needed, 0) if alike else 0
    for index in range(spare):
        sizes[alike[index % len(alike)]] += 1
    largest_gains(sizes, mixed, left - spare, most=most, gain=lambda prompt, num: _gain(num, rates[prompt]))
    return sizes


def learning_value(num: int, rate: float) -> float:
    """The value of ``num`` samples of a prompt: the probability that they are not all alike, times the gain of its
    rate.

    (1 - p^n - (1 - p)^n) p (1 - p)^2

    Units: dimensionless.   Source: Knapsack RL, arXiv:2509.25849.
    """
    return (1 - rate**num - (1 - rate) ** num) * rate * (1 - rate) ** 2


def _gain(num: int, rate: float) -> float:
    return learning_value(num + 1, rate) - learning_value(num, rate)


def _samples_needed(rate: float, confidence: float) -> float:
    return math.log(1 - confidence) / math.log(max(rate, 1 - rate))
