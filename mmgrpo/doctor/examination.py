"""Examines a run before it starts, on its own model and rewards, with a handful of samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from rich.table import Table
from rich.text import Text

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.doctor.checks import (
    CheckedPolicy,
    CheckResult,
    ProbeUpdate,
    batch_invariance,
    first_update,
    gradient_reach,
    kept_drift,
    kl_gradient,
    on_policy_gap,
    reference_is_untrained,
    same_seed_replay,
)
from mmgrpo.errors import ConfigError, DataError, MmgrpoError, ReplayError
from mmgrpo.maths.planners import Request
from mmgrpo.memory import Memory
from mmgrpo.policy import Policy, SupportsResolvedSettings
from mmgrpo.reward import CrossTaskReward
from mmgrpo.scoring import NamedReward, named_rewards, score
from mmgrpo.splits import num_leaves
from mmgrpo.system.console import shown
from mmgrpo.training.build import plan_at
from mmgrpo.training.build_views import build_views
from mmgrpo.training.critic import build_critic, seen_by
from mmgrpo.training.drawing import draw
from mmgrpo.training.ema import Average
from mmgrpo.training.views import Sights
from mmgrpo.types import Plan, Prompt, Rollout, Sample
from mmgrpo.values import DRIFT, REFERENCE, VALUE

NUM_PROMPTS = 2
GROUP_SIZE = 2
NUM_WINDOWS = 5
MAX_CHECK_WIDTH = 24  # a longer name takes two lines, so that the findings keep their room
GIB = 2**30


def examine(
    config: RunConfig,
    policy: Policy,
    rewards: Sequence[NamedReward] | Mapping[str, Callable[..., Any]] | Sequence[Callable[..., Any]],
    prompts: Sequence[Prompt | str],
    *,
    device: torch.device | str | None = None,
) -> list[CheckResult]:
    """Checks what a run relies on; whatever is wrong becomes a finding, and the policy's weights stay as they were.

    Args:
        config: how the policy is to be trained.
        policy: the policy, before its first update.
        rewards: as the trainer takes them.
        prompts: the first two are asked.
        device: where memory is measured; None: where the trained weights are.

    Returns:
        A finding per check, and one per reward.

    Raises:
        ConfigError: the objective is not one, a view cannot be made, or there are no rewards.
        DataError: there are no prompts.
    """
    if not prompts:
        raise DataError("there are no prompts to examine the policy with: give at least one")
    algorithm, judges, raw = Algorithm.of(config), named_rewards(rewards), config.warmup is not None
    asked = [Prompt(prompt) if isinstance(prompt, str) else prompt for prompt in prompts[:NUM_PROMPTS]]
    where = torch.device(device) if device is not None else next((p.device for p in policy.trainable), None)
    _take_peak(where)
    try:
        rollout, _ = _drawn(algorithm, policy, asked, judges)
        again, rollout_s = _drawn(algorithm, policy, asked, judges)
    except (MmgrpoError, torch.OutOfMemoryError) as error:
        check = "on-policy gap" if isinstance(error, ReplayError) else "rollout"
        return [_refused(check, error), *_rewards(judges, _plain_samples(policy, asked), raw=raw)]
    views = _views(algorithm, policy, rollout, where)
    subject = CheckedPolicy(config=config, policy=policy, objective=algorithm.objective, rollout=rollout, views=views)
    drawn = [*_choices(policy), _window(subject, algorithm), same_seed_replay(rollout, again)]
    trained = _updates(subject, rollout_s, where) if bool(rollout.mask_BT.any()) else []
    trained += [_guarded("critic", lambda: _critic(config, rollout, where))] if trained and config.critic else []
    return [*drawn, *trained, *_rewards(judges, rollout.samples, raw=raw)]


def _views(algorithm: Algorithm, policy: Policy, rollout: Rollout, device: torch.device | None) -> Sights:
    config = algorithm.config
    average = Average(policy.trainable, config.update.ema) if config.update.ema else None
    views = build_views(algorithm, policy, device=device or "cpu", average=average)
    ones_B = torch.ones(len(rollout.samples), dtype=torch.float64)
    return Sights(views, policy, rollout, reward_B=ones_B, scored_B=ones_B.bool(), seed=config.seed)


def _critic(config: RunConfig, rollout: Rollout, device: torch.device | None) -> CheckResult:
    """What the run's critic expects before it has learnt anything."""
    critic = build_critic(config, device or "cpu")
    value_M = seen_by(critic, rollout).values[VALUE][rollout.mask_BT]
    said = f"expects {float(value_M.amin()):.3g} to {float(value_M.amax()):.3g} of {len(value_M)} decisions"
    return CheckResult("critic", bool(value_M.isfinite().all()), said)


