"""Separate checks of a policy before training; none changes the policy.

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
from mmgrpo.training.gradients import Gradient, accumulate_gradient
from mmgrpo.training.views import ViewRows
from mmgrpo.types import Rollout, Sample
from mmgrpo.values import DRIFT

NOISE = 1e-3  # relative to the size of a parameter; to 1 if it is zero by construction
UNREACHED = 0.1  # share of the trained tensors that a window may leave without gradient
NOISE_SEED = 0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check.

    Attributes:
        check: name of the check.
        ok: whether a run may start; a result that is ok and has a fix is a warning.
        measured: the measured numbers.
        fix: the suggested fix; empty if there is none.
    """

    check: str
    ok: bool
    measured: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPolicy:
    """A policy to check, with a rollout of groups of two.

    Attributes:
        config: the configuration of the run.
        policy: the policy, with the weights that generated the rollout.
        objective: the loss of the run.
        rollout: a small rollout under the plan of the run.
        views: the rows of the rollout under the views of the run, as if every sample were right.
    """

    config: RunConfig
    policy: Policy
    objective: Objective
    rollout: Rollout
    views: Mapping[str, ViewRows] = field(default_factory=dict)

    @property
    def clip_bound(self) -> float | None:
        """The smallest bound on |ratio - 1| in the surrogate; None if it has none."""
        return self.config.objective.clip_bound

    @property
    def limit(self) -> float:
        """The largest log-ratio that may come from numerical noise."""
        return self.config.objective.noise_limit


@dataclass(frozen=True, slots=True)
class ProbeUpdate:
    """An update pass of an objective over the rollout.

    Attributes:
        gradient: the report of the learner.
        norms: gradient norm of each trainable tensor; None for a tensor without gradient.
        seconds: duration of the pass.
    """

    gradient: Gradient
    norms: Sequence[float | None]
    seconds: float

    @property
    def norm(self) -> float:
        """Norm of the gradient over all tensors."""
        return math.sqrt(sum(norm**2 for norm in self.norms if norm is not None))


def first_update(subject: CheckedPolicy) -> ProbeUpdate:
    """The first update of the run with alternating advantages +1 and -1; changes no weight."""
    advantage_B = torch.ones(len(subject.rollout.samples))
    advantage_B[1::2] = -1
    return _update(subject, subject.objective, advantage_B)


def on_policy_gap(checked: CheckedPolicy, update: ProbeUpdate) -> CheckResult:
    """Checks that recomputed log-probabilities equal those stored in the rollout."""
    gap = float(update.gradient.diagnostics.log_ratio_abs_max)
    bound = checked.clip_bound
    measured = f"log-prob {_largest(_difference_BT(checked), checked.rollout):.1e}, log-ratio {gap:.1e}; " + (
        "no clip bound" if bound is None else f"smallest clip bound {bound:g}"
    )
    if gap <= checked.limit:
        return CheckResult("on-policy gap", True, measured)
    fix = (
        "the same weights score a sample differently now: switch off dropout and caches, score at the temperature of "
        "the rollout, or compute in float32"
    )
    return CheckResult("on-policy gap", False, measured, fix)


def batch_invariance(subject: CheckedPolicy) -> CheckResult:
    """Checks that a row has the same log-probabilities alone and in a batch."""
    rollout = subject.rollout
    if rollout.num_unbatched:
        rows = f"{rollout.num_unbatched} of {len(rollout.samples)} rows"
        measured = f"{rows} depend on the other rows of their batch, and run alone"
        fix = "this only costs time; to make it explicit, set the batch sizes of rollout and update to 1"
        return CheckResult("batch invariance", True, measured, fix)
    batched_BT = _values(subject.policy, rollout, range(len(rollout.samples)))
    single_BT = sum(_values(subject.policy, rollout, [row]) for row in range(len(rollout.samples)))
    gap = _largest(batched_BT - single_BT, rollout)
    measured = f"rows alone against together: log-prob {gap:.1e}, allowed {subject.limit:.1e}"
    if gap <= subject.limit:
        return CheckResult("batch invariance", True, measured)
    fix = (
        "a sample's log-prob depends on the batch it is computed in: switch off dropout and batch norms, compute in "
        "float32, or set the rollout's and the update's batch size to 1"
    )
    return CheckResult("batch invariance", False, measured, fix)


