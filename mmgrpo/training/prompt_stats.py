"""Updates the memory after a step, including its replay rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mmgrpo.data.replies import plain_reply
from mmgrpo.distributed.job import Job
from mmgrpo.errors import ShapeError
from mmgrpo.maths.seeds import row_seed
from mmgrpo.maths.strategies import Replay, Request
from mmgrpo.memory import Memory, Outcomes, PartialRollouts, PartialRow, ReplayRow
from mmgrpo.training.compute_advantages import Advantages
from mmgrpo.training.score_rollouts import Rewards
from mmgrpo.types import Sample, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptStats:
    """The outcomes of a step over all processes, the same on every process.

    Attributes:
        keys: of the prompt of each of the job's B rows, in one fixed order.
        reward_B: the rewards as one, as they are compared; of rows without any it is not looked at.
        valid_B: bool, whether any reward applied.
        step: counted from 0.
        rows: those that may be read again, in a fixed order.
        shares: the last requested share of an answer in a prompt, by key.
        rewards: float64 (B,), each single reward of each row, by name; 0 where it does not apply.
        partial: the unfinished rows, and the number of prompts that the step began; None: rollouts are complete.
    """

    keys: Sequence[str]
    reward_B: Tensor
    valid_B: Tensor
    step: int
    rows: Sequence[ReplayRow] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    rewards: Mapping[str, Tensor] = field(default_factory=dict)
    partial: PartialRollouts | None = None

    def __post_init__(self) -> None:
        if not len(self.keys) == len(self.reward_B) == len(self.valid_B):
            raise ShapeError(
                f"a key, a reward and whether it is one for each row, got {len(self.keys)}, {len(self.reward_B)}, "
                f"{len(self.valid_B)}"
            )


def ordered_prompt_stats(
    group_N: Tensor,
    reward_N: Tensor,
    valid_N: Tensor,
    key_of: Callable[[int], str],
    *,
    step: int,
    rewards: Mapping[str, Tensor] | None = None,
) -> PromptStats:
    """The outcomes in the order of the job's groups, for any distribution over processes.

    Args:
        group_N: number of each row's prompt in the step, over all processes.
        reward_N: its rewards as one.
        valid_N: bool, whether any applied.
        key_of: the key of a prompt by its number.
        step: counted from 0.
        rewards: (N,) each single reward, by name; 0 where it does not apply.

    Returns:
        The prompt_stats.
    """
    order = group_N.argsort(stable=True)
    keys = [key_of(group) for group in group_N[order].tolist()]
    singly = {name: value_N[order] for name, value_N in (rewards or {}).items()}
    return PromptStats(keys=keys, reward_B=reward_N[order], valid_B=valid_N[order], step=step, rewards=singly)


StateUpdate = Callable[[Memory, Outcomes], Memory]
"""Updates the state of a sampler or an estimator after a step, after the columns."""


def step_prompt_stats(
    rewards: Rewards,
    advantages: Advantages,
    key_of: Callable[[int], str],
    *,
    step: int,
    replay: Replay | None,
    job: Job,
    requests: Sequence[Request] = (),
    seed: int = 0,
) -> PromptStats:
    """The outcomes of a step, with the rows to remember and to continue. A collective, if there are any.

    Groups that were sampled after the rows of others, with the data row of these, are no visit to it: their rewards are
    left out.

    Args:
        rewards: on the rows of all processes.
        advantages: this process's.
        key_of: the key of a prompt by its number in the step.
        step: counted from 0.
        replay: whether rows are remembered.
        job: the processes.
        requests: the requests of all processes.
        seed: of the step.

    Returns:
        The prompt_stats, the same on all processes.
    """
    scored_N = advantages.scored_N & (rewards.group_N == rewards.root_N)
    scores = rewards.counting
    value_BR = scores.value_BR.double().where(scores.valid_BR & (rewards.group_N == rewards.root_N)[:, None], 0.0)
    singly = dict(zip(scores.names, value_BR.T, strict=True))
    prompt_stats = ordered_prompt_stats(
        rewards.root_N, advantages.reward_N, scored_N, key_of, step=step, rewards=singly
    )
    shares = {key_of(request.prompt): request.share for request in requests if request.share is not None}
    partial = step_partial_rollouts(advantages.rollout.samples, key_of, requests=requests, seed=seed, job=job)
    prompt_stats = replace(prompt_stats, shares=shares, partial=partial)
    if replay is None:
        return prompt_stats
    parts = job.gather(replay_rows(advantages, key_of, step=step))
    entries = sorted((entry for part in parts for entry in part), key=lambda entry: entry[:2])
    return replace(prompt_stats, rows=[row for _, _, row in entries])


def replay_rows(advantages: Advantages, key_of: Callable[[int], str], *, step: int) -> list[tuple[int, int, ReplayRow]]:
    """This process's rows that were sampled at this step and trained on, each with its group and member."""
    rollout, advantage_B = advantages.rollout, advantages.advantage_N[advantages.local_rows]
    on_policy_B = (
        torch.ones(len(advantage_B), dtype=torch.bool)
        if rollout.source_B is None
        else rollout.source_B == Source.ON_POLICY
    )
    entries = []
    for row in (on_policy_B & advantages.keep_N[advantages.local_rows]).nonzero().flatten().tolist():
        sample = rollout.samples[row]
        off_policy = rollout.off_policy_sample(row, Source.REPLAY)
        replay_row = ReplayRow(
            key=key_of(sample.group),
            text=sample.text,
            tokens=None if sample.tokens is None else torch.tensor(list(sample.tokens), dtype=torch.long),
            array=sample.latent,
            finished=sample.finished,
            old_logprob_T=None if sample.tokens is None else off_policy.old_logprob_T,
            reward=float(advantages.reward_B[row]),
            advantage=float(advantage_B[row]),
            step=step,
            num_forced=sample.num_forced,
            turns=sample.turns,
            replies=[plain_reply(reply) for reply in sample.turn_replies],
            record=off_policy.record,
        )
        entries.append((sample.group, sample.member, replay_row))
    return entries


