"""The requests of one round on one process: sampled by the policy, or scored rows of another source.

Axes: B rows, T decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import compress
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from mmgrpo.data.history import History, PromptTemplate, RoleTurn
from mmgrpo.data.replies import reply_of
from mmgrpo.data.stored_answers import answer_of
from mmgrpo.errors import ConfigError, PolicyError
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.maths.strategies import Answer, Request
from mmgrpo.maths.strategies.draft_prefix import accepted
from mmgrpo.memory import PartialRow, ReplayRow
from mmgrpo.policy import (
    Policy,
    SupportsEngine,
    SupportsNamedWeights,
    SupportsOffPolicyScoring,
    SupportsTextOffsets,
)
from mmgrpo.samples import TASK_TEMPLATE
from mmgrpo.types import Continuation, OffPolicySample, Plan, Prompt, Rollout, Sample, Source

MAX_LISTED = 8
"""Samples that an error lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRollouts:
    """The results of one round's requests on this process.

    Attributes:
        requests: of the complete round.
        rollouts: this process's rows: in one rollout those alike in settings, in weights, and in whether they may be
            trained on.
        request_B: which of the requests each row answers.
    """

    requests: Sequence[Request]
    rollouts: Sequence[Rollout]
    request_B: Tensor

    @property
    def samples(self) -> list[Sample]:
        """One per row."""
        return [sample for rollout in self.rollouts for sample in rollout.samples]

    @property
    def trained_B(self) -> Tensor:
        """Whether each row may be trained on."""
        return torch.tensor([self.requests[n].trained for n in self.request_B.tolist()], dtype=torch.bool)

    @property
    def trained(self) -> list[Rollout]:
        """The rollouts that may be trained on."""
        parts = self.trained_B.split([len(rollout.samples) for rollout in self.rollouts])
        return [rollout for rollout, trained_B in zip(self.rollouts, parts, strict=True) if bool(trained_B.all())]


def sample_requests(
    policy: Policy,
    requests: Sequence[Request],
    local_requests: Sequence[int],
    *,
    prompt_of: PromptOf,
    prompt_templates: Mapping[str, PromptTemplate],
    plan: Plan,
    seed: int,
    reads: bool = False,
    before: Sequence[RoundRollouts] = (),
    rewards: Sequence[Mapping[int, Mapping[int, float]]] = (),
    task: str = "",
    upstream: Mapping[str, Rollout] = MappingProxyType({}),
) -> RoundRollouts:
    """Samples, or re-scores, the requests of this process.

    Args:
        policy: the policy that samples.
        requests: of the complete round.
        local_requests: which of them are this process's.
        prompt_of: a prompt of the step by its identity.
        prompt_templates: transforms of the prompt of a member, by name.
        plan: how decisions are sampled.
        seed: of the step.
        reads: whether samples, generated without noise, are renoised, and the renoised states are trained on.
        before: the results of earlier rounds; their rows may be continued, or inserted by prompt templates.
        rewards: the combined rewards of those rounds, by group and member, where any applied.
        task: name of the task that samples; empty without tasks.
        upstream: rollouts of the tasks before it at this step, by name, the nearest first; prompt templates may insert
            the samples of the nearest one.

    Returns:
        The rows; rewards get the unchanged prompt with each, for any prompt template. If a prompt template has no text
        of rows that others are sampled after, there are no rows.

    Raises:
        ConfigError: the policy does not support a request, or a prompt template is missing.
        DataError: an answer is to be read that a row does not have.
    """
    step_rows = rows_by_identity([rollout for earlier in before for rollout in earlier.rollouts])
    rows_by_task = {task: step_rows} | {name: rows_by_identity([rollout]) for name, rollout in upstream.items()}
    row_of = {**rows_by_task[next(iter(upstream))], **step_rows} if upstream else step_rows
    text_ends = policy.text_offsets if isinstance(policy, SupportsTextOffsets) and not upstream else None
    history_of = _histories(row_of, rows_by_task, rewards, seed, text_ends)
    rollouts: list[Rollout] = []
    request_of_row: list[int] = []
    for chosen in _alike(requests, local_requests):
        batch = [requests[n] for n in chosen]
        if batch[0].off_policy_rows:
            parts = _read_samples(policy, [(n, requests[n]) for n in chosen], prompt_of, plan, seed)
        else:
            entries = [
                entry
                for n in chosen
                for entry in _entries(n, requests[n], prompt_of, prompt_templates, row_of, history_of)
            ]
            parts = _sample_entries(policy, batch[0], entries, prompt_of, plan, seed, reads=reads)
        rollouts += [rollout for rollout, _ in parts]
        request_of_row += [n for _, numbers in parts for n in numbers]
    return RoundRollouts(requests=requests, rollouts=rollouts, request_B=torch.tensor(request_of_row, dtype=torch.long))


