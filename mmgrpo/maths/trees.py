"""Trees: the decisions at which the branches of a group split, from the group's size and the schedule's length.

Pure functions of integers; each returns the splits in order; the product of their factors is the group's size.
"""

from __future__ import annotations

from collections.abc import Callable

from mmgrpo.maths.registry import Registry
from mmgrpo.splits import Split

TREES: Registry[Callable[..., tuple[Split, ...]]] = Registry(arguments=("num_decisions", "group_size"))
"""Trees by the name that ``rollout.tree`` uses; called with the numbers of decisions and of members."""
