"""The data that crosses module boundaries: frozen, and validated once, at construction.

Axes: B samples in prompt-major order, T decisions, P prompts, G group size, R rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from mmgrpo.errors import DataError, PolicyError, ShapeError
from mmgrpo.samples import Audio as Audio
from mmgrpo.samples import Example as Example
from mmgrpo.samples import Prompt as Prompt
from mmgrpo.samples import Sample as Sample
from mmgrpo.samples import SamplerSteps as SamplerSteps
from mmgrpo.samples import Video as Video
from mmgrpo.scores import Scope as Scope
from mmgrpo.scores import Score as Score
from mmgrpo.scores import Scores as Scores
from mmgrpo.splits import Continuation as Continuation
from mmgrpo.splits import Lookahead as Lookahead
from mmgrpo.splits import Split as Split
from mmgrpo.splits import num_leaves, require_tree
from mmgrpo.system.lazy import torch
from mmgrpo.values import Value

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedLoss:
    """The loss of a batch of examples, with the number of its terms, so that it can be combined over processes.

    Attributes:
        mean: scalar with grad.
        num_terms: number of terms in the mean: tokens, images.
    """

    mean: Tensor
    num_terms: int


REQUESTS: Mapping[str, str] = MappingProxyType(
    {
        "stochastic": "rollout.window",
        "same_initial_noise": "rollout.same_initial_noise",
        "splits": "rollout.tree",
        "continues": "a rollout.strategy that continues rows",
        "token_window": "a rollout.strategy of partial rows",
        "lookahead": "a rollout.strategy with a lookahead",
        "settings": "schedules of policy settings, or a rollout.strategy with settings",
        "environment": "rollout.environment",
    }
)
"""The fields of ``Plan`` that not every policy supports, and where each comes from; those at their defaults request
nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to sample a rollout; all processes use the same plan at a step.

    Attributes:
        stochastic: indices along T of the decisions that are sampled at random; None: every decision that can be; the
            empty tuple: none, a greedy or deterministic sample.
        same_initial_noise: the members of a group start from the same noise, and so share every state up to and
            including the first stochastic decision.
        splits: the decisions at which the members of a group branch, as the leaves of a tree, in order. Before the
            first split they share every state. None: no tree; with same_initial_noise all branch at the first
            stochastic decision.
        values: values that will be requested of the rollout's decisions, so that the policy stores the data they need;
            values of the view ``old`` need the Gaussian means.
        sample_values: names of the per-sample means to store in ``Sample.values``.
        prompt_ids: integer identities of the prompts, unique within the job's step; None numbers them from 0. Prompts
            with one identity form one group, each used for some of its members.
        members: numbers of the group members to sample from each prompt; they key the random numbers. None: 0 to
            group_size - 1 for each prompt.
        continues: the continuation that each prompt's rows start from, for policies that write text; None, for all or
            for one prompt: an empty answer.
        token_window: the maximum number of tokens that a row gets in this rollout, after its continuation; a row that
            reaches it before its end and its length limit is a partial sample. None: up to the length limit.
        lookahead: the search for different beginnings of the rows of each prompt, for policies that write text; None:
            rows are sampled from their first token on.
        settings: sampling settings of the policy for this rollout only; its rows are scored under them.
        environment: makes the ``Environment`` of each sample's conversation; None: single-turn answers.
        max_turns: the maximum number of turns that the policy writes in a conversation.
        environment_workers: the maximum number of environments that work at a time.
        environment_timeout_s: the maximum duration of a call of an environment, in seconds; None: unlimited.
        keep_latents: whether samples keep the latent that their image is decoded from, for scoring at other noise
            levels and for rewards that read it.
        decode: whether latents are decoded to images, videos or audio; False: samples have their latent alone.
        for_rescoring: whether the samples are scored again as off-policy samples and trained only on those decisions;
            a policy whose noise-free samples would all be equal then samples at random.
        trained: whether decisions may be trained on; otherwise samples are only scored, and a policy may approximate
            every step.
        ahead: completions that an engine sampled one step ahead, by request (``SupportsEngine.sample_ahead``).
        on_samples: called with samples as soon as they are generated, in any order, each once, as the same objects that
            the rollout holds, so that reward threads can score them meanwhile. A policy may ignore it, or call it once
            with all samples: rewards then score them after the rollout.
    """

    stochastic: tuple[int, ...] | None = None
    same_initial_noise: bool = False
    splits: tuple[Split, ...] = ()
    values: tuple[Value, ...] = ()
    sample_values: tuple[str, ...] = ()
    prompt_ids: tuple[int, ...] | None = None
    members: tuple[tuple[int, ...], ...] | None = None
    continues: tuple[Continuation | None, ...] | None = None
    token_window: int | None = None
    lookahead: Lookahead | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Callable[[], Any] | None = field(default=None, compare=False, repr=False)
    max_turns: int = 8
    environment_workers: int = 32
    environment_timeout_s: float | None = 60.0
    keep_latents: bool = False
    decode: bool = True
    for_rescoring: bool = False
    trained: bool = True
    ahead: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    on_samples: Callable[[Sequence[Sample]], None] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        chosen = self.stochastic
        if not (self.decode or self.keep_latents):
            raise DataError("Plan.decode: false needs keep_latents: true, or samples would be empty")
        if self.max_turns < 1:
            raise DataError(f"Plan.max_turns must be 1 or more, got {self.max_turns}")
        if self.token_window is not None and self.token_window < 1:
            raise DataError(f"Plan.token_window must be 1 or more, or None, got {self.token_window}")
        if self.environment_workers < 1:
            raise DataError(f"Plan.environment_workers must be 1 or more, got {self.environment_workers}")
        if self.environment_timeout_s is not None and not self.environment_timeout_s > 0:
            raise DataError(f"Plan.environment_timeout_s must be above 0 or None, got {self.environment_timeout_s}")
        if chosen is not None and (list(chosen) != sorted(set(chosen)) or any(t < 0 for t in chosen)):
            raise DataError(f"Plan.stochastic must be increasing indices of decisions, got {chosen}")
        if self.members is not None:
            _require_members(self.members, self.prompt_ids)
        if self.splits:
            require_tree(
                self.splits, stochastic=chosen, same_initial_noise=self.same_initial_noise, members=self.members
            )

    def members_of(self, num_prompts: int, group_size: int) -> tuple[tuple[int, ...], ...]:
        """For policies: the members per prompt. Raises DataError if the plan has another number of prompts."""
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
        """Whether no decision is sampled at random."""
        return self.stochastic == ()

    @property
    def continues_texts(self) -> bool:
        """Whether texts continue others, stop at a window, or begin with a lookahead."""
        continues = any(continuation is not None for continuation in self.continues or ())
        return continues or self.token_window is not None or self.lookahead is not None

    def spread(self, decision: int) -> float:
        """For policies: the factor on the noise of a decision."""
        return next((split.spread for split in self.splits if split.decision == decision), 1.0)

    def require_only(self, *supported: str, policy: str) -> None:
        """For policies: raises PolicyError for requests that the policy does not support.

        Args:
            *supported: the names of ``REQUESTS`` that it supports.
            policy: its name in the message.
        """
        values = {**{name: getattr(self, name) for name in REQUESTS}, "continues": any(self.continues or ())}
        if unsupported := [name for name in REQUESTS if values[name] and name not in supported]:
            listed = ", ".join(f"Plan.{name} ({REQUESTS[name]})" for name in unsupported)
            raise PolicyError(f"{policy} does not support {listed}: leave out the setting in parentheses")

    def emit_samples(self, samples: Sequence[Sample]) -> None:
        """For policies: passes finished samples to ``on_samples``, if it is set."""
        if self.on_samples is not None:
            self.on_samples(samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The Gaussian step sizes of a denoising rollout; constants of the schedule, the same for all modalities.

    Attributes:
        std_BT: standard deviation of each decision; 0 where it is deterministic.
        step_BT: length of each step, h = sigma - sigma_next > 0, in units of the noise level.
        level_BT: noise level sigma before each decision.
    """

    std_BT: Tensor
    step_BT: Tensor
    level_BT: Tensor


