"""Measures of the internals of a network: its last hidden states, the layer after them, and its attention.

Axes: T decisions of a row, L those and the tokens before them, m of a chunk, D model width, V vocabulary, H heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def effective_rank(state_TD: Tensor) -> Tensor:
    """How many directions a row's hidden states take: e to the entropy of their singular values; 0 of fewer than two.

    p = s / sum s of the singular values s of the states less their mean; exp(-sum p log p).

    Shapes: (T, D) -> ().   Units: directions, from 1 to min(T - 1, D).
    Source: Roy and Vetterli 2007; VERL, arXiv:2509.23808, and its code (hf618/VERL, ``metrics_utils.py``).
    """
    if len(state_TD) < 2:
        return state_TD.new_zeros(())
    centered_TD = state_TD.double() - state_TD.double().mean(0)
    wide = centered_TD.shape[1] > centered_TD.shape[0]
    gram = centered_TD @ centered_TD.T if wide else centered_TD.T @ centered_TD
    singular_K = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    share_K = singular_K / singular_K.sum().clamp(min=torch.finfo(torch.float64).tiny)
    return torch.special.entr(share_K).sum().exp().to(state_TD)


def rank_velocity(state_TD: Tensor, stride: float) -> Tensor:
    """The mean rise of the effective rank of a row's prefixes over the mean of the shorter ones.

    d_j = r_j - mean(r_1 .. r_{j-1}), r_j of the first j stride + 1 states; mean d_j, 0 where there is none.

    Shapes: (T, D) -> ().   Units: directions; stride is in decisions.
    Source: VERL, arXiv:2509.23808, and its code (hf618/VERL, ``metrics_utils.py``, Effective Rank diff).
    """
    return _mean(_steps(state_TD, stride))


def rank_acceleration(state_TD: Tensor, stride: float) -> Tensor:
    """How much that grows from one beginning to the next, on average.

    mean (d_j - d_{j-1}), d as in ``rank_velocity``; 0 where there is none.

    Shapes: (T, D) -> ().   Units: directions; stride is in decisions.
    Source: VERL, arXiv:2509.23808, and its code (hf618/VERL, ``metrics_utils.py``, Effective Rank diff 2).
    """
    return _mean(_steps(state_TD, stride).diff())


def _steps(state_TD: Tensor, stride: float) -> Tensor:
    ends = range(int(stride), len(state_TD), int(stride)) if len(state_TD) >= 2 * stride else ()
    rank_J = torch.stack([state_TD.new_zeros(()), *(effective_rank(state_TD[: end + 1]) for end in ends)])[1:]
    before_J = rank_J.cumsum(0)[:-1] / torch.arange(1, max(len(rank_J), 1), device=rank_J.device)
    return rank_J[1:] - before_J


def _mean(value_J: Tensor) -> Tensor:
    return value_J.sum() / max(len(value_J), 1)


def gradient_square(state_mD: Tensor, logits_mV: Tensor, token_m: Tensor) -> Tensor:
    """Squared length of the gradient of a token's log-probability by the weights of the last layer.

    |e - p|^2 |h|^2, e the sampled token, p the distribution, h the state; logits = W h.

    Shapes: (m, D), (m, V), (m,) -> (m,).
    Source: CAPO, arXiv:2510.00819, and its code (luckeciano/stable-pg-llm, ``grpo_entropy_trainer.py``).
    """
    return _error(logits_mV, token_m).square().sum(-1) * state_mD.float().square().sum(-1)


def gradient_curvature(state_mD: Tensor, logits_mV: Tensor, token_m: Tensor) -> Tensor:
    """Curvature of a token's probability over the probability, along that gradient.

    g' H g = |h|^4 (|e - p|^4 - u' (diag p - p p') u), u = e - p.

    Shapes: (m, D), (m, V), (m,) -> (m,).
    Source: CAPO, arXiv:2510.00819, and its code (luckeciano/stable-pg-llm, ``grpo_entropy_trainer.py``,
        compute_per_sample_hessian_contributions).
    """
    error_mV, probability_mV = _error(logits_mV, token_m), logits_mV.softmax(-1)
    mean_m = (probability_mV * error_mV).sum(-1)
    spread_m = (probability_mV * error_mV.square()).sum(-1) - mean_m.square()
    length_m = state_mD.float().square().sum(-1)
    return length_m.square() * (error_mV.square().sum(-1).square() - spread_m)


def _error(logits_mV: Tensor, token_m: Tensor) -> Tensor:
    return (-logits_mV.softmax(-1)).scatter_add(-1, token_m[:, None], torch.ones_like(logits_mV[:, :1]))


def attention_distance(weight_HTL: Tensor, window: float) -> Tensor:
    """How far back each decision looks, places beyond a window counting as its end.

    sum_s w_ts min(t - s, window)

    Shapes: (H, T, L), the decisions last of L -> (H, T).   Units: places.
    Source: arXiv:2510.13554, def. 4.1, windowed average attention distance.
    """
    position_L = torch.arange(weight_HTL.shape[-1], device=weight_HTL.device)
    back_TL = position_L[-weight_HTL.shape[1] :, None] - position_L
    return (weight_HTL * back_TL.clamp(min=0, max=window)).sum(-1)


def attention_influence(weight_HTL: Tensor, near: float, far: float) -> Tensor:
    """How much later decisions look at each, on average, from ``near`` to ``far`` places on; 0 where there are none.

    mean_t w_ts over the decisions t from s + near to s + far

    Shapes: (H, T, L), the decisions last of L -> (H, T).   Units: attention weights.
    Source: arXiv:2510.13554, def. 4.2, future attention influence.
    """
    position_T = torch.arange(weight_HTL.shape[1], device=weight_HTL.device)
    ahead_TT = position_T[:, None] - position_T
    within_TT = (ahead_TT >= near) & (ahead_TT <= far)
    answer_HTT = weight_HTL[..., -weight_HTL.shape[1] :]
    return (answer_HTT * within_TT).sum(1) / within_TT.sum(0).clamp(min=1)
