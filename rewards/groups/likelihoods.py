"""Rewards that look at how likely a sample was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

from mmgrpo.errors import ConfigError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Score

from .grouping import inner_scores, is_score, needed_values, within_groups


@final
class Unlikeliness:
    """Reward: another reward, lowered for the likely among the right samples of a group.

    r_i (1 - ``strength`` rank_i / G) where r_i > 0; other rewards stay. rank_i is a member's place among the G that the
    reward judged, by mean log-probability (``Sample.logprob``): 0 for the least likely, G - 1 for the most likely;
    equal ones share their mean rank. None where the reward has None or it is not known how likely the sample was.

    Example: ``{name: unlikeliness, of: {name: exact_match, extract: tag}}``.
    Settings: ``of``, the reward with its settings, or its bare name.
    Range: (1 - ``strength`` (G - 1) / G) of a positive reward up to all of it.
    Source: He et al. 2025, arXiv:2506.02355; ranks and ``strength: 0.25`` as in its code. Deviations: rewards below 0
    stay as they are, where its proofs are right (1) or wrong (0); equal likelihoods share a rank.
    Traps: it includes the reward, so do not add that reward separately. The mean over tokens is the measure, so a long
    sample is not unlikely by being long. Greedy samples of a group are all alike and share one rank.
    """

    def __init__(self, of: Reward, strength: float = 0.25) -> None:
        if not 0 <= strength <= 1:
            raise ConfigError(f"Unlikeliness.strength must lie in [0, 1], got {strength}")
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
    """Reward: how certain the policy was of its own tokens, whatever they say.

    Mean over the sample's tokens of KL(uniform || policy) = -log V - mean over the vocabulary of log p: 0 for a policy
    that knows nothing, without an upper bound. It is ``Sample.values["certainty"]``, which this reward asks for; None
    where the policy that drew the sample does not give it.

    Range: 0 and more.   Units: nats per token.
    Source: Zhao et al. 2025 (Intuitor), arXiv:2505.19590, self-certainty; its code leaves out the constant log V, which
    no advantage sees.
    Traps: it rewards confidence, not truth: repetition and boilerplate are what a policy is surest of, so watch a
    held-out accuracy and ``repetition``. Its scale depends on the vocabulary: normalize by group.
    """

    needs_values = ("certainty",)

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return [sample.values.get("certainty") for sample in samples]


@final
class Curiosity:
    """Reward: how surprising a sample was to the policy that drew it, up to a bound.

    min(``strength`` s, ``ceiling``), s = -mean log-probability of its tokens (``Sample.logprob``), the logarithm of its
    perplexity. None where that is not known.

    Example: ``{name: curiosity, ceiling: 0.3333, weight: 0.5}``.
    Range: 0 to ``ceiling``.   Units: nats per token, times ``strength``.
    Source: Dai et al. 2025 (CDE), arXiv:2509.09675, eq. 2, the actor's bonus, for rewards r of size 1: there the
    ceiling is abs(r) / kappa, kappa 3, and the strength alpha is 1.
    Traps: alone it rewards noise, so a verifier stands beside it; the ceiling keeps it below what being right earns,
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
    """Reward: another reward, with a bonus for right samples whose reasoning makes their answer likely.

    r_i + ``strength`` r_i where the sample is right and its answer is likely enough: r_i > 0.1 and at least the group's
    mean reward; and its likelihood p_i, cut at ``ceiling``, is at least the mean over the right ones less ``margin``.
    p_i, 0 to 1, is the probability per token (the geometric mean) of the answer after the sample's reasoning, under a
    model that changes slowly. None where either the reward or the likelihood has None.

    Example: ``{name: likelihood_consistency, of: math_verify, likelihood: {name: remote, url:
    "http://127.0.0.1:8000"}}``.
    Settings: ``of``, the reward with its settings, or its bare name; ``likelihood``, another one that gives p, such as
    a ``python:module:function`` of the samples, or a served model by ``remote``.
    Range: that of the reward, times 1 + ``strength`` where it is positive.
    Source: Chen et al. 2025 (GRPO-CARE), arXiv:2506.16141, and its code, whose scripts have these numbers; there p is
    by a moving average of the policy (0.995 every 10 steps), and ``of`` is the accuracy alone.
    Traps: it includes the reward, so do not add that reward separately. In a group of equal likelihoods every right
    sample has the bonus. An answer that is copied from the prompt is likely without any reasoning.
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
    """Each value's place from the lowest, 0, to the highest; equal ones share the mean of their places."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2 for value in values
    ]


def consistent(rewards: Sequence[float], likelihoods: Sequence[float], margin: float) -> list[bool]:
    """Whether each is right, above 0.1 and at least the mean, and as likely as the right ones' mean less the margin."""
    mean = sum(rewards) / len(rewards)
    right = [reward > 0.1 and reward >= mean for reward in rewards]
    of_right = [p for p, is_right in zip(likelihoods, right, strict=True) if is_right]
    min_likelihood = sum(of_right) / len(of_right) - margin if of_right else math.inf
    return [is_right and p >= min_likelihood for p, is_right in zip(likelihoods, right, strict=True)]