class Source(IntEnum):
    """Source of a row of a rollout: sampled by the policy at this step, a stored row, or a demonstration."""

    ON_POLICY = 0
    REPLAY = 1
    DEMONSTRATION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicySample:
    """A sample to be scored as a row of decisions.

    Attributes:
        sample: the generation, from any source; the policy conditions on its prompt.
        num_forced: number of leading decisions that are forced and not trained on.
        old_logprob_T: log-probability of each decision under the behavior policy; None: that of the current policy,
            without grad.
        source: source of the sample.
        record: its entry of ``Rollout.record_B``, if it was a row of a rollout of this policy: the new row then has the
            same decisions, and old_logprob_T belongs to them. None: the policy derives decisions from the sample.
    """

    sample: Sample
    num_forced: int = 0
    old_logprob_T: Tensor | None = None
    source: Source = Source.DEMONSTRATION
    record: Mapping[str, Any] | None = None


LogitsPart = Callable[[int, int], "Tensor"]
"""(start, stop) -> the logits of all tokens at these decisions, (stop - start, V) float32, without grad."""


class RowLogits(Protocol):
    """The logits of a view at the decisions of a rollout."""

    def __call__(self, rows: Sequence[int], mask_NT: Tensor) -> LogitsPart:
        """As ``token_logits`` of a policy, under the weights of the view, without grad."""
        ...

    def of_part(self, part: int) -> RowLogits:
        """Those of one rollout of several that were joined, by its number."""
        ...


