"""The data that crosses module boundaries: frozen, and checked once, where it is made.

Axes: B samples in prompt-major order, T decisions, P prompts, G group size, R rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from mmgrpo.errors import DataError, ShapeError
from mmgrpo.samples import Audio as Audio
from mmgrpo.samples import Example as Example
from mmgrpo.samples import Prompt as Prompt
from mmgrpo.samples import Sample as Sample
from mmgrpo.scores import Scope as Scope
from mmgrpo.scores import Score as Score
from mmgrpo.scores import Scores as Scores
from mmgrpo.splits import Continuation as Continuation
from mmgrpo.splits import Split as Split
from mmgrpo.splits import num_leaves, require_tree
from mmgrpo.system.lazy import torch
from mmgrpo.values import Value

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedLoss:
    """The loss of a batch of examples, in a form that adds over processes.

    Attributes:
        mean: scalar with grad.
        num_terms: how many terms it is a mean over: tokens, pictures.
    """

    mean: Tensor
    num_terms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a rollout is to be drawn; one plan serves the whole job at a step.

    Attributes:
        stochastic: the decisions that are drawn at random (indices along T); None means every one that can be, the
            empty tuple means none: a greedy or deterministic sample.
        share_noise: the members of a group start from the same noise, and so share every state up to and including
            the first stochastic decision.
        splits: where the members of a group part, as the leaves of a tree, in their order; until then they share
            every state. None: not at all, or with share_noise all at the first stochastic decision.
        values: what will be asked of the rollout's decisions, so that what it takes is stored; values of the view
            ``old`` take the Gaussian means.
        sample_values: what each sample is to say of its decisions, by name: see ``Sample.values``.
        prompt_ids: the prompts' integer identities within the whole job's step; None numbers them from 0. Prompts of
            one identity are one group, each shown to some of its members.
        members: which members of its group are drawn from each prompt, by number, which keys their random numbers;
            None: 0 to group_size - 1 of each.
        continues: what each prompt's rows go on from, for policies that write; None, in whole or in part: from nothing.
        settings: the policy's own settings of drawing, for this rollout alone; its rows are scored under them.
        environment: makes what each sample is an exchange with, an ``Environment``; None: they are written in one turn.
        max_turns: the most turns of an exchange that a sample writes.
        keep_latents: whether samples keep the state that their picture is decoded from, to be read at other levels.
        to_be_read: whether what is drawn is read again and trained on as that reads it, so that no decision of the
            drawing is: policies whose samples without noise are all alike then draw at random.
        on_samples: takes samples as soon as they are drawn, in any order, each once, as the very objects that the
            rollout will hold: rewards on threads judge them while the rest is drawn. A policy may leave it alone.
    """

    stochastic: tuple[int, ...] | None = None
    share_noise: bool = False
    splits: tuple[Split, ...] = ()
    values: tuple[Value, ...] = ()
    sample_values: tuple[str, ...] = ()
    prompt_ids: tuple[int, ...] | None = None
    members: tuple[tuple[int, ...], ...] | None = None
    continues: tuple[Continuation | None, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Callable[[], Any] | None = field(default=None, compare=False, repr=False)
    max_turns: int = 8
    keep_latents: bool = False
    to_be_read: bool = False
    on_samples: Callable[[Sequence[Sample]], None] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        chosen = self.stochastic
        if self.max_turns < 1:
            raise DataError(f"Plan.max_turns must be 1 or more, got {self.max_turns}")
        if chosen is not None and (list(chosen) != sorted(set(chosen)) or any(t < 0 for t in chosen)):
            raise DataError(f"Plan.stochastic must be increasing indices of decisions, got {chosen}")
        if self.members is not None:
            _require_members(self.members, self.prompt_ids)
        if self.splits:
            require_tree(self.splits, stochastic=chosen, share_noise=self.share_noise, members=self.members)

    def members_of(self, num_prompts: int, group_size: int) -> tuple[tuple[int, ...], ...]:
        """For policies: the members to draw of each prompt. Raises DataError if the plan is for other prompts."""
        if group_size < 1:
            raise DataError(f"a rollout takes a group of at least one member, got {group_size}")
        if self.splits and num_leaves(self.splits) != group_size:
            factors = " x ".join(str(split.factor) for split in self.splits)
            raise DataError(
                f"a tree of {factors} has {num_leaves(self.splits)} leaves, the group {group_size} members: change "
                "the group's size or the splits"
            )
        if self.members is None:
            return (tuple(range(group_size)),) * num_prompts
        if len(self.members) != num_prompts:
            raise DataError(f"Plan.members is for {len(self.members)} prompts, got {num_prompts}")
        return self.members

    @property
    def deterministic(self) -> bool:
        """Whether no decision is drawn at random."""
        return self.stochastic == ()

    def spread(self, decision: int) -> float:
        """For policies: how many times its own noise a decision is drawn with."""
        return next((split.spread for split in self.splits if split.decision == decision), 1.0)

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


class Origin(IntEnum):
    """Where a row of a rollout comes from: the policy drew it at this step, or it is read."""

    DRAWN = 0
    REPLAYED = 1
    GIVEN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A sample to be read as a row of decisions.

    Attributes:
        sample: what was generated, by whomever; its prompt is what the policy is shown.
        num_forced: how many decisions at its beginning are given to the policy and not trained on.
        old_logprob_T: log-probability of each decision under the policy that drew it; None: that of the policy at the
            weights of now, without grad.
        origin: where the sample comes from.
        record: of ``Rollout.record_B``, where a rollout of this policy had the sample as a row: the row is of the same
            decisions then, which old_logprob_T is of; None: the policy makes decisions of the sample.
    """

    sample: Sample
    num_forced: int = 0
    old_logprob_T: Tensor | None = None
    origin: Origin = Origin.GIVEN
    record: Mapping[str, Any] | None = None


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
        drawn_by_BT: which row drew each decision, where rows took over the beginnings of others; None: each its own.
        recomputed_B: bool, rows that were read without log-probabilities, so that ``old_logprob_BT`` is of the weights
            that read them; None: none.
        token_BT: integer, the token that each decision sampled, -1 where there is no decision; None where a decision is
            not one token. Its columns are those of ``old_logprob_BT``, whatever the order of ``Sample.tokens``.
        is_prefix: whether the state of a decision is the prompt of the row and the tokens of the decisions before it,
            so that rows of several rollouts that begin alike have states in common.
        num_decisions_B: how many decisions each row has, in its first columns; None: as many as there are columns.
        record_B: per row the data that ``SupportsOffPolicyScoring.read`` needs besides the sample to rebuild the same
            decisions; readable by ``torch.load(weights_only=True)``. None: no data.
        num_forwards: model forwards spent, in rows of one sample.
        num_unbatched: rows that ran by themselves because they depend on what shares their batch.
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
    drawn_by_BT: Tensor | None = None
    recomputed_B: Tensor | None = None
    token_BT: Tensor | None = None
    is_prefix: bool = False
    num_decisions_B: Tensor | None = None
    record_B: Sequence[Mapping[str, Any] | None] | None = None
    num_forwards: int = 0
    num_unbatched: int = 0

    def __post_init__(self) -> None:
        B = len(self.samples)
        if B == 0:
            raise ShapeError("a rollout needs at least one sample")
        if self.prompt_index_B.shape != (B,) or self.prompt_index_B.is_floating_point():
            raise ShapeError(f"prompt_index_B must be {B} integers, got {_describe(self.prompt_index_B)}")
        shape = self.old_logprob_BT.shape
        if len(shape) != 2 or shape[0] != B:
            raise ShapeError(f"old_logprob_BT must be ({B}, T), got {_describe(self.old_logprob_BT)}")
        for name in ("mask_BT", "state_BT", "segment_BT", "drawn_by_BT", "token_BT"):
            tensor = getattr(self, name)
            if tensor is not None and (tensor.shape != shape or tensor.is_floating_point()):
                raise ShapeError(f"{name} must be {tuple(shape)} bool or integer, got {_describe(tensor)}")
        if self.mask_BT.dtype != torch.bool:
            raise ShapeError(f"mask_BT must be bool, got {self.mask_BT.dtype}")
        if not torch.isfinite(self.old_logprob_BT[self.mask_BT]).all():
            raise ShapeError("old_logprob_BT is not finite at a decision that mask_BT keeps")
        if [sample.group for sample in self.samples] != self.prompt_index_B.tolist():
            raise ShapeError("prompt_index_B and the samples' group numbers differ")
        for name in ("origin_B", "age_B", "num_decisions_B", "recomputed_B"):
            tensor = getattr(self, name)
            if tensor is not None and (tensor.shape != (B,) or tensor.is_floating_point()):
                raise ShapeError(f"{name} must be {B} integers, got {_describe(tensor)}")
        if self.record_B is not None and len(self.record_B) != B:
            raise ShapeError(f"record_B must hold a record of each of {B} rows, got {len(self.record_B)}")
        self._require_counts()
        wrong = [str(value) for value, known in self.values.items() if known.shape != shape]
        if wrong:
            raise ShapeError(f"values must be {tuple(shape)} like old_logprob_BT, {', '.join(wrong)} are not")

    def _require_counts(self) -> None:
        """Raises ShapeError for kept decisions beyond the number of a row's, or without their token."""
        if self.num_decisions_B is not None:
            beyond_BT = torch.arange(self.shape[1]) >= self.num_decisions_B.cpu()[:, None]
            if bool((self.mask_BT.cpu() & beyond_BT).any()):
                raise ShapeError("mask_BT keeps decisions beyond num_decisions_B")
        if self.token_BT is not None and bool((self.token_BT < 0)[self.mask_BT].any()):
            raise ShapeError("token_BT has no token at a decision that mask_BT keeps; None: decisions are no tokens")

    def num_decisions(self, row: int) -> int:
        """How many decisions a row has."""
        return self.shape[1] if self.num_decisions_B is None else int(self.num_decisions_B[row])

    def reads_in_order(self, row: int) -> bool:
        """Whether the decisions of a row are the tokens of its sample, in their order."""
        if self.token_BT is None:
            return False
        return self.token_BT[row, : self.num_decisions(row)].tolist() == list(self.samples[row].tokens or ())

    @property
    def shape(self) -> tuple[int, int]:
        """(B, T)."""
        return self.mask_BT.shape[0], self.mask_BT.shape[1]

    def given(self, row: int, origin: Origin, *, sample: Sample | None = None) -> Given:
        """A row as ``SupportsOffPolicyScoring.read`` takes it, with the log-probabilities recorded at sampling.

        Args:
            row: which.
            origin: where the read row comes from.
            sample: in place of the row's, for example with another prompt; None: the row's.

        Returns:
            The row.
        """
        return Given(
            sample=self.samples[row] if sample is None else sample,
            num_forced=self.samples[row].num_forced,
            old_logprob_T=self.old_logprob_BT[row, : self.num_decisions(row)].clone(),
            origin=origin,
            record=None if self.record_B is None else self.record_B[row],
        )

    @property
    def on_policy(self) -> bool:
        """Whether old_logprob_BT is what the weights of now would say: every row is drawn, and by them."""
        drawn = self.origin_B is None or bool((self.origin_B == Origin.DRAWN).all())
        return drawn and (self.age_B is None or not bool(self.age_B.any()))

    @property
    def unchanged_B(self) -> Tensor:
        """(B,) bool, the rows whose old_logprob_BT is of the current weights: sampled at this step or read without
        log-probabilities, and not aged."""
        unchanged_B = torch.ones(len(self.samples), dtype=torch.bool)
        if self.origin_B is not None:
            unchanged_B &= self.origin_B.cpu() == Origin.DRAWN
        if self.recomputed_B is not None:
            unchanged_B |= self.recomputed_B.cpu()
        return unchanged_B if self.age_B is None else unchanged_B & (self.age_B.cpu() == 0)

    def aged(self) -> Rollout:
        """The same rollout after one more update of the weights."""
        age_B = torch.zeros(len(self.samples), dtype=torch.long) if self.age_B is None else self.age_B
        return replace(self, age_B=age_B + 1)

    def keep(self, mask_BT: Tensor) -> Rollout:
        """The same rollout, trained only where both its own mask and this one hold."""
        return replace(self, mask_BT=self.mask_BT & mask_BT)


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
