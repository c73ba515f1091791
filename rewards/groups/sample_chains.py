"""Rewards of samples that are drawn after each other: of some of them, of what came later, of where chains end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from mmgrpo.errors import ConfigError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Score

from .grouping import inner_scores, is_score, needed_values

Identity = tuple[int, int]


@final
class InContext:
    """Reward: another reward, of the samples that were shown their prompt in some contexts alone; None for the others.

    Example: ``{name: in_context, of: exact_match, contexts: [null, posed]}``.
    Settings: ``of``, the reward with its settings, or its bare name; ``contexts``, names of
        ``rollout.prompt_templates``, null
    for
    the prompt as it is.
    Range: that of the reward.
    Source: ours; of use with ``rollout.strategy: stages``, where a solution and a proposed problem are judged apart.
    Traps: it sees the data row's own prompt, whatever the context showed.
    """

    def __init__(self, of: Reward, contexts: Sequence[str | None]) -> None:
        self.needs_values = needed_values(of)
        self.deterministic = bool(getattr(of, "deterministic", False))
        self.of = of
        self._contexts = tuple(contexts)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        rows = [row for row, sample in enumerate(samples) if sample.context in self._contexts]
        scores: list[float | Score | None] = [None] * len(samples)
        for row, score in zip(
            rows, inner_scores(self.of, [samples[row] for row in rows]).scores if rows else (), strict=True
        ):
            scores[row] = score
        return scores


@final
class OfLater:
    """Reward: what another reward says, on average, of the samples that were drawn after this one.

    Those shown their prompt in the context ``later`` count, at any remove; with ``within`` it is 1 where their mean
    lies between the two bounds, both allowed, and 0 elsewhere. A sample in ``contexts`` after which none was drawn gets
    ``missing``; other samples, and those whose later ones the reward does not apply to, None.

    Example: ``{name: of_later, of: math_verify, contexts: [variant], later: posed, within: [0.125, 0.625]}``.
    Settings: ``of``, the reward with its settings, or its bare name; ``contexts``, those of the samples that are
    rewarded,
    null for the prompt as it is; ``later``; ``within``; ``missing``.
    Range: that of the reward, or 0 and 1.
    Source: proposals judged by their solutions: SvS, arXiv:2508.14029 (0.125 to 0.625); a first round by where it
    leads:
    MOTIF, arXiv:2507.02851.
    Traps: it applies once what comes later was drawn; a planner that looks back earlier sees ``missing``.
    """

    def __init__(
        self,
        of: Reward,
        contexts: Sequence[str | None],
        later: str,
        within: Sequence[float] | None = None,
        missing: float | None = 0.0,
    ) -> None:
        if within is not None and (len(within) != 2 or not within[0] <= within[1]):
            raise ConfigError(f"OfLater.within is the lowest and the highest mean, got {list(within)}")
        self.needs_values = needed_values(of)
        self.of = of
        self._contexts = tuple(contexts)
        self._later = later
        self._within = within
        self._missing = missing

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        later = [sample for sample in samples if sample.context == self._later]
        values = inner_scores(self.of, later).values if later else []
        by_identity = {sample.identity: sample for sample in samples}
        later_values: dict[Identity, list[float | None]] = {}
        for sample, value in zip(later, values, strict=True):
            for identity in ancestors_of(sample, by_identity):
                later_values.setdefault(identity, []).append(value)
        rewarded = [sample.context in self._contexts for sample in samples]
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
    """Reward: another reward, of the samples after which none was drawn; None for those that others go on from.

    Example: ``{name: at_end, of: math_verify}``.
    Settings: ``of``, the reward with its settings, or its bare name.
    Range: that of the reward.
    Source: an answer that is written in chunks is judged by its last: Delethink, arXiv:2510.06557.
    Traps: rows that are not at an end earn nothing of themselves: ``along_chain`` hands the advantage back to them.
    """

    def __init__(self, of: Reward) -> None:
        self.needs_values = needed_values(of)
        self.of = of

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        followed = {identity for sample in samples for identity in sample.after}
        rows = [row for row, sample in enumerate(samples) if sample.identity not in followed]
        scores: list[float | Score | None] = [None] * len(samples)
        for row, score in zip(rows, inner_scores(self.of, [samples[row] for row in rows]).scores, strict=True):
            scores[row] = score
        return scores


def ancestors_of(sample: Sample, by_identity: Mapping[Identity, Sample]) -> set[Identity]:
    """All that a sample was drawn after, at any remove."""
    ancestors: set[Identity] = set()
    waiting = list(sample.after)
    while waiting:
        identity = waiting.pop()
        if identity not in ancestors:
            ancestors.add(identity)
            waiting += by_identity[identity].after if identity in by_identity else ()
    return ancestors
