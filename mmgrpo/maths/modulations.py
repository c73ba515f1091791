"""Modulations: numbers of the objective that differ from decision to decision.

They are told from values at the weights of now, without grad, as selections are. Bounds are float64, so that a number
becomes the same bound as in a surrogate that is given the number itself.

Axes: B samples, T decisions (tokens or denoising steps), N kept decisions of the whole job's update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.selections import quantile
from mmgrpo.system.lazy import torch
from mmgrpo.values import ENTROPY, OLD, Value

if TYPE_CHECKING:
    from torch import Tensor

JobValues = Mapping[Value, "Tensor"]
"""Values of the kept decisions of the whole job's update, a vector each, in one order."""

LOGPROB, OLD_LOGPROB, ADVANTAGE = Value("logprob"), Value("logprob", OLD), Value("advantage")
"""What a modulation may ask for that the decisions hold by themselves: ``known`` finds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Modulated:
    """What a modulation says of each decision; None: nothing.

    Attributes:
        low_BT: float64, the surrogate's ``low`` in place of its own.
        high_BT: float64, the surrogate's ``high`` in place of its own.
        divergence_BT: factor of the divergence.
        loss_BT: factor of the surrogate's weight.
    """

    low_BT: Tensor | None = None
    high_BT: Tensor | None = None
    divergence_BT: Tensor | None = None
    loss_BT: Tensor | None = None

    def after(self, earlier: Modulated) -> Modulated:
        """This one on top of an earlier one: its bounds count, factors multiply."""
        return Modulated(
            low_BT=earlier.low_BT if self.low_BT is None else self.low_BT,
            high_BT=earlier.high_BT if self.high_BT is None else self.high_BT,
            divergence_BT=_product(earlier.divergence_BT, self.divergence_BT),
            loss_BT=_product(earlier.loss_BT, self.loss_BT),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Modulation:
    """One modulation, its numbers bound.

    Attributes:
        of: (decisions, job_values) -> Modulated, over whole rows; job_values hold what ``job`` names.
        values: what the decisions must carry beside the log-probability.
        job: what it must know of the whole job's update.
    """

    of: Callable[[Decisions, JobValues], Modulated]
    values: tuple[Value, ...] = ()
    job: tuple[Value, ...] = ()


def known(decisions: Decisions, value: Value) -> Tensor:
    """A value that the decisions carry or hold by themselves, without grad.

    Shapes: -> (B, T).   Raises: ConfigError if they do neither.
    """
    own = {LOGPROB: decisions.logprob_BT, OLD_LOGPROB: decisions.old_logprob_BT, ADVANTAGE: decisions.advantage_BT}
    return (own[value] if value in own else decisions[value]).detach()


def constant(
    *, low: float | None = None, high: float | None = None, divergence: float | None = None, loss: float | None = None
) -> Modulation:
    """The same numbers everywhere.

    Units: low and high as the surrogate takes them; divergence and loss are factors.
    """
    return Modulation(of=partial(_constant, low=low, high=high, divergence=divergence, loss=loss))


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

    Where H > quantile(H of the sample's kept decisions), interpolated linearly: above_low, above_high and
    above_divergence, elsewhere low, high and divergence.

    Units: bounds as the surrogate takes them; divergences are factors of kl_beta.
    Raises: ConfigError for a quantile outside 0 .. 1.
    Source: Archer, arXiv:2507.15778, and its code (wizard-III/ArcherCodeR, ``dp_actor.py``): 0.8, 0.2 / 0.2 with k3 at
        0.001, and 0.5 / 0.5 without.
    """
    if not 0 <= quantile <= 1:
        raise ConfigError(f"a quantile lies between 0 and 1, got {quantile}")
    numbers = ((low, above_low), (high, above_high), (divergence, above_divergence))
    return Modulation(of=partial(_by_entropy, quantile=quantile, numbers=numbers), values=(ENTROPY,))