@dataclass(frozen=True, slots=True)
class Rollout:
    """B samples, the T decisions of each, and the data that the learner needs of them.

    Attributes:
        samples: the generations, prompt-major.
        prompt_index_B: integer group identity of each sample.
        old_logprob_BT: float32 log-probability of each decision under the behavior policy.
        mask_BT: bool, the decisions that exist and are trained on.
        state_BT: integer id of the state before each decision; states with equal ids are computed once.
        segment_BT: integer segment of each decision.
        trace: the policy's own data, from which it scores the decisions again.
        noise: step sizes, for policies whose decisions are Gaussian.
        values: values of the decisions under the behavior policy, (B, T) each, by name.
        source_B: source of each row, a number of ``Source``; None: all were sampled at this step.
        age_B: number of weight updates since each row was sampled or read, where those of the step before count as one;
            None: none.
        sampled_by_BT: the row that sampled each decision, where rows continue others; None: each row its own decisions.
        earlier_BT: bool, decisions that were sampled at earlier steps, of rows that continue; they are not trained on,
            and a critic values them. None: none.
        recomputed_B: bool, rows whose ``old_logprob_BT`` is of the current weights, which are not those that sampled
            them: off-policy rows without log-probabilities, and rows sampled one step ahead; None: none.
        token_BT: integer, the token that each decision sampled, -1 where there is no decision; None where a decision is
            not one token. Its columns are those of ``old_logprob_BT``, for any order of ``Sample.tokens``.
        is_prefix: whether the state of a decision is the prompt of the row and the tokens of the decisions before it,
            so that rows of several rollouts with a common beginning have states in common.
        num_decisions_B: number of decisions per row, in its first columns; None: as many as there are columns.
        record_B: per row the data that ``SupportsOffPolicyScoring.read`` needs besides the sample to rebuild the same
            decisions; readable by ``torch.load(weights_only=True)``. None: no data.
        num_forwards: number of model forwards, in rows of one sample; partial ones count as fractions.
        num_unbatched: number of rows that ran unbatched because they depend on the other rows of their batch.
        view_logits: the logits of views at the same decisions, by name, for values of two distributions; set while an
            update runs.
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
    source_B: Tensor | None = None
    age_B: Tensor | None = None
    sampled_by_BT: Tensor | None = None
    earlier_BT: Tensor | None = None
    recomputed_B: Tensor | None = None
    token_BT: Tensor | None = None
    is_prefix: bool = False
    num_decisions_B: Tensor | None = None
    record_B: Sequence[Mapping[str, Any] | None] | None = None
    num_forwards: float = 0
    num_unbatched: int = 0
    view_logits: Mapping[str, RowLogits] = field(default_factory=dict)

    def __post_init__(self) -> None:
        B = len(self.samples)
        if B == 0:
            raise ShapeError("a rollout needs at least one sample")
        if self.prompt_index_B.shape != (B,) or self.prompt_index_B.is_floating_point():
            raise ShapeError(f"prompt_index_B must be {B} integers, got {_describe(self.prompt_index_B)}")
        shape = self.old_logprob_BT.shape
        if len(shape) != 2 or shape[0] != B:
            raise ShapeError(f"old_logprob_BT must be ({B}, T), got {_describe(self.old_logprob_BT)}")
        for name in ("mask_BT", "state_BT", "segment_BT", "sampled_by_BT", "earlier_BT", "token_BT"):
            tensor = getattr(self, name)
            if tensor is not None and (tensor.shape != shape or tensor.is_floating_point()):
                raise ShapeError(f"{name} must be {tuple(shape)} bool or integer, got {_describe(tensor)}")
        if self.mask_BT.dtype != torch.bool:
            raise ShapeError(f"mask_BT must be bool, got {self.mask_BT.dtype}")
        if not torch.isfinite(self.old_logprob_BT[self.mask_BT]).all():
            raise ShapeError("old_logprob_BT must be finite where mask_BT is True")
        if [sample.group for sample in self.samples] != self.prompt_index_B.tolist():
            raise ShapeError("prompt_index_B and the samples' group numbers differ")
        for name in ("source_B", "age_B", "num_decisions_B", "recomputed_B"):
            tensor = getattr(self, name)
            if tensor is not None and (tensor.shape != (B,) or tensor.is_floating_point()):
                raise ShapeError(f"{name} must be {B} integers, got {_describe(tensor)}")
        if self.record_B is not None and len(self.record_B) != B:
            raise ShapeError(f"record_B must hold a record of each of {B} rows, got {len(self.record_B)}")
        self._require_counts()
        wrong = [str(value) for value, matrix_BT in self.values.items() if matrix_BT.shape != shape]
        if wrong:
            raise ShapeError(f"values must be {tuple(shape)} like old_logprob_BT, {', '.join(wrong)} are not")

    def _require_counts(self) -> None:
        """Raises ShapeError for unmasked decisions beyond num_decisions_B, or without a token."""
        if self.num_decisions_B is not None:
            beyond_BT = torch.arange(self.shape[1]) >= self.num_decisions_B.cpu()[:, None]
            if bool((self.mask_BT.cpu() & beyond_BT).any()):
                raise ShapeError("mask_BT keeps decisions beyond num_decisions_B")
        if self.token_BT is not None and bool((self.token_BT < 0)[self.mask_BT].any()):
            raise ShapeError("token_BT has no token at a decision that mask_BT keeps; None: decisions are no tokens")

    def num_decisions(self, row: int) -> int:
        """Number of decisions of a row."""
        return self.shape[1] if self.num_decisions_B is None else int(self.num_decisions_B[row])

    def tokens_match_sample(self, row: int) -> bool:
        """Whether the decisions of a row are the tokens of its sample, in their order."""
        if self.token_BT is None:
            return False
        return self.token_BT[row, : self.num_decisions(row)].tolist() == list(self.samples[row].tokens or ())

    @property
    def shape(self) -> tuple[int, int]:
        """(B, T)."""
        return self.mask_BT.shape[0], self.mask_BT.shape[1]

    def off_policy_sample(self, row: int, source: Source, *, sample: Sample | None = None) -> OffPolicySample:
        """A row as input of ``SupportsOffPolicyScoring.read``, with the log-probabilities recorded at sampling.

        Args:
            row: index along B.
            source: source of the new row.
            sample: replaces the row's sample, for example by one with another prompt; None: the row's sample.

        Returns:
            The row.
        """
        return OffPolicySample(
            sample=self.samples[row] if sample is None else sample,
            num_forced=self.samples[row].num_forced,
            old_logprob_T=self.old_logprob_BT[row, : self.num_decisions(row)].clone(),
            source=source,
            record=None if self.record_B is None else self.record_B[row],
        )

    @property
    def on_policy(self) -> bool:
        """Whether old_logprob_BT is of the current policy: every row was sampled at this step, before any later
        update.
        """
        is_sampled = self.source_B is None or bool((self.source_B == Source.ON_POLICY).all())
        return is_sampled and (self.age_B is None or not bool(self.age_B.any()))

    @property
    def unchanged_B(self) -> Tensor:
        """(B,) bool, the rows whose old_logprob_BT is of the current weights: sampled by them, or ``recomputed_B``."""
        unchanged_B = torch.ones(len(self.samples), dtype=torch.bool)
        if self.source_B is not None:
            unchanged_B &= self.source_B.cpu() == Source.ON_POLICY
        if self.age_B is not None:
            unchanged_B &= self.age_B.cpu() == 0
        return unchanged_B if self.recomputed_B is None else unchanged_B | self.recomputed_B.cpu()

    def aged(self, rows_B: Tensor | None = None) -> Rollout:
        """The same rollout after one more update of the weights, or as if these rows (bool) were from before one."""
        age_B = torch.zeros(len(self.samples), dtype=torch.long) if self.age_B is None else self.age_B
        aged_B = torch.ones_like(age_B) if rows_B is None else rows_B.long()
        recomputed_B = None if self.recomputed_B is None else self.recomputed_B & (aged_B == 0)
        return replace(self, age_B=age_B + aged_B, recomputed_B=recomputed_B)

    def keep(self, mask_BT: Tensor) -> Rollout:
        """The same rollout with ``mask_BT`` restricted to this mask."""
        return replace(self, mask_BT=self.mask_BT & mask_BT)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One streamed slice of log-probabilities, with grad where grad is enabled.

    Attributes:
        columns: the decisions (indices along T) of this slice, in order.
        logprob_BT: (len(rows), len(columns)) log-probability under the current policy.
        values: further requested values, by name, in the shape of logprob_BT.
        rows: the samples (indices along B) of this slice; None means every requested row.
        num_forwards: number of model forwards of the slice, in rows of one sample.
    """

    columns: Sequence[int]
    logprob_BT: Tensor
    values: Mapping[Value, Tensor] = field(default_factory=dict)
    rows: Tensor | None = None
    num_forwards: float = 0

    def __post_init__(self) -> None:
        if self.logprob_BT.ndim != 2 or self.logprob_BT.shape[1] != len(self.columns):
            raise ShapeError(f"logprob_BT must be (rows, {len(self.columns)}), got {_describe(self.logprob_BT)}")
        for value, tensor in self.values.items():
            if tensor.shape != self.logprob_BT.shape:
                raise ShapeError(f"{value} must have the shape of logprob_BT, got {_describe(tensor)}")


def _require_members(members: tuple[tuple[int, ...], ...], prompt_ids: tuple[int, ...] | None) -> None:
    if not all(members):
        raise DataError(f"Plan.members must name at least one member of each prompt, got {members}")
    if any(len(set(numbers)) < len(numbers) for numbers in members):
        raise DataError(f"Plan.members must name the members of a prompt each of them once, got {members}")
    if any(member < 0 for numbers in members for member in numbers):
        raise DataError(f"Plan.members must name members by number, from 0, got {members}")
    if prompt_ids is not None and len(prompt_ids) != len(members):
        raise DataError(f"Plan.members is for {len(members)} prompts but prompt_ids for {len(prompt_ids)}")


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