def turn_gaps(subject: CheckedPolicy) -> CheckResult:
    """Checks that log-probabilities agree in every turn of the conversations, and that the environments answered."""
    rollout = subject.rollout
    num_turns = [len(sample.turn_ends) for sample in rollout.samples]
    errors = [sample.environment_error for sample in rollout.samples if sample.environment_error]
    difference_BT = _difference_BT(subject)
    turns = [rollout.mask_BT & (rollout.segment_BT == turn) for turn in range(max(num_turns))]
    gaps = [_largest(difference_BT, rollout.keep(turn_BT)) for turn_BT in turns]
    fewest, most = min(num_turns), max(num_turns)
    turn_range = f"{most}" if fewest == most else f"{fewest} to {most}"
    gaps_text = " ".join(f"{gap:.1e}" for gap in gaps)
    measured = (
        f"turns a sample: {turn_range}; log-prob by turn {gaps_text}, "
        f"allowed {subject.limit:.1e}; environments failed on {len(errors)} of {len(num_turns)} samples"
    )
    replies = [reply for sample in rollout.samples for reply in sample.turn_replies if reply is not None]
    results = [result for reply in replies for result in reply.results]
    failed = [result for result in results if result.failed]
    if results:
        measured += f"; {len(failed)} of {len(results)} calls of tools failed"
    if errors:
        fix = f"such samples are not scored; the first error: {errors[0]}"
        return CheckResult("turns", len(errors) < len(num_turns), measured, fix)
    differing = [turn for turn, gap in enumerate(gaps, 1) if not gap <= subject.limit]
    if differing:
        fix = (
            f"turn {differing[0]} scores differently after the environment's answer: the model or its processor does "
            "not take the conversation as it was sampled; switch off caches, or leave media out of that turn"
        )
        return CheckResult("turns", False, measured, fix)
    if failed:
        fix = (
            f"the policy reads this, which may be meant; the first error, of {failed[0].name or 'no known function'}: "
        )
        return CheckResult("turns", True, measured, fix + failed[0].text)
    if most < 2:
        fix = (
            "each conversation ended in its first turn, so no later turn was checked: rows with more turns are "
            "checked when the run samples the first of them"
        )
        return CheckResult("turns", True, measured, fix)
    return CheckResult("turns", True, measured)


def same_seed_replay(first: Rollout, again: Rollout) -> CheckResult:
    """Checks that the same seed and weights generate the same samples."""
    differing = sum(not _same(a, b) for a, b in zip(first.samples, again.samples, strict=True))
    measured = f"{len(first.samples) - differing} of {len(first.samples)} samples identical"
    if not differing:
        return CheckResult("same-seed replay", True, measured)
    fix = "random numbers are used outside the policy's seeds: switch off dropout and non-deterministic kernels"
    return CheckResult("same-seed replay", False, measured, fix)


def reference_is_untrained(subject: CheckedPolicy) -> CheckResult:
    """Checks that the reference equals the policy; a full fine-tune copies the current weights as its reference."""
    rollout, rows = subject.rollout, range(len(subject.rollout.samples))
    now_BT = _values(subject.policy, rollout, rows)
    with subject.policy.reference():
        reference_BT = _values(subject.policy, rollout, rows)
    gap = _largest(now_BT - reference_BT, rollout)
    measured = f"log-prob of policy against reference {gap:.1e}, allowed {subject.limit:.1e}"
    if gap <= subject.limit:
        return CheckResult("reference", True, measured)
    fix = "expected if the policy is trained already; an untrained one needs adapters that start at zero (lora.init)"
    return CheckResult("reference", False, measured, fix)


def kl_gradient(subject: CheckedPolicy) -> CheckResult:
    """Checks that the KL term has a gradient at perturbed weights."""
    objective = replace(_probe(subject.objective), kl_beta=subject.objective.kl_beta)
    with _moved(subject.policy.trainable):
        update = _update(subject, objective, torch.zeros(len(subject.rollout.samples)))
    kl_sum = update.gradient.diagnostics.as_numbers().value_sums["kl"]
    kl = kl_sum.total / max(kl_sum.count, 1)
    measured = f"norm {update.norm:.1e} at a KL of {kl:.1e}, weights moved by {NOISE:.0e} of their size"
    if update.norm > 0 and math.isfinite(update.norm):
        return CheckResult("KL gradient", True, measured)
    fix = "the penalty would have no effect: choose another objective.kl.divergence, or train in float32"
    return CheckResult("KL gradient", False, measured, fix)


