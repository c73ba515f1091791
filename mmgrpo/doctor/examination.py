"""Checks a run before it starts, on its model and rewards, with a few samples."""

from __future__ import annotations

import re
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
    kl_gradient,
    on_policy_gap,
    reference_is_untrained,
    same_seed_replay,
    stored_drift,
    turn_gaps,
)
from mmgrpo.errors import ConfigError, DataError, MmgrpoError, ReplayError
from mmgrpo.maths.strategies import Request
from mmgrpo.memory import Memory
from mmgrpo.policy import Policy, SupportsResolvedSettings
from mmgrpo.reward import CrossTaskReward
from mmgrpo.scoring import NamedReward, named_rewards, score, with_reward_inputs
from mmgrpo.scoring.form_hints import form_hint
from mmgrpo.scoring.named_rewards import function_name
from mmgrpo.splits import num_leaves
from mmgrpo.system.console import escape_controls
from mmgrpo.system.site_pages import page_url
from mmgrpo.training.build import build_critic, build_views, plan_at, require_engine_files
from mmgrpo.training.critic import with_critic_values
from mmgrpo.training.optimizer import Average
from mmgrpo.training.request_sampling import sample_requests
from mmgrpo.training.views import Views
from mmgrpo.training.weight_sets import create_weight_sets
from mmgrpo.types import Plan, Prompt, Rollout, Sample
from mmgrpo.values import DRIFT, REFERENCE, VALUE

NUM_PROMPTS = 2
GROUP_SIZE = 2
NUM_WINDOWS = 5
MAX_CHECK_WIDTH = 24  # a longer name is wrapped
GIB = 2**30


def examine(
    config: RunConfig,
    policy: Policy,
    rewards: Sequence[NamedReward] | Mapping[str, Callable[..., Any]] | Sequence[Callable[..., Any]],
    prompts: Sequence[Prompt | str],
    *,
    device: torch.device | str | None = None,
) -> list[CheckResult]:
    """Checks the assumptions of a run; errors become results, and the weights of the policy do not change.

    Args:
        config: the configuration of the run.
        policy: the policy, before its first update.
        rewards: the rewards, as the trainer takes them.
        prompts: the prompts, of which the first two are used.
        device: the device whose memory is measured; None: that of the trained weights.

    Returns:
        A result per check, and one per reward.

    Raises:
        ConfigError: the objective is not valid, a view cannot be built, the program of ``rollout.engine`` does not
            exist, or there are no rewards.
        DataError: there are no prompts.
    """
    if not prompts:
        raise DataError("there are no prompts to check the policy with: pass at least one")
    algorithm, reward_functions, raw = Algorithm.of(config), named_rewards(rewards), config.update.warmup is not None
    require_engine_files(algorithm)
    first_prompts = [Prompt(prompt) if isinstance(prompt, str) else prompt for prompt in prompts[:NUM_PROMPTS]]
    where = torch.device(device) if device is not None else next((p.device for p in policy.trainable), None)
    _take_peak(where)
    try:
        rollout, _ = _draw_rollout(algorithm, policy, first_prompts, reward_functions)
        again, rollout_s = _draw_rollout(algorithm, policy, first_prompts, reward_functions)
    except (MmgrpoError, torch.OutOfMemoryError) as error:
        check = "on-policy gap" if isinstance(error, ReplayError) else "rollout"
        return [
            _error_result(check, error),
            *_rewards(reward_functions, _plain_samples(policy, first_prompts), raw=raw),
        ]
    views = _views(algorithm, policy, rollout, where)
    subject = CheckedPolicy(config=config, policy=policy, objective=algorithm.objective, rollout=rollout, views=views)
    rollout_results = [*_choices(policy), _window(subject, algorithm), same_seed_replay(rollout, again)]
    update_results = _updates(subject, rollout_s, where) if bool(rollout.mask_BT.any()) else []
    update_results += (
        [_checked("critic", lambda: _critic(config, rollout, where))]
        if update_results and config.advantage.critic
        else []
    )
    return [*rollout_results, *update_results, *_rewards(reward_functions, rollout.samples, raw=raw)]


def _views(algorithm: Algorithm, policy: Policy, rollout: Rollout, device: torch.device | None) -> Views:
    config = algorithm.config
    average = Average(policy.trainable, config.update.ema) if config.update.ema else None
    create_weight_sets(algorithm, policy)
    views = build_views(algorithm, policy, device=device or "cpu", average=average)
    ones_B = torch.ones(len(rollout.samples), dtype=torch.float64)
    return Views(views, policy, rollout, reward_B=ones_B, scored_B=ones_B.bool(), seed=config.seed)


def _critic(config: RunConfig, rollout: Rollout, device: torch.device | None) -> CheckResult:
    """The range of the values that the critic predicts before training."""
    critic = build_critic(config, device or "cpu")
    value_M = with_critic_values(critic, rollout).values[VALUE][rollout.mask_BT]
    measured = f"predicts {float(value_M.amin()):.3g} to {float(value_M.amax()):.3g} of {len(value_M)} decisions"
    return CheckResult("critic", bool(value_M.isfinite().all()), measured)


