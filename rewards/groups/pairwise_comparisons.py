"""Pairwise preferences between samples, by a pairwise judge or by the scores of another reward."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import final

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Score

from ..parsing.inner_rewards import inner_scores, is_score

logger = logging.getLogger(__name__)

Judge = Callable[[Sample, Sample], float | None]
"""Returns the probability that the first sample is better; None if undecided."""

Pair = tuple[int, int]
Meeting = tuple[int, float | None]
"""The row of the opponent, and the probability that this sample is better; None or NaN if undecided."""

MAX_MATCHES = 30  # in an explanation

Decide = Callable[[Sequence[Pair]], list[float | None]]
"""Maps pairs of rows to the probabilities that the first is better; None or NaN if undecided."""


@final
class PairDecider:
    """Decides pairs of samples."""

    def __init__(self, judge: Judge | None, of: Reward | None, swap: bool, temperature: float, workers: int) -> None:
        """Takes either a judge or a reward.

        Args:
            judge: pairwise judge.
            of: reward whose higher score is better.
            swap: call the judge in both orders and average the probabilities.
            temperature: temperature of the logistic function of score differences; 0 is a step function.
            workers: number of threads that call the judge.

        Raises:
            ConfigError: not exactly one of judge and reward is set, or a number is invalid.
        """
        if (judge is None) == (of is None):
            raise ConfigError("set either judge or of (another reward) to decide pairs, not both")
        if not (temperature >= 0 and math.isfinite(temperature)) or workers < 1:
            raise ConfigError(f"temperature must be >= 0 and workers >= 1, got {temperature} and {workers}")
        self._judge = judge
        self._of = of
        self._swap = swap
        self._temperature = temperature
        self._workers = workers

    def between(self, samples: Sequence[Sample]) -> Decide:
        """Returns the decision function for pairs of rows; a reward is called once, here."""
        scores = [] if self._of is None else inner_scores(self._of, samples).values

        def preference(pair: Pair) -> float | None:
            first, second = pair
            if self._judge is None:
                return preference_of_scores(scores[first], scores[second], self._temperature)
            forward = _judge_probability(self._judge, samples[first], samples[second])
            if not self._swap or not is_score(forward):
                return forward
            return both_orders(forward, _judge_probability(self._judge, samples[second], samples[first]))

        def decide(pairs: Sequence[Pair]) -> list[float | None]:
            if self._workers == 1 or len(pairs) < 2:
                probabilities = [preference(pair) for pair in pairs]
            else:
                with ThreadPoolExecutor(min(self._workers, len(pairs))) as threads:
                    probabilities = list(threads.map(preference, pairs))
            failed = sum(value is not None and math.isnan(value) for value in probabilities)
            if failed:
                logger.warning("the judge failed on %d of %d pairs; they are excluded", failed, len(pairs))
            return probabilities

        return decide


def preference_of_scores(first: float | None, second: float | None, temperature: float) -> float | None:
    """Probability that the first is better: logistic((first - second) / temperature), or 0, 1/2, 1 at temperature 0.

    None if either is None, otherwise NaN if either is not finite.
    """
    if first is None or second is None:
        return None
    if not (math.isfinite(first) and math.isfinite(second)):
        return math.nan
    if temperature == 0:
        return 0.5 if first == second else float(first > second)
    return 0.5 * (1 + math.tanh((first - second) / (2 * temperature)))


def both_orders(forwards: float | None, backwards: float | None) -> float | None:
    """Mean of the probabilities in both orders, (forwards + 1 - backwards) / 2; None or NaN if either is."""
    if not is_score(forwards):
        return forwards
    return (forwards + 1 - backwards) / 2 if is_score(backwards) else backwards


def outcome(preference: float) -> float:
    """1 for a win, 0 for a defeat, 1/2 for a tie."""
    return 0.5 if preference == 0.5 else float(preference > 0.5)


def meetings_by_row(
    num_samples: int, pairs: Sequence[Pair], preferences: Sequence[float | None]
) -> list[list[Meeting]]:
    """The comparisons of each sample, in the order of the pairs."""
    by_row: list[list[Meeting]] = [[] for _ in range(num_samples)]
    for (first, second), preference in zip(pairs, preferences, strict=True):
        by_row[first].append((second, preference))
        by_row[second].append((first, 1 - preference if is_score(preference) else preference))
    return by_row


def missing_score(meetings: Sequence[Meeting]) -> float | None:
    """The score of a sample without decided pairs: None, or NaN if the judge failed on any."""
    return math.nan if any(value is not None for _, value in meetings) else None


def explained_score(
    value: float | None, meetings: Sequence[Meeting], samples: Sequence[Sample], **parts: float | None
) -> Score | None:
    """The score with its explanation: wins, ties and defeats, and the opponents."""
    if value is None:
        return None
    decided = [outcome(preference) for _, preference in meetings if is_score(preference)]
    counts = {"wins": decided.count(1), "ties": decided.count(0.5), "defeats": decided.count(0)}
    counts["undecided"] = len(meetings) - len(decided)
    matches = [[samples[row].member, _short(preference)] for row, preference in meetings[:MAX_MATCHES]]
    return Score(value, {"parts": {name: _short(part) for name, part in (parts | counts).items()}, "matches": matches})


def _short(number: float | None) -> float | None:
    return round(number, 4) if is_score(number) else None


def _judge_probability(judge: Judge, first: Sample, second: Sample) -> float | None:
    probability = judge(first, second)
    if probability is None:
        return None
    probability = float(probability)
    if probability < 0 or probability > 1:
        raise RewardError(f"a pairwise judge must return a probability from 0 to 1, got {probability}")
    return probability
