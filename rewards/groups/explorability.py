"""A metric of the exploration potential of a prompt, for prompt selection, not for training."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import final

from mmgrpo.errors import ConfigError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample

from ..parsing.inner_rewards import inner_scores, is_score, needed_values
from .grouping import within_groups


@final
class Explorability:
    """Reward: magnitude of a sample's advantage times the policy's entropy, but 0 if wrong and uncertain.

    abs(a_i) H_i with a = (1 or 0 - p) / (sqrt(p (1 - p)) + 1e-8), 1 for a correct sample, p the fraction of correct
    samples in the group, H the mean entropy of its tokens; 0 for a wrong sample with an entropy above ``ratio`` times
    the mean over the correct ones. A sample is correct if the inner reward reaches ``right``. None if the inner reward
    is None, or the entropy is unknown.

    Example: ``{name: explorability, of: math_verify, weight: 0}``.
    Settings: ``of``: the inner reward, by name or with its settings; ``ratio``; ``right``, in units of the inner
    reward.
    Range: 0 and more.   Units: nats.
    Source: DEPO, arXiv:2509.01321, and its code (txy77/DEPO, ``rollout_purning.py``), which sums it over a group and
    selects the prompts with the highest sums: ``prompts.sampler: most_explorable``.
    Traps: use a weight of 0, since it does not measure the quality of a sample; groups that are all correct or all
    wrong get 0.
    """

    def __init__(self, of: Reward, ratio: float = 1.5, right: float = 1.0) -> None:
        if ratio < 0:
            raise ConfigError(f"Explorability.ratio must be at least 0, got {ratio}")
        self.needs_values = tuple(sorted({*needed_values(of), "entropy"}))
        self.of = of
        self._ratio = ratio
        self._right = right

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        inner_values = inner_scores(self.of, samples).values
        values = [
            value if value is None or "entropy" in sample.values else None
            for sample, value in zip(samples, inner_values, strict=True)
        ]

        def rule(rows: Sequence[int]) -> list[float]:
            right = [value >= self._right for row in rows if is_score(value := values[row])]
            return explorable(right, [samples[row].values["entropy"] for row in rows], self._ratio)

        return within_groups(samples, values, rule)


def explorable(right: Sequence[bool], entropies: Sequence[float], ratio: float) -> list[float]:
    """The contribution of each member of a group to the exploration potential of its prompt."""
    mean, spread = fmean(right), pstdev(right) + 1e-8
    of_right = [entropy for entropy, is_right in zip(entropies, right, strict=True) if is_right]
    most = ratio * fmean(of_right) if of_right else 0.0
    return [
        abs(is_right - mean) / spread * entropy if is_right or entropy <= most else 0.0
        for is_right, entropy in zip(right, entropies, strict=True)
    ]
