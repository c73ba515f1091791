"""The data that crosses module boundaries: frozen, and checked once, where it is made.

Axes: B samples in prompt-major order, T decisions, P prompts, G group size, R rewards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmgrpo.errors import DataError, ShapeError
from mmgrpo.values import Value


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a policy is asked, with whatever columns the rewards may need.

    Attributes:
        text: the prompt as text.
        images: images the model is shown (an editing source, a question's picture).
        videos: videos the model is shown, each a sequence of frames or a path.
        messages: the prompt as chat messages, where the model wants turns instead of one text.
        negative: the negative prompt of classifier-free guidance; None leaves the pipeline's default.
        columns: further columns of the data row, handed to every reward unchanged.
    """

    text: str
    images: Sequence[Any] = ()
    videos: Sequence[Any] = ()
    messages: Sequence[Mapping[str, Any]] | None = None
    negative: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise DataError(f"Prompt.text must be a string, got {type(self.text).__name__}")
        if not isinstance(self.columns, Mapping):
            raise DataError(f"Prompt.columns must be a mapping, got {type(self.columns).__name__}")


@dataclass(frozen=True, slots=True)
class Example:
    """One row of supervised data: a prompt and what the policy should make of it.

    Attributes:
        prompt: what is asked.
        text: the target text, for policies that write.
        image: the target image, for policies that draw.
        video: the target video as a list of frames.
    """

    prompt: Prompt
    text: str | None = None
    image: Image.Image | None = None
    video: Sequence[Image.Image] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedLoss:
    """The loss of a batch of examples, in a form that adds over processes.

    Attributes:
        mean: scalar with grad.
        num_terms: how many terms it is a mean over: tokens, pictures.
    """

    mean: Tensor
    num_terms: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One generation, as a reward sees it.

    Attributes:
        prompt: what was asked.
        group: integer identity of the prompt within the step; members of one group share it.
        member: position within the group, 0 <= member < group size.
        text: generated text, if the policy writes.
        image: generated image, if the policy draws.
        video: generated video as a list of frames.
        array: what was generated where it is neither of these: sound (channels, values), an embedding; float32, CPU.
        tokens: generated token ids, if the policy speaks in tokens.
        finished: False where the generation was cut off by its length limit.
        logprob: mean log-probability of its decisions under the policy that drew it, in nats; None where not known.
        certainty: mean over its tokens of KL(uniform || policy), in nats; None where not known.
    """

    prompt: Prompt
    group: int
    member: int
    text: str | None = None
    image: Image.Image | None = None
    video: Sequence[Image.Image] | None = None
    array: Tensor | None = None
    tokens: Sequence[int] | None = None
    finished: bool = True
    logprob: float | None = None
    certainty: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a rollout is to be drawn; one plan serves the whole job at a step.

    Attributes:
        stochastic: the decisions that are drawn at random (indices along T); None means every one that can be, the
            empty tuple means none: a greedy or deterministic sample.
        share_noise: the members of a group start from the same noise, and so share every state up to and including
            the first stochastic decision.
        values: what will be asked of the rollout's decisions, so that what it takes is stored; values of the view
            ``old`` take the Gaussian means.
        prompt_ids: the prompts' integer identities within the whole job's step; None numbers them from 0. Prompts of
            one identity are one group, each shown to some of its members.
        members: which members of its group are drawn from each prompt, by number, which keys their random numbers;
            None: 0 to group_size - 1 of each.
        settings: the policy's own settings of drawing, for this rollout alone; its rows are scored under them.
        on_samples: takes samples as soon as they are drawn, in any order, each once, as the very objects that the
            rollout will hold: rewards on threads judge them while the rest is drawn. A policy may leave it alone.
    """

    stochastic: tuple[int, ...] | None = None
    share_noise: bool = False
    values: tuple[Value, ...] = ()
    prompt_ids: tuple[int, ...] | None = None
    members: tuple[tuple[int, ...], ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    on_samples: Callable[[Sequence[Sample]], None] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        chosen = self.stochastic
        if chosen is not None and (list(chosen) != sorted(set(chosen)) or any(t < 0 for t in chosen)):
            raise DataError(f"Plan.stochastic must be increasing indices of decisions, got {chosen}")
        if self.members is not None:
            _require_members(self.members, self.prompt_ids)

    def members_of(self, num_prompts: int, group_size: int) -> tuple[tuple[int, ...], ...]:
        """For policies: the members to draw of each prompt. Raises DataError if the plan is for other prompts."""
        if group_size < 1:
            raise DataError(f"a rollout takes a group of at least one member, got {group_size}")
        if self.members is None:
            return (tuple(range(group_size)),) * num_prompts
        if len(self.members) != num_prompts:
            raise DataError(f"Plan.members is for {len(self.members)} prompts, got {num_prompts}")
        return self.members

    @property
    def deterministic(self) -> bool:
        """Whether no decision is drawn at random."""
        return self.stochastic == ()

    def hand_over(self, samples: Sequence[Sample]) -> None:
        """For policies: passes on samples that are drawn, if anybody takes them."""
        if self.on_samples is not None:
            self.on_samples(samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The Gaussian step sizes of a denoising rollout; constants of the schedule, the same for all modalities.

    Attributes:
        std_BT: standard deviation of each decision; 0 where it is deterministic.
        step_BT: length of each step, h = sigma - sigma_next > 0, in units of the noise level.
        level_BT: noise level sigma at which each decision is taken.
    """

    std_BT: Tensor
    step_BT: Tensor
    level_BT: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Noise], num_decisions: int) -> Noise:
        """Those of several rollouts, one after the other, padded to so many decisions."""
        return cls(
            **{
                name: _padded([getattr(part, name) for part in parts], num_decisions)
                for name in ("std_BT", "step_BT", "level_BT")
            }
        )


class Origin(IntEnum):
    """Where a row of a rollout comes from: the policy drew it at this step, or it is read."""

    DRAWN = 0
    REPLAYED = 1
    GIVEN = 2


@dataclass(frozen=True, slots=True)
class Rollout:
    """B samples, the T decisions that made each, and what the learner needs to know of them.

    Attributes:
        samples: the generations, prompt-major.
        prompt_index_B: integer group identity of each sample.
        old_logprob_BT: float32 log-probability of each decision under the policy that drew it.
        mask_BT: bool, the decisions that exist and are trained on.
        state_BT: integer id of the state that each decision was taken in; equal ids are computed once.
        segment_BT: integer chunk each decision belongs to.
        trace: the policy's own record, from which it can score the decisions again.
        noise: step sizes, for policies whose decisions are Gaussian.
        values: what is known of the decisions at the weights that sampled, (B, T) each, by name.
        origin_B: where each row comes from, a number of ``Origin``; None: all were drawn.
        age_B: how many updates the weights have seen since old_logprob_BT; None: none.
        num_forwards: model forwards spent, in rows of one sample.
        num_alone: rows that ran by themselves because they depend on what shares their batch.
    """

    samples: Sequence[Sample]
    prompt_index_B: Tensor
    old_logprob_BT: Tensor
    mask_BT: Tensor
    state_BT: Tensor
    segment_BT: Tensor
    trace: Any
    noise: Noise | None = None
    values: Mapping[Value, Tensor] = field(default_factory=dict)
    origin_B: Tensor | None = None
    age_B: Tensor | None = None
    num_forwards: int = 0
    num_alone: int = 0

    def __post_init__(self) -> None:
        B = len(self.samples)
        if B == 0:
            raise ShapeError("a rollout needs at least one sample")
        if self.prompt_index_B.shape != (B,) or self.prompt_index_B.is_floating_point():
            raise ShapeError(f"prompt_index_B must be {B} integers, got {_describe(self.prompt_index_B)}")
        shape = self.old_logprob_BT.shape
        if len(shape) != 2 or shape[0] != B:
            raise ShapeError(f"old_logprob_BT must be ({B}, T), got {_describe(self.old_logprob_BT)}")
        for name in ("mask_BT", "state_BT", "segment_BT"):
            tensor = getattr(self, name)
            if tensor.shape != shape or tensor.is_floating_point():
                raise ShapeError(f"{name} must be {tuple(shape)} bool or integer, got {_describe(tensor)}")
        if self.mask_BT.dtype != torch.bool:
            raise ShapeError(f"mask_BT must be bool, got {self.mask_BT.dtype}")
        if not torch.isfinite(self.old_logprob_BT[self.mask_BT]).all():
            raise ShapeError("old_logprob_BT is not finite at a decision that mask_BT keeps")
        if [sample.group for sample in self.samples] != self.prompt_index_B.tolist():
            raise ShapeError("prompt_index_B and the samples' group numbers differ")
        for name in ("origin_B", "age_B"):
            tensor = getattr(self, name)
            if tensor is not None and (tensor.shape != (B,) or tensor.is_floating_point()):
                raise ShapeError(f"{name} must be {B} integers, got {_describe(tensor)}")
        wrong = [str(value) for value, known in self.values.items() if known.shape != shape]
        if wrong:
            raise ShapeError(f"values must be {tuple(shape)} like old_logprob_BT, {', '.join(wrong)} are not")

    @property
    def shape(self) -> tuple[int, int]:
        """(B, T)."""
        return self.mask_BT.shape[0], self.mask_BT.shape[1]

    @property
    def on_policy(self) -> bool:
        """Whether old_logprob_BT is what the weights of now would say: every row is drawn, and by them."""
        drawn = self.origin_B is None or bool((self.origin_B == Origin.DRAWN).all())
        return drawn and (self.age_B is None or not bool(self.age_B.any()))

    def aged(self) -> Rollout:
        """The same rollout after one more update of the weights."""
        age_B = torch.zeros(len(self.samples), dtype=torch.long) if self.age_B is None else self.age_B
        return replace(self, age_B=age_B + 1)

    def keep(self, mask_BT: Tensor) -> Rollout:
        """The same rollout, trained only where both its own mask and this one hold."""
        return replace(self, mask_BT=self.mask_BT & mask_BT)

    @classmethod
    def joined(cls, rollouts: Sequence[Rollout]) -> Rollout:
        """The rows of several rollouts of one policy, one after the other; matrices are padded to the longest.

        Of values those stay that all of them know. Who reads the trace finds ``Parts`` in it.
        """
        if len(rollouts) == 1:
            return rollouts[0]
        T = max(one.shape[1] for one in rollouts)
        known = set.intersection(*(set(one.values) for one in rollouts))
        offsets, start = [], 0
        for one in rollouts:
            offsets.append(start - int(one.state_BT.min()))
            start += int(one.state_BT.max() - one.state_BT.min()) + 1
        noises = [one.noise for one in rollouts if one.noise is not None]
        return cls(
            samples=[sample for one in rollouts for sample in one.samples],
            prompt_index_B=torch.cat([one.prompt_index_B for one in rollouts]),
            old_logprob_BT=_padded([one.old_logprob_BT for one in rollouts], T),
            mask_BT=_padded([one.mask_BT for one in rollouts], T),
            state_BT=_padded([one.state_BT + offset for one, offset in zip(rollouts, offsets, strict=True)], T),
            segment_BT=_padded([one.segment_BT for one in rollouts], T),
            trace=Parts(rollouts),
            noise=Noise.joined(noises, T) if len(noises) == len(rollouts) else None,
            values={value: _padded([one.values[value] for one in rollouts], T) for value in known},
            origin_B=_cat_or_none([one.origin_B for one in rollouts], [len(one.samples) for one in rollouts]),
            age_B=_cat_or_none([one.age_B for one in rollouts], [len(one.samples) for one in rollouts]),
            num_forwards=sum(one.num_forwards for one in rollouts),
            num_alone=sum(one.num_alone for one in rollouts),
        )


@dataclass(frozen=True, slots=True)
class Parts:
    """The trace of rollouts that were joined; each is scored by itself.

    Attributes:
        rollouts: in the order of their rows.
    """

    rollouts: Sequence[Rollout]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One streamed slice of log-probabilities, with grad where grad is enabled.

    Attributes:
        columns: the decisions (indices along T) that this slice holds, in order.
        logprob_BT: (len(rows), len(columns)) log-probability under the weights of now.
        values: what else was asked for, by name, in the shape of logprob_BT.
        rows: the samples (indices along B) that this slice holds; None means every row that was asked for.
        num_forwards: model forwards spent on the slice, in rows of one sample.
    """

    columns: Sequence[int]
    logprob_BT: Tensor
    values: Mapping[Value, Tensor] = field(default_factory=dict)
    rows: Tensor | None = None
    num_forwards: int = 0

    def __post_init__(self) -> None:
        if self.logprob_BT.ndim != 2 or self.logprob_BT.shape[1] != len(self.columns):
            raise ShapeError(f"logprob_BT must be (rows, {len(self.columns)}), got {_describe(self.logprob_BT)}")
        for value, tensor in self.values.items():
            if tensor.shape != self.logprob_BT.shape:
                raise ShapeError(f"{value} must have the shape of logprob_BT, got {_describe(tensor)}")


@dataclass(frozen=True, slots=True)
class Score:
    """A reward's value with what it rests on; a reward may give one in place of a number.

    Attributes:
        value: the number; NaN or infinity where judging failed.
        explanation: what people may want to see of it, small and of what JSON knows; see ``docs/rewards.md`` for the
            keys that the report draws.
    """

    value: float
    explanation: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.explanation, Mapping):
            raise DataError(f"Score.explanation must be a mapping, got {type(self.explanation).__name__}")
        try:
            json.dumps(dict(self.explanation), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"Score.explanation must hold what JSON can: {error}") from error

    def __float__(self) -> float:
        return float(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What the rewards said, reward by reward; a reward that does not apply to a sample is masked, never a number.

    Attributes:
        names: R reward names.
        weight_R: float32 weights.
        value_BR: float32 scores; 0 where ``valid_BR`` is False.
        valid_BR: bool, whether the reward applied and gave a finite number.
        failures: per reward, how many samples it failed on (raised, took too long, or gave NaN or infinity).
        explanations: per reward that explains itself, one entry per sample; None where it said nothing.
        cached: per reward whose results are kept, for how many samples it was not asked.
        took_s: per reward, seconds that it ran.
    """

    names: tuple[str, ...]
    weight_R: Tensor
    value_BR: Tensor
    valid_BR: Tensor
    failures: Mapping[str, int] = field(default_factory=dict)
    explanations: Mapping[str, Sequence[Mapping[str, Any] | None]] = field(default_factory=dict)
    cached: Mapping[str, int] = field(default_factory=dict)
    took_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        R = len(self.names)
        if self.weight_R.shape != (R,) or self.value_BR.ndim != 2 or self.value_BR.shape[1] != R:
            raise ShapeError(f"{R} rewards need weight_R ({R},) and value_BR (B, {R}), got {_describe(self.value_BR)}")
        if self.valid_BR.shape != self.value_BR.shape or self.valid_BR.dtype != torch.bool:
            raise ShapeError(f"valid_BR must be bool of shape {tuple(self.value_BR.shape)}")
        if not torch.isfinite(self.value_BR).all():
            raise ShapeError("value_BR must be finite; mask what does not apply with valid_BR")
        wrong = {name: len(said) for name, said in self.explanations.items() if len(said) != len(self.value_BR)}
        if wrong:
            raise ShapeError(f"explanations must be one per sample, of {len(self.value_BR)}, got {wrong}")

    @classmethod
    def joined(cls, parts: Sequence[Scores]) -> Scores:
        """The scores of several calls or processes by the same rewards, one after the other."""
        first = parts[0]
        return cls(
            names=first.names,
            weight_R=first.weight_R,
            value_BR=torch.cat([part.value_BR for part in parts]),
            valid_BR=torch.cat([part.valid_BR for part in parts]),
            failures={name: sum(part.failures.get(name, 0) for part in parts) for name in first.names},
            explanations={
                name: [said for part in parts for said in part.explanations.get(name, [None] * len(part.value_BR))]
                for name in first.names
                if any(name in part.explanations for part in parts)
            },
            cached={name: sum(part.cached[name] for part in parts) for name in first.cached},
            took_s={name: max(part.took_s[name] for part in parts) for name in first.took_s},
        )

    def rows(self, chosen: Sequence[int]) -> Scores:
        """The scores of some samples, in that order; counts stay those of all."""
        return replace(
            self,
            value_BR=self.value_BR[list(chosen)],
            valid_BR=self.valid_BR[list(chosen)],
            explanations={name: [said[row] for row in chosen] for name, said in self.explanations.items()},
        )

    @property
    def scored_B(self) -> Tensor:
        """Whether any reward of a weight other than 0 applied to the sample."""
        return (self.valid_BR & (self.weight_R != 0)).any(1)


def _require_members(members: tuple[tuple[int, ...], ...], prompt_ids: tuple[int, ...] | None) -> None:
    if not all(members):
        raise DataError(f"Plan.members must name at least one member of each prompt, got {members}")
    if any(len(set(some)) < len(some) for some in members):
        raise DataError(f"Plan.members must name the members of a prompt each of them once, got {members}")
    if any(member < 0 for some in members for member in some):
        raise DataError(f"Plan.members must name members by number, from 0, got {members}")
    if prompt_ids is not None and len(prompt_ids) != len(members):
        raise DataError(f"Plan.members is for {len(members)} prompts but prompt_ids for {len(prompt_ids)}")


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _padded(parts: Sequence[Tensor], num_columns: int) -> Tensor:
    """Matrices below each other, zeros after the columns that they have."""
    return torch.cat([torch.nn.functional.pad(part, (0, num_columns - part.shape[1])) for part in parts])


def _cat_or_none(parts: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    """Vectors after each other, zeros where there is none; None where there are none at all."""
    if all(part is None for part in parts):
        return None
    filled = [torch.zeros(B, dtype=torch.long) if p is None else p for p, B in zip(parts, sizes, strict=True)]
    return torch.cat(filled)
