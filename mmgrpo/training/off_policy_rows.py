"""Off-policy rows: answers of the data, remembered rows, and drafts.

Axes: B rows, T decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from mmgrpo.data.replies import reply_of
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.maths.strategies import Answer, Request
from mmgrpo.maths.strategies.draft_prefix import accepted
from mmgrpo.memory import ReplayRow
from mmgrpo.policy import Policy, SupportsOffPolicyScoring
from mmgrpo.types import OffPolicySample, Origin, Plan, Prompt, Rollout, Sample

PromptOf = Callable[[int], Prompt]

VERIFIED = 1
"""Keys the random numbers that accept drafts, in addition to those of the member."""


def given_of(requests: Sequence[Request], prompt_of: PromptOf) -> list[OffPolicySample]:
    """The samples of requests in place of sampling, member by member. Raises DataError for an answer that no row
    has."""
    return [
        _off_policy_sample(source, prompt_of(request.prompt), request.prompt, member)
        for request in requests
        for member, source in zip(request.members, request.given, strict=True)
    ]


def read(policy: Policy, samples: Sequence[OffPolicySample], plan: Plan, seed: int) -> Rollout:
    """Rows of existing samples. Raises ConfigError for a policy that cannot re-score samples."""
    rollout = reader(policy).read(samples, seed=seed, plan=replace(plan, stochastic=None))
    recomputed = [sample.old_logprob_T is None for sample in samples]
    return replace(rollout, recomputed_B=torch.tensor(recomputed)) if any(recomputed) else rollout


def verified(
    policy: Policy, drafts: Sequence[OffPolicySample], plan: Plan, seed: int, *, lenience: float
) -> tuple[list[OffPolicySample], int]:
    """The prefixes of drafts that the current policy accepts, as if it had sampled them.

    Args:
        policy: the current policy.
        drafts: each with the log-probabilities under its behavior policy.
        plan: how decisions are sampled.
        seed: of the step.
        lenience: as ``accepted`` has it.

    Returns:
        Each with its accepted decisions and their current log-probabilities; and the forwards.

    Raises:
        ConfigError: a draft is no text of one turn, or has no log-probabilities.
    """
    if any(
        candidate.sample.tokens is None or candidate.sample.turn_ends or candidate.old_logprob_T is None
        for candidate in drafts
    ):
        raise ConfigError("drafts are texts of one turn with their log-probabilities: choose another strategy")
    unscored = [replace(candidate, old_logprob_T=None, origin=Origin.ON_POLICY) for candidate in drafts]
    rollout = read(policy, unscored, replace(plan, on_samples=None), seed)
    if not all(rollout.tokens_match_sample(row) for row in range(len(unscored))):
        raise ConfigError("drafts are kept token by token: the decisions of this policy are not its tokens in order")
    prefixes = []
    for row, (draft, candidate) in enumerate(zip(drafts, unscored, strict=True)):
        assert candidate.sample.tokens is not None
        assert draft.old_logprob_T is not None
        logprob_T = rollout.old_logprob_BT[row, : len(candidate.sample.tokens)]
        keyed = torch.Generator().manual_seed(
            derive_seed(seed, candidate.sample.group, candidate.sample.member, VERIFIED)
        )
        uniform_T = torch.rand(len(logprob_T), generator=keyed)
        num = accepted(logprob_T, draft.old_logprob_T, uniform_T, lenience=lenience)
        sample = replace(candidate.sample, tokens=list(candidate.sample.tokens)[:num])
        prefixes.append(replace(candidate, sample=sample, old_logprob_T=logprob_T[:num]))
    return prefixes, rollout.num_forwards


def reader(policy: Policy) -> SupportsOffPolicyScoring:
    """The policy as one that re-scores samples. Raises ConfigError for others."""
    if not isinstance(policy, SupportsOffPolicyScoring):
        raise ConfigError(
            f"the strategy re-scores samples, which {type(policy).__name__} does not support: choose another strategy"
        )
    return policy


def _off_policy_sample(source: object, prompt: Prompt, group: int, member: int) -> OffPolicySample:
    if isinstance(source, Answer):
        text = prompt.columns.get(source.column)
        if not isinstance(text, str):
            raise DataError(
                f"the strategy reads answers from the column {source.column!r}; the row has {sorted(prompt.columns)}"
            )
        return OffPolicySample(sample=Sample(prompt=prompt, group=group, member=member, text=text))
    assert isinstance(source, ReplayRow)
    sample = Sample(
        prompt=prompt,
        group=group,
        member=member,
        text=source.text,
        tokens=None if source.tokens is None else source.tokens.tolist(),
        latent=source.array,
        finished=source.finished,
        num_forced=source.num_forced,
        **source.turns,
        turn_replies=[reply_of(plain) for plain in source.replies],
    )
    return OffPolicySample(
        sample=sample, old_logprob_T=source.old_logprob_T, origin=Origin.REPLAY, record=source.record
    )