def render(findings: Sequence[CheckResult]) -> Table:
    """The findings as a table that 80 columns hold: what was measured, and the cure, if any, on lines of its own."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(max_width=MAX_CHECK_WIDTH)
    table.add_column(ratio=1)
    for finding in findings:
        verdict = Text("warn", "yellow") if finding.cure else Text("ok", "green")
        # texts, not markup: messages hold brackets, and whatever data and rewards say
        said = Text(shown(finding.measured))
        if finding.cure:
            said.append(f"\n-> {shown(finding.cure)}", "bold")
        table.add_row(verdict if finding.ok else Text("FAIL", "bold red"), Text(shown(finding.check)), said)
    return table


def _drawn(
    algorithm: Algorithm, policy: Policy, prompts: Sequence[Prompt], rewards: Sequence[NamedReward]
) -> tuple[Rollout, float]:
    """A rollout as the run's first step draws it for these rewards, and the seconds it took."""
    clock = time.perf_counter()
    needed = tuple(sorted({name for reward in rewards for name in reward.needs_values or ()}))
    plan = replace(plan_at(algorithm, policy, 0), sample_values=needed)
    seed = algorithm.step_setting(0, Memory(), str).seed
    group_size = max(GROUP_SIZE, num_leaves(plan.splits))  # a tree is whole
    asked = [Request(prompt=prompt, members=tuple(range(group_size))) for prompt in range(len(prompts))]
    drawn = draw(
        policy,
        asked,
        range(len(asked)),
        prompt_of=prompts.__getitem__,
        contexts={},
        plan=plan,
        seed=seed,
        reads=algorithm.config.rollout.decisions == "read",
    )
    (rollout,) = drawn.rollouts
    return rollout, time.perf_counter() - clock


def _plain_samples(policy: Policy, prompts: Sequence[Prompt]) -> Sequence[Sample]:
    """Samples for the rewards to judge where the policy refused to record its decisions; none if it refuses these."""
    plan = Plan(stochastic=(), prompt_ids=tuple(range(len(prompts))))
    try:
        return policy.rollout(prompts, group_size=GROUP_SIZE, seed=0, plan=plan).samples
    except (MmgrpoError, torch.OutOfMemoryError):
        return ()


def _choices(policy: Policy) -> list[CheckResult]:
    """What the policy decided where its settings leave it open."""
    chosen = policy.resolved_settings if isinstance(policy, SupportsResolvedSettings) else ()
    return [CheckResult("choices", True, "; ".join(chosen))] if chosen else []


def _window(subject: CheckedPolicy, algorithm: Algorithm) -> CheckResult:
    """Whether what is trained on is the window, and which the next ones are."""
    mask_BT = subject.rollout.mask_BT
    trained = tuple(mask_BT.any(0).nonzero().flatten().tolist())
    if subject.config.rollout.decisions == "read":
        return CheckResult("levels", True, f"each sample read at {len(trained)} levels of noise, all trained on")
    said = f"{len(trained)} of {mask_BT.shape[1]} decisions of a sample trained on"
    if not trained:
        return CheckResult("window", False, said, "no decision is random: raise the sampler's strength above 0")
    windows = [algorithm.window_at(subject.policy, step) for step in range(NUM_WINDOWS)]
    chosen = [window for window in windows if window is not None]
    if chosen:
        said += f"; of the first steps {' '.join(map(_listed, chosen))}"
    if chosen and trained != chosen[0]:
        cure = f"only {_listed(trained)} of the window is random: keep it off the other steps, or change the sampler"
        return CheckResult("window", False, said, cure)
    return CheckResult("window", True, said)


def _updates(subject: CheckedPolicy, rollout_s: float, device: torch.device | None) -> list[CheckResult]:
    """What is measured by scoring the rollout again, with and without gradients."""
    rollout_gib = _take_peak(device)
    try:
        update = first_update(subject)
    except (MmgrpoError, torch.OutOfMemoryError) as error:
        return [_refused("first update", error)]
    cost = _cost(subject, rollout_s, update)
    if rollout_gib is not None:
        cost += f"; peak memory {rollout_gib:.1f} GiB in the rollout, {_take_peak(device):.1f} GiB in the update"
    checks: dict[str, Callable[[], CheckResult]] = {
        "on-policy gap": lambda: on_policy_gap(subject, update),
        "batch invariance": lambda: batch_invariance(subject),
        "gradient": lambda: gradient_reach(subject, update),
    }
    if REFERENCE in subject.objective.views:
        checks["reference"] = lambda: reference_is_untrained(subject)
        checks["KL gradient"] = lambda: kl_gradient(subject)
    if DRIFT in subject.objective.values:
        checks["drift"] = lambda: kept_drift(subject)
    return [*(_guarded(name, check) for name, check in checks.items()), CheckResult("cost", True, cost)]


