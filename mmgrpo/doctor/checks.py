"""What can be measured of a policy before it is trained, each check by itself; none leaves the policy changed.

Axes: B samples, T decisions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from mmgrpo.config import RunConfig
from mmgrpo.errors import ConfigError
from mmgrpo.maths.aggregates import count
from mmgrpo.maths.objectives import Objective
from mmgrpo.maths.surrogates import policy_gradient
from mmgrpo.policy import Policy
from mmgrpo.training.learner import Gradient, accumulate_gradient
from mmgrpo.training.views import Seen
from mmgrpo.types import Rollout, Sample
from mmgrpo.values import DRIFT

GAP_SHARE = 0.1  # of the clip range that numerical noise may take up
GAP_WITHOUT_CLIP = 1e-2  # a ratio wrong by 1 % scales its gradient by 1 %
NOISE = 1e-3  # of a parameter's own size; of 1 where it is zero by construction
UNREACHED = 0.1  # share of the trained tensors that may lie outside what a window uses
NOISE_SEED = 0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check found.

    Attributes:
        check: what was looked at.
        ok: whether a run may start; a finding that is ok and has a cure is a warning.
        measured: the numbers.
        cure: what to change; empty where nothing is to be changed.
    """

    check: str
    ok: bool
    measured: str
    cure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPolicy:
    """A policy under examination, with a rollout of its own, in whole groups of two.

    Attributes:
        config: how it is to be trained.
        policy: the policy, with the weights that drew the rollout.
        objective: the loss of the run.
        rollout: a small rollout under the run's own plan.
        views: its rows as the views of the run see them, as if every sample were right.
    """

    config: RunConfig
    policy: Policy
    objective: Objective
    rollout: Rollout
    views: Mapping[str, Seen] = field(default_factory=dict)

    @property
    def clip_bound(self) -> float | None:
        """The smallest bound on |ratio - 1| in the surrogate; None if it has none."""
        return self.config.objective.clip_bound

    @property
    def limit(self) -> float:
        """The largest log-ratio that may come from numerical noise."""
        return GAP_WITHOUT_CLIP if self.clip_bound is None else GAP_SHARE * self.clip_bound


@dataclass(frozen=True, slots=True)
class ProbeUpdate:
    """One pass of an objective over the whole rollout.

    Attributes:
        gradient: the learner's report.
        norms: gradient norm of each trainable tensor; None where it got none.
        seconds: what it took.
    """

    gradient: Gradient
    norms: Sequence[float | None]
    seconds: float

    @property
    def norm(self) -> float:
        """Norm of the whole gradient."""
        return math.sqrt(sum(norm**2 for norm in self.norms if norm is not None))


def first_update(subject: CheckedPolicy) -> ProbeUpdate:
    """The run's own first update, with advantages +1 and -1 in turn; no weight changes."""
    advantage_B = torch.ones(len(subject.rollout.samples))
    advantage_B[1::2] = -1
    return _update(subject, subject.objective, advantage_B)


def on_policy_gap(subject: CheckedPolicy, update: ProbeUpdate) -> CheckResult:
    """Whether log-probabilities computed now are those stored at the rollout."""
    gap = float(update.gradient.diagnostics.log_ratio_abs_max)
    bound = subject.clip_bound
    said = f"log-prob {update.gradient.max_gap:.1e}, log-ratio {gap:.1e}; " + (
        "no clip bound" if bound is None else f"smallest clip bound {bound:g}"
    )
    if gap <= subject.limit:
        return CheckResult("on-policy gap", True, said)
    cure = "the same weights score a sample differently now: switch off dropout and caches, or compute in float32"
    if bound is not None and math.isfinite(gap):
        cure += f"; or raise the clip bounds to {gap / GAP_SHARE:.1g} or more"
    return CheckResult("on-policy gap", False, said, cure)


