"""What a row of text holds: tokens that were decided, and tokens that were given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmgrpo.types import OffPolicySample, Sample

from .sampling import Support, TokenSampling


@dataclass(frozen=True, slots=True)
class CompletionTurn:
    """A turn that the policy wrote.

    Attributes:
        start: its first token.
        end: the one after its last.
        reward: what the environment gave for it.
        key: of the state that it was written in; None: not known.
    """

    start: int
    end: int
    reward: float | None
    key: str | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """The tokens of one row after its prompt.

    Attributes:
        token_T: token ids, the end token included.
        logprob_T: log-probability of each under the distribution it was drawn from, float32; 0 where it was given.
        decided_T: bool, False where a token was given: it is no decision, and never trained.
        sampling: the distribution that the decisions are of.
        support: the tokens that could be drawn, where sampling truncates.
        finished: whether it ended by an end token.
        numbers: what else was kept of each token, by name, float32; 0 where it was given.
        turns: those of an exchange that the policy wrote; empty: there was none.
        num_taken: how many of the first were taken over from another row.
        environment_error: what went wrong in the environment of its exchange; None: nothing did.
    """

    token_T: Tensor
    logprob_T: Tensor
    is_decision_T: Tensor
    sampling: TokenSampling
    support: Support | None = None
    finished: bool = True
    numbers: Mapping[str, Tensor] = field(default_factory=dict)
    turns: tuple[CompletionTurn, ...] = ()
    num_inherited: int = 0
    environment_error: str | None = None

    @classmethod
    def forced(cls, token_T: Tensor, sampling: TokenSampling, *, finished: bool = True) -> Completion:
        """Tokens of which none was decided."""
        return cls(
            token_T=token_T,
            logprob_T=torch.zeros(len(token_T)),
            is_decision_T=torch.zeros(len(token_T), dtype=torch.bool),
            sampling=sampling,
            support=Support.single(token_T) if sampling.truncates else None,
            finished=finished,
        )

    @classmethod
    def recorded(
        cls,
        token_T: Tensor,
        sampling: TokenSampling,
        *,
        logprob_T: Tensor | None,
        num_forced: int = 0,
        finished: bool = True,
    ) -> Completion:
        """Tokens that were decided elsewhere, but for the first ones; what could be drawn in their place is not known.

        Args:
            token_T: the tokens.
            sampling: the distribution that they are to be scored under.
            logprob_T: their log-probabilities; None where not known yet.
            num_forced: how many of the first were given.
            finished: whether they ended by an end token.

        Returns:
            The row.
        """
        is_decision_T = torch.arange(len(token_T)) >= num_forced
        stored_logprob_T = torch.zeros(len(token_T)) if logprob_T is None else logprob_T.float()
        return cls(
            token_T=token_T,
            logprob_T=stored_logprob_T.where(is_decision_T, 0.0),
            is_decision_T=is_decision_T,
            sampling=sampling,
            finished=finished,
        )

    def with_turns(self, sample: Sample) -> Completion:
        """The same where a sample's turns alone were decided, and what it was told between them was given."""
        keys = sample.turn_keys or [None] * len(sample.turn_ends)
        spans = zip(sample.turn_starts, sample.turn_ends, sample.turn_rewards, keys, strict=True)
        turns = tuple(CompletionTurn(*span) for span in spans)
        position_T = torch.arange(len(self.token_T))
        within_T = torch.stack([(position_T >= turn.start) & (position_T < turn.end) for turn in turns]).any(0)
        is_decision_T = self.is_decision_T & within_T
        return replace(
            self, is_decision_T=is_decision_T, logprob_T=self.logprob_T.where(is_decision_T, 0.0), turns=turns
        )

    def prefix(self, count: int) -> Completion:
        """Its first tokens as another row takes them over, with what is known of them."""
        return replace(
            self,
            token_T=self.token_T[:count],
            logprob_T=self.logprob_T[:count],
            is_decision_T=self.is_decision_T[:count],
            support=None if self.support is None else self.support.part(0, count),
            finished=False,
            numbers={name: number_T[:count] for name, number_T in self.numbers.items()},
            turns=(),
            num_inherited=count,
        )

    def record(self) -> dict[str, Any]:
        """The sampling settings, for ``Rollout.record_B``."""
        return {"settings": self.sampling.settings()}

    @property
    def num_forced(self) -> int:
        """How many tokens stand before the first decision."""
        return int((~self.is_decision_T).int().cumprod(0).sum())

    def mean(self, number_T: Tensor) -> float | None:
        """A number's mean over what was decided; None if nothing was."""
        return float(number_T[self.is_decision_T].mean()) if bool(self.is_decision_T.any()) else None

    @classmethod
    def concat(cls, parts: Sequence[Completion]) -> Completion:
        """The tokens of several, in order; whether they are finished is what the last one says."""
        last = parts[-1]
        parts = [part for part in parts if len(part.token_T)] or [last]
        if len(parts) == 1 and parts[0] is last:
            return last
        names = {name for part in parts for name in part.numbers}
        supports = [part.support for part in parts if part.support is not None]
        return cls(
            token_T=torch.cat([part.token_T for part in parts]),
            logprob_T=torch.cat([part.logprob_T for part in parts]),
            is_decision_T=torch.cat([part.is_decision_T for part in parts]),
            sampling=last.sampling,
            support=Support.concat(supports) if len(supports) == len(parts) else None,
            finished=last.finished,
            numbers={
                name: torch.cat([part.numbers.get(name, torch.zeros(len(part.token_T))) for part in parts])
                for name in sorted(names)
            },
            num_inherited=parts[0].num_inherited,
        )


def recorded_samplings(samples: Sequence[OffPolicySample], sampling: TokenSampling) -> list[TokenSampling]:
    """The distribution that each sample is scored under: that of its record, else this one; equal ones are one object.

    Args:
        samples: samples to be read.
        sampling: of those without a record.

    Returns:
        One per sample.
    """
    shared = {repr(sampling.settings()): sampling}
    per_sample = [sampling.with_settings(sample.record) for sample in samples]
    return [shared.setdefault(repr(row_sampling.settings()), row_sampling) for row_sampling in per_sample]
