"""CoBA-RL, arXiv:2602.03048.

The sampling budget of a step is allocated by a value of success rates that moves from easy to hard prompts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import pvariance

from mmgrpo.errors import ConfigError
from mmgrpo.maths.columns import column_of
from mmgrpo.maths.pass_rate import largest_gains, pass_rates, sized
from mmgrpo.maths.strategies import STRATEGIES, Request, Round, Setting, strategy
from mmgrpo.memory import Memory

HARD, EASY = 0.05, 0.99
"""Rates below the one or above the other leave nothing to explore."""

NEAREST, MOST_VARIANCE, STEEPNESS = 0.01, 0.1667, 10.0
FIRST_SHARE, FULL_SHARE = 0.6, 0.8
SLOWEST, FASTEST = 12.0, 3.0


def _check_by_capability(least: int, most: int, total: float) -> None:
    if not 1 <= least <= most or not total > 2:
        raise ConfigError(f"by_capability needs 1 <= least <= most and total > 2, got {least}, {most}, {total}")


@STRATEGIES.register
@strategy(memory=tuple(column_of(name) for name in ("last_rate", "visits", "last_step")), check=_check_by_capability)
def by_capability(
    rounds: Sequence[Round], setting: Setting, *, least: int = 2, most: int = 128, total: float = 11.0
) -> Sequence[Request]:
    """Allocates the step's samples by a value of pass rates that moves from easy prompts to hard ones during training.

    value(n, p) = (1 - e^(-n p (1 - p) / tau)) Beta(p; a, b), a = 1 + (``total`` - 2) g, b = ``total`` - a, where g = f
    above 1/2 and 1 / (1 + e^(-10 (f - 1/2))) up to it, f the mean share of wrong samples over the prompts of the last
    step; tau goes from 3 to 12 as the variance of the rates goes from 0 to 0.1667; p is clamped to [0.01, 0.99]. Every
    prompt gets ``least`` members; of the rest the larger part goes, one by one, to the prompt of 0.05 <= p
    <= 0.99 that gains most by one: 0.8 of it where more than half of the prompts are such, else 0.6 to 0.8. The rest
    goes by 1 - p to prompts below 0.05, then to those between, then to those above 0.99. A prompt without visits counts
    as of rate 1/2; if none was visited all groups are of one size.

    Units: members a group; total is dimensionless.   Raises: ConfigError unless 1 <= least <= most and total > 2.
    Source: CoBA-RL, arXiv:2602.03048, and its code (Within-yao/CoBA-RL, ``budget_allocators.py``, BetaAllocator).
        Deviation: f is of one step, as in the published run, not of a window.
    """
    if rounds:
        return ()
    earlier_rates, budget = pass_rates(setting), setting.group_size * setting.num_prompts
    if not earlier_rates or budget < least * setting.num_prompts:
        return setting.groups(0, setting.num_prompts)
    rates = dict.fromkeys(range(setting.num_prompts), 0.5) | earlier_rates
    alpha = beta_of(_failures(setting.memory), total)
    return sized(explored(rates, budget, least=least, most=most, alpha=alpha, beta=total - alpha))


def _failures(memory: Memory) -> float:
    """The mean share of wrong samples over the prompts of the last step."""
    keys = tuple(memory.index_of)
    last_K, rate_K = memory.read("last_step", keys), memory.read("last_rate", keys)
    return 1 - float(rate_K[last_K == last_K.max()].mean())


def beta_of(failures: float, total: float) -> float:
    """The first parameter of the Beta curve for a share of wrong samples; the second is ``total`` less it.

    Source: CoBA-RL's code, ``_update_beta_params_sample_based_sliding_window``.
    """
    bent = failures if failures > 0.5 else 1 / (1 + math.exp(-STEEPNESS * (failures - 0.5)))
    return min(max(1 + (total - 2) * bent, 1.0), total - 1)


def training_value(num: int, rate: float, *, tau: float, alpha: float, beta: float) -> float:
    """The value of ``num`` samples of a prompt: (1 - e^(-num p (1 - p) / tau)) Beta(p; alpha, beta).

    Units: dimensionless.   Source: CoBA-RL, arXiv:2602.03048, and its code, ``_compute_value``.
    """
    p = min(max(rate, NEAREST), 1 - NEAREST)
    scale = math.lgamma(alpha) + math.lgamma(beta) - math.lgamma(alpha + beta)
    density = math.exp((alpha - 1) * math.log(p) + (beta - 1) * math.log(1 - p) - scale)
    return (1 - math.exp(-num * p * (1 - p) / tau)) * density


def explored(
    rates: Mapping[int, float], budget: int, *, least: int, most: int, alpha: float, beta: float
) -> dict[int, int]:
    """Group sizes of prompts by their rates, as in ``by_capability``, with the sum ``budget``, if most allows.

    Source: CoBA-RL's code, ``allocate``.
    """
    sizes, left = dict.fromkeys(rates, least), budget - least * len(rates)
    hard = [prompt for prompt, rate in rates.items() if rate < HARD]
    easy = [prompt for prompt, rate in rates.items() if rate > EASY]
    between = [prompt for prompt, rate in rates.items() if HARD <= rate <= EASY]
    if between:
        near = [min(max(rates[prompt], NEAREST), 1 - NEAREST) for prompt in between]
        tau = FASTEST + (SLOWEST - FASTEST) * min(pvariance(near) / MOST_VARIANCE, 1.0)
        value = partial(training_value, tau=tau, alpha=alpha, beta=beta)
        first = int(left * (FIRST_SHARE + (FULL_SHARE - FIRST_SHARE) * min(2 * len(between) / len(rates), 1.0)))

        def gain(prompt: int, num: int) -> float:
            return value(num + 1, rates[prompt]) - value(num, rates[prompt])

        left += largest_gains(sizes, between, first, most=most, gain=gain) - first
    for prompts in (hard, between, easy):
        left = _by_wrong_share(sizes, rates, prompts, left, most)
    return sizes


def _by_wrong_share(
    sizes: dict[int, int], rates: Mapping[int, float], prompts: Sequence[int], left: int, most: int
) -> int:
    """Adds members in shares of 1 - p of the remaining number, then the rest evenly; returns the number that no group
    took."""
    open_ones = [prompt for prompt in prompts if sizes[prompt] < most]
    weight = {prompt: 1 - min(max(rates[prompt], 1e-6), 1 - 1e-6) for prompt in open_ones}
    for prompt in open_ones:
        more = min(int(left * weight[prompt] / sum(weight.values())), most - sizes[prompt])
        sizes[prompt], left = sizes[prompt] + more, left - more
    open_ones = [prompt for prompt in open_ones if sizes[prompt] < most]
    each, remainder = divmod(left, len(open_ones)) if open_ones else (0, 0)
    for index, prompt in enumerate(open_ones):
        more = min(each + (index < remainder), most - sizes[prompt])
        sizes[prompt], left = sizes[prompt] + more, left - more
    return left