def request_ahead(
    policy: SupportsEngine,
    requests: Sequence[Request],
    local_requests: Sequence[int],
    *,
    prompt_of: PromptOf,
    prompt_templates: Mapping[str, PromptTemplate],
    plan: Plan,
    seed: int,
) -> list[Callable[[], Mapping[str, Any]]]:
    """Sends what a later ``sample_requests`` of the same arguments, without earlier rounds, has an engine sample.

    Args:
        policy: the policy, whose engine samples with the current weights.
        requests: of the complete round, all of them to be sampled by the policy's current weights.
        local_requests: which of them are this process's.
        prompt_of: a prompt of the step by its identity.
        prompt_templates: transforms of the prompt of a member, by name.
        plan: how decisions are sampled.
        seed: of the step.

    Returns:
        Functions that wait for completions (``SupportsEngine.sample_ahead``).
    """
    history_of, pending = _histories({}, {"": {}}, (), seed, None), []
    for chosen in _alike(requests, local_requests):
        entries = [
            entry for n in chosen for entry in _entries(n, requests[n], prompt_of, prompt_templates, {}, history_of)
        ]
        if not entries:
            continue
        sampling = _Sampling.of(requests[chosen[0]], entries, plan)
        arguments: dict[str, Any] = {"group_size": sampling.group_size, "seed": seed, "plan": sampling.plan}
        pending.append(policy.sample_ahead(sampling.prompts, **arguments))
    return pending


def _alike(requests: Sequence[Request], local_requests: Sequence[int]) -> Collection[list[int]]:
    """The requests of this process, those with the same settings together."""
    numbers_by_key: dict[tuple[object, ...], list[int]] = {}
    for n in local_requests:
        request = requests[n]
        sampling_key = (
            repr(sorted(request.settings.items())),
            request.weights,
            bool(request.off_policy_rows),
            request.lenience,
            request.window,
            request.lookahead,
        )
        key = *sampling_key, request.train_without_template, request.as_on_policy, request.trained
        numbers_by_key.setdefault(key, []).append(n)
    return numbers_by_key.values()


@dataclass(frozen=True, slots=True)
class _Entry:
    """A prompt of some members of a group, and the branch that they continue.

    ``of_other_weights``: whether other weights than the current ones sampled a part of that branch. ``partial_row``:
    the row of an earlier step that it continues.
    """

    request: int
    group: int
    prompt: Prompt
    members: tuple[int, ...]
    continues: Continuation | None = None
    prompt_template: str | None = None
    after: tuple[tuple[int, int], ...] = ()
    of_other_weights: bool = False
    partial_row: PartialRow | None = None


def rows_by_identity(rollouts: Sequence[Rollout]) -> dict[tuple[int, int], tuple[Rollout, int]]:
    """Where the row of each group and member is: its rollout, and its place there."""
    return {
        (sample.group, sample.member): (rollout, row)
        for rollout in rollouts
        for row, sample in enumerate(rollout.samples)
    }


RowOf = Mapping[tuple[int, int], tuple[Rollout, int]]
"""The rollout of each row, by its group and member, and its number there."""


