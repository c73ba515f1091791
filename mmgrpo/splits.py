"""Trees of states: the decisions at which the rows of a group branch, and the beginnings of answers.

Leaves of one branch are consecutive, and a branch is identified by its first leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from mmgrpo.errors import ConfigError, DataError, ShapeError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Continuation:
    """The beginning of an answer that a policy continues, in tokens.

    Attributes:
        token_ids: the row's first tokens, including a prefix that the prompt gives.
        old_logprob_T: of sampled tokens, which are trained like those that follow; None: forced tokens, never trained.
        num_forced: number of leading tokens that are forced nevertheless.
        trace: the trace of the rollout of this policy that sampled them, with further data; None: no such rollout.
        row: their row in that rollout.
        then: a text to append to them, forced and never trained.
        seed: seed of the random numbers of the row; None: by its group and member.
    """

    token_ids: Sequence[int]
    old_logprob_T: Tensor | None = None
    num_forced: int = 0
    trace: Any = None
    row: int = 0
    then: str = ""
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.old_logprob_T is not None and self.old_logprob_T.shape != (len(self.token_ids),):
            raise ShapeError(f"old_logprob_T must hold a number for each of the {len(self.token_ids)} tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookahead:
    """A search for the beginnings of the texts of a group, before each is sampled to its end.

    It takes the likeliest tokens. Where the second likeliest one is likely enough too, and the group has room, a
    further row branches with that token. A row that has stayed similar to the one it left is dropped again, with those
    that left it. The search ends when the group is full and none of its rows can be dropped any more; rows that are
    missing then continue the first one.

    Attributes:
        max_tokens: maximum number of tokens of the search.
        min_probability: the second likeliest token needs a higher probability.
        max_gap: and one that is less than this below that of the likeliest token.
        ages: numbers of tokens of a row, from its first different one on, after which it is compared; increasing.
        min_distance: smaller edit distances per token drop the row.
        symbols: a row is kept where the token that it did not take is a part of this text, without the spaces around
            it; the empty text keeps none.
    """

    max_tokens: int
    min_probability: float
    max_gap: float
    ages: tuple[int, ...]
    min_distance: float
    symbols: str

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"a lookahead takes max_tokens of 1 or more, got {self.max_tokens}")
        if not 0 <= self.min_probability < 0.5 or not self.max_gap > 0:
            raise ConfigError(
                f"the second likeliest token has a probability from 0 to 0.5, and a lookahead needs min_probability "
                f"in [0, 0.5) and max_gap above 0; got {self.min_probability} and {self.max_gap}"
            )
        if list(self.ages) != sorted({age for age in self.ages if age >= 1}):
            raise ConfigError(f"a lookahead compares rows at increasing ages, from 1 token on; got {list(self.ages)}")
        if not 0 <= self.min_distance <= 1:
            raise ConfigError(f"min_distance, edits per token, must be from 0 to 1, got {self.min_distance}")

    @property
    def last_age(self) -> int:
        """The age of the last comparison; 0 without any."""
        return max(self.ages, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A decision at which every branch of a tree splits into several branches, each with its own noise.

    Attributes:
        decision: index along T; the decision is sampled at random.
        factor: number of branches that each branch becomes.
        spread: factor on the noise of the decision; its log-probability remains that of the policy.
    """

    decision: int
    factor: int
    spread: float = 1.0

    def __post_init__(self) -> None:
        if self.decision < 0 or self.factor < 2 or not self.spread > 0:
            raise DataError(
                f"a split needs decision >= 0, factor >= 2 and spread > 0, got {self.decision}, {self.factor} and "
                f"{self.spread}"
            )


@dataclass(frozen=True, slots=True)
class Branching:
    """How many states the rows of a group share; by default none.

    Attributes:
        decisions: decisions at which branches split, increasing.
        widths: number of leaves of a branch before each of them.
    """

    decisions: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()

    @classmethod
    def of(cls, splits: Sequence[Split]) -> Branching:
        """The branching of a tree."""
        return cls(
            decisions=tuple(split.decision for split in splits),
            widths=tuple(num_leaves(splits[level:]) for level in range(len(splits))),
        )

    def width(self, decision: int) -> int:
        """Number of leaves of a branch after a decision; -1 is the initial noise."""
        later = (width for split, width in zip(self.decisions, self.widths, strict=True) if split > decision)
        return next(later, 1)

    def first(self, leaf: int, decision: int) -> int:
        """The branch of a leaf after a decision, as its first leaf."""
        return leaf - leaf % self.width(decision)

    def next(self, decision: int) -> int | None:
        """The next decision after this one at which branches split."""
        return next((split for split in self.decisions if split > decision), None)


NO_BRANCHING = Branching()


def num_leaves(splits: Sequence[Split]) -> int:
    """Number of leaves of a tree: the product of its factors."""
    return prod(split.factor for split in splits)


def require_tree(
    splits: Sequence[Split],
    *,
    stochastic: tuple[int, ...] | None,
    same_initial_noise: bool,
    members: tuple[tuple[int, ...], ...] | None,
) -> None:
    """Raises DataError for splits out of order, splits at deterministic decisions, and groups that are not complete
    trees.
    """
    decisions = [split.decision for split in splits]
    if decisions != sorted(set(decisions)):
        raise DataError(f"splits must be at increasing decisions, got {decisions}")
    if same_initial_noise:
        raise DataError("the rows of a tree share their initial noise already: leave out same_initial_noise")
    deterministic = [] if stochastic is None else [decision for decision in decisions if decision not in stochastic]
    if deterministic:
        raise DataError(
            f"branches split by the noise of a decision, and {deterministic} are deterministic: add them to the "
            f"stochastic decisions, which are {list(stochastic or ())}"
        )
    leaves = num_leaves(splits)
    incomplete = [numbers for numbers in members or () if sorted(numbers) != list(range(leaves))]
    if incomplete:
        raise DataError(
            f"a tree needs complete groups, members 0 to {leaves - 1} of each prompt, got {list(incomplete[0])}: "
            "sample complete groups, or leave out the tree"
        )
