"""AEPO (arbitrary entropy policy optimization), arXiv:2510.08141.

Samples at another temperature that beat their group replace rows of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.advantages import group_advantage
from mmgrpo.maths.controllers import CONTROLLERS
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.sources import ON_POLICY
from mmgrpo.maths.strategies import STRATEGIES, Request, Round, Setting, second_round, trained
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator()
def fixed_off_policy_advantage(feedback: Feedback, advantage_BT: Tensor, *, value: float = 1.0) -> Tensor:
    """Off-policy rows (replayed, demonstrations, sampled otherwise) have one advantage, for any reward.

    A = value of these with a reward; that of on-policy rows does not change.

    Units: those of the advantage.
    Source: AEPO, arXiv:2510.08141, and its code (597358816/AEPO, ``ray_trainer.py``): REINFORCE on positive samples.
    """
    if feedback.source_B is None:
        return advantage_BT
    read_B = (feedback.source_B != ON_POLICY) & feedback.valid_B
    return advantage_BT.masked_fill(read_B[:, None], value)


def _select_rows(
    rounds: Sequence[Round], setting: Setting, *, temperature: float, most: int, better: float, eps: float
) -> Sequence[Tensor]:
    first, *further = rounds
    if not further:
        return [trained(first)]
    advantages = _advantages(further[0], eps)
    best = [row for row in _ordered(further[0]) if advantages[row] > better]
    num = min(most, len(best)) // (2 if temperature < 1 else 1)
    taken_B, placed_B = trained(first), torch.zeros_like(trained(further[0]))
    taken_B[_ordered(first)[:num]] = False
    placed_B[best[:num]] = True
    return [taken_B, placed_B]


def _check_with_tempered(share: float, most: int, temperature: float) -> None:
    if not 0 < share <= 1 or most < 1 or temperature <= 0:
        raise ConfigError(
            f"with_tempered needs a share above 0 up to 1, most >= 1 and a temperature above 0, got {share}, {most}, "
            f"{temperature}"
        )


@STRATEGIES.register
@second_round(keep=_select_rows, off_policy=True, check=_check_with_tempered)
def with_tempered(
    first: Round,
    setting: Setting,
    *,
    temperature: float = 1.2,
    share: float = 0.25,
    most: int = 60,
    better: float = 0.05,
    eps: float = 1e-6,
) -> Sequence[Request]:
    """The first prompts are sampled once more at another temperature; samples that beat their group replace other rows.

    A further group of each of the first ``share`` of the prompts, one at least. Of these members those train that are
    more than ``better`` deviations above the mean of the ones sampled with them: the first ``most`` of the step, half
    as many where the temperature is below 1, in the order of prompts. As many of the step's first rows do not train.
    The ratio of these samples is to the current policy at their temperature; they count as demonstrations.

    Units: temperature as the policy has it; share is dimensionless; most in rows; eps in those of the reward.
    Raises: ConfigError for numbers that request nothing.
    Source: AEPO, arXiv:2510.08141, and its code (597358816/AEPO, ``ray_trainer.py``).
    """
    members = tuple(range(setting.group_size, 2 * setting.group_size))
    return tuple(
        Request(
            prompt=prompt,
            members=members,
            settings={"temperature": temperature},
            train_without_template=True,
            as_on_policy=True,
        )
        for prompt in range(max(1, int(share * setting.num_prompts)))
    )


def _ordered(round_: Round) -> list[int]:
    """The rows of a round by prompt and member."""
    identities = list(zip(round_.prompt_B.tolist(), round_.member_B.tolist(), strict=True))
    return sorted(range(len(identities)), key=identities.__getitem__)


def _advantages(round_: Round, eps: float) -> list[float]:
    """How far each row is above the mean of its prompt's rows, in their deviations; 0 where no reward applied."""
    advantage_B = torch.zeros_like(round_.reward_B)
    for prompt in round_.prompt_B.unique():
        of_B = (round_.prompt_B == prompt) & round_.valid_B
        if int(of_B.sum()) > 1:
            advantage_B[of_B] = group_advantage(round_.reward_B[of_B][None], eps=eps)[0]
    return advantage_B.tolist()


@CONTROLLERS.register
def either(value: float, measured: float, *, at: float, below: float, above: float) -> float:
    """One number while a metric is below a bound, and another from there on.

    value' = below if measured < at else above

    Units: ``below`` and ``above`` are of value, ``at`` of the metric.
    Source: AEPO, arXiv:2510.08141, and its code (597358816/AEPO, ``ray_trainer.py``): a temperature by the entropy.
    """
    del value
    return below if measured < at else above
