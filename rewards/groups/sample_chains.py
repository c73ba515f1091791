"""Rewards for chains of samples: on samples of some prompt templates, on later samples, on the ends of chains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from mmgrpo.errors import ConfigError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Score

from ..parsing.inner_rewards import inner_scores, is_score, needed_values

Identity = tuple[int, int]


@final
class OfPromptTemplate:
    """Reward: an inner reward, only for samples generated in some prompt templates; None for the others.

    Example: ``{name: of_prompt_template, of: exact_match, prompt_templates: [null, posed]}``.
    Settings: ``of``: the inner reward, by name or with its settings; ``prompt_templates``, names of
    ``rollout.prompt_templates``, null for the unchanged prompt.
    Range: that of the inner reward.
    Source: designed for mmgrpo; for use with ``rollout.strategy: stages``, where solutions and proposed problems are
    scored separately.
    Traps: the inner reward receives the prompt of the data row, not that of the prompt template.
    """

    def __init__(self, of: Reward, prompt_templates: Sequence[str | None]) -> None:
        self.needs_values = needed_values(of)
        self.deterministic = bool(getattr(of, "deterministic", False))
        self.of = of
        self._prompt_templates = tuple(prompt_templates)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        rows = [row for row, sample in enumerate(samples) if sample.prompt_template in self._prompt_templates]
        scores: list[float | Score | None] = [None] * len(samples)
        for row, score in zip(
            rows, inner_scores(self.of, [samples[row] for row in rows]).scores if rows else (), strict=True
        ):
            scores[row] = score
        return scores


@final
class OfLater:
    """Reward: mean of an inner reward over the samples generated after this one.

    Descendants in the prompt template ``later`` count, at any depth; with ``within`` the score is 1 if their mean is
    within the two bounds (inclusive), else 0. A sample in ``prompt_templates`` without descendants gets ``missing``;
    other samples, and samples whose descendants have no score, get None.

    Example: ``{name: of_later, of: math_verify, prompt_templates: [variant], later: posed, within: [0.125, 0.625]}``.
    Settings: ``of``: the inner reward, by name or with its settings; ``prompt_templates`` of the rewarded samples, null
    for the unchanged prompt; ``later``; ``within``; ``missing``.
    Range: that of the inner reward, or 0 and 1.
    Source: proposals scored by their solutions: SvS, arXiv:2508.14029 (0.125 to 0.625); a first round scored by its
    continuations: MOTIF, arXiv:2507.02851.
    Traps: it applies only after the later samples are generated; a strategy that scores earlier gets ``missing``.
    """

    def __init__(
        self,
        of: Reward,
        prompt_templates: Sequence[str | None],
        later: str,
        within: Sequence[float] | None = None,
        missing: float | None = 0.0,
    ) -> None:
        if within is not None and (len(within) != 2 or not within[0] <= within[1]):
            raise ConfigError(f"OfLater.within must be [lowest, highest] mean, got {list(within)}")
        self.needs_values = needed_values(of)
        self.of = of
        self._prompt_templates = tuple(prompt_templates)
        self._later = later
        self._within = within
        self._missing = missing

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        later = [sample for sample in samples if sample.prompt_template == self._later]
        values = inner_scores(self.of, later).values if later else []
        by_identity = {sample.identity: sample for sample in samples}
        later_values: dict[Identity, list[float | None]] = {}
        for sample, value in zip(later, values, strict=True):
            for identity in ancestors_of(sample, by_identity):
                later_values.setdefault(identity, []).append(value)
        rewarded = [sample.prompt_template in self._prompt_templates for sample in samples]
        pairs = zip(samples, rewarded, strict=True)
        return [
            self._value(later_values.get(sample.identity)) if is_rewarded else None for sample, is_rewarded in pairs
        ]

    def _value(self, values: Sequence[float | None] | None) -> float | None:
        if values is None:
            return self._missing
        finite = [value for value in values if is_score(value)]
        if not finite:
            return None
        mean = sum(finite) / len(finite)
        return mean if self._within is None else float(self._within[0] <= mean <= self._within[1])


@final
class AtEnd:
    """Reward: an inner reward, only for samples without descendants; None for samples that others continue.

    Example: ``{name: at_end, of: math_verify}``.
    Settings: ``of``: the inner reward, by name or with its settings.
    Range: that of the inner reward.
    Source: an answer generated in chunks is scored at its last chunk: Delethink, arXiv:2510.06557.
    Traps: samples that are not at an end get no score: ``along_chain`` propagates the advantage to them.
    """

    def __init__(self, of: Reward) -> None:
        self.needs_values = needed_values(of)
        self.of = of

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        followed = {identity for sample in samples for identity in sample.follows}
        rows = [row for row, sample in enumerate(samples) if sample.identity not in followed]
        scores: list[float | Score | None] = [None] * len(samples)
        for row, score in zip(rows, inner_scores(self.of, [samples[row] for row in rows]).scores, strict=True):
            scores[row] = score
        return scores


def ancestors_of(sample: Sample, by_identity: Mapping[Identity, Sample]) -> set[Identity]:
    """All ancestors of a sample, at any depth."""
    ancestors: set[Identity] = set()
    waiting = list(sample.follows)
    while waiting:
        identity = waiting.pop()
        if identity not in ancestors:
            ancestors.add(identity)
            waiting += by_identity[identity].follows if identity in by_identity else ()
    return ancestors
