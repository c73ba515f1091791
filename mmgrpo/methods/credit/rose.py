"""ROSE (semantically diverse exploration), arXiv:2601.05053.

Trees branch at the decisions of highest semantic entropy, and right samples with longer branches than the shortest one
earn less.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import members
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.maths.strategies import STRATEGIES, Branch, Request, Round, Setting, strategy
from mmgrpo.maths.strategies.branch_points import meanings_part
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def _check_shorter_branches(power: float) -> None:
    if not power > 0:
        raise ConfigError(f"shorter_branches needs a power above 0, got {power}")


@ESTIMATORS.register
@estimator(check=_check_shorter_branches)
def shorter_branches(feedback: Feedback, advantage_BT: Tensor, *, power: float = 1.0, right: float = 1.0) -> Tensor:
    """Right samples that are longer than the group's shortest right one earn less from their branch point on.

    A_t <- A_t - |A_t| (1 - (m / n)^power) after the decisions that a sample shares with the shortest; n counts its
    decisions from there on, m those of the shortest. Samples that share nothing branch at the prompt.

    Units: dimensionless; right in those of the reward.   Raises: ConfigError for a power that is not above 0.
    Source: ROSE, arXiv:2601.05053, and its code (ZiqiZhao1/ROSE-rl, ``core_algos.py``,
        compute_grpo_iterative_branching_outcome_advantage, length_penalty).
    """
    sampled_by_BT, length_B = feedback.sampled_by_BT, feedback.mask_BT.sum(1)
    right_B = feedback.valid_B & (feedback.reward_B >= right) & (length_B > 0)
    less_BT = torch.zeros_like(advantage_BT)
    for rows in members(feedback):
        of_group = [row for row in rows.tolist() if right_B[row]]
        shortest = min(of_group, key=lambda row: int(length_B[row]), default=-1)
        for row in of_group:
            shared_T = torch.zeros_like(feedback.mask_BT[row])
            if sampled_by_BT is not None:
                shared_T = (sampled_by_BT[row] == sampled_by_BT[shortest]).cumprod(0).bool() & feedback.mask_BT[row]
            length, shorter = length_B[row] - shared_T.sum(), length_B[shortest] - shared_T.sum()
            if row != shortest and length > 0:
                less_BT[row] = (1 - (shorter.clamp(min=0) / length) ** power).to(less_BT).where(~shared_T, 0.0)
    return advantage_BT - advantage_BT.abs() * less_BT


def _check_branch_sequentially(from_root: float) -> None:
    if not 0 <= from_root <= 1:
        raise ConfigError(f"branch_sequentially begins at the prompt with a probability, got from_root={from_root}")


@STRATEGIES.register
@strategy(looks_back=True, places=meanings_part, check=_check_branch_sequentially)
def branch_sequentially(rounds: Sequence[Round], setting: Setting, *, from_root: float = 0.5) -> Sequence[Request]:
    """Trees that grow by a row of each group a round, from the decision of the highest semantic entropy of the group.

    The first row begins at the prompt. Each of the group_size - 1 that follow does so too with the probability
    ``from_root``; otherwise it continues from before the decision of the highest semantic entropy of all rows so far.

    Units: from_root is a probability.   Raises: ConfigError for none.
    Source: ROSE, arXiv:2601.05053, and its code (ZiqiZhao1/ROSE-rl, ``vllm_rollout_spmd.py``,
        generate_sequences_loop_entropy, branch_metric cosine-entropy). Deviation: a row's first decision is no branch
        point.
    """
    member = len(rounds)
    if member == setting.group_size:
        return ()
    requests = []
    for prompt in range(setting.num_prompts):
        parts = Random(derive_seed(setting.seed, prompt, member)).random() >= from_root
        requests.append(
            Request(prompt=prompt, members=(member,), continues=_highest_branch(rounds, prompt) if parts else None)
        )
    return requests


def _highest_branch(rounds: Sequence[Round], prompt: int) -> Branch | None:
    """The first of the highest places in the rows of a prompt; None where they have none."""
    branches = [
        (height, Branch(member, places[0]))
        for round_ in rounds
        for of, member, places, height in zip(
            round_.prompt_B.tolist(), round_.member_B.tolist(), round_.places_B, round_.heights_B, strict=True
        )
        if of == prompt and places
    ]
    return max(branches, key=lambda branch: branch[0])[1] if branches else None
