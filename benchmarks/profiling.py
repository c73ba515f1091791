"""The parts of the overhead: a profile of iterations whose denoiser costs nothing, by group of modules.

Time belongs to the code of the engine, the adapters, diffusers and transformers. Their calls of torch and of Python's
library count for the callers, in proportion where there are several. The profiler slows Python down more than
torch, so read the shares; milliseconds come from runs without it.
"""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.iteration import Learner
from benchmarks.settings import Setting, passes_of
from benchmarks.timing import timed
from mmgrpo.types import Rollout

Code = tuple[str, int, str]  # file, line, function: how pstats names what it timed
Statistics = Mapping[Code, tuple[int, int, float, float, Mapping[Code, tuple[int, int, float, float]]]]


@dataclass(frozen=True, slots=True)
class Rule:
    """Code whose path holds ``path`` and whose name begins with one of ``functions`` (any name if empty)."""

    group: str
    path: str
    functions: tuple[str, ...] = ()


RUNS = 8
NEEDED = ("autoencoder", "hollow denoiser")  # part of the floor
OTHER = "other"
SD3 = "diffusers/pipelines/stable_diffusion_3/"
DENOISING = "policies/diffusion/"
RULES = (  # the first that fits
    Rule("hollow denoiser", "benchmarks/model"),
    Rule("learner and objective", "benchmarks/iteration"),
    Rule("preamble: pipeline", "diffusers/models/modeling_utils"),
    Rule("autoencoder", "diffusers/models/"),
    Rule("images", "diffusers/image_processor"),
    Rule("preamble: prompt", SD3, ("encode_prompt", "_get_")),
    Rule("preamble: prompt", "transformers/"),
    Rule("pipeline's loop", SD3, ("__call__",)),
    Rule("pipeline's loop", "diffusers/schedulers/"),
    Rule("preamble: logging", "diffusers/utils/logging"),
    Rule("preamble: logging", "transformers/utils/logging"),
    Rule("preamble: pipeline", "diffusers/"),
    Rule("encoder cache", DENOISING + "encoder_cache"),
    Rule("ghost steps", DENOISING + "proxies"),
    Rule("ghost steps", DENOISING + "instrumented_pipeline", ("_denoise", "_run_or_zeros", "forward")),
    Rule("ghost steps", DENOISING + "pipeline_run", ("enter_denoiser", "note_call")),
    Rule("recorded steps", DENOISING + "instrumented_pipeline", ("step", "stock_step")),
    Rule("recorded steps", DENOISING + "pipeline_run", ("close_step", "leave_step")),
    Rule("preamble: pipeline run", DENOISING + "instrumented_pipeline"),
    Rule("preamble: pipeline run", DENOISING + "pipeline_run"),
    Rule("transition maths", DENOISING + "step_sampler"),
    Rule("transition maths", DENOISING + "scheduler_families"),
    Rule("transition maths", "mmgrpo/maths/transitions"),
    Rule("transition maths", "mmgrpo/maths/gaussian"),
    Rule("transition maths", "mmgrpo/maths/divergences"),
    Rule("recording and stacking", DENOISING),
    Rule("recording and stacking", "mmgrpo/maths/seeds"),
    Rule("learner and objective", "mmgrpo/"),
)


@dataclass(frozen=True, slots=True)
class Profile:
    """The overhead of a part of the iteration.

    Attributes:
        part: rollout or update.
        ms: milliseconds of a pipeline call, measured without the profiler.
        shares: of each group of modules.
    """

    part: str
    ms: float
    shares: Mapping[str, float]


def profiles(setting: Setting) -> list[Profile]:
    """Rollout and update of a setting, whatever the model's size."""
    learner, passes = Learner.mid_size(setting, hollow=True), passes_of(setting)

    def draw() -> Rollout:
        return learner.draw(setting.group, same_initial_noise=setting.same_initial_noise)

    rollout = draw()  # the first fills the memo and checks the replay
    credit = learner.judge(rollout)
    learner.learn(rollout, credit)
    return [
        _profile("rollout", draw, passes.rollout_calls, setting),
        _profile("update", lambda: learner.learn(rollout, credit), len(passes.backward), setting),
    ]


def _profile(part: str, work: Callable[[], Any], calls: int, setting: Setting) -> Profile:
    runs = [timed(setting.device, work).spent for _ in range(RUNS)]
    ms = 1000 * median(run.cpu_s if setting.device == "cpu" else run.wall_s for run in runs) / calls
    result = shares(lambda: [work() for _ in range(RUNS)])
    needed = sum(result.get(group, 0.0) for group in NEEDED)
    overhead = {group: share / (1 - needed) for group, share in result.items() if group not in NEEDED}
    return Profile(part, ms * (1 - needed), overhead)


def shares(work: Callable[[], Any]) -> dict[str, float]:
    """Each group's share of the time of ``work``; they add up to 1."""
    profile = cProfile.Profile()
    profile.runcall(work)
    statistics: Any = pstats.Stats(profile)
    result: Statistics = statistics.stats
    owners: dict[Code, Mapping[str, float]] = {}
    seconds: dict[str, float] = {}
    for code, (_, _, self_s, _, callers) in result.items():
        parts = [(timing[2], _owners(caller, result, owners)) for caller, timing in callers.items()]
        if group_of(code) is not None or not parts:
            parts = [(self_s, _owners(code, result, owners))]
        for spent_s, charged in parts:
            for group, fraction in charged.items():
                seconds[group] = seconds.get(group, 0.0) + spent_s * fraction
    total_s = sum(seconds.values())
    return {group: value / total_s for group, value in sorted(seconds.items(), key=lambda item: -item[1])}


def group_of(code: Code) -> str | None:
    """The group that owns a function; None for one whose time counts to its callers."""
    file, _, name = code
    for rule in RULES:
        if rule.path in file and (not rule.functions or name.startswith(rule.functions)):
            return rule.group
    return None


def _owners(code: Code, result: Statistics, owners: dict[Code, Mapping[str, float]]) -> Mapping[str, float]:
    """The groups that a function's time counts to: its group, or those of its callers by the time they spent in it."""
    if code in owners:
        return owners[code]
    owner = group_of(code)
    owners[code] = {OTHER: 1.0} if owner is None else {owner: 1.0}  # also the answer to a cycle
    callers = result[code][4] if code in result else {}
    weights = {caller: timing[3] for caller, timing in callers.items() if caller != code}
    total = sum(weights.values())
    if owner is not None or total == 0:
        return owners[code]
    charged: dict[str, float] = {}
    for caller, weight in weights.items():
        for group, fraction in _owners(caller, result, owners).items():
            charged[group] = charged.get(group, 0.0) + fraction * weight / total
    owners[code] = charged
    return charged
