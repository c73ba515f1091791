"""The rollouts of a step: the requests of a strategy, round by round; the rewards start on the samples as they come.

A strategy may have a round sampled by weights that were updated on the rounds before; that update is reverted.

Axes: B rows, N rows of the job, T decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor

from mmgrpo.data.history import PromptTemplate
from mmgrpo.differentiating import backward
from mmgrpo.distributed.job import Job
from mmgrpo.errors import ConfigError
from mmgrpo.maths.forgetting import FORGETTING, Forgetting, forgetting_loss
from mmgrpo.maths.strategies import Request, Round, Setting, Strategy
from mmgrpo.maths.strategies.branch_points import Places, Row, height
from mmgrpo.policy import Policy, SupportsEngine, SupportsNamedWeights, SupportsTextOffsets
from mmgrpo.scoring import PendingScores, Scorer, with_reward_inputs
from mmgrpo.training.concat_rollouts import concat_rollouts, sampling_rows
from mmgrpo.training.pending_rewards import PendingRewards, PendingSamples, pending_rewards
from mmgrpo.training.request_sampling import PromptOf, RoundRollouts, request_ahead, sample_requests
from mmgrpo.training.streaming import cells, evaluations
from mmgrpo.types import Plan, Rollout, Sample, Scores
from mmgrpo.values import ENTROPY

OnSamples = Callable[[Sequence[Sample]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """The rollouts of a step on this process, in complete groups; untrained samples are left out.

    Attributes:
        rollout: its rows, round after round; its forwards are those of all samples.
        keep_B: bool, the rows that are trained on and that groups are compared by.
        scored: the pending rewards, started during the rollout.
        requests: the requests of all processes, over all rounds.
        num_rounds: number of rounds of the strategy.
        seed: of the step.
        num_unshown: number of requested members, over all processes, with a prompt template that had no text to insert.
        root_of: of groups sampled after the rows of others, the group with their data row.
        upstream: the rollouts of the tasks before, by name, the nearest first.
    """

    rollout: Rollout
    keep_B: Tensor
    scored: PendingRewards
    requests: Sequence[Request]
    num_rounds: int
    seed: int = 0
    num_unshown: int = 0
    root_of: Mapping[int, int] = field(default_factory=dict)
    upstream: Mapping[str, Rollout] = field(default_factory=dict)

    @property
    def samples(self) -> Sequence[Sample]:
        """One per row."""
        return self.rollout.samples


@dataclass(frozen=True, slots=True)
class UpstreamRollouts:
    """The samples of the tasks before a task at this step, whose prompts contain those of the nearest one.

    Attributes:
        task: name of the task that samples after them.
        rollouts: their rows on this process, by task, the nearest first.
        strategy: the strategy after the nearest, in place of the configured one.
        owner: the process of each group.
        root_of: the group whose data row a group has, where that is another one.
        templates: the templates that insert its samples, by name.
    """

    task: str
    rollouts: Mapping[str, Rollout]
    strategy: Strategy
    owner: Mapping[int, int]
    root_of: Mapping[int, int]
    templates: Mapping[str, PromptTemplate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CombinedRewards:
    """The combined reward of each row.

    Attributes:
        reward_B: float64.
        valid_B: bool, whether any reward of a weight other than 0 applied.
    """

    reward_B: Tensor
    valid_B: Tensor


def collect_rollouts(
    policy: Policy,
    strategy: Strategy,
    prompt_of: PromptOf,
    scorer: Scorer,
    *,
    setting: Setting,
    plan: Plan,
    job: Job,
    value: Callable[[Scores, Tensor], CombinedRewards] | None = None,
    prompt_templates: Mapping[str, PromptTemplate] | None = None,
    renoise: bool = False,
    on_samples: OnSamples = lambda samples: None,
    upstream: UpstreamRollouts | None = None,
) -> Rollouts:
    """Samples the requests of the strategy until there are none.

    The groups of a round are divided among the processes; all members of a group are sampled on one process.

    Args:
        policy: the policy that samples.
        strategy: requests the samples.
        prompt_of: a prompt of the step by its identity.
        scorer: the rewards, which get each sample as soon as it is generated.
        setting: the data of the step for the strategy.
        plan: how decisions are sampled; its prompts and members are the strategy's.
        job: the processes.
        value: combines the scores of a round by the group of each row, with the rows where any applied; for strategies
            that look back.
        prompt_templates: transforms of the prompt of a member, by name.
        renoise: whether samples are generated without noise and their renoised states are trained on
            (``rollout.training_states``).
        on_samples: takes samples as they are generated.
        upstream: the samples of another policy, after which this one samples; None: none.

    Returns:
        The rollouts.

    Raises:
        ConfigError: the policy or the configuration does not support a request, or no decision was
            random.
    """
    owners = _GroupOwners.of(job, upstream)
    rounds, round_rollouts, pending_rounds = list[Round](), list[RoundRollouts](), list[PendingSamples]()
    num_extra_forwards = 0
    values = plan.values if strategy.places is None else tuple(dict.fromkeys((*plan.values, *strategy.places.values)))
    while requests := tuple(strategy.ask(rounds, setting)):
        _require_declared(requests, strategy)
        local_requests = owners.local_requests(requests, job)
        if strategy.forgetting and round_rollouts:
            earlier = [rollout for each in round_rollouts for rollout in each.rollouts]
            num_extra_forwards += keep_forgetting(policy, earlier, strategy.forgetting, job)
        pending = scorer.open(group_sizes=_sizes([requests[n] for n in local_requests]))

        def submit(samples: Sequence[Sample], pending: PendingScores = pending) -> None:
            on_samples(samples)
            if job.is_leader:
                pending.submit(samples)

        rollouts = sample_requests(
            policy,
            requests,
            local_requests,
            prompt_of=lambda prompt: prompt_of(owners.root_of.get(prompt, prompt)),
            prompt_templates=prompt_templates or {},
            plan=with_reward_inputs(replace(plan, values=values, on_samples=submit), scorer.rewards),
            seed=setting.seed,
            reads=renoise,
            before=round_rollouts,
            rewards=[previous.rewards() for previous in rounds],
            task=upstream.task if upstream else "",
            upstream=upstream.rollouts if upstream else {},
        )
        round_rollouts.append(rollouts)
        part = PendingSamples(pending, rollouts.samples)
        if not strategy.looks_back:
            pending_rounds.append(part)
            break
        round_rows = _rows_of_all(rollouts, part, policy, strategy.places, job)
        rounds.append(_round(requests, round_rows, value))
        pending_rounds.append(replace(part, scores=round_rows[job.rank].scores))
    rollout = _joined(round_rollouts, policy, plan)
    num_forwards = sum(part.num_forwards for each in round_rollouts for part in each.rollouts)
    trained_B = torch.cat([each.trained_B for each in round_rollouts])
    keep_B = trained_B & _keep_mask(strategy, rounds, setting, round_rollouts, job)
    return Rollouts(
        rollout=replace(rollout, num_forwards=num_extra_forwards + num_forwards),
        keep_B=keep_B[trained_B],
        scored=pending_rewards(scorer if job.is_leader else None, pending_rounds, trained_B, keep_B, owners.root_of),
        requests=[request for each in round_rollouts for request in each.requests],
        num_rounds=len(round_rollouts),
        seed=setting.seed,
        num_unshown=sum(num_unshown(each) for each in rounds),
        root_of=owners.root_of,
        upstream=upstream.rollouts if upstream else {},
    )


def request_rollouts_ahead(
    policy: SupportsEngine,
    strategy: Strategy,
    prompt_of: PromptOf,
    *,
    setting: Setting,
    plan: Plan,
    job: Job,
    prompt_templates: Mapping[str, PromptTemplate],
) -> list[Callable[[], Mapping[str, Any]]]:
    """Sends the requests of ``collect_rollouts`` of the same arguments to the policy's engine.

    Args:
        policy: the policy, whose engine samples with the current weights.
        strategy: requests the samples, in one round.
        prompt_of: a prompt of the step by its identity.
        setting: the data of the step for the strategy.
        plan: how decisions are sampled.
        job: the processes.
        prompt_templates: transforms of the prompt of a member, by name.

    Returns:
        Functions that wait for the completions of this process (``SupportsEngine.sample_ahead``).
    """
    requests = tuple(strategy.ask([], setting))
    return request_ahead(
        policy,
        requests,
        _GroupOwners.of(job, None).local_requests(requests, job),
        prompt_of=prompt_of,
        prompt_templates=prompt_templates,
        plan=plan,
        seed=setting.seed,
    )


def _require_declared(requests: Sequence[Request], strategy: Strategy) -> None:
    names = {request.weights for request in requests} - {None, *strategy.weights}
    if undeclared := names - ({FORGETTING} if strategy.forgetting else set()):
        raise ConfigError(
            f"the strategy samples with weights that it does not declare: {', '.join(sorted(map(str, undeclared)))}; "
            "name them in Strategy.weights, so that they are stored before the first update"
        )


def num_unshown(round_: Round) -> int:
    """Requested members of a round with a prompt template that had no text to insert, and so without a row."""
    return sum(len(request.members) for request in round_.requests) - len(round_.request_B)


@final
@dataclass(frozen=True, slots=True)
class _GroupOwners:
    """The process of every group of a step.

    Attributes:
        process_of: the process of each group.
        root_of: of groups sampled after the rows of others, the group with their data row.
        loads: requested members of each process.
    """

    process_of: dict[int, int]
    root_of: dict[int, int]
    loads: list[int]

    @classmethod
    def of(cls, job: Job, upstream: UpstreamRollouts | None) -> _GroupOwners:
        """Before the first round."""
        process_of, root_of = (dict(upstream.owner), dict(upstream.root_of)) if upstream else ({}, {})
        return cls(process_of, root_of, [0] * job.size)

    def local_requests(self, requests: Sequence[Request], job: Job) -> list[int]:
        """Assigns the groups of a round; returns the numbers of the requests of this process."""
        self.assign(requests)
        return [n for n, request in enumerate(requests) if self.process_of[request.prompt] == job.rank]

    def assign(self, requests: Sequence[Request]) -> None:
        """Gives each new group of a round to a process.

        A group sampled after the rows of another has the process of that one. The first others are divided in blocks
        of equal cost, later ones go to the process with the lowest cost.
        """
        self._assign_by_roots(requests)
        costs = _sizes(requests)
        new = [prompt for prompt in costs if prompt not in self.process_of]
        is_first = not any(self.loads)
        blocks = _blocks([costs[prompt] for prompt in new], len(self.loads)) if is_first else []
        for number, prompt in enumerate(new):
            self.process_of[prompt] = blocks[number] if is_first else self.loads.index(min(self.loads))
            self.loads[self.process_of[prompt]] += costs[prompt]
        for prompt in costs.keys() - set(new):
            self.loads[self.process_of[prompt]] += costs[prompt]

    def _assign_by_roots(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.after and request.prompt not in self.process_of:
                group = request.after[0][0]
                self.root_of[request.prompt] = self.root_of.get(group, group)
                self.process_of[request.prompt] = self.process_of[group]


def _blocks(costs: Sequence[int], num: int) -> list[int]:
    """Which of so many blocks of about equal cost each item is in; none is empty where there are enough items."""
    block_of_item: list[int] = []
    total, before = sum(costs), 0
    for number, cost in enumerate(costs):
        nearest = (2 * before + cost) * num // (2 * total)
        last = block_of_item[-1] if block_of_item else -1
        left = num - len(costs) + number if len(costs) >= num else 0  # those after it fill the blocks after its own
        block_of_item.append(max(min(nearest, last + 1), left, last, 0))
        before += cost
    return block_of_item


def _sizes(requests: Sequence[Request]) -> dict[int, int]:
    """How many members of each group a round brings."""
    sizes: dict[int, int] = {}
    for request in requests:
        sizes[request.prompt] = sizes.get(request.prompt, 0) + len(request.members)
    return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class _RoundRows:
    """The statistics of one process's rows of a round."""

    request_B: Tensor
    identity_B2: Tensor
    length_B: Tensor
    finished_B: Tensor
    places_B: Sequence[Sequence[int]]
    heights_B: Sequence[float]
    scores: Scores


