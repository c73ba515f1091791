"""Terms on the prediction errors of re-noised samples: a decision is a sample at a noise level.

A decision's log-probability is minus its error there, so surrogates, ratios and divergences of the library apply as
they are (AWM: ``clipped`` with the divergence ``velocity_mse``); the terms here need more.

Axes: B samples, T noise levels, P groups, G size of the largest group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import Diagnostics, total
from mmgrpo.maths.groups import grouped
from mmgrpo.maths.terms import GROUP, Loss, Term, log_ratio, ratio_of
from mmgrpo.maths.view_terms import mean_of
from mmgrpo.values import OLD, Value

if TYPE_CHECKING:
    from torch import Tensor


def positive_error(strength: float, view: str = OLD) -> Value:
    """``matching_errors(..., strength).positive`` against a view."""
    return Value("positive_error", view, (strength,))


def negative_error(strength: float, view: str = OLD) -> Value:
    """``matching_errors(..., strength).negative`` against a view."""
    return Value("negative_error", view, (strength,))


def diffusion_nft(*, strength: float = 1.0, limit: float = 5.0, view: str = OLD) -> Term:
    """Good samples are predicted by an implied better policy, bad ones by an implied worse one.

    L = c sum v (r e+ + (1 - r) e-) / b, r = clip(A / (2 c) + 1 / 2, 0, 1), b = strength, c = limit.
    e+- are those of ``matching_errors``. At the weights of the view its value does not depend on r, and its gradient is
    2 r - 1 times that of the matching loss.

    Units: strength is dimensionless (1; 0.1 with a slow view); limit in advantages.
    Raises: ConfigError for a strength or limit of 0 or less.
    Source: DiffusionNFT, arXiv:2509.16117, and its code. Beside it stands a divergence ``velocity_mse`` from the
        reference at 1e-4.
    """
    if strength <= 0 or limit <= 0:
        raise ConfigError(f"strength and limit must be above 0, got {strength} and {limit}")
    better, worse = positive_error(strength, view), negative_error(strength, view)

    def loss(decisions: Decisions) -> Loss:
        share_BT = optimality(decisions.advantage_BT, limit=limit).where(decisions.mask_BT, 0.0)
        error_BT = share_BT * decisions[better] + (1 - share_BT) * decisions[worse]
        return mean_of("diffusion_nft", decisions, error_BT, factor=limit / strength)

    return Term(name="diffusion_nft", loss=loss, values=(better, worse))


def optimality(advantage_BT: Tensor, *, limit: float) -> Tensor:
    """The advantage as a share of optimality: clip(A / (2 c) + 1 / 2, 0, 1).

    Shapes: (B, T) -> (B, T).   Source: DiffusionNFT, arXiv:2509.16117.
    """
    return (advantage_BT / (2 * limit) + 0.5).clamp(0, 1)


def dgpo(*, beta: float = 100.0, clip: float | None = None, reference: str = "reference") -> Term:
    """Errors weighed by advantage, and the group's by how much its preference is still to be learnt.

    L = sum v w_g A e, e the error, w_g = sg sigmoid(sum_i A_i beta (e_i - e_ref,i) / G) of each noise level.
    G counts the group's members. Where there is a clip, e has no gradient where exp(e_old - e) has left 1 +- clip on
    the side of the gain. Levels and noise have to be the same for a group's members.

    Units: beta is per error and advantage (100); clip is dimensionless (0.01).
    Source: DGPO, arXiv:2510.08425, and its code (Luo-Yihong/DGPO, ``train_sd3_dgpo.py``). Beside it stands a
        divergence ``velocity_mse`` from the reference.
    """
    theirs = Value("logprob", reference)

    def loss(decisions: Decisions) -> Loss:
        keep_BT = decisions.mask_BT
        error_BT = -decisions.logprob_BT.where(keep_BT, 0.0)
        advantage_BT = decisions.advantage_BT.where(keep_BT, 0.0)
        apart_BT = error_BT.detach() + decisions[theirs].detach().where(keep_BT, 0.0)
        weight_BT = group_weight(advantage_BT * apart_BT, keep_BT, decisions.group_BT, beta=beta)
        held_BT = keep_BT & False
        if clip is not None:
            ratio_BT = ratio_of(log_ratio(decisions)).detach()
            held_BT = ((advantage_BT > 0) & (ratio_BT > 1 + clip)) | ((advantage_BT < 0) & (ratio_BT < 1 - clip))
        error_BT = error_BT.detach().where(held_BT, error_BT)
        part = mean_of("dgpo", decisions, weight_BT * advantage_BT * error_BT)
        high, low = held_BT & (advantage_BT > 0), held_BT & (advantage_BT < 0)
        return Loss(part.value, part.diagnostics + Diagnostics(clip_high_count=total(high), clip_low_count=total(low)))

    return Term(name="dgpo", loss=loss, values=(theirs,), couples=GROUP)


def group_weight(gain_BT: Tensor, mask_BT: Tensor, group_BT: Tensor | None, *, beta: float) -> Tensor:
    """sigmoid(beta mean_g gain) of each group and column, on its members.

    Shapes: (B, T), bool (B, T), integer (B, T) -> (B, T).   Raises: ConfigError without groups.
    """
    if group_BT is None:
        raise ConfigError("dgpo needs group_BT: give the decisions the groups of their samples")
    groups = grouped(group_BT[:, 0])
    gain_TPG, count_TPG = groups.matrix(gain_BT.T), groups.valid(mask_BT.T)
    mean_TP1 = gain_TPG.where(count_TPG, 0.0).sum(-1, keepdim=True) / count_TPG.sum(-1, keepdim=True).clamp(min=1)
    return groups.rows((beta * mean_TP1).sigmoid().expand_as(gain_TPG)).T.to(gain_BT)


MATCHING_TERMS: Mapping[str, Callable[..., Term]] = MappingProxyType({"diffusion_nft": diffusion_nft, "dgpo": dgpo})
"""Terms on prediction errors by the name that a method's configuration uses; called with their numbers."""