def _histories(
    row_of: RowOf,
    rows_by_task: Mapping[str, RowOf],
    rewards: Sequence[Mapping[int, Mapping[int, float]]],
    seed: int,
    text_ends: Callable[[Sample], Sequence[int]] | None,
) -> Callable[[Request], History]:
    """The input of a prompt template: the rows that a request is sampled after, or those of its group, of earlier
    rounds.
    """
    members_of: dict[int, list[tuple[int, int]]] = {}
    for identity in sorted(row_of):
        members_of.setdefault(identity[0], []).append(identity)
    reward_of = {
        (group, member): reward
        for member_rewards in rewards
        for group, members in member_rewards.items()
        for member, reward in members.items()
    }

    def history(request: Request) -> History:
        if wrong := [identity for identity in request.after if identity not in row_of]:
            raise ConfigError(
                f"the strategy samples after rows {wrong} (group, member), which no earlier round has sampled"
            )
        identities = request.after or members_of.get(request.prompt, [])
        samples = [rollout.samples[row] for rollout, row in (row_of[identity] for identity in identities)]
        task = next(iter(rows_by_task))
        return History(
            role=_role(request.prompt_template, task),
            turns=_turns(request.prompt_template, request.after, rows_by_task),
            seed=derive_seed(seed, request.prompt),
            samples=samples,
            rewards=[reward_of.get(identity) for identity in identities],
            share=request.share,
            ends=[text_ends(sample) for sample in samples] if request.after and text_ends else (),
        )

    return history


def _role(prompt_template: str | None, task: str) -> str:
    return task if prompt_template in (None, TASK_TEMPLATE) else str(prompt_template)


def _turns(
    prompt_template: str | None, after: Sequence[tuple[int, int]], rows_by_task: Mapping[str, RowOf]
) -> list[RoleTurn]:
    """The conversation of a row with these rows in its prompt; those of this task, or of the one before it."""
    tasks = list(rows_by_task)
    turns: dict[tuple[int, tuple[int, int]], RoleTurn] = {}

    def add(number: int, prompt_template: str | None, after: Sequence[tuple[int, int]]) -> None:
        number += prompt_template == TASK_TEMPLATE
        rows = rows_by_task[tasks[number]]
        for identity in after:
            if identity in rows and (number, identity) not in turns:
                rollout, row = rows[identity]
                sample = rollout.samples[row]
                add(number, sample.prompt_template, sample.after)
                turns[number, identity] = RoleTurn(_role(sample.prompt_template, tasks[number]), sample)

    add(0, prompt_template, after)
    return list(turns.values())


def _continued(request: Request, row_of: Mapping[tuple[int, int], tuple[Rollout, int]]) -> Continuation | None:
    """The beginning that a request's members take over."""
    if request.continues is None:
        return None
    member, after = request.continues.member, request.continues.after
    rollout, row = row_of.get((request.prompt, member), (None, 0))
    if rollout is None:
        raise ConfigError(
            f"the strategy continues member {member} of prompt {request.prompt}, which no earlier round has sampled"
        )
    sample = rollout.samples[row]
    if sample.tokens is None or not rollout.tokens_match_sample(row):
        raise ConfigError("only texts can be continued: for denoisers use rollout.tree")
    spans = list(zip(sample.turn_starts, sample.turn_ends, strict=True))
    if spans and not any(start <= after < end for start, end in spans):
        raise ConfigError(
            f"the strategy continues after token {after} of member {member} of prompt {request.prompt}, which the "
            f"environment wrote: its turns are {spans}"
        )
    if not after < len(sample.tokens):
        raise ConfigError(
            f"the strategy continues after decision {after} of member {member} of prompt {request.prompt}, which has "
            f"{len(sample.tokens)}: the last one to continue from is {len(sample.tokens) - 1}"
        )
    return Continuation(
        token_ids=sample.tokens[:after],
        old_logprob_T=rollout.old_logprob_BT[row, :after],
        num_forced=min(sample.num_forced, after),
        trace=rollout.trace,
        row=row,
        then=request.continues.then,
    )


def _continues_aged(request: Request, row_of: Mapping[tuple[int, int], tuple[Rollout, int]]) -> bool:
    """Whether the row that a request continues was sampled, in part, by other weights than the current ones."""
    if request.continues is None:
        return False
    rollout, row = row_of[request.prompt, request.continues.member]
    return rollout.age_B is not None and bool(rollout.age_B[row] > 0)