def _by_entropy(
    decisions: Decisions, job_values: JobValues, *, quantile: float, numbers: tuple[tuple[float, float], ...]
) -> Modulated:
    del job_values
    entropy_BT = known(decisions, ENTROPY)
    above_BT = decisions.mask_BT & (entropy_BT > row_quantile(entropy_BT, decisions.mask_BT, quantile))
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
    return Modulation(of=partial(_by_old_probability, low=low, high=high, most=most))


def _by_old_probability(
    decisions: Decisions, job_values: JobValues, *, low: float, high: float, most: float
) -> Modulated:
    del job_values
    probability_BT = known(decisions, OLD_LOGPROB).where(decisions.mask_BT, 0.0).double().exp()
    floor_BT = (1 + (1 - 4 * low / probability_BT).clamp(min=0).sqrt()) / 2
    ceiling_BT = ((1 + (1 + 4 * high / probability_BT).sqrt()) / 2).clamp(max=most)
    return Modulated(low_BT=1 - floor_BT, high_BT=ceiling_BT - 1)


def clip_covariance(
    *,
    share: float = 0.0002,
    at_least: float = 1.0,
    at_most: float = 5.0,
    low: float = 0.2,
    high: float = 0.2,
) -> Modulation:
    """No loss for a few decisions whose advantage and log-probability go together the most: they cost most entropy.

    c = (A - mean A) (logprob - mean logprob), means over the update's kept decisions. Of those with at_least < c <
    at_most that the surrogate's own bound leaves alone, the max(share * N, 1) of the highest c get a loss of 0.

    Units: share is dimensionless; at_least and at_most are advantage times nats; low and high are the surrogate's.
    Source: Clip-Cov, arXiv:2505.22617, and its code (PRIME-RL/Entropy-Mechanism-of-RL,
        ``compute_policy_loss_clip_cov``). Deviation: the highest of them, where its code draws them at random, so that
        the same decisions are taken however the update is cut; decisions that tie with the last are taken too.
    """
    bounds = partial(_covariance_bounds, at_least=at_least, at_most=at_most, low=low, high=high)
    job = (LOGPROB, OLD_LOGPROB, ADVANTAGE)
    return Modulation(of=partial(_clip_covariance, share=share, bounds=bounds), job=job)


def _clip_covariance(
    decisions: Decisions, job_values: JobValues, *, share: float, bounds: Callable[..., Tensor]
) -> Modulated:
    logprob_N, old_N, advantage_N = (job_values[value].double() for value in (LOGPROB, OLD_LOGPROB, ADVANTAGE))
    means = (advantage_N.mean(), logprob_N.mean())
    candidate_N = bounds(logprob_N, old_N, advantage_N, means).sort(descending=True).values
    num = min(max(int(share * len(candidate_N)), 1), int((candidate_N > -torch.inf).sum()))
    if num == 0:
        return Modulated()
    logprob_BT, old_BT, advantage_BT = (known(decisions, value).double() for value in (LOGPROB, OLD_LOGPROB, ADVANTAGE))
    covariance_BT = bounds(logprob_BT, old_BT, advantage_BT, means)
    taken_BT = decisions.mask_BT & (covariance_BT >= candidate_N[num - 1])
    return Modulated(loss_BT=torch.ones_like(decisions.logprob_BT.detach()).masked_fill(taken_BT, 0.0))


def _covariance_bounds(
    logprob: Tensor,
    old_logprob: Tensor,
    advantage: Tensor,
    means: tuple[Tensor, Tensor],
    *,
    at_least: float,
    at_most: float,
    low: float,
    high: float,
) -> Tensor:
    """The covariances; minus infinity for what may not be taken."""
    covariance = (advantage - means[0]) * (logprob - means[1])
    ratio = (logprob - old_logprob).exp()
    clipped = ((ratio < 1 - low) & (advantage < 0)) | ((ratio > 1 + high) & (advantage > 0))
    may = (covariance > at_least) & (covariance < at_most) & ~clipped
    return covariance.where(may, -torch.inf)


