"""Samples of held-out prompts: answers, conversations between roles, or answers after the samples of other tasks.

Axes: B rows of a round, over all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch

from mmgrpo.data.history import PromptTemplate
from mmgrpo.distributed.job import Job
from mmgrpo.maths.strategies import Ask, Request, Round, Setting, unchanged_prompts
from mmgrpo.policy import Policy
from mmgrpo.training.request_sampling import RoundRollouts, sample_requests
from mmgrpo.training.rollout_rounds import UpstreamRollouts, num_unshown
from mmgrpo.types import Plan, Prompt, Rollout, Sample


@dataclass(frozen=True, slots=True)
class HeldOutRollouts:
    """The rollouts of held-out prompts on this process.

    Attributes:
        rollouts: the rows, round after round.
        upstream: those of the tasks before, by name, the nearest first.
        num_unshown: number of requested members, over all processes, with a prompt template that had no text to insert.
    """

    rollouts: Sequence[Rollout]
    upstream: Mapping[str, Rollout]
    num_unshown: int

    @property
    def samples(self) -> list[Sample]:
        """One per row, with the unchanged prompt."""
        return [sample for rollout in self.rollouts for sample in rollout.samples]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutSampler:
    """Samples held-out prompts without training on them.

    Attributes:
        job: the processes, each of which samples a share of the prompts.
        ask: requests the samples, round by round.
        prompt_templates: those that the requests name.
        upstream: samples the tasks before, in place of ``ask`` and ``prompt_templates``; None: no task before.
    """

    job: Job
    ask: Ask = unchanged_prompts
    prompt_templates: Mapping[str, PromptTemplate] = field(default_factory=dict)
    upstream: Callable[[Sequence[Prompt]], UpstreamRollouts] | None = None

    def __call__(
        self, policy: Policy, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan
    ) -> HeldOutRollouts:
        """Samples the requests until there are none. A collective.

        Args:
            policy: the policy that samples.
            prompts: of the job; a later round of a prompt is sampled on the process of its first one.
            group_size: samples of each prompt.
            seed: of the rollouts.
            plan: how decisions are sampled; its prompts and members are those of the requests.

        Returns:
            The rows of this process.

        Raises:
            ConfigError: the policy does not support a request.
        """
        upstream = self.upstream(prompts) if self.upstream else None
        ask, templates = (upstream.strategy.ask, upstream.templates) if upstream else (self.ask, self.prompt_templates)
        earlier = upstream.rollouts if upstream else {}
        setting = Setting(step=0, num_prompts=len(prompts), group_size=group_size, seed=seed)
        root_of = {group: group for group in range(len(prompts))}
        rounds, round_rollouts = list[Round](), list[RoundRollouts]()

        def prompt_of(group: int) -> Prompt:
            return prompts[root_of[group]]

        while requests := tuple(ask(rounds, setting)):
            root_of.update({request.prompt: root_of[request.after[0][0]] for request in requests if request.after})
            owners = [root_of[request.prompt] % self.job.size for request in requests]
            rollouts = sample_requests(
                policy,
                requests,
                [n for n, owner in enumerate(owners) if owner == self.job.rank],
                prompt_of=prompt_of,
                prompt_templates=templates,
                plan=plan,
                seed=seed,
                before=round_rollouts,
                task=upstream.task if upstream else "",
                upstream=earlier,
            )
            round_rollouts.append(rollouts)
            rounds.append(self._round(requests, rollouts))
        rows = [rollout for each in round_rollouts for rollout in each.rollouts]
        return HeldOutRollouts(rows, earlier, sum(num_unshown(each) for each in rounds))

    def _round(self, requests: Sequence[Request], rollouts: RoundRollouts) -> Round:
        """The rows of all processes, without rewards."""
        local_rows = [
            (number, sample.group, sample.member, int(sample.finished))
            for number, sample in zip(rollouts.request_B.tolist(), rollouts.samples, strict=True)
        ]
        rows = [row for part in self.job.gather(local_rows) for row in part]
        request_B, prompt_B, member_B, finished_B = torch.tensor(rows, dtype=torch.long).reshape(-1, 4).unbind(1)
        return Round(
            requests=requests,
            request_B=request_B,
            prompt_B=prompt_B,
            member_B=member_B,
            reward_B=torch.zeros(len(rows), dtype=torch.float64),
            valid_B=torch.zeros(len(rows), dtype=torch.bool),
            length_B=torch.zeros(len(rows), dtype=torch.long),
            finished_B=finished_B.bool(),
        )


def conversations(samples: Sequence[Sample]) -> list[list[int]]:
    """The rows of each conversation between roles, turn after turn; a sample that follows no other one is the first.

    Args:
        samples: of one task, those of earlier rounds first.

    Returns:
        The rows, in the order of the first samples.
    """
    rows_of: dict[tuple[int, int], list[int]] = {}
    for row, sample in enumerate(samples):
        rows = rows_of[sample.follows[0]] if sample.follows else []
        rows.append(row)
        rows_of[sample.identity] = rows
    return [rows for identity, rows in rows_of.items() if samples[rows[0]].identity == identity]