def _entries(
    number: int,
    request: Request,
    prompt_of: PromptOf,
    prompt_templates: Mapping[str, PromptTemplate],
    row_of: Mapping[tuple[int, int], tuple[Rollout, int]],
    history_of: Callable[[Request], History],
) -> list[_Entry]:
    prompt = prompt_of(request.prompt)
    if request.partial_rows:
        return [
            _partial_entry(number, request.prompt, prompt, member, row)
            for member, row in zip(request.members, request.partial_rows, strict=True)
        ]
    if request.prompt_template is None:
        continuation, aged = _continued(request, row_of), _continues_aged(request, row_of)
        return [_Entry(number, request.prompt, prompt, request.members, continuation, of_other_weights=aged)]
    if request.prompt_template not in prompt_templates:
        raise ConfigError(
            f"the strategy shows prompts in the prompt template {request.prompt_template!r}, which "
            f"rollout.prompt_templates does not have; it has {sorted(prompt_templates)}"
        )
    show, history, entries = prompt_templates[request.prompt_template], history_of(request), []
    member_sets = [request.members] if request.after else [(member,) for member in request.members]
    for members in member_sets:
        template_prompt = show(prompt, members[0], history)
        if template_prompt is None and request.after:
            continue
        if template_prompt is None:
            raise ConfigError(
                f"the prompt template {request.prompt_template!r} has nothing to show of {prompt.text!r:.60}: its "
                "images, or answers of peers, which only views see"
            )
        entries.append(
            _Entry(
                number,
                request.prompt,
                template_prompt,
                members,
                prompt_template=request.prompt_template,
                after=request.after,
            )
        )
    return entries


def _partial_entry(number: int, group: int, prompt: Prompt, member: int, row: PartialRow) -> _Entry:
    """A member that continues an unfinished row; the tokens so far are forced."""
    continuation = Continuation(token_ids=row.tokens.tolist(), seed=row.seed)
    return _Entry(number, group, prompt, (member,), continuation, partial_row=row)


@dataclass(slots=True)
class _PromptRestorer:
    """Samples with the unchanged prompt, the name of their prompt template and the number of tokens that no step
    sampled, each the same object on every access.
    """

    prompt_of: PromptOf
    entry_of: Mapping[tuple[int, int], _Entry]
    policy: str
    restored: dict[int, tuple[Sample, Sample]] = field(default_factory=dict)

    def __call__(self, samples: Sequence[Sample]) -> list[Sample]:
        return [self.restored.setdefault(id(sample), (sample, self._bare(sample)))[1] for sample in samples]

    def all(self, samples: Sequence[Sample]) -> list[Sample]:
        """Those of the complete rollout. Raises PolicyError for others than were requested, or another order."""
        pairs = [(sample.group, sample.member) for sample in samples]
        if pairs != list(self.entry_of):
            raise self._error(pairs)
        return self(samples)

    def _error(self, pairs: Sequence[tuple[int, int]]) -> PolicyError:
        return PolicyError(
            f"{self.policy}.rollout gave the samples {_shortened(pairs)} (group, member) where "
            f"{_shortened(list(self.entry_of))} were requested: let it sample plan.members_of(len(prompts), "
            "group_size) of plan.prompt_ids, in that order (mmgrpo.testing.check_members checks it)"
        )

    def _bare(self, sample: Sample) -> Sample:
        pair = sample.group, sample.member
        if pair not in self.entry_of:
            raise self._error([pair])
        prompt, entry = self.prompt_of(sample.group), self.entry_of[pair]
        if entry.partial_row is not None:
            return replace(sample, num_forced=entry.partial_row.num_forced)
        if sample.prompt is prompt and entry.prompt_template is None:
            return sample
        return replace(sample, prompt=prompt, prompt_template=entry.prompt_template, after=entry.after)


SampledParts = list[tuple[Rollout, list[int]]]
"""Rows, and which of the round's requests each answers."""


