"""CURE (first stage), arXiv:2508.11016.

Samples branch before their decisions of highest entropy.
"""

from __future__ import annotations

from mmgrpo.maths.strategies import STRATEGIES, Strategy
from mmgrpo.maths.strategies.branch_points import uncertain
from mmgrpo.maths.strategies.branching import branching


@STRATEGIES.register
def branch_at_uncertain(
    *, num: int = 2, factor: int = 2, levels: int = 1, apart: int = 1, among: int | None = None
) -> Strategy:
    """Trees of rows that branch into ``factor`` before their ``num`` decisions of the highest entropy.

    In each of ``levels`` rounds; shared decisions do not count as its own. Group_size roots and up to
    group_size (1 + num (factor - 1))^levels leaves. With ``among``, at ``num`` sampled from so many of the highest.

    Units: apart in decisions.   Raises: ConfigError for numbers without any branch, or among < num.
    Source: TreeRL, arXiv:2506.11902, and its code (THUDM/TreeRL): m roots, n tokens, l rounds, t branches each; one of
        the 20 highest: CURE, arXiv:2508.11016, and its code (bytedance/CURE, ``dapo_ray_trainer.py``).
        Deviations from TreeRL: n tokens of each row, there of each tree; their entropies, there -log p of the token.
    """
    return branching(uncertain(apart=apart), factor=factor, rounds=levels, most=num, among=among)