def render(results: Sequence[CheckResult]) -> Table:
    """The results as a table of 80 columns: the measured numbers, and the suggested fix, if any, on separate lines."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(max_width=MAX_CHECK_WIDTH)
    table.add_column(ratio=1)
    for result in results:
        status = Text("warn", "yellow") if result.fix else Text("ok", "green")
        # texts, not markup: messages contain brackets, and texts of data and rewards
        measured = Text(escape_controls(result.measured))
        if result.fix:
            measured.append(f"\n-> {escape_controls(result.fix)}", "bold")
        table.add_row(status if result.ok else Text("FAIL", "bold red"), Text(escape_controls(result.check)), measured)
    return table


def _draw_rollout(
    algorithm: Algorithm, policy: Policy, prompts: Sequence[Prompt], rewards: Sequence[NamedReward]
) -> tuple[Rollout, float]:
    """A rollout of the run's first step for these rewards, and its duration in seconds."""
    clock = time.perf_counter()
    plan = replace(with_reward_inputs(plan_at(algorithm, policy, 0), rewards), decode=True)  # checks compare pixels
    seed = algorithm.step_setting(0, Memory(), str).seed
    group_size = max(GROUP_SIZE, num_leaves(plan.splits))  # a tree is complete
    requests = [Request(prompt=prompt, members=tuple(range(group_size))) for prompt in range(len(prompts))]
    sampled = sample_requests(
        policy,
        requests,
        range(len(requests)),
        prompt_of=prompts.__getitem__,
        prompt_templates={},
        plan=plan,
        seed=seed,
        reads=algorithm.config.rollout.training_states == "renoised",
    )
    (rollout,) = sampled.rollouts
    return rollout, time.perf_counter() - clock


def _plain_samples(policy: Policy, prompts: Sequence[Prompt]) -> Sequence[Sample]:
    """Samples to score if the policy cannot record its decisions; empty if generating them raises an error."""
    plan = Plan(stochastic=(), prompt_ids=tuple(range(len(prompts))))
    try:
        return policy.rollout(prompts, group_size=GROUP_SIZE, seed=0, plan=plan).samples
    except (MmgrpoError, torch.OutOfMemoryError):
        return ()


def _choices(policy: Policy) -> list[CheckResult]:
    """The choices of the policy for settings that are left open."""
    chosen = policy.resolved_settings if isinstance(policy, SupportsResolvedSettings) else ()
    return [CheckResult("choices", True, "; ".join(chosen))] if chosen else []


def _window(subject: CheckedPolicy, algorithm: Algorithm) -> CheckResult:
    """Checks that the trained decisions are those of the window; lists the next windows."""
    mask_BT = subject.rollout.mask_BT
    trained = tuple(mask_BT.any(0).nonzero().flatten().tolist())
    if subject.config.rollout.training_states == "renoised":
        return CheckResult("levels", True, f"each sample scored at {len(trained)} noise levels, all trained on")
    measured = f"{len(trained)} of {mask_BT.shape[1]} decisions of a sample trained on"
    if not trained:
        return CheckResult("window", False, measured, "no decision is random: raise the sampler's strength above 0")
    windows = [algorithm.window_at(subject.policy, step) for step in range(NUM_WINDOWS)]
    chosen = [window for window in windows if window is not None]
    if chosen:
        measured += f"; {_windows_text(chosen)}"
    if chosen and trained != chosen[0]:
        fix = (
            f"only {_window_text(trained)} of the window is random: keep it off the other steps, or change the sampler"
        )
        return CheckResult("window", False, measured, fix)
    return CheckResult("window", True, measured)


def _updates(subject: CheckedPolicy, rollout_s: float, device: torch.device | None) -> list[CheckResult]:
    """The checks that score the rollout again, with and without gradients."""
    rollout_gib = _take_peak(device)
    try:
        update = first_update(subject)
    except (MmgrpoError, torch.OutOfMemoryError) as error:
        return [_first_update_error(subject, error)]
    cost = _cost(subject, rollout_s, update)
    if rollout_gib is not None:
        cost += f"; peak memory {rollout_gib:.1f} GiB in the rollout, {_take_peak(device):.1f} GiB in the update"
    checks: dict[str, Callable[[], CheckResult]] = {
        "on-policy gap": lambda: on_policy_gap(subject, update),
        "batch invariance": lambda: batch_invariance(subject),
        "gradient": lambda: gradient_reach(subject, update),
    }
    if any(sample.turn_ends for sample in subject.rollout.samples):
        checks["turns"] = lambda: turn_gaps(subject)
    if REFERENCE in subject.objective.views:
        checks["reference"] = lambda: reference_is_untrained(subject)
    if subject.objective.kl_beta > 0:
        checks["KL gradient"] = lambda: kl_gradient(subject)
    if DRIFT in subject.objective.values:
        checks["drift"] = lambda: stored_drift(subject)
    return [*(_checked(name, check) for name, check in checks.items()), CheckResult("cost", True, cost)]


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
        _checked(f"reward {reward.name}", lambda reward=reward: _reward(reward, samples, raw=raw)) for reward in rewards
    ]


