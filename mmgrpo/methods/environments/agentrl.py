"""AgentRL, arXiv:2510.04206.

The turns of a conversation are written by the current and by an older policy, and advantages are standardized for each
task.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.maths.strategies import STRATEGIES, Branch, Request, Round, Setting, strategy
from mmgrpo.maths.strategies.branch_points import turn_starts
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def _check_cross_policy(share: float) -> None:
    if not 0 < share < 1:
        raise ConfigError(f"cross_policy needs a share above 0 and below 1, got {share}")


@STRATEGIES.register
@strategy(looks_back=True, places=lambda: turn_starts(), weights=lambda weights: (weights,), check=_check_cross_policy)
def cross_policy(
    rounds: Sequence[Round], setting: Setting, *, weights: str = "reference", share: float = 0.5
) -> Sequence[Request]:
    """A share of each group are rows of two policies, which change at a random turn.

    The other rows are those of the current policy. Of the crossed rows every second one begins with turns of
    ``weights`` and continues with the current policy; the others begin with turns of a row of the current policy and
    continue with ``weights``. A row whose beginning has one turn is sampled by the current policy from the prompt. All
    decisions train, their ratio to the policy that sampled them.

    Units: share of the rows of a group, rounded, at least one row on either side.
    Raises: ConfigError for a share that is not between 0 and 1, and for groups of one.
    Source: AgentRL, arXiv:2510.04206, sec. 3.1, according to a published note. Deviation: the policy changes once in a
        row; in the paper it may change before each action.
    """
    size = setting.group_size
    if size < 2:
        raise ConfigError("cross_policy needs groups of 2 or more: raise rollout.group_size")
    crossed = min(max(round(share * size), 1), size - 1)
    num_current, num_beginnings = size - crossed, (crossed + 1) // 2
    if len(rounds) > 1:
        return ()
    if not rounds:
        beginnings = tuple(range(size, size + num_beginnings))
        return tuple(
            request
            for prompt in range(setting.num_prompts)
            for request in (
                Request(prompt=prompt, members=tuple(range(num_current))),
                Request(prompt=prompt, members=beginnings, weights=weights, trained=False),
            )
        )
    (first,) = rounds
    columns = zip(first.prompt_B.tolist(), first.member_B.tolist(), first.places_B, strict=True)
    places = {(prompt, member): tuple(starts) for prompt, member, starts in columns}
    requests = []
    for prompt in range(setting.num_prompts):
        for number in range(crossed):
            begins_older = number % 2 == 0
            start = size + number // 2 if begins_older else number // 2 % num_current
            starts = places.get((prompt, start), ())
            member = num_current + number
            branch = None
            if starts:
                random = Random(derive_seed(setting.seed, prompt, member, len(rounds)))
                branch = Branch(start, random.choice(starts))
            continuing = weights if branch is not None and not begins_older else None
            requests.append(Request(prompt=prompt, members=(member,), weights=continuing, continues=branch))
    return tuple(requests)


def _check_standardized_by_task(tasks: int) -> None:
    if tasks < 1:
        raise ConfigError(f"standardized_by_task needs 1 task or more, got {tasks}")


@ESTIMATORS.register
@estimator(columns=lambda column: (column,), check=_check_standardized_by_task)
def standardized_by_task(
    feedback: Feedback, advantage_BT: Tensor, *, tasks: int, column: str = "task", eps: float = 1e-6
) -> Tensor:
    """Advantages standardized over all decisions of the step whose rows are of one task.

    A <- (A - mean A) / (std A + eps) over the kept decisions, on all processes, of samples of the same task that a
    reward applied to; sample std, 0 for a task of fewer than two decisions. The task of a row is the number, rounded
    down, in ``column``, from 0 to ``tasks`` - 1.

    Units: any -> standard deviations; eps in the advantage's units.
    Raises: ConfigError for a row with another number.
    Source: AgentRL, arXiv:2510.04206, eq. 1, according to a published note.
    """
    task_B = feedback.column(column).floor().long()
    if bool(((task_B < 0) | (task_B >= tasks)).any()):
        raise ConfigError(
            f"the column {column} must have numbers of tasks from 0 to {tasks - 1}, got {task_B.unique().tolist()}: "
            "set tasks of standardized_by_task"
        )
    keep_BT = feedback.mask_BT & feedback.valid_B[:, None]
    is_task_KB = torch.arange(tasks)[:, None] == task_B
    masked_BT = advantage_BT.double().where(keep_BT, 0.0)
    sums_B2 = torch.stack([keep_BT.sum(1).double(), masked_BT.sum(1)], dim=1)
    count_K, total_K = feedback.summed(is_task_KB.double() @ sums_B2).unbind(1)
    mean_K = total_K / count_K.clamp(min=1)
    centered_BT = (masked_BT - mean_K[task_B][:, None]).where(keep_BT, 0.0)
    squares_K = feedback.summed(is_task_KB.double() @ centered_BT.square().sum(1))
    std_K = (squares_K / (count_K - 1).clamp(min=1)).sqrt()
    scale_K = torch.where(count_K > 1, 1 / (std_K + eps), 0.0)
    return (centered_BT * scale_K[task_B][:, None]).to(advantage_BT)
