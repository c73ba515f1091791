"""Tree-GRPO, arXiv:2509.21240.

Trees with an agent's turns as nodes; a sample is compared with those of its group and with those of its tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.group_stats import standardized_among
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.maths.strategies import STRATEGIES, Branch, Request, Round, Setting, strategy
from mmgrpo.maths.strategies.branch_points import turn_starts
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def _check_branch_at_turns(num: int, rounds: int) -> None:
    if num < 1 or rounds < 1:
        raise ConfigError(f"branch_at_turns needs num and rounds of 1 or more, got {num} and {rounds}")


@STRATEGIES.register
@strategy(looks_back=True, places=lambda: turn_starts(), check=_check_branch_at_turns)
def branch_at_turns(earlier: Sequence[Round], setting: Setting, *, num: int = 2, rounds: int = 1) -> Sequence[Request]:
    """Trees that branch before random turns of their rows: ``num`` new rows a tree in each of ``rounds`` rounds.

    A group begins as ``group_size`` rows from the prompt, the roots of its trees. Each new row continues a row of its
    tree before one of the turns after the first; it is sampled from all such turns of the tree, with replacement. A
    tree whose rows have one turn each does not branch.

    Members are numbered by round, tree and order, even if a tree does not branch.

    Units: rows and rounds.   Raises: ConfigError for numbers without any branch.
    Source: Tree-GRPO, arXiv:2509.21240, and its code (AMAP-ML/Tree-GRPO, generation_ts.py, ``expand_mode`` random).
        Deviation: the prompt is not among the nodes that are expanded.
    """
    if not earlier:
        return setting.groups(0, setting.num_prompts)
    if len(earlier) > rounds:
        return ()
    nodes = _nodes(earlier, setting.group_size, num)
    first = setting.group_size * (1 + num * (len(earlier) - 1))
    return tuple(
        Request(prompt=prompt, members=(first + tree * num + order,), continues=branch)
        for (prompt, tree), branches in sorted(nodes.items())
        for order, branch in enumerate(
            Random(derive_seed(setting.seed, prompt, tree, len(earlier))).choices(branches, k=num)
        )
    )


def _nodes(earlier: Sequence[Round], num_trees: int, num: int) -> dict[tuple[int, int], list[Branch]]:
    """The branch points of each prompt and tree that has any."""
    nodes: dict[tuple[int, int], list[Branch]] = {}
    for round_ in earlier:
        rows = zip(round_.prompt_B.tolist(), round_.member_B.tolist(), round_.places_B, strict=True)
        for prompt, member, places in sorted((prompt, member, tuple(places)) for prompt, member, places in rows):
            tree = member if member < num_trees else (member - num_trees) % (num_trees * num) // num
            if places:
                nodes.setdefault((prompt, tree), []).extend(Branch(member, place) for place in places)
    return nodes


@ESTIMATORS.register
@estimator()
def within_trees(feedback: Feedback, advantage_BT: Tensor, *, eps: float = 1e-6) -> Tensor:
    """The advantage among the samples of a tree in addition to that of the group.

    A <- A + (r - mean) / (std + eps) over the samples that share their first decision with a row of another, directly
    or through others, sample std; 0 for a tree of one sample, and where all r are equal.

    Units: any reward scale -> dimensionless; eps in the reward's units.
    Source: Tree-GRPO, arXiv:2509.21240, the intra-tree advantage, and its code (AMAP-ML/Tree-GRPO, ray_trainer_ts.py,
        ``tree``). Deviation: there a tree of one sample adds its reward.
    """
    B = len(feedback.reward_B)
    tree_B = torch.arange(B) if feedback.sampled_by_BT is None else feedback.sampled_by_BT[:, 0]
    reward_B = feedback.reward_B.double().where(feedback.valid_B, torch.nan)
    credit_B = standardized_among(reward_B, tree_B, eps=eps)
    return advantage_BT + credit_B[:, None].to(advantage_BT)
