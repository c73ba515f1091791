"""The inputs of estimators and filters: the rows of a step with their rewards, and the scores of their parts.

Axes: B rows of this process, T decisions, S parts of a sample, N rows of the job.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from mmgrpo.distributed.job import Job
from mmgrpo.errors import ConfigError, PolicyError, RewardError
from mmgrpo.maths.feedback import Feedback, SampleColumn, Scoped, Turns, job_feedback
from mmgrpo.maths.feedback import joined as joined_feedback
from mmgrpo.maths.parts import part_of_decisions
from mmgrpo.policy import Policy, SupportsTextOffsets
from mmgrpo.training.score_rollouts import Rewards
from mmgrpo.types import Rollout, Sample, Scope, Scores, Source
from mmgrpo.values import Value


def feedback_of(
    policy: Policy,
    rollout: Rollout,
    rewards: Rewards,
    reward_B: Tensor,
    *,
    requested: Collection[Value],
    parts: Collection[str] = (),
    turns: bool = False,
    step: int,
    job: Job,
    memory_columns: Mapping[str, Tensor] | None = None,
) -> Feedback:
    """The input of estimators and filters for this process's rows. One collective, and those that estimators request.

    Args:
        policy: the policy that sampled the rows.
        rollout: its mask keeps the rows that take part; it has the requested values.
        rewards: on the rows of all processes.
        reward_B: the combined reward of each row.
        requested: values of decisions.
        parts: rewards with requested scores of parts.
        turns: whether the turns of conversations are requested.
        step: of the run, from 0.
        job: the processes.
        memory_columns: columns of the memory, of the samples of all processes.

    Returns:
        The feedback.
    """
    local_rows = rewards.local_rows
    valid_B = rewards.counting.scored_B[local_rows] & rewards.keep_N[local_rows]
    values = {value: rollout.values[value] for value in sorted(requested, key=str)}
    local_feedback = job_feedback(
        reward_B, valid_B, rollout.prompt_index_B, rollout.mask_BT, rollout.old_logprob_BT, values
    )
    scores = rewards.counting
    return Feedback(
        reward_B=reward_B,
        valid_B=valid_B,
        group_B=rollout.prompt_index_B,
        mask_BT=rollout.mask_BT,
        segment_BT=rollout.segment_BT,
        state_BT=rollout.state_BT,
        old_logprob_BT=rollout.old_logprob_BT,
        finished_B=torch.tensor([sample.finished for sample in rollout.samples]),
        partial_B=torch.tensor([sample.is_partial for sample in rollout.samples]),
        job=joined_feedback(job.gather(local_feedback), job.rank),
        std_BT=None if rollout.noise is None else rollout.noise.std_BT,
        token_BT=rollout.token_BT,
        values=values,
        rewards={
            name: SampleColumn(value_B=scores.value_BR[local_rows, r].double(), valid_B=scores.valid_BR[local_rows, r])
            for r, name in enumerate(scores.names)
        },
        columns=_columns(rollout.samples),
        scoped={name: span_scores(policy, rollout, rewards, name) for name in sorted(parts)},
        source_B=rollout.source_B,
        sampled_by_BT=rollout.sampled_by_BT,
        after_B=_after(rollout.samples),
        step=step,
        memory_columns=memory_columns or {},
        exchanges=turn_rewards(rollout) if turns else None,
        summed=lambda tensor: torch.stack(job.gather(tensor)).sum(0),
    )


def _after(samples: Sequence[Sample]) -> Tensor | None:
    """(B,) the row with the first text in the prompt of each, -1 for none on this process; None if no prompt has such a
    text."""
    if not any(sample.follows for sample in samples):
        return None
    row_of = {(sample.group, sample.member): row for row, sample in enumerate(samples)}
    return torch.tensor([row_of.get(sample.follows[0], -1) if sample.follows else -1 for sample in samples])


def _columns(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """The columns of the data rows that hold a number for every sample."""
    rows = [sample.prompt.columns for sample in samples]
    names = [
        name
        for name in rows[0]
        if all(isinstance(row.get(name), int | float) and not isinstance(row[name], bool) for row in rows)
    ]
    return {name: torch.tensor([float(row[name]) for row in rows], dtype=torch.float64) for name in names}


def span_scores(policy: Policy, rollout: Rollout, rewards: Rewards, reward: str) -> Scoped:
    """Scores of a reward for parts of this process's rows, and the part of each decision.

    Args:
        policy: the policy that sampled the rows.
        rollout: the rows.
        rewards: on the rows of all processes.
        reward: its name.

    Returns:
        The parts, numbered in their order in each sample; rows that are not compared in groups have no scores.

    Raises:
        ConfigError: there is no such reward, or it gives numbers alone.
        RewardError: a part is no part of its sample.
        PolicyError: the policy does not say which decisions wrote which characters.
    """
    _require_parts(rewards.scores, reward)
    nothing: list[Sequence[Scope] | None] = [None] * len(rewards.keep_N)
    scopes_N = rewards.counting.scopes.get(reward, nothing)
    rows = [scopes or () if keep else () for scopes, keep in zip(scopes_N, rewards.keep_N.tolist(), strict=True)]
    local_rows = rows[rewards.local_rows]
    B, S = len(local_rows), max(1, *map(len, local_rows))
    value_BS, valid_BS = torch.zeros(B, S), torch.zeros(B, S, dtype=torch.bool)
    scope_BT = torch.full(rollout.shape, -1, dtype=torch.long)
    for row, scopes in enumerate(local_rows):
        if not scopes:
            continue
        end_T = _ends(policy, rollout.samples[row], rollout.shape[1])
        _require_within(reward, scopes[-1], rollout.samples[row], rollout.shape[1])
        start_S, end_S = (torch.tensor([getattr(scope, name) for scope in scopes]) for name in ("start", "end"))
        scope_BT[row, : len(end_T)] = part_of_decisions(end_T, start_S, end_S)
        valid_BS[row, : len(scopes)] = torch.tensor([scope.value is not None for scope in scopes])
        value_BS[row, : len(scopes)] = torch.tensor([scope.value or 0.0 for scope in scopes])
    return Scoped(scope_BT=scope_BT, value_BS=value_BS, valid_BS=valid_BS)


def turn_rewards(rollout: Rollout) -> Turns | None:
    """The turns of this process's samples in an environment; None without one.

    A sample without turns, as an answer that was read, has no turn to compare.
    """
    samples, source_B = rollout.samples, rollout.source_B
    on_policy_B = torch.ones(len(samples), dtype=torch.bool) if source_B is None else source_B == Source.ON_POLICY
    if bool(on_policy_B.any()) and not any(sample.turn_ends for sample in samples):
        return None
    B, S = len(samples), max(1, *(len(sample.turn_ends) for sample in samples))
    value_BS, valid_BS = torch.zeros(B, S), torch.zeros(B, S, dtype=torch.bool)
    scope_BT = torch.full(rollout.shape, -1, dtype=torch.long)
    for row, sample in enumerate(samples):
        for turn, (start, end) in enumerate(zip(sample.turn_starts, sample.turn_ends, strict=True)):
            scope_BT[row, start:end] = turn
        turn_rewards_S = list(sample.turn_rewards)
        valid_BS[row, : len(turn_rewards_S)] = torch.tensor(
            [reward is not None for reward in turn_rewards_S], dtype=torch.bool
        )
        value_BS[row, : len(turn_rewards_S)] = torch.tensor([reward or 0.0 for reward in turn_rewards_S])
    keys_B_S = [tuple(sample.turn_keys or [None] * len(sample.turn_ends)) for sample in samples]
    return Turns(rewards=Scoped(scope_BT=scope_BT, value_BS=value_BS, valid_BS=valid_BS), keys_B_S=keys_B_S)


def has_span_scores(scores: Scores, rewards: Collection[str]) -> Tensor:
    """The samples with scored parts by any of these rewards.

    Shapes: -> bool (N,).
    """
    has_scores_N = torch.zeros(len(scores.value_BR), dtype=torch.bool)
    for name in rewards:
        for row, scopes in enumerate(scores.scopes.get(name, ())):
            has_scores_N[row] |= any(scope.value is not None for scope in scopes or ())
    return has_scores_N


def _ends(policy: Policy, sample: Sample, num_decisions: int) -> Tensor:
    """The end of each decision's output: in characters of the text, or in decisions without a text."""
    if sample.text is None:
        return torch.arange(1, num_decisions + 1)
    if not isinstance(policy, SupportsTextOffsets):
        raise PolicyError(
            f"a reward speaks of parts of a text, and {type(policy).__name__} does not say which decisions wrote which "
            "characters: give it the method of mmgrpo.policy.SupportsTextOffsets"
        )
    return torch.tensor(policy.text_offsets(sample), dtype=torch.long)


def _require_parts(scores: Scores, reward: str) -> None:
    if reward not in scores.names:
        names = ", ".join(scores.names)
        raise ConfigError(f"an estimator reads the parts of the reward {reward!r}, which is none of: {names}")
    applies_N = scores.valid_BR[:, scores.names.index(reward)]
    if reward not in scores.scopes and bool(applies_N.any()):
        raise ConfigError(
            f"an estimator reads the parts of the reward {reward!r}, which gives numbers alone: it has to return "
            "Score(value, explanation, scopes)"
        )


def _require_within(reward: str, last: Scope, sample: Sample, num_decisions: int) -> None:
    length, unit = (num_decisions, "decisions") if sample.text is None else (len(sample.text), "characters")
    if last.end > length:
        raise RewardError(f"reward '{reward}' speaks of {last.start} to {last.end} of a sample of {length} {unit}")
