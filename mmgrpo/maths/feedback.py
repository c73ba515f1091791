"""Feedback: the data of the samples of a step that estimators and filters read.

It contains the complete groups of this process, decision by decision, and numbers per sample of the rows of all
processes.

Axes: B samples of this process, T decisions, N samples of all processes, S scopes of a sample (spans, steps, ranks).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from mmgrpo.errors import ConfigError, ShapeError
from mmgrpo.maths.group_stats import Groups, grouped
from mmgrpo.memory import Column as MemoryColumn
from mmgrpo.system.lazy import torch
from mmgrpo.values import Value, mask_of_view

if TYPE_CHECKING:
    from torch import Tensor

Entry = TypeVar("Entry")

VECTORS = ("reward_B", "valid_B", "group_B", "finished_B", "partial_B", "source_B", "after_B")
"""Fields of ``Feedback`` that have a number for each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleColumn:
    """A number per sample, where it has one.

    Attributes:
        value_B: the numbers; anything where there is none.
        valid_B: bool, whether there is one.
    """

    value_B: Tensor
    valid_B: Tensor

    def __post_init__(self) -> None:
        _require_vector("value_B", self.value_B, self.valid_B.shape)
        _require_bool("valid_B", self.valid_B)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoped:
    """Scores of a reward for parts of its samples: spans of a text, turns, denoising steps, ranks of a list.

    Attributes:
        scope_BT: scope that each decision belongs to, a number along S; -1 for none.
        value_BS: the score of each scope; any number where it has none.
        valid_BS: bool, whether the scope has a score.
    """

    scope_BT: Tensor
    value_BS: Tensor
    valid_BS: Tensor

    def __post_init__(self) -> None:
        if self.value_BS.ndim != 2 or self.valid_BS.shape != self.value_BS.shape:
            raise ShapeError(
                f"value_BS and valid_BS must be (B, S) alike, got {tuple(self.value_BS.shape)} and "
                f"{tuple(self.valid_BS.shape)}"
            )
        _require_bool("valid_BS", self.valid_BS)
        B, S = self.value_BS.shape
        if self.scope_BT.ndim != 2 or len(self.scope_BT) != B or self.scope_BT.is_floating_point():
            raise ShapeError(f"scope_BT must be ({B}, T) integers, got {_describe(self.scope_BT)}")
        if bool(((self.scope_BT < -1) | (self.scope_BT >= S)).any()):
            raise ShapeError(f"scope_BT must hold scopes 0 to {S - 1}, or -1 for none")

    def at_decisions(self, value_BS: Tensor) -> Tensor:
        """The scopes' values on their decisions; 0 where a decision is in none.

        Shapes: (B, S) -> (B, T).
        """
        return value_BS.gather(1, self.scope_BT.clamp(min=0)).where(self.scope_BT >= 0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """The turns of the samples in an environment.

    Attributes:
        rewards: the turn of each decision, and the environment's reward for each turn; S counts the turns.
        keys_B_S: key of the state before each turn; None if unknown.
    """

    rewards: Scoped
    keys_B_S: Sequence[Sequence[str | None]]

    def __post_init__(self) -> None:
        B, S = self.rewards.value_BS.shape
        if len(self.keys_B_S) != B or any(len(keys_S) > S for keys_S in self.keys_B_S):
            raise ShapeError(f"keys_B_S must hold the keys of {B} samples, at most {S} each")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFeedback:
    """Statistics of the samples of all processes, a number per sample, in rank order.

    Attributes:
        reward_N: float64, the combined rewards.
        valid_N: bool, whether any reward applied.
        group_N: group of each sample; groups of different processes have different numbers.
        length_N: kept decisions.
        logprob_mean_N: mean log-probability of the kept decisions under the behavior policy; 0 without any.
        value_mean: means of the requested values over the kept decisions, by name; 0 without any.
        local_rows: the rows of this process.
    """

    reward_N: Tensor
    valid_N: Tensor
    group_N: Tensor
    length_N: Tensor
    logprob_mean_N: Tensor
    value_mean: Mapping[Value, Tensor] = field(default_factory=dict)
    local_rows: slice

    def __post_init__(self) -> None:
        for name in ("valid_N", "group_N", "length_N", "logprob_mean_N"):
            _require_vector(name, getattr(self, name), self.reward_N.shape)
        for value, mean_N in self.value_mean.items():
            _require_vector(f"value_mean[{value}]", mean_N, self.reward_N.shape)
        _require_bool("valid_N", self.valid_N)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """The input of estimators and filters: the complete groups of this process, under the behavior policy.

    Values at decisions that ``mask_BT`` leaves out may be anything.

    Attributes:
        reward_B: float64, the combined rewards; any number where none applied.
        valid_B: bool, whether any reward applied.
        group_B: integer group of each row.
        mask_BT: bool, the decisions that exist and are trained on.
        segment_BT: integer chunk of each decision.
        state_BT: integer id of the state before each decision.
        old_logprob_BT: log-probability under the behavior policy.
        finished_B: bool, False if the sample was cut off by its length limit.
        job: the samples of all processes.
        partial_B: bool, whether the sample continues at the next step and has no reward yet; None: no sample does.
        std_BT: noise of each denoising step; None where decisions are no Gaussian steps.
        token_BT: int64 token that each decision sampled, -1 where there is no decision; None where a decision is not
            one token.
        values: the requested values, by name.
        rewards: the single rewards, by name.
        columns: numeric columns of the data rows, by name.
        scoped: scores of parts of the samples, by the reward's name.
        source_B: the source of each row, a number of ``Source``; None: all were sampled.
        sampled_by_BT: the row that sampled each decision, where rows continue others; None: each row its own.
        after_B: the row that is in the prompt of each row, -1 for none; None: no row has another in its prompt.
        step: of the run, from 0.
        memory_columns: (N,) columns of the memory before the step, of the prompts of the job's samples, by name.
        exchanges: the turns of samples in an environment; None if not requested.
        summed: a tensor of each process, added up; called as often on each.
    """

    reward_B: Tensor
    valid_B: Tensor
    group_B: Tensor
    mask_BT: Tensor
    segment_BT: Tensor
    state_BT: Tensor
    old_logprob_BT: Tensor
    finished_B: Tensor
    job: JobFeedback
    partial_B: Tensor | None = None
    std_BT: Tensor | None = None
    token_BT: Tensor | None = None
    values: Mapping[Value, Tensor] = field(default_factory=dict)
    rewards: Mapping[str, SampleColumn] = field(default_factory=dict)
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    scoped: Mapping[str, Scoped] = field(default_factory=dict)
    source_B: Tensor | None = None
    sampled_by_BT: Tensor | None = None
    after_B: Tensor | None = None
    step: int = 0
    memory_columns: Mapping[str, Tensor] = field(default_factory=dict)
    exchanges: Turns | None = None
    summed: Callable[[Tensor], Tensor] = lambda local: local

    def __post_init__(self) -> None:
        shape = self.mask_BT.shape
        if len(shape) != 2:
            raise ShapeError(f"mask_BT must be (B, T), got {tuple(shape)}")
        for name in ("mask_BT", "valid_B", "finished_B"):
            _require_bool(name, getattr(self, name))
        vectors = {name: getattr(self, name) for name in VECTORS}
        vectors |= {f"column {name}": column_B for name, column_B in self.columns.items()}
        for name, column_N in self.memory_columns.items():
            _require_vector(f"remembered {name}", column_N, self.job.reward_N.shape)
        vectors |= {f"reward {name}": column.value_B for name, column in self.rewards.items()}
        for name, vector in vectors.items():
            if vector is not None:
                _require_vector(name, vector, shape[:1])
        matrices = ("segment_BT", "state_BT", "old_logprob_BT", "std_BT", "token_BT", "sampled_by_BT")
        named = {name: getattr(self, name) for name in matrices} | {
            str(v): value_BT for v, value_BT in self.values.items()
        }
        named |= {f"scope_BT of {name}": scoped.scope_BT for name, scoped in self.scoped.items()}
        named |= {} if self.exchanges is None else {"scope_BT of the turns": self.exchanges.rewards.scope_BT}
        wrong = [name for name, tensor in named.items() if tensor is not None and tensor.shape != shape]
        if wrong:
            raise ShapeError(f"{', '.join(wrong)} must be {tuple(shape)} like mask_BT")
        if self.token_BT is not None and bool((self.token_BT < 0)[self.mask_BT].any()):
            raise ShapeError("token_BT has no token at a decision that mask_BT keeps; give None where they have none")

    def __getitem__(self, value: Value) -> Tensor:
        """A requested value, 0 where the mask is False. Raises ConfigError if it was not requested."""
        value_BT = self._named("value", str(value), {str(key): value_BT for key, value_BT in self.values.items()})
        return value_BT.where(self.mask_BT, 0.0)

    def reward(self, name: str) -> SampleColumn:
        """A single reward. Raises ConfigError, which names the rewards there are."""
        return self._named("reward", name, self.rewards)

    def column(self, name: str) -> Tensor:
        """A numeric column of the data rows. Raises ConfigError, which names the columns there are.

        Shapes: -> (B,).
        """
        return self._named("numeric column", name, self.columns)

    def scopes(self, name: str) -> Scoped:
        """The scores of parts by a reward. Raises ConfigError, which names the rewards that score parts."""
        return self._named("reward of parts", name, self.scoped)

    @property
    def tokens(self) -> Tensor:
        """(B, T) tokens. Raises ConfigError where decisions are none."""
        if self.token_BT is None:
            raise ConfigError(
                "an estimator reads the token of each decision, and a decision of this policy is not one token "
                "(Rollout.token_BT): remove the estimator, or set policy.decision: token where the policy has it"
            )
        return self.token_BT

    @property
    def turns(self) -> Turns:
        """The turns of the samples. Raises ConfigError where they were not written to an environment."""
        if self.exchanges is None:
            raise ConfigError("this estimator reads turns, and these samples have none: set rollout.environment")
        return self.exchanges

    @property
    def groups(self) -> Groups:
        """The groups as index sets."""
        return grouped(self.group_B)

    @property
    def length_B(self) -> Tensor:
        """Kept decisions of each row."""
        return self.mask_BT.sum(1)

    def view_mask(self, view: str) -> Tensor:
        """The kept decisions of rows that have a view; all kept ones if every row has it.

        Shapes: -> bool (B, T).
        """
        view_mask_BT = self.values.get(mask_of_view(view))
        return self.mask_BT if view_mask_BT is None else self.mask_BT & (view_mask_BT != 0)

    def mean(self, value_BT: Tensor) -> Tensor:
        """The mean over the kept decisions of each row; 0 without any.

        Shapes: (B, T) -> (B,).
        """
        return row_mean(value_BT, self.mask_BT)

    def _named(self, kind: str, name: str, values: Mapping[str, Entry]) -> Entry:
        if name not in values:
            names = ", ".join(values) or "none"
            raise ConfigError(f"no {kind} {name!r} is known of these samples; there are: {names}")
        return values[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """An estimator of the advantages of decisions, its settings bound.

    Attributes:
        assign: (feedback, advantage_BT) -> advantage_BT; its input is the result of the previous estimator.
        values: values that the feedback must have besides the log-probability.
        tokens: whether the feedback must have the tokens.
        parts: rewards with scores of parts that the feedback must have.
        memory: columns of the memory that the feedback must have.
        unscored: whether it gives an advantage to samples without a reward, which then train.
        partial: likewise, to samples that continue at the next step.
        turns: whether the feedback must have the turns of conversations.
        columns: columns of the data rows that it reads, of numbers.
        keeps: members of a group that it gives an advantage at most; None: as many as there are.
        turn_rewards: whether it reads the rewards that the environment returns with its turns.
        start: step of the run, from 0, before which it changes nothing.
    """

    assign: Callable[[Feedback, Tensor], Tensor]
    values: tuple[Value, ...] = ()
    tokens: bool = False
    parts: tuple[str, ...] = ()
    memory: tuple[MemoryColumn, ...] = ()
    unscored: bool = False
    partial: bool = False
    turns: bool = False
    columns: tuple[str, ...] = ()
    keeps: int | None = None
    turn_rewards: bool = False
    start: int = 0


def row_mean(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The mean over the kept decisions of each row; 0 without any.

    Shapes: (B, T), bool (B, T) -> (B,).
    """
    return value_BT.where(mask_BT, 0.0).sum(1) / mask_BT.sum(1).clamp(min=1)


def job_feedback(
    reward_B: Tensor,
    valid_B: Tensor,
    group_B: Tensor,
    mask_BT: Tensor,
    old_logprob_BT: Tensor,
    values: Mapping[Value, Tensor] | None = None,
) -> JobFeedback:
    """The sample-level columns of a process's rows, as if it were the only one; ``joined`` makes a job's of them.

    Shapes: (B,) x 3, (B, T) x 2 -> (N,), N = B.
    """
    return JobFeedback(
        reward_N=reward_B,
        valid_N=valid_B,
        group_N=group_B,
        length_N=mask_BT.sum(1),
        logprob_mean_N=row_mean(old_logprob_BT, mask_BT),
        value_mean={value: row_mean(value_BT, mask_BT) for value, value_BT in (values or {}).items()},
        local_rows=slice(0, len(reward_B)),
    )


def joined(parts: list[JobFeedback], rank: int) -> JobFeedback:
    """The columns of all processes, in rank order, for the process of that rank.

    Groups of different processes are different, even with equal numbers.

    Shapes: (B,) of each process -> (N,).
    """
    group_N, taken = [], 0
    for part in parts:
        numbers = part.group_N.unique(return_inverse=True)[1] if len(part.group_N) else part.group_N
        group_N.append(numbers + taken)
        taken += int(numbers.max()) + 1 if len(numbers) else 0
    start = sum(len(part.reward_N) for part in parts[:rank])
    return JobFeedback(
        reward_N=torch.cat([part.reward_N for part in parts]),
        valid_N=torch.cat([part.valid_N for part in parts]),
        group_N=torch.cat(group_N),
        length_N=torch.cat([part.length_N for part in parts]),
        logprob_mean_N=torch.cat([part.logprob_mean_N for part in parts]),
        value_mean={value: torch.cat([part.value_mean[value] for part in parts]) for value in parts[0].value_mean},
        local_rows=slice(start, start + len(parts[rank].reward_N)),
    )


def _require_vector(name: str, vector: Tensor, shape: tuple[int, ...]) -> None:
    if len(shape) != 1 or vector.shape != shape:
        raise ShapeError(f"{name} must be a vector of shape {tuple(shape)}, got {_describe(vector)}")


def _require_bool(name: str, tensor: Tensor) -> None:
    if tensor.dtype != torch.bool:
        raise ShapeError(f"{name} must be bool, got {tensor.dtype}")


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