def _read_samples(
    policy: Policy, requests: Sequence[tuple[int, Request]], prompt_of: PromptOf, plan: Plan, seed: int
) -> SampledParts:
    """Off-policy rows; drafts with an accepted prefix are sampled from there."""
    samples = off_policy_samples_of([request for _, request in requests], prompt_of)
    numbers = [n for n, request in requests for _ in request.members]
    (_, first), *_ = requests
    if first.lenience is None:
        return [(read(policy, samples, plan, seed), numbers)]
    prefixes, num_forwards = verified(policy, samples, plan, seed, lenience=first.lenience)
    is_complete = [prefix.sample.tokens == draft.sample.tokens for prefix, draft in zip(prefixes, samples, strict=True)]
    entries = [
        _continued_draft(n, prefix)
        for n, prefix, is_full in zip(numbers, prefixes, is_complete, strict=True)
        if not is_full
    ]
    parts = _sample_entries(policy, first, entries, prompt_of, plan, seed)
    if any(is_complete):
        rollout = read(policy, list(compress(prefixes, is_complete)), plan, seed)
        parts.append((rollout, list(compress(numbers, is_complete))))
    (rollout, rows), *others = parts
    return [(replace(rollout, num_forwards=rollout.num_forwards + num_forwards), rows), *others]


