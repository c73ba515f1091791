"""Modulations: numbers of the objective that differ from decision to decision.

They are told from values at the weights of now, without grad, as selections are. Bounds are float64, so that a number
becomes the same bound as in a surrogate that is given the number itself.

Axes: B samples, T decisions (tokens or denoising steps), N kept decisions of the whole job's update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.groups import grouped
from mmgrpo.maths.job_modulations import clip_covariance, kl_covariance, top_product
from mmgrpo.maths.modulation import ADVANTAGE as ADVANTAGE
from mmgrpo.maths.modulation import LOGPROB as LOGPROB
from mmgrpo.maths.modulation import OLD_LOGPROB, JobValues, Modulated, Modulation, detached
from mmgrpo.maths.registry import Registry
from mmgrpo.system.lazy import torch
from mmgrpo.values import DRIFT, ENTROPY, RANK

if TYPE_CHECKING:
    from torch import Tensor


def constant(
    *, low: float | None = None, high: float | None = None, divergence: float | None = None, loss: float | None = None
) -> Modulation:
    """The same numbers everywhere.

    low, high = those given; factors = divergence, loss; what is left out stays as it is.

    Units: low and high as the surrogate takes them; divergence and loss are factors.
    """
    of = partial(_constant, low=low, high=high, divergence=divergence, loss=loss)
    return Modulation(of=of, bounds=low is not None or high is not None)


def _constant(
    decisions: Decisions,
    job_values: JobValues,
    *,
    low: float | None,
    high: float | None,
    divergence: float | None,
    loss: float | None,
) -> Modulated:
    del job_values
    like_BT = decisions.logprob_BT.detach()
    return Modulated(
        low_BT=None if low is None else torch.full_like(like_BT, low, dtype=torch.float64),
        high_BT=None if high is None else torch.full_like(like_BT, high, dtype=torch.float64),
        divergence_BT=None if divergence is None else torch.full_like(like_BT, divergence),
        loss_BT=None if loss is None else torch.full_like(like_BT, loss),
    )


def by_entropy_quantile(
    *,
    quantile: float = 0.8,
    low: float = 0.2,
    high: float = 0.2,
    divergence: float = 1.0,
    above_low: float = 0.5,
    above_high: float = 0.5,
    above_divergence: float = 0.0,
) -> Modulation:
    """Wide bounds and no divergence for the decisions of a sample that are least sure, narrow ones for the others.

    low = above_low where H > quantile(H of the sample's kept decisions), else low; likewise high and the divergence.
    The quantile is interpolated linearly.

    Units: bounds as the surrogate takes them; divergences are factors of kl_beta.
    Raises: ConfigError for a quantile outside 0 .. 1.
    Source: Archer, arXiv:2507.15778, and its code (wizard-III/ArcherCodeR, ``dp_actor.py``): 0.8, 0.2 / 0.2 with k3 at
        0.001, and 0.5 / 0.5 without.
    """
    require_quantile(quantile)
    numbers = ((low, above_low), (high, above_high), (divergence, above_divergence))
    return Modulation(of=partial(_by_entropy, quantile=quantile, numbers=numbers), values=(ENTROPY,), bounds=True)


def _by_entropy(
    decisions: Decisions, job_values: JobValues, *, quantile: float, numbers: tuple[tuple[float, float], ...]
) -> Modulated:
    del job_values
    entropy_BT = detached(decisions, ENTROPY)
    above_BT = above_row_quantile(entropy_BT, decisions.mask_BT, quantile)
    low_BT, high_BT, divergence_BT = (
        torch.full_like(entropy_BT, below, dtype=torch.float64).masked_fill(above_BT, above) for below, above in numbers
    )
    return Modulated(low_BT=low_BT, high_BT=high_BT, divergence_BT=divergence_BT.to(entropy_BT))


def by_old_probability(*, low: float = 0.16, high: float = 0.2, most: float = 10.0) -> Modulation:
    """Bounds that widen for decisions that the policy which sampled found unlikely.

    The ratio is held within (1 + sqrt(max(1 - 4 low / q, 0))) / 2 and min((1 + sqrt(1 + 4 high / q)) / 2, most), q the
    old probability.

    Units: low and high are in probability; most is a ratio.
    Source: DCPO, arXiv:2509.02333, and its code (lime-RL/DCPO, ``core_algos.py``). For decisions that have a
        probability; that of a denoising step is a density.
    """
    return Modulation(of=partial(_by_old_probability, low=low, high=high, most=most), bounds=True)


def _by_old_probability(
    decisions: Decisions, job_values: JobValues, *, low: float, high: float, most: float
) -> Modulated:
    del job_values
    probability_BT = detached(decisions, OLD_LOGPROB).where(decisions.mask_BT, 0.0).double().exp()
    floor_BT = (1 + (1 - 4 * low / probability_BT).clamp(min=0).sqrt()) / 2
    ceiling_BT = ((1 + (1 + 4 * high / probability_BT).sqrt()) / 2).clamp(max=most)
    return Modulated(low_BT=1 - floor_BT, high_BT=ceiling_BT - 1)


def growing_bounds(
    *, first: float, last: float, rate: float = 3.0, each: Literal["sample", "segment"] = "sample"
) -> Modulation:
    """Bounds that grow exponentially from the first decision of each sample, or of each segment of it, to the last.

    low = high = first + (last - first) (exp(rate t) - 1) / (exp(rate) - 1), t = k / (K - 1), k the decision's place
    among the K of its sample or segment.

    Units: first and last as the surrogate takes them; rate is dimensionless, not 0.   Raises: ConfigError for rate 0.
    Source: DPPO (Diffusion Policy Policy Optimization), arXiv:2409.00588, and its code (irom-princeton/dppo,
        ``diffusion_ppo.py``): 0.001 to 0.01 at rate 3.
    """
    if rate == 0:
        raise ConfigError("growing bounds need a rate other than 0")
    places = _places(each)
    return Modulation(of=partial(_growing, first=first, last=last, rate=rate, places=places), bounds=True)


def _growing(
    decisions: Decisions, job_values: JobValues, *, first: float, last: float, rate: float, places: Places
) -> Modulated:
    del job_values
    before_BT, behind_BT = places(decisions)
    share_BT = before_BT / (before_BT + behind_BT).clamp(min=1)
    bound_BT = first + (last - first) * (rate * share_BT).expm1() / math.expm1(rate)
    return Modulated(low_BT=bound_BT, high_BT=bound_BT)


def discounted_steps(*, gamma: float, each: Literal["sample", "segment"] = "sample") -> Modulation:
    """Earlier decisions of each sample, or of each segment of it, count less.

    loss = gamma^(K - 1 - k) of what it was, k the decision's place among the K of its sample or segment.

    Units: gamma is dimensionless (0.99).
    Source: DPPO, arXiv:2409.00588, and its code: the denoising discount of the advantage.
    """
    places = _places(each)
    return Modulation(of=partial(_discounted, gamma=gamma, places=places))


def _discounted(decisions: Decisions, job_values: JobValues, *, gamma: float, places: Places) -> Modulated:
    del job_values
    _, behind_BT = places(decisions)
    factor_BT = torch.full_like(behind_BT, gamma).pow(behind_BT)
    return Modulated(loss_BT=factor_BT.to(decisions.logprob_BT.detach()))


def within_divergence(*, limit: float) -> Modulation:
    """No loss for decisions whose policy is far from the one that sampled and would move on: those return freely.

    loss = 0 where D >= limit and (r > 1 and A > 0, or r < 1 and A < 0), D the divergence of the Gaussian steps.

    Units: limit in the units of D, nats per element where log-probabilities are reduced by ``mean`` (1e-5).
    Source: Flow-DPPO, arXiv:2606.11025, eq. 18, and its code (Tencent-Hunyuan/UniRL, ``_flowdppo_kl_adv_loss``). Stands
        beside ``unclipped``.
    """
    return Modulation(of=partial(_within_divergence, limit=limit), values=(DRIFT,))


def _within_divergence(decisions: Decisions, job_values: JobValues, *, limit: float) -> Modulated:
    del job_values
    change_BT = detached(decisions, LOGPROB) - detached(decisions, OLD_LOGPROB)
    is_gain_BT = change_BT.sign() * decisions.advantage_BT > 0
    far_BT = decisions.mask_BT & (detached(decisions, DRIFT) >= limit) & is_gain_BT
    return Modulated(loss_BT=torch.ones_like(change_BT).masked_fill(far_BT, 0.0))


def equal_segments() -> Modulation:
    """The segments of a sample weigh alike, where an aggregate has its decisions weigh alike.

    loss = n / (n_s S) of what it was, n the kept decisions of the row, n_s those of the segment, S the row's segments.
    With ``sample_mean`` it is the mean over samples of the mean over segments of their means.

    Units: dimensionless.   Source: Chunk-GRPO, arXiv:2510.21583, eq. 14.
    """
    return Modulation(of=_equal_segments)


def _equal_segments(decisions: Decisions, job_values: JobValues) -> Modulated:
    del job_values
    keep_BT, segment_BT = decisions.mask_BT, decisions.segment_BT
    factor_BT = torch.ones_like(decisions.logprob_BT.detach())
    for row in range(len(keep_BT)):
        keep_T = keep_BT[row]
        if bool(keep_T.any()):
            _, of_N, count_S = segment_BT[row][keep_T].unique(return_inverse=True, return_counts=True)
            factor_BT[row, keep_T] = (len(of_N) / (count_S[of_N] * len(count_S))).to(factor_BT)
    return Modulated(loss_BT=factor_BT)


def divergence_by_success(*, right: float = 1.0) -> Modulation:
    """Right samples are held to the reference the less, the rarer they are in their group.

    divergence = 1 - exp(-e p) where A > 0, p the share of the group that is right, between 0 and 1; else 1.

    Units: right in the reward's units; divergence is a factor of kl_beta.
    Raises: ConfigError if the decisions carry no rewards or no groups.
    Source: APO, arXiv:2506.21655, difficulty-adaptive divergence shaping, and its code (Indolent-Kawhi/View-R1,
        openrlhf/trainer/ray/ppo_actor.py, calculate_kl_weight).
    """
    return Modulation(of=partial(_by_success, right=right))


def _by_success(decisions: Decisions, job_values: JobValues, *, right: float) -> Modulated:
    del job_values
    if decisions.reward_BT is None or decisions.group_BT is None:
        raise ConfigError("divergence_by_success needs reward_BT and group_BT: the rewards and groups of the samples")
    trains_B = decisions.mask_BT.any(1) & ~decisions.reward_BT[:, 0].isnan()
    groups = grouped(decisions.group_BT[:, 0])
    valid_PG = groups.valid(trains_B)
    right_PG = valid_PG & (groups.matrix(decisions.reward_BT[:, 0]) >= right)
    share_PG = (right_PG.sum(1, keepdim=True) / valid_PG.sum(1, keepdim=True).clamp(min=1)).expand(valid_PG.shape)
    share_B1 = groups.rows(share_PG)[:, None]
    applies_BT = (detached(decisions, ADVANTAGE) > 0) & (share_B1 > 0) & (share_B1 < 1)
    factor_BT = (-torch.expm1(-math.e * share_B1)).where(applies_BT, 1.0)
    return Modulated(divergence_BT=factor_BT.to(decisions.logprob_BT.detach()))


def likeliest_of_wrong(*, loss: float = 1.1, quantile: float = 0.8) -> Modulation:
    """Tokens of wrong samples count more where the policy was unsure and they are its first choice.

    loss = that given where A < 0, no token is likelier, and H > quantile(H of the sample's kept decisions); else 1.

    Units: loss is a factor.   Raises: ConfigError for a quantile outside 0 .. 1.
    Source: SimKO, arXiv:2510.14807, and its code (CLR-Lab/SimKO, ``core_algos.py``, compute_policy_loss_simko): 1.1.
    """
    require_quantile(quantile)
    return Modulation(of=partial(_likeliest_of_wrong, loss=loss, quantile=quantile), values=(ENTROPY, RANK))


def _likeliest_of_wrong(decisions: Decisions, job_values: JobValues, *, loss: float, quantile: float) -> Modulated:
    del job_values
    unsure_BT = above_row_quantile(detached(decisions, ENTROPY), decisions.mask_BT, quantile)
    first_BT = unsure_BT & (detached(decisions, RANK) == 0) & (decisions.advantage_BT < 0)
    return Modulated(loss_BT=torch.ones_like(decisions.logprob_BT.detach()).masked_fill(first_BT, loss))


MODULATIONS: Registry[Callable[..., Modulation]] = Registry(
    {
        "constant": constant,
        "by_entropy_quantile": by_entropy_quantile,
        "by_old_probability": by_old_probability,
        "clip_covariance": clip_covariance,
        "kl_covariance": kl_covariance,
        "growing_bounds": growing_bounds,
        "discounted_steps": discounted_steps,
        "top_product": top_product,
        "equal_segments": equal_segments,
        "within_divergence": within_divergence,
        "divergence_by_success": divergence_by_success,
        "likeliest_of_wrong": likeliest_of_wrong,
    }
)
"""Modulations by the name that a method's configuration uses; called with their numbers, applied in order."""


def require_quantile(quantile: float) -> None:
    """Raises ConfigError for a quantile that cannot be."""
    if not 0 <= quantile <= 1:
        raise ConfigError(f"a quantile lies between 0 and 1, got {quantile}")


def above_row_quantile(value_BT: Tensor, mask_BT: Tensor, fraction: float) -> Tensor:
    """The kept decisions whose value is above the quantile of their row: ``row_quantile``.

    Shapes: (B, T), bool (B, T) -> bool (B, T).
    """
    return mask_BT & (value_BT > row_quantile(value_BT, mask_BT, fraction))


def row_quantile(value_BT: Tensor, mask_BT: Tensor, fraction: float) -> Tensor:
    """The quantile over the kept decisions of each row, interpolated linearly; infinite for a row without any.

    Shapes: (B, T), bool (B, T) -> (B, 1).   Units: those of the values.
    """
    sorted_BT = value_BT.where(mask_BT, torch.inf).double().sort(1).values
    place_B1 = (mask_BT.sum(1, keepdim=True) - 1).clamp(min=0).double() * fraction
    # a product such as 0.7 * 10 is a little off its place
    place_B1 = (place_B1 * 1e6).round() / 1e6
    below_B1, above_B1 = (sorted_BT.gather(1, each.long()) for each in (place_B1.floor(), place_B1.ceil()))
    between_B1 = below_B1 + (above_B1 - below_B1) * place_B1.frac()
    return between_B1.where(mask_BT.any(1, keepdim=True), torch.inf).to(value_BT)


def _in_sample(decisions: Decisions) -> tuple[Tensor, Tensor]:
    """How many decisions of its sample are before each, and behind it. Shapes: -> float64 (B, T) each."""
    T = decisions.mask_BT.shape[1]
    before_T = torch.arange(T, dtype=torch.float64, device=decisions.mask_BT.device)
    return before_T.expand(decisions.mask_BT.shape), (T - 1 - before_T).expand(decisions.mask_BT.shape)


def _in_segment(decisions: Decisions) -> tuple[Tensor, Tensor]:
    """How many decisions of its segment, which stand side by side, are before each, and behind it."""
    column_BT, to_come_BT = _in_sample(decisions)
    ends_BT = decisions.segment_BT[:, 1:] != decisions.segment_BT[:, :-1]
    edge_B1 = torch.ones_like(ends_BT[:, :1])
    first_BT = column_BT.where(torch.cat([edge_B1, ends_BT], dim=1), 0).cummax(1).values
    last_BT = to_come_BT.where(torch.cat([ends_BT, edge_B1], dim=1), 0).flip(1).cummax(1).values.flip(1)
    return column_BT - first_BT, to_come_BT - last_BT


Places = Callable[[Decisions], "tuple[Tensor, Tensor]"]
PLACES: Mapping[str, Places] = MappingProxyType({"sample": _in_sample, "segment": _in_segment})


def _places(each: str) -> Places:
    if each not in PLACES:
        raise ConfigError(f"places are counted in each of {' or '.join(PLACES)}, got {each!r}")
    return PLACES[each]
