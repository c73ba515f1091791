"""Trees: where the branches of a group part, told from the group's size and the schedule's.

Pure functions of integers; each returns the splits in their order, whose factors multiply to the group's size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mmgrpo.errors import ConfigError
from mmgrpo.maths.registry import Registry
from mmgrpo.splits import Split


def at_decisions(
    num_decisions: int, group_size: int, *, at: Sequence[int], factor: int = 2, spread: float = 1.0
) -> tuple[Split, ...]:
    """Every branch becomes ``factor`` at each of the decisions ``at``.

    Raises: ConfigError if they are not increasing decisions of the schedule, or factor^n is not the group's size.
    Source: BranchGRPO, arXiv:2509.06040, and its code's ``tree_split_points`` and ``tree_split_noise_scale``.
    """
    if rounds_of(group_size, factor) != len(at):
        raise ConfigError(
            f"a tree of {len(at)} splits into {factor} has {factor ** len(at)} leaves, rollout.group_size is "
            f"{group_size}: change one of them"
        )
    if list(at) != sorted(set(at)) or not 0 <= at[0] <= at[-1] < num_decisions:
        raise ConfigError(
            f"branches part at increasing decisions of 0 to {num_decisions - 1}, which can be drawn; got {list(at)}"
        )
    return tuple(Split(decision=decision, factor=factor, spread=spread) for decision in at)


def evenly(num_decisions: int, group_size: int, *, factor: int = 2, spread: float = 1.0) -> tuple[Split, ...]:
    """Every branch becomes ``factor`` at n decisions, floor(N / n) apart from 0 on; n = log_factor(G), N steps.

    Raises: ConfigError if the group's size is no power of the factor, or there are fewer steps than splits.
    Source: BranchGRPO's code, ``tree_split_rounds``.
    """
    rounds = rounds_of(group_size, factor)
    if rounds is None or rounds > num_decisions:
        raise ConfigError(
            f"a tree that parts into {factor} has {factor}, {factor**2}, {factor**3} .. leaves, at one decision each "
            f"of {num_decisions}; rollout.group_size is {group_size}"
        )
    interval = (num_decisions + 1) // rounds
    return at_decisions(
        num_decisions, group_size, at=[place * interval for place in range(rounds)], factor=factor, spread=spread
    )


def rounds_of(group_size: int, factor: int) -> int | None:
    """How often one branch has to part into ``factor`` to make a group; None: never.

    Raises: ConfigError if the factor is below 2.
    """
    if factor < 2:
        raise ConfigError(f"branches part into 2 at least, got factor {factor}")
    rounds, leaves = 0, 1
    while leaves < group_size:
        rounds, leaves = rounds + 1, leaves * factor
    return rounds if leaves == group_size else None


TREES: Registry[Callable[..., tuple[Split, ...]]] = Registry({"at": at_decisions, "evenly": evenly})
"""Trees by the name that ``rollout.tree`` uses; called with the numbers of decisions and of members."""
