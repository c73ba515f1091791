"""Scaf-GRPO, arXiv:2510.19807.

Prompts with only failed samples are sampled with increasing hints, and the right answer with the smallest hint joins
the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import STRATEGIES, Request, Round, Setting, failed, second_round, trained
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def _with_least_hinted(rounds: Sequence[Round], setting: Setting, *, below: float) -> Sequence[Tensor]:
    """All sampled members, the first right hinted one in place of its group's last."""
    keep = [trained(round_) for round_ in rounds]
    if len(rounds) < 2:
        return keep
    hinted = rounds[1]
    right_B = hinted.valid_B & (hinted.reward_B >= below)
    chosen_B = torch.zeros_like(right_B)
    for prompt in hinted.prompt_B[right_B].unique():
        rows = (right_B & (hinted.prompt_B == prompt)).nonzero().flatten()
        chosen_B[rows[hinted.member_B[rows].argmin()]] = True
    solved = hinted.prompt_B[chosen_B]
    replaced_B = torch.isin(rounds[0].prompt_B, solved) & (rounds[0].member_B == setting.group_size - 1)
    return [keep[0] & ~replaced_B, keep[1] & chosen_B]


def _check_scaffold(prompt_templates: Sequence[str], start: int) -> None:
    if not prompt_templates or start < 0:
        raise ConfigError("scaffold needs the prompt templates that tell ever more, one at least, and start >= 0")


@STRATEGIES.register
@second_round(
    keep=_with_least_hinted,
    start=lambda start: start,
    off_policy=lambda train_without_template: train_without_template,
    check=_check_scaffold,
)
def scaffold(
    first: Round,
    setting: Setting,
    *,
    prompt_templates: Sequence[str],
    below: float = 1.0,
    start: int = 0,
    train_without_template: bool = False,
) -> Sequence[Request]:
    """Prompts with only failed members get one hint after another; the right answer with the smallest hint joins them.

    A group fails where all rewards are under ``below``. One further member is sampled in each of the
    ``prompt_templates``, with ever larger hints; the first of them with a reward of at least ``below`` replaces the
    group's last member, and the others are left out. Before step ``start`` there are no hints. The answer is trained on
    with its hint in place, or with the unchanged prompt.

    Units: below in those of the reward; start in steps.   Raises: ConfigError without prompt templates.
    Source: Scaf-GRPO, arXiv:2510.19807, and its code (dvlab-research/Scaf-GRPO, ``ray_trainer.py`` of
        ``hint_mix_grpo`` with ``replace_num`` 1; train_without_template is its ``replace_hint_prompt``).
    """
    if setting.step < start:
        return ()
    return tuple(
        Request(
            prompt=prompt,
            members=(setting.group_size + tier,),
            prompt_template=prompt_template,
            train_without_template=train_without_template,
        )
        for prompt in failed(first, setting, below)
        for tier, prompt_template in enumerate(prompt_templates)
    )