def _rows_of_all(
    rollouts: RoundRollouts, part: PendingSamples, policy: Policy, places: Places | None, job: Job
) -> list[_RoundRows]:
    """The statistics of the rows of every process, in rank order. One collective, for any number of rows."""

    def local_rows() -> _RoundRows:
        rows = [] if places is None else _rows(rollouts, policy, places)
        places_of_row = [] if places is None else [places(row) for row in rows]
        identity = [(sample.group, sample.member) for sample in part.samples]
        return _RoundRows(
            request_B=rollouts.request_B,
            identity_B2=torch.tensor(identity, dtype=torch.long).reshape(-1, 2),
            length_B=torch.cat([torch.zeros(0, dtype=torch.long), *(r.mask_BT.sum(1) for r in rollouts.rollouts)]),
            finished_B=torch.tensor([sample.finished for sample in part.samples], dtype=torch.bool),
            places_B=places_of_row,
            heights_B=[height(row, row_places) for row, row_places in zip(rows, places_of_row, strict=True)],
            scores=part.collected(),
        )

    return job.run_on_leaders(local_rows)


def _round(
    requests: Sequence[Request], parts: Sequence[_RoundRows], value: Callable[[Scores, Tensor], CombinedRewards] | None
) -> Round:
    """The round as all processes know it."""
    if value is None:
        raise ConfigError("a strategy with several rounds needs the combined scores")
    identity_B2 = torch.cat([part.identity_B2 for part in parts])
    valued = value(Scores.concat([part.scores for part in parts]), identity_B2[:, 0])
    return Round(
        requests=requests,
        request_B=torch.cat([part.request_B for part in parts]),
        prompt_B=identity_B2[:, 0],
        member_B=identity_B2[:, 1],
        reward_B=valued.reward_B,
        valid_B=valued.valid_B,
        length_B=torch.cat([part.length_B for part in parts]),
        finished_B=torch.cat([part.finished_B for part in parts]),
        places_B=[places for part in parts for places in part.places_B],
        heights_B=[each for part in parts for each in part.heights_B],
    )


