"""NFT (negative-aware fine-tuning), arXiv:2505.18116.

Right samples are trained by likelihood, wrong ones through an implicit negative policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mmgrpo.errors import ConfigError
from mmgrpo.maths.surrogates import SURROGATES, Surrogate, without_bounds
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@SURROGATES.register
def nft(
    ratio_BT: Tensor,
    logprob_BT: Tensor,
    advantage_BT: Tensor,
    *,
    weight: Literal["none", "wrong_rate", "odds_root"] = "odds_root",
    wrong_weight: float = 1.0,
    floor: float = 0.0,
    wrong_floor: float = 1.0,
) -> Surrogate:
    """The likelihood of right samples, and of wrong ones under the policy that would be left without the right.

    l = -w log max(R, floor) if right, else -w wrong_weight log max((1 - p R) / (1 - p), wrong_floor).
    w is 1 (``none``), 1 - p (``wrong_rate``) or sqrt((1 - p) / p) (``odds_root``). R is the ratio, at most e^10; a
    maximum passes the gradient as if it were not there. p is the group's success rate within 0.02 .. 0.98, read off the
    advantage, which has to be the 0/1 reward less its mean (``scale: none``): 1 - A where A > 0, else -A; A = 0 has
    no rate.

    Shapes: (B, T) x 3 -> (B, T).   Units: nats; floors are ratios.   Raises: ConfigError for another weight.
    Source: NFT, arXiv:2505.18116, and its code (NVlabs/NFT, ``dp_actor.py``); its floors are the defaults. At
        ``wrong_rate`` it is the policy gradient at ratio 1.
    """
    del logprob_BT
    if weight not in ("none", "wrong_rate", "odds_root"):
        raise ConfigError(f"nft weighs by none, wrong_rate or odds_root, got {weight!r}")
    right_BT, ratio_BT = advantage_BT > 0, ratio_BT.clamp(max=torch.e**10)
    rate_BT = (1 - advantage_BT).where(right_BT, -advantage_BT).clamp(0.02, 0.98)
    left_BT = (1 - rate_BT * ratio_BT) / (1 - rate_BT)
    loss_BT = -_at_least(ratio_BT, floor).log().where(right_BT, wrong_weight * _at_least(left_BT, wrong_floor).log())
    if weight == "wrong_rate":
        loss_BT = loss_BT * (1 - rate_BT)
    if weight == "odds_root":
        loss_BT = loss_BT * ((1 - rate_BT) / rate_BT).sqrt()
    return without_bounds(loss_BT.where(advantage_BT != 0, 0.0))


def _at_least(value_BT: Tensor, floor: float) -> Tensor:
    """The maximum of a value and a number, with the value's gradient everywhere."""
    return value_BT + (value_BT.clamp(min=floor) - value_BT).detach()
