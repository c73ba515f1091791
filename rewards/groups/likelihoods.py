"""Rewards from the likelihood of a sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

from mmgrpo.errors import ConfigError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Score

from ..parsing.inner_rewards import inner_scores, is_score, needed_values
from .grouping import within_groups


@final
class Unlikeliness:
    """Reward: an inner reward, decreased for likely correct samples of a group.

    r_i (1 - ``strength`` rank_i / G) where r_i > 0; other rewards are unchanged. rank_i is the rank of a member among
    the G scored ones by mean log-probability (``Sample.logprob``): 0 for the least likely, G - 1 for the most likely;
    ties share their mean rank. None if the inner reward is None or the log-probability is unknown.

    Example: ``{name: unlikeliness, of: {name: exact_match, extract: tag}}``.
    Settings: ``of``: the inner reward, by name or with its settings.
    Range: (1 - ``strength`` (G - 1) / G) to 1 times a positive inner reward.
    Source: He et al. 2025, arXiv:2506.02355; ranks and ``strength: 0.25`` as in its code. Deviations: negative rewards
    are unchanged, while its proofs are right (1) or wrong (0); equal likelihoods share a rank.
    Traps: it includes the reward, so do not add that reward separately. The mean over tokens is used, so long samples
    are not unlikely because of their length. Greedy samples of a group are equal and share one rank.
    """

    def __init__(self, of: Reward, strength: float = 0.25) -> None:
        if not 0 <= strength <= 1:
            raise ConfigError(f"Unlikeliness.strength must be in [0, 1], got {strength}")
        self.needs_values = needed_values(of)
        self.of = of
        self._strength = strength

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        inner = inner_scores(self.of, samples)
        values = [None if s.logprob is None else value for s, value in zip(samples, inner.values, strict=True)]

        def rule(rows: Sequence[int]) -> list[float]:
            ranks = mean_ranks([samples[row].logprob or 0.0 for row in rows])
            rewards = [value for row in rows if is_score(value := values[row])]
            return [
                reward * (1 - self._strength * rank / len(rows)) if reward > 0 else reward
                for reward, rank in zip(rewards, ranks, strict=True)
            ]

        return inner.explain(within_groups(samples, values, rule))


@final
class SelfCertainty:
    """Reward: self-certainty of the policy about its tokens, independent of their content.

    Mean over the sample's tokens of KL(uniform || policy) = -log V - mean over the vocabulary of log p: 0 for a uniform
    policy, unbounded above. It is ``Sample.values["certainty"]``, which this reward requests; None if the policy does
    not provide it.

    Range: 0 and more.   Units: nats per token.
    Source: Zhao et al. 2025 (Intuitor), arXiv:2505.19590, self-certainty; its code omits the constant log V, which
    cancels in advantages.
    Traps: it rewards confidence, not correctness: a policy is most certain of repetition and boilerplate, so monitor a
    held-out accuracy and ``repetition``. Its scale depends on the vocabulary: normalize by group.
    """

    needs_values = ("certainty",)

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return [sample.values.get("certainty") for sample in samples]


@final
class Curiosity:
    """Reward: surprise of the policy at its own sample, up to a bound.

    min(``strength`` s, ``ceiling``), s = -mean log-probability of its tokens (``Sample.logprob``), the logarithm of its
    perplexity. None if unknown.

    Example: ``{name: curiosity, ceiling: 0.3333, weight: 0.5}``.
    Range: 0 to ``ceiling``.   Units: nats per token, times ``strength``.
    Source: Dai et al. 2025 (CDE), arXiv:2509.09675, eq. 2, the actor's bonus, for rewards r of size 1: there the
    ceiling is abs(r) / kappa, kappa 3, and the strength alpha is 1.
    Traps: alone it rewards noise, so combine it with a verifier; the ceiling keeps it below the reward of correctness,
    and its weight should fall to 0 over the run (``schedule``).
    """

    def __init__(self, strength: float = 1.0, ceiling: float = 1 / 3) -> None:
        if not (strength > 0 and ceiling > 0):
            raise ConfigError(f"Curiosity needs strength and ceiling above 0, got {strength} and {ceiling}")
        self._strength = strength
        self._ceiling = ceiling

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return [None if s.logprob is None else min(-self._strength * s.logprob, self._ceiling) for s in samples]


@final
class LikelihoodConsistency:
    """Reward: an inner reward, with a bonus for correct samples whose reasoning makes their answer likely.

    r_i + ``strength`` r_i if the sample is correct and its answer is likely: r_i > 0.1 and at least the group's mean
    reward; and its likelihood p_i, clipped at ``ceiling``, is at least the mean over the correct samples minus
    ``margin``. p_i, 0 to 1, is the probability per token (the geometric mean) of the answer after the sample's
    reasoning, under a slowly updated model. None if the inner reward or the likelihood is None.

    Example: ``{name: likelihood_consistency, of: math_verify, likelihood: {name: remote, url:
        "http://127.0.0.1:8000"}}``.
    Settings: ``of``: the inner reward, by name or with its settings; ``likelihood``, a reward that returns p, such as a
    ``python:module:function`` of the samples, or a served model by ``remote``.
    Range: that of the inner reward, times 1 + ``strength`` where it is positive.
    Source: Chen et al. 2025 (GRPO-CARE), arXiv:2506.16141, and its code, whose scripts use these values; there p comes
    from a moving average of the policy (0.995 every 10 steps), and ``of`` is only the accuracy.
    Traps: it includes the reward, so do not add that reward separately. In a group of equal likelihoods every correct
    sample gets the bonus. An answer copied from the prompt is likely without any reasoning.
    """

    def __init__(
        self, of: Reward, likelihood: Reward, strength: float = 0.5, margin: float = 0.01, ceiling: float = 0.95
    ) -> None:
        if not (strength >= 0 and math.isfinite(strength)) or margin < 0 or not 0 < ceiling <= 1:
            raise ConfigError(
                f"LikelihoodConsistency needs strength >= 0, margin >= 0 and ceiling in (0, 1], "
                f"got {strength}, {margin} and {ceiling}"
            )
        self.needs_values = needed_values(of, likelihood)
        self.of = of
        self.likelihood = likelihood
        self._strength = strength
        self._margin = margin
        self._ceiling = ceiling

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        inner = inner_scores(self.of, samples)
        rewards, likelihoods = inner.values, inner_scores(self.likelihood, samples).values
        values = [
            reward if is_score(p) or reward is None else p for reward, p in zip(rewards, likelihoods, strict=True)
        ]

        def rule(rows: Sequence[int]) -> list[float]:
            finite_rewards = [value for row in rows if is_score(value := rewards[row])]
            likely = [min(p, self._ceiling) for row in rows if is_score(p := likelihoods[row])]
            bonus = consistent(finite_rewards, likely, self._margin)
            return [r + self._strength * r if has else r for r, has in zip(finite_rewards, bonus, strict=True)]

        return inner.explain(within_groups(samples, values, rule))


def mean_ranks(values: Sequence[float]) -> list[float]:
    """Rank of each value, from 0 for the lowest; ties share their mean rank."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2 for value in values
    ]


def consistent(rewards: Sequence[float], likelihoods: Sequence[float], margin: float) -> list[bool]:
    """Whether each sample is correct (above 0.1 and at least the mean) and at least as likely as the mean of the
    correct ones minus the margin.
    """
    mean = sum(rewards) / len(rewards)
    right = [reward > 0.1 and reward >= mean for reward in rewards]
    of_right = [p for p, is_right in zip(likelihoods, right, strict=True) if is_right]
    min_likelihood = sum(of_right) / len(of_right) - margin if of_right else math.inf
    return [is_right and p >= min_likelihood for p, is_right in zip(likelihoods, right, strict=True)]