def step_partial_rollouts(
    samples: Sequence[Sample], key_of: Callable[[int], str], *, requests: Sequence[Request], seed: int, job: Job
) -> PartialRollouts | None:
    """The unfinished rows of a step, and the number of prompts that it began. A collective, if rollouts are partial.

    Args:
        samples: of this process.
        key_of: the key of a prompt by its number in the step.
        requests: the requests of all processes.
        seed: of the step.
        job: the processes.

    Returns:
        The same on all processes; None: rollouts are complete within their step.
    """
    if all(request.window is None for request in requests):
        return None
    seed_of = {
        (request.prompt, member): row.seed
        for request in requests
        for member, row in zip(request.members, request.partial_rows, strict=False)
    }
    local_rows = [
        PartialRow(
            key=key_of(sample.group),
            group=sample.group,
            member=sample.member,
            tokens=torch.tensor(list(sample.tokens or ()), dtype=torch.long),
            num_forced=sample.num_forced,
            seed=seed_of.get(sample.identity, row_seed(seed, sample.group, sample.member)),
        )
        for sample in samples
        if sample.is_partial
    ]
    rows = sorted((row for part in job.gather(local_rows) for row in part), key=lambda row: (row.group, row.member))
    num_prompts = len({request.prompt for request in requests if not request.partial_rows})
    return PartialRollouts(rows=tuple(rows), num_prompts=num_prompts)


def update_prompt_stats(
    memory: Memory, prompt_stats: PromptStats, learners: Sequence[StateUpdate] = (), *, replay: Replay | None = None
) -> Memory:
    """The memory after a step: each column by its rule, the states of samplers, replay rows and unfinished rows.

    Args:
        memory: before the step.
        prompt_stats: of all processes.
        learners: of samplers and estimators, in a fixed order.
        replay: how many rows are held; None: none.

    Returns:
        The memory; itself, if no column has a rule and no sampler has a state.
    """
    if replay is not None:
        memory = memory.with_replay(prompt_stats.rows, per_prompt=replay.per_prompt, total=replay.total)
    if prompt_stats.partial is not None:
        num_prompts = prompt_stats.partial.num_prompts + (memory.partial.num_prompts if memory.partial else 0)
        memory = replace(memory, partial=replace(prompt_stats.partial, num_prompts=num_prompts))
    if "share" in memory.columns and prompt_stats.shares:
        share_K = torch.tensor(list(prompt_stats.shares.values()), dtype=torch.float64)
        memory = memory.write("share", list(prompt_stats.shares), share_K)
    ruled = [column for column in memory.columns.values() if column.rule is not None]
    if not ruled and not learners:
        return memory
    outcomes = outcomes_of(prompt_stats)
    for column in ruled:
        assert column.rule is not None
        number_K = column.rule(memory.read(column.name, outcomes.keys), outcomes)
        memory = memory.write(column.name, outcomes.keys, number_K)
    for learner in learners:
        memory = learner(memory, outcomes)
    return memory


def read_prompt_stats(memory: Memory, group_N: Tensor, key_of: Callable[[int], str], column: str) -> Tensor:
    """(N,) a column's number of the prompt of each of the job's rows.

    Args:
        memory: before the step.
        group_N: number of each row's prompt in the step.
        key_of: the key of a prompt by its number.
        column: a declared one.

    Returns:
        The numbers.
    """
    groups, index_N = group_N.unique(return_inverse=True)
    return memory.read(column, [key_of(group) for group in groups.tolist()])[index_N]


def outcomes_of(prompt_stats: PromptStats) -> Outcomes:
    """The step's rewards per prompt, over the rows that have one; groups of one prompt count as one."""
    keys = tuple(dict.fromkeys(prompt_stats.keys))
    index_of = {key: number for number, key in enumerate(keys)}
    index_B = torch.tensor([index_of[key] for key in prompt_stats.keys], dtype=torch.long)
    reward_B = prompt_stats.reward_B.double().where(prompt_stats.valid_B, 0.0)
    nothing_K = torch.zeros(len(keys), dtype=torch.float64)
    return Outcomes(
        keys=keys,
        num_K=torch.zeros(len(keys), dtype=torch.int64).index_add(0, index_B, prompt_stats.valid_B.long()),
        reward_sum_K=nothing_K.index_add(0, index_B, reward_B),
        reward_square_sum_K=nothing_K.index_add(0, index_B, reward_B**2),
        step=prompt_stats.step,
        rewards={name: nothing_K.index_add(0, index_B, value_B) for name, value_B in prompt_stats.rewards.items()},
    )