def _rows(rollouts: RoundRollouts, policy: Policy, places: Places) -> list[Row]:
    """The data of the rows for finding branch points."""
    rows = [(rollout, row) for rollout in rollouts.rollouts for row in range(len(rollout.samples))]
    place_rows = []
    for (rollout, row), number in zip(rows, rollouts.request_B.tolist(), strict=True):
        sample, branch = rollout.samples[row], rollouts.requests[number].continues
        if sample.tokens is None or not rollout.tokens_match_sample(row):
            raise ConfigError("only texts can be continued: for denoisers use rollout.tree")
        if places.text and not isinstance(policy, SupportsTextOffsets):
            raise ConfigError(f"the strategy looks for places in texts, which {type(policy).__name__} does not tell")
        place_rows.append(
            Row(
                num_decisions=len(sample.tokens),
                begins=sample.num_forced if branch is None else branch.after,
                value_T=rollout.values[places.values[0]][row] if places.values else None,
                turns=tuple(zip(sample.turn_starts, sample.turn_ends, strict=True)),
                text=sample.text or "",
                ends_T=policy.text_offsets(sample) if places.text and isinstance(policy, SupportsTextOffsets) else (),
            )
        )
    return place_rows


def _joined(round_rollouts: Sequence[RoundRollouts], policy: Policy, plan: Plan) -> Rollout:
    """The rows that may be trained on; rows that continue others are scored together if the policy supports it.

    Raises ConfigError if there is no such row, or no decision of them is random.
    """
    if not any(each.trained for each in round_rollouts):
        raise ConfigError("the strategy requested no trained sample on this process: raise rollout.prompts_per_step")
    requests = [
        rollouts.requests[n] for rollouts in round_rollouts for n in rollouts.request_B[rollouts.trained_B].tolist()
    ]
    bare_B = torch.tensor([request.prompt_template is None or request.train_without_template for request in requests])
    parts = [rollout for rollouts in round_rollouts for rollout in rollouts.trained]
    branches = {
        (request.prompt, member): request.continues
        for rollouts in round_rollouts
        for request in rollouts.requests
        if request.continues is not None
        for member in request.members
    }
    rollout = concat_rollouts(
        parts, bare_B=bare_B if plan.environment is None else None, policy=policy if branches else None
    )
    if not bool(rollout.mask_BT.any()):
        raise ConfigError("no decision of the rollout is random, so none can be trained: raise policy.strength")
    if not branches:
        return rollout
    identities = [(sample.group, sample.member) for sample in rollout.samples]
    return replace(rollout, sampled_by_BT=sampling_rows(identities, branches, rollout.shape[1]))