def _continued_draft(number: int, draft: OffPolicySample) -> _Entry:
    """A member that continues the accepted prefix of its draft."""
    sample, tokens = draft.sample, list(draft.sample.tokens or ())
    continuation = Continuation(token_ids=tokens, old_logprob_T=draft.old_logprob_T, num_forced=sample.num_forced)
    return _Entry(number, sample.group, sample.prompt, (sample.member,), continuation if tokens else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sampling:
    """The arguments of ``Policy.rollout`` for entries that are sampled alike."""

    prompts: Sequence[Prompt]
    group_size: int
    plan: Plan

    @classmethod
    def of(cls, request: Request, entries: Sequence[_Entry], plan: Plan) -> _Sampling:
        """Those of some entries of requests with the same settings."""
        sizes = {len(entry.members) for entry in entries}
        usual = len(sizes) == 1 and all(entry.members == tuple(range(len(entry.members))) for entry in entries)
        continues = tuple(entry.continues for entry in entries)
        sampling_plan = replace(
            plan,
            prompt_ids=tuple(entry.group for entry in entries),
            members=None if usual else tuple(entry.members for entry in entries),
            continues=continues if any(continues) else None,
            token_window=request.window,
            lookahead=request.lookahead,
            settings={**plan.settings, **request.settings},
            trained=request.trained,
        )
        return cls(prompts=[entry.prompt for entry in entries], group_size=max(sizes), plan=sampling_plan)


def _shortened(pairs: Sequence[tuple[int, int]]) -> str:
    listed = ", ".join(map(str, pairs[:MAX_LISTED]))
    return f"[{listed}{', ...' if len(pairs) > MAX_LISTED else ''}]"


def _sample_entries(
    policy: Policy,
    request: Request,
    entries: Sequence[_Entry],
    prompt_of: PromptOf,
    plan: Plan,
    seed: int,
    *,
    reads: bool = False,
) -> SampledParts:
    """Rows that are sampled with the same settings and weights; none of no entries."""
    if not entries:
        return []
    bare = _PromptRestorer(
        prompt_of,
        {(entry.group, member): entry for entry in entries for member in entry.members},
        type(policy).__name__,
    )
    sampling = _Sampling.of(request, entries, plan)
    sampling_plan = replace(sampling.plan, on_samples=lambda samples: plan.emit_samples(bare(samples)))
    if reads:
        sampling_plan = replace(sampling_plan, stochastic=(), keep_latents=True, for_rescoring=True)
    with _weights(policy, request.weights):
        rollout = policy.rollout(sampling.prompts, group_size=sampling.group_size, seed=seed, plan=sampling_plan)
    rollout = replace(
        rollout,
        samples=bare.all(rollout.samples),
        earlier_BT=_earlier_decisions([entry.partial_row for entry in entries for _ in entry.members], rollout),
    )
    if reads:
        rollout = _rescore(policy, rollout, replace(plan, settings=sampling_plan.settings, on_samples=None), seed)
    elif request.train_without_template:
        rollout = _score_under_prompt(
            policy, rollout, Plan(environment=plan.environment), seed, as_on_policy=request.as_on_policy
        )
    elif request.weights is not None:
        rollout = rollout.aged()
    elif any(entry.of_other_weights for entry in entries):
        rollout = rollout.aged(torch.tensor([entry.of_other_weights for entry in entries for _ in entry.members]))
    return [(rollout, [entry.request for entry in entries for _ in entry.members])]


def _earlier_decisions(partial_row_B: Sequence[PartialRow | None], rollout: Rollout) -> Tensor | None:
    """(B, T) bool, the decisions of continued rows that earlier steps sampled; None without such rows."""
    if not any(partial_row_B):
        return None
    spans = [(row.num_forced, len(row.tokens)) if row else (0, 0) for row in partial_row_B]
    start_B, end_B = torch.tensor(spans).T
    position_T = torch.arange(rollout.shape[1])
    return (position_T >= start_B[:, None]) & (position_T < end_B[:, None])


def _rescore(policy: Policy, rollout: Rollout, plan: Plan, seed: int) -> Rollout:
    """The samples of a rollout as the rows that reading makes of them: noised again, or hidden again."""
    if isinstance(policy, SupportsTextOffsets):
        raise ConfigError(
            "rollout.training_states: renoised is for denoisers and masked policies; texts are trained on as they were "
            "sampled"
        )
    samples = [OffPolicySample(sample=sample, source=Source.ON_POLICY) for sample in rollout.samples]
    rescored = reader(policy).read(samples, seed=seed, plan=replace(plan, stochastic=None))
    return replace(rescored, samples=rollout.samples, num_forwards=rollout.num_forwards + rescored.num_forwards)


def _score_under_prompt(policy: Policy, rollout: Rollout, plan: Plan, seed: int, *, as_on_policy: bool) -> Rollout:
    """The same answers with the unchanged prompt; their behavior policy is that with the prompt template, or with the
    unchanged prompt."""
    if any(sample.tokens is None for sample in rollout.samples):
        raise ConfigError(
            "only texts can be trained on with another prompt than they were sampled from: set train_without_template "
            "to false"
        )
    samples = [rollout.off_policy_sample(row, Source.DEMONSTRATION) for row in range(len(rollout.samples))]
    if as_on_policy:
        samples = [replace(answer, old_logprob_T=None, record=_without_settings(answer.record)) for answer in samples]
    rescored = read(policy, samples, plan, seed)
    return replace(rescored, samples=rollout.samples, num_forwards=rollout.num_forwards + rescored.num_forwards)


def _without_settings(record: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A record of the same decisions, whose sampling settings are the policy's own."""
    return None if record is None else {name: value for name, value in record.items() if name != "settings"}


def _weights(policy: Policy, name: str | None) -> AbstractContextManager[None]:
    if name is None:
        return nullcontext()
    if not isinstance(policy, SupportsNamedWeights):
        raise ConfigError(
            f"the strategy samples with the weights {name!r}, but {type(policy).__name__} does not support named "
            f"weights"
        )
    return policy.weights.using(name)


PromptOf = Callable[[int], Prompt]

VERIFIED = 1
"""Keys the random numbers that accept drafts, in addition to those of the member."""


def off_policy_samples_of(requests: Sequence[Request], prompt_of: PromptOf) -> list[OffPolicySample]:
    """The samples of requests in place of sampling, member by member, texts or images. Raises DataError for an answer
    that no row has."""
    return [
        _off_policy_sample(source, prompt_of(request.prompt), request.prompt, member)
        for request in requests
        for member, source in zip(request.members, request.off_policy_rows, strict=True)
    ]


def read(policy: Policy, samples: Sequence[OffPolicySample], plan: Plan, seed: int) -> Rollout:
    """Rows of existing samples. Raises ConfigError for a policy that cannot re-score samples."""
    rollout = reader(policy).read(samples, seed=seed, plan=replace(plan, stochastic=None))
    recomputed = [sample.old_logprob_T is None for sample in samples]
    return replace(rollout, recomputed_B=torch.tensor(recomputed)) if any(recomputed) else rollout


def verified(
    policy: Policy, drafts: Sequence[OffPolicySample], plan: Plan, seed: int, *, lenience: float
) -> tuple[list[OffPolicySample], float]:
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
    unscored = [replace(candidate, old_logprob_T=None, source=Source.ON_POLICY) for candidate in drafts]
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
        answer = answer_of(prompt, source.column, writes=not source.is_media)
        sample = Sample(prompt, group, member, text=answer.text, image=answer.image, video=answer.video)
        return OffPolicySample(sample=sample)
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
        sample=sample, old_logprob_T=source.old_logprob_T, source=Source.REPLAY, record=source.record
    )
