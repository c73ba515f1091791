"""OORL with GEPO, arXiv:2505.12723.

The mean score of right samples is raised above that of wrong ones, with a penalty on the variance among the right ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import STRATEGIES, Answer, Request, Round, Setting, fixed, strategy
from mmgrpo.maths.terms import TERMS
from mmgrpo.maths.terms.group_losses import Members, group_loss
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@TERMS.register
@group_loss(score_by="sum_log_ratio", against="reference")
def equivalents(members: Members, *, beta: float = 0.1, variance: float = 1.0, right: float = 0.5) -> Tensor:
    """Right members' mean score above the wrong ones', and the right ones' scores alike.

    L = -log sigmoid(mean_right z - mean_wrong z) + variance var_right z, z = beta s, the variance over n.
    It is 0 in groups without both kinds.

    Units: beta is logits per nat; variance is loss per square logit; right is in the reward's units.
    Source: GEPO of OORL, arXiv:2505.12723, sec. 3.2; its lambda of 1 is ``variance``.
    """
    right_PG = (members.reward_PG > right) & members.present_PG
    wrong_PG = ~right_PG & members.present_PG
    score_PG = beta * members.score_PG

    def mean_P(value_PG: Tensor, of_PG: Tensor) -> Tensor:
        return value_PG.where(of_PG, 0.0).sum(1) / of_PG.sum(1).clamp(min=1)

    better_P = mean_P(score_PG, right_PG)
    distance_P = mean_P((score_PG - better_P[:, None]).square(), right_PG)
    loss_P = variance * distance_P - torch.nn.functional.logsigmoid(better_P - mean_P(score_PG, wrong_PG))
    return loss_P.where(right_PG.any(1) & wrong_PG.any(1), 0.0)


def _check_answers_of_source(columns: Sequence[str]) -> None:
    if not columns:
        raise ConfigError("answers_of_source needs the columns that hold a row's answers, one at least")


@STRATEGIES.register
@strategy(off_policy=True, check=_check_answers_of_source)
def answers_of_source(
    rounds: Sequence[Round], setting: Setting, *, source: str, columns: Sequence[str]
) -> Sequence[Request]:
    """Groups of prompts of one source consist of answers of their rows, one in each column, without sampling. Those of
    all other prompts are sampled.

    Units: source is a label of ``prompts.sources``.   Raises: ConfigError without columns.
    Source: OORL, arXiv:2505.12723, with groups of equivalent programs for a loss of groups, in addition to sampled
        groups.
    """
    answers = tuple(Answer(column) for column in columns)
    read = tuple(range(len(answers)))
    return tuple(
        Request(prompt=request.prompt, members=read, off_policy_rows=answers)
        if setting.key_of(request.prompt).startswith(f"{source}/")
        else request
        for request in fixed().ask(rounds, setting)
    )
