"""The typed run configuration: the keys of a YAML file, each declared once, frozen once loaded."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from mmgrpo.config.critic import CriticConfig
from mmgrpo.config.kl import KLConfig
from mmgrpo.config.losses import AuxiliaryConfig, TermConfig
from mmgrpo.config.method_rewards import with_method_rewards
from mmgrpo.config.methods import POLICIES, AboutConfig, MethodConfig, MethodKind, takes
from mmgrpo.config.objective import ObjectiveConfig, OffPolicyConfig
from mmgrpo.config.optimizer import OptimizerConfig
from mmgrpo.config.prompts import HeldOutPromptsConfig, PromptsConfig, ReadingConfig, SourceConfig
from mmgrpo.config.references import ReferenceConfig
from mmgrpo.config.registry import decides
from mmgrpo.config.renamed import renamed_key
from mmgrpo.config.rewards import (
    EvaluationRewardConfig,
    EvaluationRewardList,
    GateConfig,
    Otherwise,
    RewardConfig,
    RewardList,
    gate_order,
)
from mmgrpo.config.runtime import RuntimeConfig
from mmgrpo.config.scheduled_keys import faults
from mmgrpo.config.sections import Named, Section, unknown_keys
from mmgrpo.config.series import SeriesRun
from mmgrpo.config.tasks import TaskConfig
from mmgrpo.config.update import EmaConfig, UpdateConfig
from mmgrpo.config.views import ViewConfig
from mmgrpo.config.warmup import WarmupConfig
from mmgrpo.config.watchdog import AlertKind, WatchdogConfig
from mmgrpo.maths.advantages import COMBINING

__all__ = [
    "POLICIES",
    "AboutConfig",
    "AlertKind",
    "AuxiliaryConfig",
    "CriticConfig",
    "EmaConfig",
    "EvaluationRewardConfig",
    "GateConfig",
    "HeldOutPromptsConfig",
    "KLConfig",
    "MethodConfig",
    "MethodKind",
    "Named",
    "ObjectiveConfig",
    "OffPolicyConfig",
    "OptimizerConfig",
    "Otherwise",
    "PromptsConfig",
    "ReadingConfig",
    "ReferenceConfig",
    "RewardConfig",
    "RunConfig",
    "Section",
    "SourceConfig",
    "TaskConfig",
    "TermConfig",
    "UpdateConfig",
    "ViewConfig",
    "WarmupConfig",
    "WatchdogConfig",
    "gate_order",
]


TOGETHER, IN_ORDER = "a mapping", "a list"
"""The forms of ``tasks``."""


class RolloutConfig(Section):
    """The samples of a step, over all processes."""

    prompts_per_step: int = Field(default=8, ge=1, description="groups; a multiple of the number of processes")
    group_size: int = Field(
        default=8,
        ge=1,
        description="members per prompt; advantages are relative to the group, of 1 with scale raw alone",
    )
    same_initial_noise: bool = Field(
        default=False, description="a group starts from one initial noise; shared states are computed once"
    )
    strategy: Named = Field(
        default_factory=lambda: Named(name="fixed"), description="which samples a step generates, round by round"
    )
    environment: Named | None = Field(
        default=None,
        description="multi-turn environment, for policies that generate text: {name: tools, functions: "
        "[python:module:function, ...]}, or python:module:Class with its arguments; null: one turn",
    )
    engine: Named | None = Field(
        default=None,
        description="inference server that generates the samples of a language policy: {name: vllm, url: "
        "http://127.0.0.1:8000}, or python: vllm-env/bin/python to start one; null: the trainer generates them",
    )
    max_turns: int = Field(default=8, ge=1, description="most turns that a sample generates in an environment")
    environment_workers: int = Field(
        default=32,
        ge=1,
        description="environments that work at a time, one thread each; 1: one after another, for environments "
        "that share an object which is not safe for threads",
    )
    environment_timeout_s: float | None = Field(
        default=60.0,
        gt=0,
        description="seconds that a call of an environment may take; a longer one ends its conversation, whose sample "
        "is not scored; null: unlimited",
    )
    training_states: Literal["sampled", "renoised"] = Field(
        default="sampled",
        description="states that a denoiser is trained on: sampled, the steps of its sampling; renoised, its samples, "
        "generated without noise and noised again at the levels of policy.reading (forward-process "
        "methods)",
    )
    prompt_templates: dict[str, Named] = Field(
        default_factory=dict,
        description="named prompt templates that a strategy may use in place of the data's prompts",
    )
    window: Named | None = Field(
        default=None, description="which denoising steps are stochastic; null: all but the last"
    )
    tree: Named | None = Field(
        default=None,
        description="the members of a group are the leaves of a tree that branches at some steps, each leaf "
        "a sample; null: members share no steps, or with same_initial_noise all before the first "
        "stochastic step",
    )
    saved_groups: int = Field(
        default=2,
        ge=0,
        description="groups written to samples/ with their advantages, at the first step and with every evaluation",
    )
    task: TaskConfig | None = Field(
        default=None, description="how a task of a mixed run takes part in it; null: a single run"
    )

    @model_validator(mode="after")
    def _begins_once(self) -> RolloutConfig:
        if self.tree is not None and self.same_initial_noise:
            raise ValueError("the members of a tree share their initial noise: leave out same_initial_noise, or tree")
        if self.training_states == "renoised" and (self.window is not None or self.tree is not None):
            raise ValueError(
                "training_states: renoised samples without noise, so there is no window and no tree: leave them out"
            )
        if self.training_states == "renoised" and self.same_initial_noise and not self.prompt_templates:
            raise ValueError(
                "training_states: renoised samples without noise, so that a group of one noise is one image: leave out "
                "same_initial_noise"
            )
        return self


class AdvantageConfig(Section):
    """Rewards into advantages of samples, then of single decisions: see mmgrpo.maths.advantages."""

    scale: Named = Field(
        default_factory=lambda: Named(name="group"),
        description="rewards of a group into advantages, {name: group, eps: 1.0e-6, correction: 0}; gdpo normalizes "
        "each reward in its group before the weighted sum, the others combine first",
    )
    combine: Named = Field(
        default_factory=lambda: Named(name="sum"),
        description="how several rewards become one; gdpo combines them itself",
    )
    clamp: float | None = Field(default=None, gt=0, description="advantages are clamped to plus and minus this")
    zero_variance_groups: Literal["keep", "drop"] = Field(
        default="keep",
        description="groups of equal rewards: keep counts their samples in the means of the loss, drop leaves them out",
    )
    off_policy_baseline: Literal["shared", "separate"] = Field(
        default="shared",
        description="baseline of rows that were not sampled at this step: shared with the group that they join, or "
        "separate, over these rows only",
    )
    estimators: tuple[Named, ...] = Field(
        default=(),
        description="estimators that transform each decision's advantage, in order; none: the advantage of its sample",
    )
    filters: tuple[Named, ...] = Field(default=(), description="which samples or decisions train, in order; none: all")
    filtered_samples: Literal["drop", "mask"] = Field(
        default="drop",
        description="samples that a filter leaves out: drop leaves them out of every mean, mask counts them in the "
        "means of the loss",
    )
    kl: KLConfig = Field(
        default_factory=KLConfig,
        description="subtracted from the combined reward, summed over the sample's decisions, as in RLOO",
    )
    critic: CriticConfig | None = Field(
        default=None, description="value model, trained in the same updates; null: none"
    )

    @model_validator(mode="after")
    def _used(self) -> AdvantageConfig:
        if self.scale.name in COMBINING and self.combine.name != "sum":
            raise ValueError(
                f"scale: {self.scale.name} combines the rewards in its own way; leave out combine: {self.combine.name}"
            )
        return self


class EvaluationConfig(Section):
    """Held-out prompts with fixed seeds, scored by rewards that are not trained on."""

    prompts: HeldOutPromptsConfig | None = Field(
        default=None,
        description="the held-out prompts; null: no evaluation, and the alerts of watchdog that need none",
    )
    rewards: EvaluationRewardList = Field(default=(), description="empty: the training rewards")
    every: int = Field(
        default=10, ge=1, description="steps between evaluations; the first and the last are always evaluated"
    )
    samples_per_prompt: int = Field(default=1, ge=1)
    sampled: bool = Field(
        default=False,
        description="sample at random as in training, so that samples of a prompt differ where a policy decides on "
        "tokens; false: without noise, the likeliest tokens",
    )
    seed: int = Field(default=1234, description="the same noise in every evaluation; independent of the run's seed")
    saved_samples: int = Field(default=100, ge=0, description="samples written to samples/ per evaluation")

    watchdog: WatchdogConfig | None = Field(default=None, description="null: no alerts")

    @model_validator(mode="after")
    def _has_prompts(self) -> EvaluationConfig:
        fields = EvaluationConfig.model_fields.items()
        settings = [name for name, field in fields if name != "watchdog" and getattr(self, name) != field.default]
        if self.prompts is None and (settings or self.watchdog is None):
            raise ValueError("prompts is missing: name the held-out prompts, or leave the section out")
        return self


class CheckpointConfig(Section):
    """Checkpoints contain everything a run needs to resume as if never stopped."""

    every: int | None = Field(
        default=20, ge=1, description="steps; null: only at the end, on Ctrl-C, on SIGTERM and when the run fails"
    )
    warmup_every: int | None = Field(default=500, ge=1, description="warm-up steps; null: only at its end and as above")
    keep: int | None = Field(default=3, ge=1, description="how many of the newest to keep; null keeps all")
    best: str | None = Field(
        default=None,
        description="a reward of the evaluation: the checkpoint with its highest mean stays in addition to the "
        "newest; an evaluation that is the best so far saves one; of a mixed run TASK/REWARD; null: none",
    )


def _form(value: Any) -> str:
    return IN_ORDER if isinstance(value, list | tuple) else TOGETHER


Tasks = Annotated[
    Annotated[dict[str, dict[str, Any]], Tag(TOGETHER)] | Annotated[tuple[SeriesRun, ...], Tag(IN_ORDER)],
    Discriminator(_form),
]
"""Several runs in one."""


class RunConfig(Section):
    """The configuration of a run."""

    about: AboutConfig = Field(default_factory=AboutConfig)
    seed: int = Field(
        default=0, ge=0, lt=2**32, description="of the order of prompts, samples, windows and the warm-up"
    )
    output: str = Field(default="runs", description="folder of the run folders")
    steps: int = Field(default=100, ge=0, description="rollouts, each with its updates; 0: warm-up and evaluation")
    policy: Named | None = Field(
        default=None, description="a registered adapter with its settings; not needed for a live policy"
    )
    prompts: PromptsConfig | None = None
    rewards: RewardList = ()
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    advantage: AdvantageConfig = Field(default_factory=AdvantageConfig)
    objective: ObjectiveConfig = Field(default_factory=ObjectiveConfig)
    update: UpdateConfig = Field(default_factory=UpdateConfig)
    evaluation: EvaluationConfig | None = None
    schedules: dict[str, Named] = Field(
        default_factory=dict,
        description="dotted key -> schedule of its value by the step, counted from 0, {objective.kl.beta: {name: "
        "linear, start: 0, end: 0.04, steps: 100}}, or by a metric of the step before, {objective.kl.beta: {name: "
        "adaptive_kl, target: 0.01}}; a reward's as rewards.LABEL.NUMBER; values of any kind in phases, "
        "{policy.max_new_tokens: {name: step, values: [4096, 8192], at: [200]}}",
    )
    tasks: Tasks = Field(
        default_factory=dict,
        description="several runs in one: a mapping, configurations by name that are trained in common steps (a mixed "
        "run), each with its includes, policy, prompts, rewards and updates; or a list, changes that are run one after "
        "another, each from the weights of the previous one and without a warm-up unless it sets one (a series); none: "
        "a single run",
    )
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig)

    @property
    def series(self) -> tuple[SeriesRun, ...]:
        """The runs of a list under ``tasks``."""
        return () if isinstance(self.tasks, dict) else self.tasks

    @property
    def mixed(self) -> dict[str, dict[str, Any]]:
        """The configurations of a mapping under ``tasks``."""
        return self.tasks if isinstance(self.tasks, dict) else {}

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """The optimizers of the policy, the warm-up and the critic, by key."""
        parts = {"update": self.update, "update.warmup": self.update.warmup, "advantage.critic": self.advantage.critic}
        optimizers = {f"{key}.optimizer": part.optimizer for key, part in parts.items() if part is not None}
        sets = {
            f"update.weight_sets.{name}.optimizer": section.optimizer.over(self.update.optimizer)
            for name, section in self.update.weight_sets.items()
        }
        return optimizers | sets

    @property
    def held_out(self) -> EvaluationConfig | None:
        """The section ``evaluation`` if it has prompts."""
        return None if self.evaluation is None or self.evaluation.prompts is None else self.evaluation

    @property
    def watchdog(self) -> WatchdogConfig | None:
        """The alerts of the section ``evaluation``."""
        return None if self.evaluation is None else self.evaluation.watchdog

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        methods = self.about.methods
        for method in methods:
            _require_same_decisions(method, self.policy)
        _require_level_of_policy(self.objective, self.policy)
        object.__setattr__(self, "rewards", with_method_rewards(self.rewards, methods))
        if self.update.minibatches > self.rollout.prompts_per_step:
            raise ValueError(
                f"update.minibatches={self.update.minibatches} needs as many groups, but rollout.prompts_per_step="
                f"{self.rollout.prompts_per_step}: a minibatch consists of complete groups"
            )
        if self.checkpoint.best is not None and self.held_out is None and not self.mixed:
            raise ValueError("checkpoint.best is a reward of the evaluation: add that section, or leave best out")
        if len({run.name for run in self.series}) < len(self.series):
            raise ValueError("tasks: the names must differ, as the folders are named by them")
        labels = [reward.logged_name for reward in self.rewards]
        if len(set(labels)) < len(labels):
            raise ValueError(f"rewards are logged by name, and {labels} repeat: give each a label")
        published = {} if self.about.method is None else self.about.method.paper_hparams
        if unknown := list(unknown_keys(RunConfig, published)):
            named = [key if (new := renamed_key(key)) is None else f"{key} (now {new})" for key in unknown]
            raise ValueError(f"about.method.paper_hparams: no key of the configuration is {', '.join(named)}")
        sources = [source for section in (*methods, self.about) for source in section.sources]
        if renamed := [f"{key} (now {new})" for key in sources if (new := renamed_key(key)) is not None]:
            raise ValueError(f"sources of the values of renamed keys: {', '.join(renamed)}")
        if self.rollout.group_size == 1 and self.advantage.scale.name != "raw":
            raise ValueError(
                "rollout.group_size must be at least 2: a group of 1 has no other members as a baseline; "
                "it is valid only with advantage.scale: raw and a learned baseline, the estimator remembered_baseline "
                "or gae"
            )
        if wrong := list(faults(self.schedules)):
            raise ValueError("; ".join(wrong))
        if self.advantage.kl.divergence is not None and not (
            self.advantage.kl.beta or "advantage.kl.beta" in self.schedules
        ):
            raise ValueError("advantage.kl.divergence needs advantage.kl.beta: leave it out, or set the weight")
        gate_order(
            labels, {reward.logged_name: reward.gate.reward for reward in self.rewards if reward.gate is not None}
        )
        return self


def _require_same_decisions(method: MethodConfig, policy: Named | None) -> None:
    """Raises ValueError for a method for other decisions than those of the policy."""
    kind = decides(policy.name) if policy and method.applies_to != "both" else None
    if policy and kind not in (None, *POLICIES):
        raise ValueError(
            f"the settings of {policy.name} say decides = {kind!r}; methods are for {', '.join(POLICIES)}: name one of "
            "these there, or leave it out"
        )
    if policy and kind is not None and not takes(kind, method.applies_to):
        raise ValueError(
            f"{method.name} is {POLICIES[method.applies_to]}, and the policy {policy.name} is {POLICIES[kind]}; "
            "include another policy, or leave it out"
        )


def _require_level_of_policy(objective: ObjectiveConfig, policy: Named | None) -> None:
    """Raises ValueError for ratios of tokens of a denoising policy, or of denoising steps of another one."""
    levels = {key: level for key, level in objective.ratio_levels.items() if level in ("token", "step")}
    if policy is None or not levels or (kind := decides(policy.name)) is None:
        return
    expected = "step" if kind == "denoising" else "token"
    for key, level in levels.items():
        if level != expected:
            raise ValueError(
                f"{key}: {level}, but the policy {policy.name} is {POLICIES.get(kind, kind)}: set {expected}"
                + (", or null for policies of any kind" if not key.startswith("objective.kl") else "")
            )
