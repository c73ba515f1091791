"""SEELE, arXiv:2509.06923.

The share of an answer in the prompt is fitted round by round so that a target share of samples is right. The policy is
also supervised by the prefixes that the samples began with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from mmgrpo.errors import ConfigError
from mmgrpo.maths.answer_sources import ANSWER_SOURCES, AnswerSource
from mmgrpo.maths.columns import column_of
from mmgrpo.maths.strategies import STRATEGIES, Request, Round, Setting, strategy
from mmgrpo.system.lazy import torch

STEEPEST = 50.0
"""The highest slope of a curve that is fitted."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The pass rate of a prompt's members as a function of the share p of an answer in their prompt.

    f(p) = floor + (1 - floor) / (1 + e^(-slope (p - middle)))
    """

    slope: float
    middle: float
    floor: float

    def __call__(self, share: float) -> float:
        """f(p)."""
        return self.floor + (1 - self.floor) / (1 + math.exp(-self.slope * (share - self.middle)))

    def share_for(self, rate: float) -> float:
        """The share from 0 to 1 with a rate nearest to one below 1."""
        if rate <= self.floor:
            return 0.0
        odds = (1 - self.floor) / (rate - self.floor) - 1
        return min(max(self.middle - math.log(odds) / self.slope, 0.0), 1.0)


def fitted(points: Sequence[tuple[float, float]]) -> Curve:
    """The curve of the least squares through points (share, rate).

    Rates of one share count as their mean, and (0, 0) and (1, 1) are among the points unless there are others there.
    Slopes are tried from 0.5 to 50 in steps of 0.5, middles from 0 to 1 in steps of 0.01; the floor is the best for
    each pair. Of equally good curves the flattest, and of these the one that is right with the least.

    Units: dimensionless.
    Source: SEELE, arXiv:2509.06923, eq. 12 and 13 and algorithm 1, with mu = -middle. Deviation: a grid in place of the
        TRF algorithm of LMFIT, with unpublished bounds; figure 3 has slopes up to 50.
    """
    return _fitted(tuple(points))


@lru_cache(maxsize=4096)  # many prompts of a step have the same few points
def _fitted(points: tuple[tuple[float, float], ...]) -> Curve:
    rates: dict[float, list[float]] = {}
    for share, rate in points:
        rates.setdefault(share, []).append(rate)
    for margin in (0.0, 1.0):
        rates.setdefault(margin, [margin])
    share_N = torch.tensor(list(rates), dtype=torch.float64)
    rate_N = torch.tensor(
        [sum(prompt_rates) / len(prompt_rates) for prompt_rates in rates.values()], dtype=torch.float64
    )
    slope_K = torch.arange(1, 2 * STEEPEST + 1, dtype=torch.float64) / 2
    middle_M = torch.arange(101, dtype=torch.float64) / 100
    rise_KMN = torch.sigmoid(slope_K[:, None, None] * (share_N - middle_M[:, None]))
    left_KMN = 1 - rise_KMN
    # f = rise + floor (1 - rise) is linear in the floor
    floor_KM = ((left_KMN * (rate_N - rise_KMN)).sum(-1) / left_KMN.square().sum(-1)).clamp(0, 1)
    error_KM = (rise_KMN + floor_KM[..., None] * left_KMN - rate_N).square().sum(-1)
    k, m = divmod(int(error_KM.argmin()), len(middle_M))
    return Curve(float(slope_K[k]), float(middle_M[m]), float(floor_KM[k, m]))


def _check_adaptive_hints(rounds: int, target: float, first: float) -> None:
    if rounds < 1 or not 0 < target < 1 or not 0 <= first <= 1:
        raise ConfigError(
            f"adaptive_hints needs rounds >= 1, a target between 0 and 1 and a first share, got {rounds}, {target}, "
            f"{first}"
        )


@STRATEGIES.register
@strategy(looks_back=True, memory=(column_of("share"),), check=_check_adaptive_hints)
def adaptive_hints(
    earlier: Sequence[Round],
    setting: Setting,
    *,
    prompt_template: str,
    rounds: int = 4,
    target: float = 0.5,
    first: float = 0.99,
) -> Sequence[Request]:
    """A group is sampled in equal rounds, each with the share of an answer in its prompt that makes the ``target`` of
    its members right.

    In the first round that is the share that the prompt ended with the last time, or ``first``; in each that follows,
    the one at which the curve through the rounds so far has the target. The ``prompt_template`` inserts the requested
    share, as ``solution_prefix`` does without a share.

    Units: shares and target are dimensionless, rewards are 0 or 1.
    Raises: ConfigError for numbers that request nothing, and groups that do not split into equal rounds.
    Source: SEELE, arXiv:2509.06923, sec. 4.2 and 4.3. Deviation: ``first``; there all but one of the answer's tokens.
    """
    size, remainder = divmod(setting.group_size, rounds)
    if remainder:
        raise ConfigError(f"{setting.group_size} members do not come in {rounds} equal rounds: change group_size")
    if len(earlier) == rounds:
        return ()
    prompts = range(setting.num_prompts)
    if earlier:
        shares = [fitted([_point(round_, prompt) for round_ in earlier]).share_for(target) for prompt in prompts]
    else:
        last_P = setting.memory.read("share", [setting.key_of(prompt) for prompt in prompts])
        shares = [share if share >= 0 else first for share in last_P.tolist()]
    members = tuple(range(len(earlier) * size, (len(earlier) + 1) * size))
    return [
        Request(prompt=prompt, members=members, prompt_template=prompt_template, share=share)
        for prompt, share in zip(prompts, shares, strict=True)
    ]


def _point(round_: Round, prompt: int) -> tuple[float, float]:
    """The share of a prompt's answer in a round, and the pass rate of its members; empty without rewards."""
    share = next(request.share for request in round_.requests if request.prompt == prompt)
    assert share is not None
    rewards = round_.rewards_of(prompt)
    return share, float(rewards.mean()) if len(rewards) else 0.0


@ANSWER_SOURCES.register
def prefixes() -> AnswerSource:
    """The forced prefix of each row that has one, as of the template ``solution_prefix``, without an end token.

    Source: SEELE, arXiv:2509.06923.
    """
    return AnswerSource()
