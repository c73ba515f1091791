"""Completions: the tokens of a row, sampled or forced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmgrpo.environment import Turn
from mmgrpo.samples import EnvironmentHandle
from mmgrpo.types import OffPolicySample, Sample

from .sampling import SamplingDistribution, Support


@dataclass(frozen=True, slots=True)
class CompletionTurn:
    """A turn that the policy wrote.

    Attributes:
        start: first token.
        end: one past the last token.
        reward: the environment's reward for it.
        key: key of the state before it; None: unknown.
        reply: the environment's answer; None: none, since the turn was cut off.
        content: its text without calls of tools, as the response template reads it; None: there are none.
    """

    start: int
    end: int
    reward: float | None
    key: str | None
    reply: Turn | None = None
    content: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Completion:
    """The tokens of one row after its prompt.

    Attributes:
        token_T: token ids, including the end token.
        logprob_T: log-probability of each under its sampling distribution, float32; 0 for forced tokens.
        is_decision_T: bool, False for forced tokens, which are never trained.
        sampling: the sampling distribution.
        support: the possible tokens, if sampling truncates.
        finished: whether it ends with an end token.
        numbers: statistics of each token, by name, float32; 0 for forced tokens.
        turns: the policy's turns of a conversation; empty: no conversation.
        num_inherited: number of leading tokens taken over from another row.
        environment_error: error of the environment of its conversation; None: no error.
        environment: the environment, for rewards; None: no conversation.
    """

    token_T: Tensor
    logprob_T: Tensor
    is_decision_T: Tensor
    sampling: SamplingDistribution
    support: Support | None = None
    finished: bool = True
    numbers: Mapping[str, Tensor] = field(default_factory=dict)
    turns: tuple[CompletionTurn, ...] = ()
    num_inherited: int = 0
    environment_error: str | None = None
    environment: EnvironmentHandle | None = None

    @classmethod
    def forced(cls, token_T: Tensor, sampling: SamplingDistribution, *, finished: bool = True) -> Completion:
        """Tokens without any decision."""
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
        sampling: SamplingDistribution,
        *,
        logprob_T: Tensor | None,
        num_forced: int = 0,
        finished: bool = True,
    ) -> Completion:
        """Tokens that another policy or an earlier step sampled, apart from the first ones; their support is unknown.

        Args:
            token_T: the tokens.
            sampling: the distribution to score them under.
            logprob_T: their log-probabilities; None if unknown.
            num_forced: number of leading forced tokens.
            finished: whether they end with an end token.

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
        """The same tokens with decisions only in a sample's turns; the tokens between them are forced."""
        nothing = [None] * len(sample.turn_ends)
        keys, replies = sample.turn_keys or nothing, sample.turn_replies or nothing
        spans = zip(sample.turn_starts, sample.turn_ends, sample.turn_rewards, keys, replies, strict=True)
        turns = tuple(CompletionTurn(*span) for span in spans)
        position_T = torch.arange(len(self.token_T))
        within_T = torch.stack([(position_T >= turn.start) & (position_T < turn.end) for turn in turns]).any(0)
        is_decision_T = self.is_decision_T & within_T
        return replace(
            self, is_decision_T=is_decision_T, logprob_T=self.logprob_T.where(is_decision_T, 0.0), turns=turns
        )

    def prefix(self, count: int) -> Completion:
        """Its first tokens, with their data, as another row continues them."""
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
        """Number of tokens before the first decision."""
        return int((~self.is_decision_T).int().cumprod(0).sum())

    def mean(self, number_T: Tensor) -> float | None:
        """Mean of a statistic over the decisions; None if there is none."""
        return float(number_T[self.is_decision_T].mean()) if bool(self.is_decision_T.any()) else None

    @classmethod
    def concat(cls, parts: Sequence[Completion]) -> Completion:
        """The tokens of several completions, concatenated; finished if the last one is."""
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


def recorded_samplings(
    samples: Sequence[OffPolicySample], sampling: SamplingDistribution
) -> list[SamplingDistribution]:
    """The distribution of each sample: that of its record, else this one; equal ones are one object.

    Args:
        samples: off-policy samples.
        sampling: distribution of samples without a record.

    Returns:
        One per sample.
    """
    shared = {repr(sampling.settings()): sampling}
    per_sample = [sampling.with_settings(sample.record) for sample in samples]
    return [shared.setdefault(repr(row_sampling.settings()), row_sampling) for row_sampling in per_sample]