def _reward(reward: NamedReward, samples: Sequence[Sample], *, raw: bool) -> CheckResult:
    """Checks that a reward scores samples, and differs within groups (not required before the warm-up)."""
    check, clock = f"reward {reward.name}", time.perf_counter()
    scores = score(samples, [reward], max_failure_frac=1.0)
    seconds = time.perf_counter() - clock
    group_size = 1 + max(sample.member for sample in samples)
    value_PG, valid_PG = scores.value_BR.reshape(-1, group_size), scores.valid_BR.reshape(-1, group_size)
    num_valid, num_failed, B = int(valid_PG.sum()), scores.failures[reward.name], len(samples)
    measured = f"failed on {num_failed} of {B} samples, None on {B - num_valid - num_failed}"
    if num_failed:
        fix = "it raised an error or returned NaN or infinity: fix it, or return None where it does not apply"
        if hint := form_hint(reward.function, function_name(reward.function), samples):
            fix = f"{fix}. {hint}"
        return CheckResult(check, False, measured, fix)
    if not num_valid and isinstance(reward.function, CrossTaskReward):
        return CheckResult(check, True, f"computed by task '{reward.function.task}' from the samples: see its checks")
    if not num_valid:
        return CheckResult(
            check, True, measured, "it scored no sample: check its columns, unless it applies to other prompts"
        )
    high_P, low_P = (extreme(value_PG, valid_PG) for extreme in (_highest, _lowest))
    num_spread = int((high_P > low_P).sum())
    measured = (
        f"{float(low_P.amin()):.3g} to {float(high_P.amax()):.3g}; spread in {num_spread} of {len(high_P)} groups; "
        f"{measured}; {seconds / B:.1g} s a sample"
    )
    if num_spread or reward.weight == 0:
        return CheckResult(check, True, measured)
    if raw:
        return CheckResult(check, True, f"{measured}; the warm-up has not run yet")
    fix = "groups of equal reward have no learning signal: try larger groups, else a finer reward"
    return CheckResult(check, True, measured, fix)


def _highest(value_PG: torch.Tensor, valid_PG: torch.Tensor) -> torch.Tensor:
    return value_PG.where(valid_PG, -torch.inf).amax(1)


def _lowest(value_PG: torch.Tensor, valid_PG: torch.Tensor) -> torch.Tensor:
    return value_PG.where(valid_PG, torch.inf).amin(1)


def _checked(check: str, run_check: Callable[[], CheckResult]) -> CheckResult:
    try:
        return run_check()
    except (MmgrpoError, torch.OutOfMemoryError) as error:
        return _error_result(check, error)


def _error_result(check: str, error: Exception) -> CheckResult:
    """An MmgrpoError, or out of memory, as a result."""
    remedies = {
        ReplayError: "a step must depend only on its latents: switch off the features that the message names",
        ConfigError: "change the configuration as described in the message",
        torch.OutOfMemoryError: "lower the batch sizes of rollout and update, or switch gradient checkpointing on",
    }
    fix = next(
        (remedy for kind, remedy in remedies.items() if isinstance(error, kind)),
        "change the settings that the message names",
    )
    return CheckResult(check, False, f"{error}", fix)


def _first_update_error(subject: CheckedPolicy, error: Exception) -> CheckResult:
    """As ``_error_result``; the fix for values that the policy does not have."""
    result = _error_result("first update", error)
    missing = [
        str(value) for value in subject.objective.values if re.search(rf"\b{re.escape(str(value))}", result.measured)
    ]
    if not isinstance(error, ConfigError) or not missing:
        return result
    return replace(
        result,
        fix=f"remove the part of the objective that needs {', '.join(missing)}; in a custom policy, give the value "
        f"in evaluate ({page_url('learn/own-policy')})",
    )


def _take_peak(device: torch.device | None) -> float | None:
    """Peak memory since the last call, in GiB; None without CUDA."""
    if device is None or device.type != "cuda":
        return None
    peak = torch.cuda.max_memory_allocated(device) / GIB
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def _windows_text(windows: Sequence[Sequence[int]]) -> str:
    """The windows of the first steps, in words; once if they are the same."""
    if all(window == windows[0] for window in windows):
        return f"the window of the first {len(windows)} steps has the decisions {_window_text(windows[0])}"
    listed = ", ".join(f"{_window_text(window)} at step {step}" for step, window in enumerate(windows, 1))
    return f"the windows have the decisions {listed}"


def _window_text(window: Sequence[int]) -> str:
    return "(" + ", ".join(map(str, window)) + ")"
