"""The state that a run carries from step to step, the same on every process and part of every checkpoint.

A ``Memory`` is immutable: each function returns a new one. It contains numbers per prompt, in columns declared by their
users; rows that may be trained on again; and the small states of schedules and samplers.
A prompt is identified by its key, a function of its row of data (``mmgrpo.data.keys``), never by its position in a
step.

Axes: K keys, B rows of the job, T decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from mmgrpo.errors import CheckpointError, ConfigError, ShapeError
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """The outcomes of a step's prompts.

    Attributes:
        keys: K prompts, each once, in the order in which the job sampled them.
        num_K: int64, how many samples of each had a reward.
        reward_sum_K: float64, over these.
        reward_square_sum_K: float64, over these.
        step: counted from 0.
        rewards: float64 (K,), the sum of each single reward over the samples that it applied to, by name.
    """

    keys: tuple[str, ...]
    num_K: Tensor
    reward_sum_K: Tensor
    reward_square_sum_K: Tensor
    step: int
    rewards: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def scored_K(self) -> Tensor:
        """(K,) bool, whether any sample of the prompt had a reward."""
        return self.num_K > 0

    @property
    def rate_K(self) -> Tensor:
        """(K,) mean reward of each prompt: its success rate where rewards are 0 and 1; 0 where none was scored."""
        return self.reward_sum_K / self.num_K.clamp(min=1)


Rule: TypeAlias = "Callable[[Tensor, Outcomes], Tensor]"
"""The column's numbers of the step's prompts, before and after it: (K,) -> (K,)."""


@dataclass(frozen=True, slots=True)
class Column:
    """A number per prompt.

    Attributes:
        name: the name of the column.
        dtype: ``float64`` or ``int64``.
        default: the number of a prompt without samples so far.
        rule: updates the number after a step; None: only its owner writes it.
        numbers: of the rule, to detect different declarations of one name.
    """

    name: str
    dtype: Literal["float64", "int64"] = "float64"
    default: float = 0.0
    rule: Rule | None = field(default=None, compare=False, repr=False)
    numbers: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRow:
    """A row of an earlier step, with the data to re-score it.

    Attributes:
        key: of its prompt.
        text: the generated text, if the policy generates text.
        tokens: (T,) int64 token ids, if the decisions of the policy are tokens.
        array: the generated latent, or image as uint8 (H, W, C), if the policy generates one.
        finished: False where it was cut off by its length limit.
        old_logprob_T: float32, under the behavior policy; None if unknown.
        reward: its combined reward.
        advantage: its advantage in its group.
        step: the step that sampled it, counted from 0.
        num_forced: number of leading tokens that were forced, not sampled.
        turns: the fields of ``Sample`` about the turns of a conversation; empty: no conversation.
        replies: the environment's answer to each turn as ``plain_reply`` returns it.
        record: its entry of ``Rollout.record_B``, from which the policy rebuilds the same decisions; None: no data.
    """

    key: str
    text: str | None = None
    tokens: Tensor | None = None
    array: Tensor | None = None
    finished: bool = True
    old_logprob_T: Tensor | None = None
    reward: float
    advantage: float
    step: int
    num_forced: int = 0
    turns: Mapping[str, Any] = field(default_factory=dict)
    replies: Sequence[Mapping[str, Any] | None] = ()
    record: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialRow:
    """An unfinished row of a partial rollout, which continues at the next step.

    Attributes:
        key: of its prompt.
        group: its group at the step that wrote it; rows of one group stay one group.
        member: its number within the group.
        tokens: (T,) int64, its tokens so far.
        num_forced: number of leading tokens that were forced, not sampled.
        seed: seed of its random numbers.
    """

    key: str
    group: int
    member: int
    tokens: Tensor
    num_forced: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialRollouts:
    """The state of partial rollouts after a step.

    Attributes:
        rows: the unfinished rows, in order of group and member.
        num_prompts: number of prompts that the steps so far began.
    """

    rows: tuple[PartialRow, ...]
    num_prompts: int

    @property
    def groups(self) -> list[tuple[PartialRow, ...]]:
        """The rows of each group; their order numbers the groups of the next step."""
        rows_of: dict[int, tuple[PartialRow, ...]] = {}
        for row in self.rows:
            rows_of[row.group] = (*rows_of.get(row.group, ()), row)
        return list(rows_of.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """All that is remembered. The empty one remembers nothing and changes nothing.

    Attributes:
        columns: declared columns, by name.
        index_of: the index of each prompt of an earlier step, by key.
        numbers: per column, (K,) in the order of the indices.
        replay: rows that may be read again, oldest first, by key.
        states: of schedules and samplers, each a few scalars by name.
        ahead: completions of the next step that an engine sampled during this one, by request (``Plan.ahead``).
        partial: of partial rollouts; None: no step with them so far.
    """

    columns: Mapping[str, Column] = field(default_factory=dict)
    index_of: Mapping[str, int] = field(default_factory=dict)
    numbers: Mapping[str, Tensor] = field(default_factory=dict)
    replay: Mapping[str, tuple[ReplayRow, ...]] = field(default_factory=dict)
    states: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    ahead: Mapping[str, Any] = field(default_factory=dict)
    partial: PartialRollouts | None = None

    def declared(self, columns: Iterable[Column]) -> Memory:
        """The same memory with further columns.

        Args:
            columns: the same column may be declared several times.

        Returns:
            The memory; earlier prompts have the columns' defaults.

        Raises:
            ConfigError: two declarations of one name differ.
        """
        declared, numbers = dict(self.columns), dict(self.numbers)
        for column in columns:
            if declared.setdefault(column.name, column) != column:
                raise ConfigError(
                    f"the column '{column.name}' of the memory is declared twice, as {declared[column.name]} and as "
                    f"{column}; give both uses the same numbers"
                )
            numbers.setdefault(column.name, _defaults(column, len(self.index_of)))
        return replace(self, columns=declared, numbers=numbers)

    def read(self, name: str, keys: Sequence[str]) -> Tensor:
        """(K,) numbers of a declared column for some prompts, the default for a prompt without samples so far."""
        column, numbers = self._column(name), self.numbers[name]
        defaults = _defaults(column, len(keys))
        if not self.index_of:
            return defaults
        index_K = torch.tensor([self.index_of.get(key, -1) for key in keys])
        return numbers[index_K.clamp(min=0)].where(index_K >= 0, defaults)

    def write(self, name: str, keys: Sequence[str], number_K: Tensor) -> Memory:
        """The memory with other numbers of some prompts, each named once, in a declared column."""
        column = self._column(name)
        if number_K.shape != (len(keys),) or len(set(keys)) < len(keys):
            raise ShapeError(
                f"{name}: a number per prompt, each named once, got {tuple(number_K.shape)} of {len(keys)}"
            )
        memory = self._with_prompts(keys)
        numbers = memory.numbers[name].clone()
        numbers[[memory.index_of[key] for key in keys]] = number_K.to(_dtype(column))
        return replace(memory, numbers={**memory.numbers, name: numbers})

    def state(self, name: str) -> Mapping[str, float]:
        """The scalars under a name; empty where there are none yet."""
        return self.states.get(name, {})

    def with_state(self, name: str, state: Mapping[str, float]) -> Memory:
        """The memory with these scalars under a name."""
        return replace(self, states={**self.states, name: dict(state)})

    def with_replay(self, rows: Sequence[ReplayRow], *, per_prompt: int, total: int) -> Memory:
        """The memory with further rows to read again; the oldest of a prompt go first, then the oldest of all.

        Args:
            rows: in the job's order.
            per_prompt: how many to hold of a prompt.
            total: how many to hold in all.

        Returns:
            The memory.
        """
        if not rows:
            return self
        replay = {key: list(rows_of_key) for key, rows_of_key in self.replay.items()}
        for row in rows:
            replay[row.key] = [*replay.get(row.key, []), row][-per_prompt:]
        surplus = sum(map(len, replay.values())) - total
        by_age = sorted(
            (row.step, order, age, key)
            for order, (key, rows_of_key) in enumerate(replay.items())
            for age, row in enumerate(rows_of_key)
        )
        for _, _, _, key in by_age[: max(surplus, 0)]:
            replay[key] = replay[key][1:]
        return replace(self, replay={key: tuple(rows_of_key) for key, rows_of_key in replay.items() if rows_of_key})

    def state_dict(self) -> dict[str, Any]:
        """The memory in types that ``torch.load(weights_only=True)`` reads."""
        return {
            "keys": list(self.index_of),
            "numbers": dict(self.numbers),
            "replay": [_as_plain(row) for rows in self.replay.values() for row in rows],
            "states": {name: dict(state) for name, state in self.states.items()},
            **({"ahead": dict(self.ahead)} if self.ahead else {}),
            "partial": None
            if self.partial is None
            else {"rows": [_as_plain(row) for row in self.partial.rows], "num_prompts": self.partial.num_prompts},
        }

    def restored(self, state: Mapping[str, Any] | None) -> Memory:
        """The memory of a ``state_dict``, in the columns that this memory declares; other columns are dropped.

        Args:
            state: a ``state_dict``; None, of a checkpoint without memory: returns this memory.

        Returns:
            The memory.

        Raises:
            CheckpointError: a column had another dtype.
        """
        if state is None:
            return self
        numbers = {}
        for name, column in self.columns.items():
            number_K = state["numbers"].get(name)
            number_K = _defaults(column, len(state["keys"])) if number_K is None else number_K.cpu()
            if number_K.dtype != _dtype(column) or number_K.shape != (len(state["keys"]),):
                raise CheckpointError(f"the checkpoint's column '{name}' is {number_K.dtype}, it is now {column.dtype}")
            numbers[name] = number_K
        replay: dict[str, tuple[ReplayRow, ...]] = {}
        for plain in state["replay"]:
            on_cpu: dict[str, Any] = {name: _on_cpu(value) for name, value in plain.items()}
            row = ReplayRow(**on_cpu)
            replay[row.key] = (*replay.get(row.key, ()), row)
        index_of = {key: index for index, key in enumerate(state["keys"])}
        ahead = {request: _on_cpu(completions) for request, completions in state.get("ahead", {}).items()}
        return replace(
            self,
            index_of=index_of,
            numbers=numbers,
            replay=replay,
            states=dict(state["states"]),
            ahead=ahead,
            partial=_partial_rollouts(state.get("partial")),
        )

    def _column(self, name: str) -> Column:
        if name not in self.columns:
            raise ConfigError(
                f"no part of the run declares the column '{name}' of the memory; declared: {list(self.columns)}"
            )
        return self.columns[name]

    def _with_prompts(self, keys: Sequence[str]) -> Memory:
        """The memory with a place for each of the prompts."""
        new = [key for key in dict.fromkeys(keys) if key not in self.index_of]
        if not new:
            return self
        index_of = {**self.index_of, **{key: len(self.index_of) + number for number, key in enumerate(new)}}
        numbers = {
            name: torch.cat([self.numbers[name], _defaults(column, len(new))]) for name, column in self.columns.items()
        }
        return replace(self, index_of=index_of, numbers=numbers)


def _dtype(column: Column) -> torch.dtype:
    return torch.float64 if column.dtype == "float64" else torch.int64


def _defaults(column: Column, size: int) -> Tensor:
    return torch.full((size,), column.default, dtype=_dtype(column))


def _as_plain(row: ReplayRow | PartialRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in type(row).__slots__}


def _partial_rollouts(state: Mapping[str, Any] | None) -> PartialRollouts | None:
    if state is None:
        return None
    rows = tuple(PartialRow(**{name: _on_cpu(value) for name, value in plain.items()}) for plain in state["rows"])
    return PartialRollouts(rows=rows, num_prompts=state["num_prompts"])


def _on_cpu(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _on_cpu(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_on_cpu(item) for item in value)
    return value.cpu() if isinstance(value, torch.Tensor) else value