def _keep_mask(
    strategy: Strategy, rounds: Sequence[Round], setting: Setting, round_rollouts: Sequence[RoundRollouts], job: Job
) -> Tensor:
    """This process's rows that the strategy keeps."""
    if not strategy.looks_back:
        return torch.cat([rollouts.trained_B for rollouts in round_rollouts])
    counts = job.gather([len(rollouts.request_B) for rollouts in round_rollouts])
    keep_of_round = strategy.keep(rounds, setting)
    local_keep = []
    for number, round_keep_N in enumerate(keep_of_round):
        start = sum(count[number] for count in counts[: job.rank])
        local_keep.append(round_keep_N[start : start + counts[job.rank][number]])
    return torch.cat(local_keep)


def keep_forgetting(policy: Policy, rollouts: Sequence[Rollout], config: Forgetting, job: Job) -> float:
    """Keeps ``FORGETTING``; the weights that are trained stay as they are.

    The loss is a mean over the rows of all processes of the mean over a row's kept decisions. A collective.

    Args:
        policy: the policy that sampled the rows, with unchanged weights.
        rollouts: this process's rows of the step so far.
        config: the step.
        job: the processes.

    Returns:
        Forwards that this process took.

    Raises:
        ConfigError: the policy keeps no weights.
    """
    if not isinstance(policy, SupportsNamedWeights):
        raise ConfigError(f"the strategy samples with named weights, but {type(policy).__name__} does not support them")
    num_rows = sum(job.gather(sum(int(rollout.mask_BT.any(1).sum()) for rollout in rollouts)))
    entropy, count, num_forwards = _backward(policy, rollouts, config, num_rows)
    job.sum_gradients(policy.trainable)  # all have met, and none takes turns while the weights are elsewhere
    entropies, counts = zip(*job.gather((entropy, count)), strict=True)
    rate = config.rate if sum(entropies) < config.below * sum(counts) else 0.0
    before = [parameter.detach().clone() for parameter in policy.trainable]
    with torch.no_grad():
        for parameter in policy.trainable:
            if parameter.grad is not None and rate:
                parameter -= rate * parameter.grad
            parameter.grad = None
        policy.weights.store(FORGETTING)
        for parameter, original in zip(policy.trainable, before, strict=True):
            parameter.copy_(original)
    return num_forwards


def _backward(
    policy: Policy, rollouts: Sequence[Rollout], config: Forgetting, num_rows: int
) -> tuple[float, int, float]:
    """Adds the loss's gradient; gives the sum of the entropies, how many, and the forwards that it took."""
    entropy, count, num_forwards = 0.0, 0, 0
    for rollout in rollouts:
        for part in evaluations(policy, rollout, (ENTROPY,)):
            keep_BT = cells(rollout.mask_BT, part).to(part.logprob_BT.device)
            rows = slice(None) if part.rows is None else part.rows
            length_B1 = rollout.mask_BT[rows].sum(1, keepdim=True).to(part.logprob_BT.device)
            loss_BT = forgetting_loss(part.logprob_BT, keep_BT, limit=config.limit) / length_B1.clamp(min=1)
            backward(loss_BT.sum() / num_rows)
            entropy += float(part.values[ENTROPY].detach().where(keep_BT, 0.0).sum())
            count += int(keep_BT.sum())
            num_forwards += part.num_forwards
    return entropy, count, num_forwards
