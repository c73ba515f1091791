"""Which of two samples is better: by a judge of pairs, or by the scores of another reward."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import final

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Score

from .grouping import inner_scores, is_score

logger = logging.getLogger(__name__)

Judge = Callable[[Sample, Sample], float | None]
"""The probability that the first sample is the better one; None if that cannot be said."""

Pair = tuple[int, int]
Meeting = tuple[int, float | None]
"""The row of the other one, and the probability that this one is better; None or NaN where there is none."""

MAX_MATCHES = 30  # in an explanation

Decide = Callable[[Sequence[Pair]], list[float | None]]
"""For pairs of rows the probabilities that the first is better; None or NaN where there is none."""


@final
class PairDecider:
    """How pairs of samples are decided."""

    def __init__(self, judge: Judge | None, of: Reward | None, swap: bool, temperature: float, workers: int) -> None:
        """Takes either a judge or a reward.

        Args:
            judge: judge of pairs.
            of: reward whose higher score is better.
            swap: ask the judge in both orders and take the mean.
            temperature: of the logistic function that makes a probability of a difference in score; 0 is a step.
            workers: threads that ask the judge.

        Raises:
            ConfigError: there is not exactly one of judge and reward, or a number makes no sense.
        """
        if (judge is None) == (of is None):
            raise ConfigError("say which sample of a pair is better by either judge or of (another reward), not both")
        if not (temperature >= 0 and math.isfinite(temperature)) or workers < 1:
            raise ConfigError(f"temperature must be >= 0 and workers >= 1, got {temperature} and {workers}")
        self._judge = judge
        self._of = of
        self._swap = swap
        self._temperature = temperature
        self._workers = workers

    def between(self, samples: Sequence[Sample]) -> Decide:
        """Decides pairs of these samples, given by their rows; a reward is asked once, here."""
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
                logger.warning("%d of %d pairs could not be judged; they are left out", failed, len(pairs))
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
    """Mean of what a judge says in both orders, (forwards + 1 - backwards) / 2; without a word in either, that."""
    if not is_score(forwards):
        return forwards
    return (forwards + 1 - backwards) / 2 if is_score(backwards) else backwards


def outcome(preference: float) -> float:
    """1 for a win, 0 for a defeat, 1/2 for a tie."""
    return 0.5 if preference == 0.5 else float(preference > 0.5)


def meetings_by_row(
    num_samples: int, pairs: Sequence[Pair], preferences: Sequence[float | None]
) -> list[list[Meeting]]:
    """Of each sample, whom it met in these pairs and with what outcome, in their order."""
    by_row: list[list[Meeting]] = [[] for _ in range(num_samples)]
    for (first, second), preference in zip(pairs, preferences, strict=True):
        by_row[first].append((second, preference))
        by_row[second].append((first, 1 - preference if is_score(preference) else preference))
    return by_row


def missing_score(met: Sequence[Meeting]) -> float | None:
    """The score of a sample of which no pair was decided: None, or NaN if judging any of them failed."""
    return math.nan if any(value is not None for _, value in met) else None


def explained_score(
    value: float | None, met: Sequence[Meeting], samples: Sequence[Sample], **parts: float | None
) -> Score | None:
    """The score with what it rests on: its wins, ties and defeats, and against which members."""
    if value is None:
        return None
    decided = [outcome(preference) for _, preference in met if is_score(preference)]
    counts = {"wins": decided.count(1), "ties": decided.count(0.5), "defeats": decided.count(0)}
    counts["undecided"] = len(met) - len(decided)
    matches = [[samples[row].member, _short(preference)] for row, preference in met[:MAX_MATCHES]]
    return Score(value, {"parts": {name: _short(part) for name, part in (parts | counts).items()}, "matches": matches})


def _short(number: float | None) -> float | None:
    return round(number, 4) if is_score(number) else None


def _judge_probability(judge: Judge, first: Sample, second: Sample) -> float | None:
    probability = judge(first, second)
    if probability is None:
        return None
    probability = float(probability)
    if probability < 0 or probability > 1:
        raise RewardError(f"a judge of pairs gives the probability that the first is better, 0 to 1, not {probability}")
    return probability
