"""Rows grouped into pipeline runs, and finished runs assembled into a rollout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmgrpo.errors import ConfigError, DataError, PolicyError, ReplayError
from mmgrpo.types import Noise, Plan, Prompt, Rollout, Sample

from .denoising_rows import DenoisingRow
from .denoising_trace import DenoisingTrace
from .failures import STATES
from .recorder import Recorder, is_stochastic
from .sampling_params import SamplingParams
from .state_sharing import branching_of, require_split_noise, states_of

SINGLE_STEP = (
    "a single step ends on the clean sample and is deterministic: set num_inference_steps to 2 or more, or "
    "policy.last_std above 0"
)


@dataclass(frozen=True, slots=True)
class RecordedChunk:
    """Rows of one finished run, with their recorded steps, samples and input kind."""

    rows: Sequence[DenoisingRow]
    params: SamplingParams
    recorder: Recorder
    samples: Sequence[Sample]
    num_forwards: float
    input_kind: Any = None

    @property
    def kind(self) -> Any:
        """A key of its sampling parameters, the shapes of a row's states, and the input kind."""
        shapes = tuple(torch.Size((1, *step.next_state.shape[1:])) for step in self.recorder.steps)
        return self.params.kind, shapes, self.input_kind

    @property
    def stochastic(self) -> list[int]:
        """The stochastic decisions."""
        steps = self.recorder.steps
        return sorted({step.iteration for step in steps if is_stochastic(step.decision.moments)})

    @property
    def excess_noise(self) -> float:
        """The largest excess of a step's noise over the next noise level."""
        return max((step.decision.excess_noise for step in self.recorder.steps), default=0.0)


def make_groups(prompts: Sequence[Prompt], group_size: int, seed: int, plan: Plan) -> list[list[DenoisingRow]]:
    """The rows of a rollout, prompt by prompt.

    Args:
        prompts: P prompts; those with one id form one group.
        group_size: rows per prompt, unless the plan names members.
        seed: the step's seed.
        plan: prompt ids, members and branching of the groups.

    Returns:
        The rows of each prompt.

    Raises:
        DataError: no prompts, an empty group, ids that do not match the prompts, or a duplicate member.
        PolicyError: the plan uses a feature of text policies.
    """
    if plan.environment is not None or plan.continues_texts or any(prompt.prefix for prompt in prompts):
        raise PolicyError(
            "diffusion policies support neither multi-turn rollouts nor prefixes; remove rollout.environment, "
            "Plan.continues, Plan.token_window, Plan.lookahead and Prompt.prefix"
        )
    if not prompts or group_size < 1:
        raise DataError(f"a rollout needs prompts and group_size >= 1, got {len(prompts)} prompts, {group_size}")
    ids = plan.prompt_ids if plan.prompt_ids is not None else tuple(range(len(prompts)))
    if len(ids) != len(prompts):
        raise DataError(f"{len(prompts)} prompts need as many prompt_ids, got {len(ids)}")
    members_of = plan.members_of(len(prompts), group_size)
    counts = Counter((group, member) for group, members in zip(ids, members_of, strict=True) for member in members)
    if duplicates := [key for key, count in counts.items() if count > 1]:
        raise DataError(
            f"a member's number keys its noise, so it is unique within a group; duplicate (id, member): {duplicates}"
        )
    branching = branching_of(plan, 1 + max(member for members in members_of for member in members))
    return [
        [
            DenoisingRow(prompt=prompt, seed=seed, group=group, member=member, branching=branching, entry=entry)
            for member in members
        ]
        for entry, (group, prompt, members) in enumerate(zip(ids, prompts, members_of, strict=True))
    ]


def state_batches(
    rollout: Rollout,
    rows: Sequence[int],
    column: int,
    size: int,
    can_share_run: Callable[[DenoisingRow, DenoisingRow], bool],
) -> Iterator[list[int]]:
    """Rows in batches of at most ``size`` distinct states of one shape at a decision, which can share a run."""
    trace: DenoisingTrace = rollout.trace
    rows_of: dict[int, list[int]] = {}
    states_of_params: dict[int, list[list[int]]] = {}
    for row in rows:
        rows_of.setdefault(int(rollout.state_BT[row, column]), []).append(row)
    for members in rows_of.values():
        states_of_params.setdefault(id(trace.row_params[members[0]]), []).append(members)
    batch: list[list[int]] = []
    for members in (members for states in states_of_params.values() for members in states):
        if batch:
            first, other = batch[0][0], members[0]
            joins = trace.alike(first, other) and can_share_run(trace.rows[first], trace.rows[other])
            if len(batch) == size or not joins:
                yield [row for state_rows in batch for row in state_rows]
                batch = []
        batch.append(members)
    if batch:
        yield [row for state_rows in batch for row in state_rows]


