"""Fission-GRPO, arXiv:2601.15625.

Rows that fail after an error of a tool are continued from that error, and the recoveries are a group.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.group_stats import standardized_among
from mmgrpo.maths.strategies import STRATEGIES, Request, Round, Setting, failed_branches, second_round
from mmgrpo.maths.strategies.branch_points import Places, Row
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def after_errors(*, pattern: str) -> Places:
    """Before the turns after an answer of the environment that matches a regular expression, the first of them first.

    Units: characters, turned into decisions.   Raises: ConfigError for no regular expression.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"recover_from_errors: pattern {pattern!r} is no regular expression: {error}") from error

    def find(row: Row) -> Sequence[int]:
        return [
            start
            for (_, end), (start, _) in zip(row.turns, row.turns[1:], strict=False)
            if compiled.search(row.text[row.ends_T[end - 1] : row.ends_T[start - 1]])
        ]

    return Places(find=find, text=True)


def _check_recover_from_errors(members: int, most: int | None) -> None:
    if members < 2 or (most is not None and most < 1):
        raise ConfigError(f"recover_from_errors needs members >= 2 and most >= 1, got {members} and {most}")


@STRATEGIES.register
@second_round(places=lambda pattern: after_errors(pattern=pattern), check=_check_recover_from_errors)
def recover_from_errors(
    first: Round,
    setting: Setting,
    *,
    pattern: str = "error",
    members: int = 4,
    below: float = 1.0,
    most: int | None = None,
) -> Sequence[Request]:
    """Failed rows with an error of a tool are continued after it: ``members`` recoveries from the first error of each.

    A row has failed if its reward is under ``below``; an answer of the environment is an error if it matches
    ``pattern``. At most ``most`` rows of a group are continued (null: all).

    Units: rows; below in the reward's units.   Raises: ConfigError for numbers that compare nothing.
    Source: Fission-GRPO, arXiv:2601.15625. Deviation: the environment's own answer is the feedback, in place of that of
        a trained simulator of errors.
    """
    requests: list[Request] = []
    num_of: dict[int, int] = {}
    for prompt, branch in failed_branches(first, below):
        number = num_of.get(prompt, 0)
        if most is not None and number >= most:
            continue
        num_of[prompt] = number + 1
        start = setting.group_size + number * members
        requests.append(Request(prompt=prompt, members=tuple(range(start, start + members)), continues=branch))
    return requests


@ESTIMATORS.register
@estimator()
def among_continuations(feedback: Feedback, advantage_BT: Tensor, *, eps: float = 1e-6) -> Tensor:
    """Samples that continue one row from one decision are compared with each other; those from the prompt likewise.

    A = (r - mean) / (std + eps) over these, sample std; 0 for one of them alone, and where all r are equal. It
    replaces the advantage.

    Units: any reward scale -> dimensionless; eps in the reward's units.   Source: Fission-GRPO, arXiv:2601.15625.
    """
    reward_B = feedback.reward_B.double().where(feedback.valid_B, torch.nan)
    credit_B = standardized_among(reward_B, _origins(feedback), eps=eps)
    return credit_B[:, None].expand(advantage_BT.shape).to(advantage_BT)


def _origins(feedback: Feedback) -> Tensor:
    """(B,) a number for each group and, within it, for each row and number of decisions that samples continue."""
    numbers: dict[tuple[int, ...], int] = {}
    origins = []
    for row, group in enumerate(feedback.group_B.tolist()):
        key = (group,)
        if feedback.sampled_by_BT is not None:
            shared_T = feedback.sampled_by_BT[row] != row
            num = int(shared_T.sum())
            key = (group, int(feedback.sampled_by_BT[row, num - 1]), num) if num else (group,)
        origins.append(numbers.setdefault(key, len(numbers)))
    return torch.tensor(origins, dtype=torch.long)