def _cost(subject: CheckedPolicy, rollout_s: float, update: ProbeUpdate) -> str:
    B, config = len(subject.rollout.samples), subject.config
    num_samples = config.rollout.prompts_per_step * config.rollout.group_size
    step_s = num_samples / B * (rollout_s + config.update.epochs * update.seconds)
    return (
        f"rollout {rollout_s / B:.3g} s a sample, update {update.seconds / max(update.gradient.num_forwards, 1):.3g} s "
        f"a forward, in batches of {B}: at most {step_s:.3g} s a step of {num_samples} samples on one process"
    )


def _rewards(rewards: Sequence[NamedReward], samples: Sequence[Sample], *, raw: bool) -> list[CheckResult]:
    if not samples:
        return []
    return [
        _guarded(f"reward {reward.name}", lambda reward=reward: _reward(reward, samples, raw=raw)) for reward in rewards
    ]


def _reward(reward: NamedReward, samples: Sequence[Sample], *, raw: bool) -> CheckResult:
    """What a reward says of a few samples, and whether it tells members of a group apart.

    Of a raw model, whose warm-up is yet to come, it need not.
    """
    check, clock = f"reward {reward.name}", time.perf_counter()
    scores = score(samples, [reward], max_failure_frac=1.0)
    seconds = time.perf_counter() - clock
    group_size = 1 + max(sample.member for sample in samples)
    value_PG, valid_PG = scores.value_BR.reshape(-1, group_size), scores.valid_BR.reshape(-1, group_size)
    num_valid, num_failed, B = int(valid_PG.sum()), scores.failures[reward.name], len(samples)
    said = f"failed on {num_failed} of {B} samples, None on {B - num_valid - num_failed}"
    if num_failed:
        cure = "it raised, or gave NaN or infinity: mend it, or return None for samples that it does not apply to"
        return CheckResult(check, False, said, cure)
    if not num_valid and isinstance(reward.function, CrossTaskReward):
        return CheckResult(check, True, f"goes by what task '{reward.function.task}' makes of the samples: see there")
    if not num_valid:
        return CheckResult(
            check, True, said, "it judged nothing: check its columns, unless it is meant for other prompts"
        )
    high_P, low_P = (extreme(value_PG, valid_PG) for extreme in (_highest, _lowest))
    num_spread = int((high_P > low_P).sum())
    said = (
        f"{float(low_P.amin()):.3g} to {float(high_P.amax()):.3g}; spread in {num_spread} of {len(high_P)} groups; "
        f"{said}; {seconds / B:.1g} s a sample"
    )
    if num_spread or reward.weight == 0:
        return CheckResult(check, True, said)
    if raw:
        return CheckResult(check, True, f"{said}; the warm-up is yet to come")
    cure = "groups of equal reward teach nothing: see whether larger ones spread; else take a finer reward"
    return CheckResult(check, True, said, cure)


def _highest(value_PG: torch.Tensor, valid_PG: torch.Tensor) -> torch.Tensor:
    return value_PG.where(valid_PG, -torch.inf).amax(1)


def _lowest(value_PG: torch.Tensor, valid_PG: torch.Tensor) -> torch.Tensor:
    return value_PG.where(valid_PG, torch.inf).amin(1)


def _guarded(check: str, find: Callable[[], CheckResult]) -> CheckResult:
    try:
        return find()
    except (MmgrpoError, torch.OutOfMemoryError) as error:
        return _refused(check, error)


def _refused(check: str, error: Exception) -> CheckResult:
    """An error made on purpose, or the lack of memory, as what was found."""
    remedies = {
        ReplayError: "a step must depend on its latents alone: switch off what the message names",
        ConfigError: "change the configuration as the message says",
        torch.OutOfMemoryError: "lower the batch sizes of rollout and update, or switch gradient checkpointing on",
    }
    cure = next(
        (remedy for kind, remedy in remedies.items() if isinstance(error, kind)), "change what the message names"
    )
    return CheckResult(check, False, f"{error}", cure)


def _take_peak(device: torch.device | None) -> float | None:
    """The most memory held since the last call, in GiB; None off CUDA."""
    if device is None or device.type != "cuda":
        return None
    peak = torch.cuda.max_memory_allocated(device) / GIB
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def _listed(window: Sequence[int]) -> str:
    return "(" + ", ".join(map(str, window)) + ")"
