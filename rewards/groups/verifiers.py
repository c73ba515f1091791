"""Rewards from a binary verifier: corrected for its error rates, or refined among correct or wrong samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

from mmgrpo.errors import ConfigError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Score

from ..parsing.extraction import require_choice
from ..parsing.inner_rewards import inner_scores, is_score, needed_values
from .grouping import groups, within_groups

Unit = Literal["tokens", "characters"]


@final
class NoisyVerifier:
    """Reward: a binary score corrected for the error rates of its verifier, unbiased in expectation.

    (v - ``false_positive``) / (1 - ``false_positive`` - ``false_negative``), where v is 1 if the score of the verifier
    is at least ``right_from`` and 0 otherwise: its expectation over the errors of the verifier is 1 for a correct
    sample and 0 for others.

    Example: ``{name: noisy_verifier, of: math_verify, false_positive: 0.02, false_negative: 0.1}``.
    Settings: ``of``: the verifier, by name or with its settings; ``false_positive``, the fraction of wrong samples that
    it accepts; ``false_negative``, the fraction of correct ones that it rejects; together below 1.
    Range: two values, one at most 0, the other at least 1.
    Source: Cai et al. 2025, arXiv:2510.00915, backward correction, with rho_0 = fp and rho_1 = fn; its forward
    correction weights gradients and is not a reward.
    Traps: it is an affine transformation, so it does not change advantages divided by the group's standard deviation:
    it has an effect if advantages are only centered, in combination with other rewards, and in the metrics.
    Overestimated rates overcorrect; measure them on labeled samples of the trained policy. It increases the variance by
    1 / (1 - fp - fn)^2.
    """

    def __init__(
        self, of: Reward, false_positive: float = 0.0, false_negative: float = 0.0, right_from: float = 1.0
    ) -> None:
        if false_positive < 0 or false_negative < 0 or not false_positive + false_negative < 1:
            raise ConfigError(
                f"NoisyVerifier needs false_positive and false_negative at least 0 and together below 1, got "
                f"{false_positive} and {false_negative}; a verifier with higher rates is worse than chance"
            )
        self.needs_values = needed_values(of)
        self.of = of
        self._false_positive = false_positive
        self._false_negative = false_negative
        self._right_from = right_from

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        inner = inner_scores(self.of, samples)
        return inner.explain([self._corrected(value) if is_score(value) else value for value in inner.values])

    def _corrected(self, value: float) -> float:
        return unbiased(value >= self._right_from, self._false_positive, self._false_negative)


@final
class Conciseness:
    """Reward: an inner reward, decreased for long correct samples of a group.

    r_i (1 - ``strength`` (n_i - least) / (most - least)) for a correct sample, with a score of at least ``right_from``
    and above 0; least and most are the lengths of the shortest and longest correct sample of the group. If they are
    equal, and for wrong samples, the reward is unchanged. With ``all_right`` the reward changes only if the complete
    group is correct. Lengths are in tokens, including the end token, or ``unit: characters`` of the text. None if the
    inner reward is None or there is no length.

    Example: ``{name: conciseness, of: math_verify}``.
    Settings: ``of``: the inner reward, by name or with its settings.
    Range: that of the inner reward; a correct sample keeps at least 1 - ``strength`` of it.
    Source: the group-relative length of Kimi k1.5, arXiv:2501.12599, there over all samples and additive; the condition
    on the complete group: Song and Zheng 2025 (ConciseR), arXiv:2505.21178. Deviation: a factor, only on correct
    samples.
    Traps: it includes the reward, so do not add that reward separately. A difference of one token between two correct
    members has the same effect as a thousand: with ``advantage.scale`` by standard deviation small differences count
    like large ones. Truncated samples are rarely correct; if they are, they are the longest.
    """

    def __init__(
        self, of: Reward, strength: float = 0.5, right_from: float = 1.0, all_right: bool = False, unit: Unit = "tokens"
    ) -> None:
        if not 0 <= strength <= 1:
            raise ConfigError(f"Conciseness.strength must be in [0, 1], got {strength}")
        self.needs_values = needed_values(of)
        self.of = of
        self._strength = strength
        self._right_from = right_from
        self._all_right = all_right
        self._unit: Unit = require_choice("Conciseness.unit", unit, Unit)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        inner = inner_scores(self.of, samples)
        counted = [sample.tokens if self._unit == "tokens" else sample.text for sample in samples]
        values = [None if content is None else value for content, value in zip(counted, inner.values, strict=True)]

        def rule(rows: Sequence[int]) -> list[float]:
            rewards = [value for row in rows if is_score(value := values[row])]
            right = [reward >= self._right_from and reward > 0 for reward in rewards]
            if self._all_right and not all(right):
                return rewards
            return shortened(rewards, [len(counted[row] or "") for row in rows], right, self._strength)

        return inner.explain(within_groups(samples, values, rule))


@final
class PartialCredit:
    """Reward: an inner reward, replaced by a finer one in groups without correct samples.

    If no sample of a group reaches ``right_from``, all its scored samples get the finer reward ``grade`` instead, where
    it applies. ``grade`` is called only on such groups.

    Example: ``{name: partial_credit, of: math_verify, grade: {name: text_judge, model: Qwen/Qwen3-8B}}``.
    Settings: ``of`` and ``grade``, rewards, by name or with their settings.
    Range: those of the two.
    Source: Chen et al. 2025, arXiv:2505.11595: graded rewards by AI feedback where all samples of a group are wrong.
    Traps: it includes the reward, so do not add that reward separately. With advantages divided by the group's standard
    deviation a grade of 0.1 among zeros counts like a correct sample among wrong ones. A grade of 1 equals the score of
    a correct sample.
    """

    def __init__(self, of: Reward, grade: Reward, right_from: float = 1.0) -> None:
        self.needs_values = needed_values(of, grade)
        self.of = of
        self.grade = grade
        self._right_from = right_from

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        inner = inner_scores(self.of, samples)
        lost = [row for rows in groups(samples).values() for row in self._lost(rows, inner.values)]
        graded = inner_scores(self.grade, [samples[row] for row in lost]) if lost else None
        scores = list(inner.scores)
        for row, value, score in zip(lost, graded.values, graded.scores, strict=True) if graded else ():
            scores[row] = inner.scores[row] if value is None else score
        return scores

    def _lost(self, rows: Sequence[int], values: Sequence[float | None]) -> list[int]:
        """The scored rows, if none of them is correct."""
        scored = {row: value for row in rows if is_score(value := values[row])}
        return [] if any(value >= self._right_from for value in scored.values()) else list(scored)


def unbiased(passed: bool, false_positive: float, false_negative: float) -> float:
    """Backward correction of a binary score by the error rates of the verifier."""
    return (float(passed) - false_positive) / (1 - false_positive - false_negative)


def shortened(rewards: Sequence[float], lengths: Sequence[int], right: Sequence[bool], strength: float) -> list[float]:
    """The rewards of correct members times 1 - strength (length - least) / (most - least), over the correct ones."""
    of_right = [length for length, is_right in zip(lengths, right, strict=True) if is_right]
    least, span = min(of_right, default=0), max(of_right, default=0) - min(of_right, default=0)
    return [
        reward * (1 - strength * (length - least) / span) if is_right and span > 0 else reward
        for reward, length, is_right in zip(rewards, lengths, right, strict=True)
    ]