def batch_invariance(subject: CheckedPolicy) -> CheckResult:
    """Whether a row scores the same alone as among others."""
    rollout = subject.rollout
    if rollout.num_unbatched:
        said = (
            f"{rollout.num_unbatched} of {len(rollout.samples)} rows depend on what shares their batch, and run alone"
        )
        cure = "nothing, but for time; set the rollout's and the update's batch size to 1 to say so"
        return CheckResult("batch invariance", True, said, cure)
    together_BT = _values(subject.policy, rollout, range(len(rollout.samples)))
    alone_BT = sum(_values(subject.policy, rollout, [row]) for row in range(len(rollout.samples)))
    gap = _largest(together_BT - alone_BT, rollout)
    said = f"rows alone against together: log-prob {gap:.1e}, allowed {subject.limit:.1e}"
    if gap <= subject.limit:
        return CheckResult("batch invariance", True, said)
    cure = (
        "a sample's log-prob depends on the batch it is computed in: switch off dropout and batch norms, compute in "
        "float32, or set the rollout's and the update's batch size to 1"
    )
    return CheckResult("batch invariance", False, said, cure)


def same_seed_replay(first: Rollout, again: Rollout) -> CheckResult:
    """Whether the same seed and weights draw the same samples."""
    differing = sum(not _same(a, b) for a, b in zip(first.samples, again.samples, strict=True))
    said = f"{len(first.samples) - differing} of {len(first.samples)} samples identical"
    if not differing:
        return CheckResult("same-seed replay", True, said)
    cure = "something draws outside the policy's seeds: switch off dropout and non-deterministic kernels"
    return CheckResult("same-seed replay", False, said, cure)


def reference_is_untrained(subject: CheckedPolicy) -> CheckResult:
    """Whether the reference scores as the policy does; a full fine-tune fixes its reference at the weights of now."""
    rollout, rows = subject.rollout, range(len(subject.rollout.samples))
    now_BT = _values(subject.policy, rollout, rows)
    with subject.policy.reference():
        reference_BT = _values(subject.policy, rollout, rows)
    gap = _largest(now_BT - reference_BT, rollout)
    said = f"log-prob of policy against reference {gap:.1e}, allowed {subject.limit:.1e}"
    if gap <= subject.limit:
        return CheckResult("reference", True, said)
    cure = "of no harm if the policy is trained already; an untrained one needs adapters that start at zero (lora.init)"
    return CheckResult("reference", False, said, cure)


def kl_gradient(subject: CheckedPolicy) -> CheckResult:
    """Whether the KL term alone pulls moved weights back."""
    objective = replace(_probe(subject.objective), kl_beta=subject.objective.kl_beta)
    with _moved(subject.policy.trainable):
        update = _update(subject, objective, torch.zeros(len(subject.rollout.samples)))
    known = update.gradient.diagnostics.as_numbers().value_sums["kl"]
    kl = known.total / max(known.count, 1)
    said = f"norm {update.norm:.1e} at a KL of {kl:.1e}, weights moved by {NOISE:.0e} of their size"
    if update.norm > 0 and math.isfinite(update.norm):
        return CheckResult("KL gradient", True, said)
    cure = "the penalty would do nothing: choose another objective.divergence, or train in float32"
    return CheckResult("KL gradient", False, said, cure)


def gradient_reach(subject: CheckedPolicy, update: ProbeUpdate) -> CheckResult:
    """Whether gradients are finite and reach every trained tensor."""
    objective = replace(_probe(subject.objective), kl_beta=0.0)
    advantage_B = torch.ones(len(subject.rollout.samples))
    advantage_B[1::2] = -1
    with _moved(subject.policy.trainable):  # an adapter that is still zero passes no gradient to its other factor
        moved = _update(subject, objective, advantage_B)
    unreached = sum(not norm for norm in moved.norms)
    share = unreached / len(moved.norms)
    said = (
        f"norm {update.norm:.1e} at the first update; "
        f"{unreached} of {len(moved.norms)} trained tensors without gradient ({share:.0%})"
    )
    if not (math.isfinite(update.norm) and math.isfinite(moved.norm)):
        return CheckResult(
            "gradient", False, said, "gradients are not finite: compute in bfloat16 or float32, not float16"
        )
    if update.norm == 0:
        return CheckResult("gradient", False, said, "nothing would be learnt: check the window and what is trainable")
    if share > UNREACHED:
        return CheckResult("gradient", True, said, "train only what the trained decisions use, or widen the window")
    return CheckResult("gradient", True, said)