def step_batches(
    rollout: Rollout,
    rows: Sequence[int],
    size: int,
    can_share_run: Callable[[DenoisingRow, DenoisingRow], bool],
    *,
    joins: bool,
) -> Iterator[tuple[list[int], list[int]]]:
    """Rows and decisions in batches of at most ``size`` distinct states.

    Args:
        rollout: the rollout.
        rows: some of its rows.
        size: distinct states, counted over all decisions of a batch.
        can_share_run: whether two rows may share a run.
        joins: whether consecutive decisions of the same rows share a batch, if these share their states alike.

    Yields:
        tuple[list[int], list[int]]: rows, and decisions that are unmasked in all of them.
    """
    masked_of = {
        column: [row for row in rows if bool(rollout.mask_BT[row, column])] for column in range(rollout.shape[1])
    }
    columns = [column for column, masked in masked_of.items() if masked]
    while columns:
        column = columns[0]
        batches = list(state_batches(rollout, masked_of[column], column, size, can_share_run))
        sharing = _sharing(rollout, masked_of[column], column)
        most = size // len(set(sharing)) if joins and len(batches) == 1 else 1
        together = [column]
        for following in columns[1:most]:
            if masked_of[following] != masked_of[column] or _sharing(rollout, masked_of[column], following) != sharing:
                break
            together.append(following)
        yield from ((batch, together) for batch in batches)
        columns = columns[len(together) :]


def _sharing(rollout: Rollout, rows: Sequence[int], column: int) -> list[int]:
    """For each row, the first one with the same state at a decision."""
    states = rollout.state_BT[list(rows), column].tolist()
    return [states.index(state) for state in states]


def assemble(chunks: Sequence[RecordedChunk], plan: Plan, segments: Sequence[int] | None) -> Rollout:
    """The rollout of all chunks.

    Args:
        chunks: finished runs, in any order of the prompts.
        plan: the plan of the rollout.
        segments: segment lengths in steps, adding up to T; None: one step per segment.

    Returns:
        The rollout, prompt-major, its matrices on the CPU.

    Raises:
        ReplayError: runs took different numbers of steps.
        ConfigError: no step can be stochastic, or the window, the splits or the segments do not fit the schedule.
    """
    rows = [row for chunk in chunks for row in chunk.rows]
    lengths = {chunk.recorder.steps[-1].iteration + 1 for chunk in chunks}
    if len(lengths) > 1:
        raise ReplayError(f"the pipeline took {sorted(lengths)} steps for different rows; fix num_inference_steps")
    T = lengths.pop()
    step_sampler = chunks[0].params.step_sampler
    max_steps = T if step_sampler.last_std else T - 1
    if max_steps < 1:
        raise ConfigError(SINGLE_STEP)
    if plan.stochastic and plan.stochastic[-1] >= max_steps:
        raise ConfigError(
            f"the window {plan.stochastic} is outside the schedule: of its {T} steps, 0 to {max_steps - 1} can be "
            "stochastic"
        )
    noise = _noise(chunks, T)
    mask_BT = noise.std_BT > 0
    require_split_noise(plan, mask_BT[0])
    old_logprob_BT = torch.cat([_logprobs(chunk, mask_BT[0]) for chunk in chunks])
    samples = [sample for chunk in chunks for sample in chunk.samples]
    mask_BT &= torch.tensor([sample.failure != STATES for sample in samples])[:, None]
    old_logprob_BT = old_logprob_BT.where(mask_BT, 0.0)
    order = sorted(range(len(rows)), key=lambda index: rows[index].entry)
    rows = [rows[index] for index in order]
    row_params = [chunk.params for chunk in chunks for _ in chunk.rows]
    transitions = [transition for chunk in chunks for transition in chunk.recorder.transitions()]
    return Rollout(
        samples=[samples[index] for index in order],
        prompt_index_B=torch.tensor([row.group for row in rows]),
        old_logprob_BT=old_logprob_BT[order],
        mask_BT=mask_BT[order],
        state_BT=states_of(rows, T),
        segment_BT=_segments(T, segments).expand(len(rows), T),
        trace=DenoisingTrace(
            rows=tuple(rows),
            row_params=tuple(row_params[index] for index in order),
            transitions=tuple(transitions[index] for index in order),
        ),
        noise=Noise(std_BT=noise.std_BT[order], step_BT=noise.step_BT[order], level_BT=noise.level_BT[order]),
        num_forwards=sum(chunk.num_forwards for chunk in chunks),
    )


def _noise(chunks: Sequence[RecordedChunk], num_steps: int) -> Noise:
    std_BT, step_BT, level_BT = (torch.zeros(sum(len(c.rows) for c in chunks), num_steps) for _ in range(3))
    start = 0
    for chunk in chunks:
        rows = slice(start, start := start + len(chunk.rows))
        for step in chunk.recorder.steps:
            moments, t = step.decision.moments, step.iteration
            std_BT[rows, t] = float(moments.std.mean()) if isinstance(moments.std, Tensor) else moments.std
            step_BT[rows, t] = moments.step
            level_BT[rows, t] = step.decision.level
    return Noise(std_BT=std_BT, step_BT=step_BT, level_BT=level_BT)


def _logprobs(chunk: RecordedChunk, mask_T: Tensor) -> Tensor:
    columns = [
        chunk.recorder.logprob_rows(t).cpu() if bool(mask_T[t]) else torch.zeros(len(chunk.rows))
        for t in range(len(mask_T))
    ]
    return torch.stack(columns, 1)


def _segments(num_steps: int, sizes: Sequence[int] | None) -> Tensor:
    if sizes is None:
        return torch.arange(num_steps)
    if sum(sizes) != num_steps:
        raise ConfigError(f"segments {tuple(sizes)} add up to {sum(sizes)} steps; the schedule has {num_steps}")
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(list(sizes)))
