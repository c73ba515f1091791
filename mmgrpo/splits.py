"""Where the rows of a group part, as the leaves of a tree of states, and what a row goes on from.

The leaves are numbered so that those of one branch stand together, and a branch is known by the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from mmgrpo.errors import DataError, ShapeError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Continuation:
    """The beginning of an answer that a policy goes on from, in tokens.

    Attributes:
        token_ids: the row's first tokens; a beginning that the prompt gives is among them.
        old_logprob_T: of tokens that were drawn, which are trained like those that follow; None: given, never trained.
        num_forced: how many of the first were given all the same.
        trace: the trace of the rollout of this policy that drew them, which knows more of them; None: of no rollout.
        row: their row there.
        then: a text that follows on them, given and never trained.
    """

    token_ids: Sequence[int]
    old_logprob_T: Tensor | None = None
    num_forced: int = 0
    trace: Any = None
    row: int = 0
    then: str = ""

    def __post_init__(self) -> None:
        if self.old_logprob_T is not None and self.old_logprob_T.shape != (len(self.token_ids),):
            raise ShapeError(f"old_logprob_T must hold a number for each of the {len(self.token_ids)} tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A decision that every branch of a tree parts at, into as many branches, each by noise of its own.

    Attributes:
        decision: index along T; it is drawn at random.
        factor: branches that each becomes.
        spread: its noise is this many times the policy's, which still says how likely it was.
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
    """How far the rows of a group share what is drawn; none by themselves.

    Attributes:
        decisions: that branches part at, increasing.
        widths: leaves of a branch before each of these.
    """

    decisions: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()

    @classmethod
    def of(cls, splits: Sequence[Split]) -> Branching:
        """That of a tree."""
        return cls(
            decisions=tuple(split.decision for split in splits),
            widths=tuple(num_leaves(splits[place:]) for place in range(len(splits))),
        )

    def width(self, decision: int) -> int:
        """Leaves of a branch once a decision is taken; -1 is the noise that all begin with."""
        later = (width for at, width in zip(self.decisions, self.widths, strict=True) if at > decision)
        return next(later, 1)

    def first(self, leaf: int, decision: int) -> int:
        """The branch that a leaf is on once a decision is taken, by its first leaf."""
        return leaf - leaf % self.width(decision)

    def next(self, decision: int) -> int | None:
        """The next decision after one that branches part at."""
        return next((at for at in self.decisions if at > decision), None)


APART = Branching()


def num_leaves(splits: Sequence[Split]) -> int:
    """Leaves of a tree: the product of its factors."""
    return prod(split.factor for split in splits)


def require_tree(
    splits: Sequence[Split],
    *,
    stochastic: tuple[int, ...] | None,
    share_noise: bool,
    members: tuple[tuple[int, ...], ...] | None,
) -> None:
    """Raises DataError for splits out of order, that nothing is drawn at, or whose groups are no whole trees."""
    decisions = [split.decision for split in splits]
    if decisions != sorted(set(decisions)):
        raise DataError(f"splits must be at increasing decisions, got {decisions}")
    if share_noise:
        raise DataError("a tree begins with one noise as it is: leave out share_noise beside splits")
    still = [] if stochastic is None else [decision for decision in decisions if decision not in stochastic]
    if still:
        raise DataError(
            f"branches part by the noise of a decision, and none is drawn at {still}: put them among the stochastic "
            f"ones, which are {list(stochastic or ())}"
        )
    leaves = num_leaves(splits)
    ragged = [some for some in members or () if sorted(some) != list(range(leaves))]
    if ragged:
        raise DataError(
            f"the group of a tree is whole, members 0 to {leaves - 1} of each prompt; asked were {list(ragged[0])}: "
            "draw whole groups, or leave out the tree"
        )