def gradient_reach(subject: CheckedPolicy, update: ProbeUpdate) -> CheckResult:
    """Checks that gradients are finite and reach every trained tensor."""
    objective = replace(_probe(subject.objective), kl_beta=0.0)
    advantage_B = torch.ones(len(subject.rollout.samples))
    advantage_B[1::2] = -1
    with _moved(subject.policy.trainable):  # a zero adapter factor passes no gradient to the other one
        moved = _update(subject, objective, advantage_B)
    unreached = sum(not norm for norm in moved.norms)
    share = unreached / len(moved.norms)
    measured = (
        f"norm {update.norm:.1e} at the first update; "
        f"{unreached} of {len(moved.norms)} trained tensors without gradient ({share:.0%})"
    )
    if not (math.isfinite(update.norm) and math.isfinite(moved.norm)):
        return CheckResult("gradient", False, measured, "gradients are not finite: compute in bfloat16 or float32")
    if update.norm == 0:
        return CheckResult(
            "gradient",
            False,
            measured,
            "the update would have no effect: check the window and the trainable parameters",
        )
    if share > UNREACHED:
        return CheckResult(
            "gradient", True, measured, "train only parameters that the trained decisions use, or widen the window"
        )
    return CheckResult("gradient", True, measured)


def stored_drift(subject: CheckedPolicy) -> CheckResult:
    """Checks that the rollout stores the means that normalized ratios need; the drift at the same weights is 0."""
    try:
        with torch.no_grad():
            parts = [part.values[DRIFT] for part in subject.policy.evaluate(subject.rollout, values=[DRIFT])]
    except ConfigError as error:
        fix = "this policy stores no Gaussian means: set objective.normalize_ratio to false"
        return CheckResult("drift", False, str(error), fix)
    drift = float(torch.stack([part.abs().amax() for part in parts]).amax())
    measured = f"stored; {drift:.1e} under the behavior policy"
    fix = "" if drift <= subject.limit else "the stored means differ from the recomputed ones: see the on-policy gap"
    return CheckResult("drift", drift <= subject.limit, measured, fix)


@contextmanager
def _moved(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """A context with slightly perturbed parameters; restores them bitwise."""
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
    """The objective without ratio, bounds and further terms, so its gradient does not vanish there."""
    return replace(
        objective,
        surrogate=policy_gradient,
        ratio_level="token",
        bound=None,
        selections=(),
        kl_ratio_level=None,
        normalize_ratio=False,
        step_weight=None,
        entropy_bonus=0.0,
        modulations=(),
        further=(),
    )


def _update(subject: CheckedPolicy, objective: Objective, advantage_B: Tensor) -> ProbeUpdate:
    """A pass with gradients; restores the earlier gradients of the parameters."""
    # aged: the values are recomputed, so a gap is visible at every ratio level
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
    """(B, T) log-probabilities under the current policy; 0 at other rows and at masked decisions."""
    logprob_BT = torch.zeros(rollout.shape)
    for evaluation in policy.evaluate(rollout, rows):
        index = torch.as_tensor(rows) if evaluation.rows is None else evaluation.rows.cpu()
        columns = torch.as_tensor(list(evaluation.columns))
        logprob_BT[index[:, None], columns[None, :]] = evaluation.logprob_BT.float().cpu()
    return logprob_BT.where(rollout.mask_BT, 0.0)


def _difference_BT(subject: CheckedPolicy) -> Tensor:
    """(B, T) log-probabilities under the current policy minus those of the rollout."""
    rollout = subject.rollout
    return _values(subject.policy, rollout, range(len(rollout.samples))) - rollout.old_logprob_BT.float().cpu()


def _largest(difference_BT: Tensor, rollout: Rollout) -> float:
    return float(difference_BT.where(rollout.mask_BT, 0.0).abs().amax())


def _same(sample: Sample, other: Sample) -> bool:
    frames, others = _frames(sample), _frames(other)
    is_same_text = (sample.text, sample.tokens) == (other.text, other.tokens)
    return is_same_text and len(frames) == len(others) and all(map(_equal, frames, others))


def _frames(sample: Sample) -> list[Image.Image]:
    return [*(sample.video or ()), *([sample.image] if sample.image is not None else [])]


def _equal(image: Image.Image, other: Image.Image) -> bool:
    return np.array_equal(np.asarray(image), np.asarray(other))