def growing_bounds(*, first: float, last: float, rate: float = 3.0) -> Modulation:
    """Bounds that grow exponentially from a sample's first decision to its last.

    low = high = first + (last - first) (exp(rate t) - 1) / (exp(rate) - 1), t = column / (T - 1).

    Units: first and last as the surrogate takes them; rate is dimensionless, not 0.   Raises: ConfigError for rate 0.
    Source: DPPO (Diffusion Policy Policy Optimization), arXiv:2409.00588, and its code (irom-princeton/dppo,
        ``diffusion_ppo.py``): 0.001 to 0.01 at rate 3.
    """
    if rate == 0:
        raise ConfigError("growing bounds need a rate other than 0")
    return Modulation(of=partial(_growing, first=first, last=last, rate=rate))


def _growing(decisions: Decisions, job_values: JobValues, *, first: float, last: float, rate: float) -> Modulated:
    del job_values
    place_T = _columns(decisions) / max(decisions.mask_BT.shape[1] - 1, 1)
    bound_T = first + (last - first) * (rate * place_T).expm1() / math.expm1(rate)
    bound_BT = bound_T.expand(decisions.mask_BT.shape)
    return Modulated(low_BT=bound_BT, high_BT=bound_BT)


def discounted_steps(*, gamma: float) -> Modulation:
    """Earlier decisions count less: the loss times gamma^(T - 1 - column).

    Units: gamma is dimensionless (0.99).
    Source: DPPO, arXiv:2409.00588, and its code: the denoising discount of the advantage.
    """
    return Modulation(of=partial(_discounted, gamma=gamma))


def _discounted(decisions: Decisions, job_values: JobValues, *, gamma: float) -> Modulated:
    del job_values
    to_come_T = decisions.mask_BT.shape[1] - 1 - _columns(decisions)
    factor_T = torch.full_like(to_come_T, gamma).pow(to_come_T).to(decisions.logprob_BT.detach())
    return Modulated(loss_BT=factor_T.expand(decisions.mask_BT.shape))


def top_product(*, share: float) -> Modulation:
    """The decisions where much is at stake and little is sure: of an update's, this share of the highest |A| H.

    The loss of a decision is 0 unless |A| H >= quantile(|A| H over the update's decisions on all processes, 1 - share),
    interpolated linearly.

    Units: share is dimensionless, above 0 and at most 1.   Raises: ConfigError for another share.
    Source: D3S's token level, as the catalogue of ``research/`` gives it.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"a share of the decisions is above 0 and at most 1, got {share}")
    job = (ADVANTAGE, ENTROPY)
    return Modulation(of=partial(_top_product, share=share), values=(ENTROPY,), job=job)


def _top_product(decisions: Decisions, job_values: JobValues, *, share: float) -> Modulated:
    if not bool(decisions.mask_BT.any()):
        return Modulated()
    product_N = job_values[ADVANTAGE].double().abs() * job_values[ENTROPY].double()
    product_BT = known(decisions, ADVANTAGE).double().abs() * known(decisions, ENTROPY).double()
    kept_BT = product_BT >= quantile(product_N, 1 - share)
    return Modulated(loss_BT=kept_BT.to(decisions.logprob_BT.detach()))


def equal_segments() -> Modulation:
    """The segments of a sample weigh alike, where an aggregate has its decisions weigh alike.

    The loss times n / (n_s S), n the kept decisions of the row, n_s those of the decision's segment, S the row's
    segments: with ``sample_mean`` the mean over samples of the mean over segments of their means.

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


MODULATIONS: Mapping[str, Callable[..., Modulation]] = MappingProxyType(
    {
        "constant": constant,
        "by_entropy_quantile": by_entropy_quantile,
        "by_old_probability": by_old_probability,
        "clip_covariance": clip_covariance,
        "growing_bounds": growing_bounds,
        "discounted_steps": discounted_steps,
        "top_product": top_product,
        "equal_segments": equal_segments,
    }
)
"""Modulations by the name that a method's configuration uses; called with their numbers, applied in order."""


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


def _columns(decisions: Decisions) -> Tensor:
    return torch.arange(decisions.mask_BT.shape[1], dtype=torch.float64, device=decisions.mask_BT.device)


def _product(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return one if other is None else other
    return one * other
