"""Modulations: numbers of the objective that differ from decision to decision.

They are computed from values under the current weights, without grad, as selections are. Bounds are float64, so that a
number becomes the same bound as in a surrogate with that number.

Axes: B samples, T decisions (tokens or denoising steps), N kept decisions of the update on all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Literal

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.factories import Numbers, factory
from mmgrpo.maths.registry import Registry
from mmgrpo.system.lazy import torch
from mmgrpo.values import DRIFT, OLD, Value

if TYPE_CHECKING:
    from torch import Tensor


MODULATIONS: Registry[Callable[..., Modulation]] = Registry(
    arguments=(), decorator="mmgrpo.maths.modulations.modulation"
)
"""Modulations by the name that a method's configuration uses; called with their numbers, applied in order."""


JobValues = Mapping[Value, "Tensor"]
"""Values of the kept decisions of the update on all processes, a vector each, in one order."""

LOGPROB, OLD_LOGPROB, ADVANTAGE = Value("logprob"), Value("logprob", OLD), Value("advantage")
"""Values that a modulation may request and that the decisions have already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Modulated:
    """The numbers of a modulation for each decision; None: unchanged.

    Attributes:
        low_BT: float64, replaces ``low`` of the surrogate.
        high_BT: float64, replaces ``high`` of the surrogate.
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
    """One modulation, its settings bound.

    Attributes:
        of: (decisions, job_values) -> Modulated, over complete rows; job_values are the values that ``job`` names.
        values: values that the decisions must have besides the log-probability.
        job: values that it needs of the update on all processes.
        bounds: whether it sets the surrogate's ``low`` or ``high``, which the surrogate must then have.
        name: key of the metric of the share of decisions that it changes.
    """

    of: Callable[[Decisions, JobValues], Modulated]
    values: tuple[Value, ...] = ()
    job: tuple[Value, ...] = ()
    bounds: bool = False
    name: str = "modulation"


def modulation(
    *,
    values: Callable[..., tuple[Value, ...]] | tuple[Value, ...] = (),
    job: Callable[..., tuple[Value, ...]] | tuple[Value, ...] = (),
    bounds: Callable[..., bool] | bool = False,
    check: Callable[..., Any] | None = None,
) -> Callable[[Callable[Concatenate[Decisions, JobValues, Numbers], Modulated]], Callable[Numbers, Modulation]]:
    """A decorator: a function (decisions, job_values, *, numbers) -> Modulated becomes a factory of modulations.

    Args:
        values: as the attribute of ``Modulation``, or a function of the settings that it names; so are those that
            follow.
        job: likewise.
        bounds: likewise.
        check: raises ConfigError for settings that do not go together; called with those that it names.

    Returns:
        The decorator.
    """
    return factory(Modulation, "of", check=check, values=values, job=job, bounds=bounds)


@MODULATIONS.register
@modulation(bounds=lambda low, high: low is not None or high is not None)
def constant(
    decisions: Decisions,
    job_values: JobValues,
    *,
    low: float | None = None,
    high: float | None = None,
    divergence: float | None = None,
    loss: float | None = None,
) -> Modulated:
    """The same numbers everywhere.

    low, high = the arguments; factors = divergence, loss; omitted ones do not change.

    Units: low and high as the surrogate takes them; divergence and loss are factors.
    """
    del job_values
    like_BT = decisions.logprob_BT.detach()
    return Modulated(
        low_BT=None if low is None else torch.full_like(like_BT, low, dtype=torch.float64),
        high_BT=None if high is None else torch.full_like(like_BT, high, dtype=torch.float64),
        divergence_BT=None if divergence is None else torch.full_like(like_BT, divergence),
        loss_BT=None if loss is None else torch.full_like(like_BT, loss),
    )


def _require_divergence(divergence: str) -> None:
    if divergence not in DIVERGENCES:
        raise ConfigError(f"divergence must be {', '.join(DIVERGENCES)}, got {divergence!r}")


@MODULATIONS.register
@modulation(values=lambda divergence: (DRIFT,) if divergence == "drift" else (), check=_require_divergence)
def within_divergence(
    decisions: Decisions,
    job_values: JobValues,
    *,
    limit: float,
    divergence: Literal["drift", "binary_tv", "binary_kl"] = "drift",
) -> Modulated:
    """No loss for decisions that are far from the behavior policy and would move further; moves back are free.

    loss = 0 where D >= limit and (r > 1 and A > 0, or r < 1 and A < 0), D the divergence: ``drift``, that of Gaussian
    steps; for decisions with a probability p, q that of the behavior policy, that of the two outcomes "this decision"
    and "another", ``binary_tv``: |p - q|, ``binary_kl``: q log(q / p) + (1 - q) log((1 - q + 1e-8) / (1 - p + 1e-8)).

    Units: limit in the units of D: nats per element for ``drift`` where log-probabilities are reduced by ``mean``
        (1e-5), in probability for ``binary_tv`` (0.15), in nats for ``binary_kl`` (0.05).
    Source: Flow-DPPO, arXiv:2606.11025, eq. 18, and its code (Tencent-Hunyuan/UniRL, ``_flowdppo_kl_adv_loss``);
        DPPO, arXiv:2602.04879, and verl, ``compute_policy_loss_dppo_tv`` and ``_kl``. Used with ``unclipped`` or a
        ratio that is no bound.
    """
    del job_values
    change_BT = detached(decisions, LOGPROB) - detached(decisions, OLD_LOGPROB)
    is_gain_BT = change_BT.sign() * decisions.advantage_BT > 0
    far_BT = decisions.mask_BT & (DIVERGENCES[divergence](decisions) >= limit) & is_gain_BT
    return Modulated(loss_BT=torch.ones_like(change_BT).masked_fill(far_BT, 0.0))