def kept_drift(subject: CheckedPolicy) -> CheckResult:
    """Whether the rollout keeps what normalised ratios need; the drift is 0 where the weights have not moved."""
    try:
        with torch.no_grad():
            parts = [part.values[DRIFT] for part in subject.policy.evaluate(subject.rollout, values=[DRIFT])]
    except ConfigError as error:
        cure = "this policy keeps no Gaussian means: set objective.normalise_ratio to false"
        return CheckResult("drift", False, str(error), cure)
    drift = float(torch.stack([part.abs().amax() for part in parts]).amax())
    said = f"kept; {drift:.1e} at the weights that sampled"
    cure = "" if drift <= subject.limit else "the stored means are not those of now: see the on-policy gap"
    return CheckResult("drift", drift <= subject.limit, said, cure)


@contextmanager
def _moved(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Within it the parameters have moved a little; afterwards they are as before, bit by bit."""
    generator = torch.Generator().manual_seed(NOISE_SEED)
    before = [parameter.detach().to("cpu", copy=True) for parameter in parameters]
    try:
        with torch.no_grad():
            for parameter in parameters:
                size = float(parameter.float().square().mean().sqrt()) or 1.0
                noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.add_(NOISE * size * noise)
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)


def _probe(objective: Objective) -> Objective:
    """The objective without ratio, bounds and further terms, whose gradient does not vanish where those act."""
    return replace(
        objective,
        surrogate=policy_gradient,
        ratio_level="decision",
        bound=None,
        selections=(),
        kl_ratio_level=None,
        normalise_ratio=False,
        step_weight=None,
        entropy_bonus=0.0,
        modulations=(),
        further=(),
    )


def _update(subject: CheckedPolicy, objective: Objective, advantage_B: Tensor) -> ProbeUpdate:
    """One pass with gradients; those that the parameters had before are put back."""
    # aged: the values are computed, so that a gap is seen at every ratio level
    rollout, parameters = subject.rollout.aged(), subject.policy.trainable
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    clock = time.perf_counter()
    try:
        gradient = accumulate_gradient(
            subject.policy,
            rollout,
            advantage_B[:, None].expand(rollout.shape),
            objective,
            rows=list(range(len(rollout.samples))),
            totals=count(rollout.mask_BT),
            views=subject.views,
        )
        norms = [None if p.grad is None else float(p.grad.float().norm()) for p in parameters]
    finally:
        for parameter, grad in zip(parameters, before, strict=True):
            parameter.grad = grad
    return ProbeUpdate(gradient, norms, time.perf_counter() - clock)


@torch.no_grad()
def _values(policy: Policy, rollout: Rollout, rows: Sequence[int]) -> Tensor:
    """(B, T) log-probabilities under the weights of now; 0 at rows not asked for and at masked decisions."""
    found_BT = torch.zeros(rollout.shape)
    for evaluation in policy.evaluate(rollout, rows):
        index = torch.as_tensor(rows) if evaluation.rows is None else evaluation.rows.cpu()
        columns = torch.as_tensor(list(evaluation.columns))
        found_BT[index[:, None], columns[None, :]] = evaluation.logprob_BT.float().cpu()
    return found_BT.where(rollout.mask_BT, 0.0)


def _largest(difference_BT: Tensor, rollout: Rollout) -> float:
    return float(difference_BT.where(rollout.mask_BT, 0.0).abs().amax())


def _same(sample: Sample, other: Sample) -> bool:
    frames, others = _frames(sample), _frames(other)
    said = (sample.text, sample.tokens) == (other.text, other.tokens)
    return said and len(frames) == len(others) and all(map(_equal, frames, others))


def _frames(sample: Sample) -> list[Image.Image]:
    return [*(sample.video or ()), *([sample.image] if sample.image is not None else [])]


def _equal(image: Image.Image, other: Image.Image) -> bool:
    return np.array_equal(np.asarray(image), np.asarray(other))
