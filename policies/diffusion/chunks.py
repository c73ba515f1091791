"""Rows into pipeline runs, and finished runs into a rollout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmgrpo.errors import ConfigError, DataError, PolicyError, ReplayError
from mmgrpo.types import Noise, Plan, Prompt, Rollout, Sample

from .branching import branching_of, require_parted, states_of
from .denoising_rows import DenoisingRow
from .denoising_trace import DenoisingTrace
from .failures import STATES
from .recorder import Recorder, is_stochastic
from .sampling_params import SamplingParams

SINGLE_STEP = (
    "a single step ends on the clean sample and draws nothing: set num_inference_steps to 2 or more, or "
    "policy.last_std above 0"
)


@dataclass(frozen=True, slots=True)
class RecordedChunk:
    """Rows that have run, and in which manner they brought what they show."""

    rows: Sequence[DenoisingRow]
    drawing: SamplingParams
    recorder: Recorder
    samples: Sequence[Sample]
    num_forwards: int
    manner: Any = None

    @property
    def kind(self) -> Any:
        """How its rows were drawn, the shapes of a row's states, and how they brought what they show."""
        shapes = tuple(torch.Size((1, *drawn.next_state.shape[1:])) for drawn in self.recorder.drawn)
        return self.drawing.kind, shapes, self.manner

    @property
    def stochastic(self) -> list[int]:
        """The decisions that were drawn at random."""
        drawn = self.recorder.drawn
        return sorted({step.iteration for step in drawn if is_stochastic(step.decision.moments)})

    @property
    def excess_noise(self) -> float:
        """Most noise that one of its steps left over what the next level holds."""
        return max((step.decision.excess_noise for step in self.recorder.drawn), default=0.0)


def make_groups(prompts: Sequence[Prompt], group_size: int, seed: int, plan: Plan) -> list[list[DenoisingRow]]:
    """The rows of a rollout, prompt by prompt.

    Args:
        prompts: P prompts; those of one id are one group.
        group_size: rows per prompt, where the plan names no members.
        seed: the step's seed.
        plan: the prompts' identities and members, and how a group branches.

    Returns:
        The rows of each prompt.

    Raises:
        DataError: no prompts, an empty group, ids that do not match the prompts, or a member drawn twice.
        PolicyError: what only policies that write can do is asked for.
    """
    if plan.environment is not None or plan.continues is not None or any(one.prefix for one in prompts):
        raise PolicyError(
            "pictures are not written turn by turn and have no beginning that is given: leave out "
            "rollout.environment, Plan.continues and Prompt.prefix"
        )
    if not prompts or group_size < 1:
        raise DataError(f"a rollout needs prompts and group_size >= 1, got {len(prompts)} prompts, {group_size}")
    ids = plan.prompt_ids if plan.prompt_ids is not None else tuple(range(len(prompts)))
    if len(ids) != len(prompts):
        raise DataError(f"{len(prompts)} prompts need as many prompt_ids, got {len(ids)}")
    members_of = plan.members_of(len(prompts), group_size)
    drawn = Counter((group, member) for group, members in zip(ids, members_of, strict=True) for member in members)
    if twice := [key for key, count in drawn.items() if count > 1]:
        raise DataError(f"a member's number keys its noise, so a group draws it once; twice are (id, member): {twice}")
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
    together: Callable[[DenoisingRow, DenoisingRow], bool],
) -> Iterator[list[int]]:
    """Rows in batches of at most ``size`` distinct states at a decision, of one shape, that may share a run."""
    trace: DenoisingTrace = rollout.trace
    rows_of: dict[int, list[int]] = {}
    alike: dict[int, list[list[int]]] = {}
    for row in rows:
        rows_of.setdefault(int(rollout.state_BT[row, column]), []).append(row)
    for members in rows_of.values():
        alike.setdefault(id(trace.drawings[members[0]]), []).append(members)
    batch: list[list[int]] = []
    for members in (members for some in alike.values() for members in some):
        if batch:
            first, other = batch[0][0], members[0]
            joins = trace.alike(first, other) and together(trace.rows[first], trace.rows[other])
            if len(batch) == size or not joins:
                yield [row for some in batch for row in some]
                batch = []
        batch.append(members)
    if batch:
        yield [row for some in batch for row in some]