def _binary_tv(decisions: Decisions) -> Tensor:
    now_BT, before_BT = _log_probabilities(decisions)
    return (now_BT.exp() - before_BT.exp()).abs()


def _binary_kl(decisions: Decisions) -> Tensor:
    now_BT, before_BT = _log_probabilities(decisions)
    p_BT, q_BT = now_BT.exp(), before_BT.exp()
    others_BT = (1 - q_BT) * ((1 - q_BT + 1e-8) / (1 - p_BT + 1e-8)).log()
    return q_BT * (before_BT - now_BT) + others_BT


def _log_probabilities(decisions: Decisions) -> tuple[Tensor, Tensor]:
    """Of the policy and of the behavior policy, without grad, in float64; 0 outside the mask.

    Raises: ConfigError for densities.
    """
    now_BT, before_BT = (
        detached(decisions, value).where(decisions.mask_BT, 0.0).double() for value in (LOGPROB, OLD_LOGPROB)
    )
    if (now_BT > 1e-3).any():
        raise ConfigError("divergence binary_tv and binary_kl are for tokens; denoising steps have divergence drift")
    return now_BT, before_BT


def require_quantile(quantile: float) -> None:
    """Raises ConfigError for a quantile that cannot be."""
    if not 0 <= quantile <= 1:
        raise ConfigError(f"a quantile must be between 0 and 1, got {quantile}")


def require_share(share: float) -> None:
    """Raises ConfigError for a share of the decisions that is not above 0 and at most 1."""
    if not 0 < share <= 1:
        raise ConfigError(f"a share of the decisions is above 0 and at most 1, got {share}")


@MODULATIONS.register
@modulation()
def equal_segments(decisions: Decisions, job_values: JobValues) -> Modulated:
    """The segments of a sample have equal weights, where an aggregate gives equal weights to its decisions.

    loss = n / (n_s S), n the kept decisions of the row, n_s those of the segment, S the row's segments.
    With ``sequence_mean`` it is the mean over samples of the mean over segments of their means; the segments of a
    conversation are its turns.

    Units: dimensionless.
    Source: Chunk-GRPO, arXiv:2510.21583, eq. 14; the turns of AgentFlow, arXiv:2510.05592.
    """
    del job_values
    keep_BT, segment_BT = decisions.mask_BT, decisions.segment_BT
    factor_BT = torch.ones_like(decisions.logprob_BT.detach())
    for row in range(len(keep_BT)):
        keep_T = keep_BT[row]
        if bool(keep_T.any()):
            _, of_N, count_S = segment_BT[row][keep_T].unique(return_inverse=True, return_counts=True)
            factor_BT[row, keep_T] = (len(of_N) / (count_S[of_N] * len(count_S))).to(factor_BT)
    return Modulated(loss_BT=factor_BT)


def above_row_quantile(value_BT: Tensor, mask_BT: Tensor, fraction: float) -> Tensor:
    """The kept decisions with a value above the quantile of their row: ``row_quantile``.

    Shapes: (B, T), bool (B, T) -> bool (B, T).
    """
    return mask_BT & (value_BT > row_quantile(value_BT, mask_BT, fraction))


def row_quantile(value_BT: Tensor, mask_BT: Tensor, fraction: float) -> Tensor:
    """The quantile over the kept decisions of each row, interpolated linearly; infinite for a row without any.

    Shapes: (B, T), bool (B, T) -> (B, 1).   Units: those of the values.
    """
    sorted_BT = value_BT.where(mask_BT, torch.inf).double().sort(1).values
    position_B1 = (mask_BT.sum(1, keepdim=True) - 1).clamp(min=0).double() * fraction
    # a product such as 0.7 * 10 is a little off its place
    position_B1 = (position_B1 * 1e6).round() / 1e6
    below_B1, above_B1 = (sorted_BT.gather(1, each.long()) for each in (position_B1.floor(), position_B1.ceil()))
    between_B1 = below_B1 + (above_B1 - below_B1) * position_B1.frac()
    return between_B1.where(mask_BT.any(1, keepdim=True), torch.inf).to(value_BT)


def detached(decisions: Decisions, value: Value) -> Tensor:
    """A value that the decisions carry or hold by themselves, without grad.

    Shapes: -> (B, T).   Raises: ConfigError if they do neither.
    """
    tensors = {LOGPROB: decisions.logprob_BT, OLD_LOGPROB: decisions.old_logprob_BT, ADVANTAGE: decisions.advantage_BT}
    return (tensors[value] if value in tensors else decisions[value]).detach()


DIVERGENCES: Mapping[str, Callable[[Decisions], Tensor]] = MappingProxyType(
    {"drift": lambda decisions: detached(decisions, DRIFT), "binary_tv": _binary_tv, "binary_kl": _binary_kl}
)


def _product(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    if left is None or right is None:
        return left if right is None else right
    return left * right