def assemble(chunks: Sequence[RecordedChunk], plan: Plan, segments: Sequence[int] | None) -> Rollout:
    """The rollout that the chunks make together.

    Args:
        chunks: what has run, prompt by prompt but for the order of the prompts.
        plan: what it was run by.
        segments: lengths of the segments, in steps, adding up to T; None makes every step its own.

    Returns:
        The rollout, prompt-major, its matrices on the CPU.

    Raises:
        ReplayError: runs took different numbers of steps.
        ConfigError: no step can be drawn at random, or the window, the splits or the segments do not fit it.
    """
    rows = [row for chunk in chunks for row in chunk.rows]
    lengths = {chunk.recorder.drawn[-1].iteration + 1 for chunk in chunks}
    if len(lengths) > 1:
        raise ReplayError(f"the pipeline took {sorted(lengths)} steps for different rows; fix num_inference_steps")
    T = lengths.pop()
    sampling = chunks[0].drawing.sampling
    most = T if sampling.last_std else T - 1
    if most < 1:
        raise ConfigError(SINGLE_STEP)
    if plan.stochastic and plan.stochastic[-1] >= most:
        raise ConfigError(
            f"the window {plan.stochastic} lies outside the schedule: of its {T} steps 0 to {most - 1} can be "
            "stochastic"
        )
    noise = _noise(chunks, T)
    mask_BT = noise.std_BT > 0
    require_parted(plan, mask_BT[0])
    old_logprob_BT = torch.cat([_logprobs(chunk, mask_BT[0]) for chunk in chunks])
    samples = [sample for chunk in chunks for sample in chunk.samples]
    mask_BT &= torch.tensor([sample.failure != STATES for sample in samples])[:, None]
    old_logprob_BT = old_logprob_BT.where(mask_BT, 0.0)
    order = sorted(range(len(rows)), key=lambda place: rows[place].entry)
    rows = [rows[place] for place in order]
    drawings = [chunk.drawing for chunk in chunks for _ in chunk.rows]
    transitions = [transition for chunk in chunks for transition in chunk.recorder.transitions()]
    return Rollout(
        samples=[samples[place] for place in order],
        prompt_index_B=torch.tensor([row.group for row in rows]),
        old_logprob_BT=old_logprob_BT[order],
        mask_BT=mask_BT[order],
        state_BT=states_of(rows, T),
        segment_BT=_segments(T, segments).expand(len(rows), T),
        trace=DenoisingTrace(
            rows=tuple(rows),
            drawings=tuple(drawings[place] for place in order),
            transitions=tuple(transitions[place] for place in order),
        ),
        noise=Noise(std_BT=noise.std_BT[order], step_BT=noise.step_BT[order], level_BT=noise.level_BT[order]),
        num_forwards=sum(chunk.num_forwards for chunk in chunks),
    )


def _noise(chunks: Sequence[RecordedChunk], num_steps: int) -> Noise:
    std_BT, step_BT, level_BT = (torch.zeros(sum(len(c.rows) for c in chunks), num_steps) for _ in range(3))
    start = 0
    for chunk in chunks:
        rows = slice(start, start := start + len(chunk.rows))
        for drawn in chunk.recorder.drawn:
            moments, t = drawn.decision.moments, drawn.iteration
            std_BT[rows, t] = float(moments.std.mean()) if isinstance(moments.std, Tensor) else moments.std
            step_BT[rows, t] = moments.step
            level_BT[rows, t] = drawn.decision.level
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
        raise ConfigError(f"segments {tuple(sizes)} add up to {sum(sizes)} steps, the schedule has {num_steps}")
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(list(sizes)))
