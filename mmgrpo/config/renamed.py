"""Keys, values and registered names of earlier versions, with the new ones: the old one is an error that names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

RENAMED: Mapping[str, str] = {
    "advantage.correction": "advantage.scale.correction",
    "advantage.critic.clip": "advantage.critic.loss.clip",
    "advantage.critic.decay": "advantage.critic.loss.decay",
    "advantage.critic.gamma": "advantage.critic.loss.gamma",
    "advantage.critic.optimizer.lr_floor": "advantage.critic.optimizer.schedule.end",
    "advantage.critic.optimizer.lr_warmup_steps": "advantage.critic.optimizer.schedule.warmup_steps",
    "advantage.divergence": "advantage.kl.divergence",
    "advantage.eps": "advantage.scale.eps",
    "advantage.equal_groups": "advantage.zero_variance_groups",
    "advantage.filtered": "advantage.filtered_samples",
    "advantage.foreign": "advantage.off_policy_baseline",
    "advantage.kl_beta": "advantage.kl.beta",
    "auxiliary": "objective.auxiliary",
    "controllers": "schedules",
    "critic": "advantage.critic",
    "critic.alone": "advantage.critic.warmup_steps",
    "critic.lr": "advantage.critic.optimizer.lr",
    "critic.max_grad_norm": "advantage.critic.optimizer.max_grad_norm",
    "critic.until": "advantage.critic.freeze_after",
    "evaluation.pictures": "evaluation.saved_samples",
    "evaluation.prompts.pictures": "evaluation.prompts.image_columns",
    "evaluation.watchdog.dead_groups": "evaluation.watchdog.alerts: [{name: dead_groups, limit: NUMBER}]",
    "evaluation.watchdog.diversity": "evaluation.watchdog.alerts: [{name: diversity, limit: NUMBER}]",
    "evaluation.watchdog.grid": "evaluation.watchdog.alerts: [{name: grid, limit: NUMBER}]",
    "evaluation.watchdog.hacking": "evaluation.watchdog.alerts: [{name: hacking, limit: NUMBER}]",
    "evaluation.watchdog.length": "evaluation.watchdog.alerts: [{name: length, limit: NUMBER}]",
    "evaluation.watchdog.limits": "evaluation.watchdog.alerts, a list of {name: ALERT, limit: NUMBER}",
    "evaluation.watchdog.no_effect": "evaluation.watchdog.alerts: [{name: no_effect, limit: NUMBER}]",
    "evaluation.watchdog.on_policy_gap": "evaluation.watchdog.alerts: [{name: on_policy_gap, limit: NUMBER}]",
    "max_reward_failure_frac": "runtime.max_reward_failure_frac",
    "method": "about.method",
    "name": "about.name",
    "note": "about.note",
    "objective.auxiliary.begun": "{name: prefixes}",
    "objective.auxiliary.column": "{name: answers, column: COLUMN}",
    "objective.auxiliary.examples": "{name: rows, source: FILE, column: COLUMN}, or another function of examples",
    "objective.auxiliary.from_prefix": "{name: prefixes}",
    "objective.divergence": "objective.kl.divergence",
    "objective.foreign": "objective.off_policy",
    "objective.kl_beta": "objective.kl.beta",
    "objective.kl_ratio_level": "objective.kl.ratio_level",
    "objective.normalise_ratio": "objective.normalize_ratio",
    "objective.recentre": "objective.normalize_ratio",
    "objective.terms.origins": "objective.terms.sources",
    "objective.views.*.context": "objective.views.*.prompt_template",
    "paper_hparams": "about.method.paper_hparams",
    "policy.cooling": "policy.temperature_schedule",
    "policy.pictures": "policy.image_arguments",
    "policy.tail": "policy.fast_remainder",
    "prompts.allow_fetch": "prompts.outside_media: [urls]",
    "prompts.allow_outside": "prompts.outside_media: [paths]",
    "prompts.pictures": "prompts.image_columns",
    "prompts.sources.allow_fetch": "prompts.sources.outside_media: [urls]",
    "prompts.sources.allow_outside": "prompts.sources.outside_media: [paths]",
    "prompts.sources.pictures": "prompts.sources.image_columns",
    "prompts.sources.text_column": "prompts.sources.columns: {prompt: COLUMN}",
    "prompts.sources.when_unreadable": "prompts.sources.on_error",
    "prompts.text_column": "prompts.columns: {prompt: COLUMN}",
    "prompts.when_unreadable": "prompts.on_error",
    "published": "about.method.paper_hparams, or use_paper_hparams: true in a file that includes a method",
    "recipe": "about",
    "reference": "update.reference",
    "rewards.gate.closed": "rewards.gate.otherwise",
    "rollout.contexts": "rollout.prompt_templates",
    "rollout.decisions": "rollout.training_states",
    "rollout.planner": "rollout.strategy",
    "rollout.share_noise": "rollout.same_initial_noise",
    "runs": "tasks",
    "runtime.project": "runtime.trackers: [{name: TRACKER, project: PROJECT}]",
    "runtime.silent_s": "runtime.heartbeat_timeout_s",
    "runtime.wait_s": "runtime.collective_timeout_s",
    "task": "rollout.task",
    "task.context": "rollout.task.prompt_template",
    "tracking": "runtime.trackers",
    "tracking.project": "runtime.trackers: [{name: TRACKER, project: PROJECT}]",
    "tracking.rollouts": "rollout.saved_groups",
    "tracking.trackers": "runtime.trackers",
    "update.betas": "update.optimizer.betas",
    "update.eps": "update.optimizer.eps",
    "update.in_turn": "update.cycle_masks",
    "update.lr": "update.optimizer.lr",
    "update.lr_floor": "update.optimizer.schedule.end",
    "update.lr_warmup_steps": "update.optimizer.schedule.warmup_steps",
    "update.max_grad_norm": "update.optimizer.max_grad_norm",
    "update.optimizer.lr_floor": "update.optimizer.schedule.end",
    "update.optimizer.lr_warmup_steps": "update.optimizer.schedule.warmup_steps",
    "update.schedule": "update.optimizer.schedule",
    "update.warmup.optimizer.lr_floor": "update.warmup.optimizer.schedule.end",
    "update.warmup.optimizer.lr_warmup_steps": "update.warmup.optimizer.schedule.warmup_steps",
    "update.weight_decay": "update.optimizer.weight_decay",
    "views": "objective.views",
    "warmup": "update.warmup",
    "warmup.betas": "update.warmup.optimizer.betas",
    "warmup.lr": "update.warmup.optimizer.lr",
    "warmup.lr_floor": "update.warmup.optimizer.schedule.end",
    "warmup.lr_warmup_steps": "update.warmup.optimizer.schedule.warmup_steps",
    "warmup.max_grad_norm": "update.warmup.optimizer.max_grad_norm",
    "warmup.weight_decay": "update.warmup.optimizer.weight_decay",
    "watchdog": "evaluation.watchdog",
}
"""Earlier key -> its new name, dotted, without the numbers of list items; ``*`` is any one part."""

_RENAMED_PATTERNS = [(old.split("."), new) for old, new in RENAMED.items() if "*" in old]

AS_SCHEDULES = (
    "write each key as a schedule of its values, schedules: {KEY: {name: step, values: [FIRST, SECOND], at: [STEP]}}"
)

ALL_ROWS = "an evaluation takes all rows of evaluation.prompts.source, in their order: leave it out"

CACHE = "64 MiB of each deterministic reward are cached, none of a reward with deterministic: false: leave it out"

SKIPPED = "a run stops when a quarter of its last 20 updates were skipped: leave it out"

REMOVED: Mapping[str, str] = {
    "evaluation.prompts.sampler": ALL_ROWS,
    "evaluation.prompts.shuffle": ALL_ROWS,
    "evaluation.prompts.sources": ALL_ROWS,
    "evaluation.watchdog.interval": "an alert is raised again after 10 steps: leave it out",
    "max_skipped_update_frac": SKIPPED,
    "phases": AS_SCHEDULES,
    "prompts.shuffle": "false is prompts.sampler=in_order, and true the default: leave it out",
    "reward_cache_mb": CACHE,
    "runtime.max_skipped_update_frac": SKIPPED,
    "runtime.reward_cache_mb": CACHE,
    "stages": AS_SCHEDULES,
    "update.warmup.log_every": "warmup.jsonl has about 100 lines, or one for each update: leave it out",
}
"""Earlier key -> why there is no such key, and what to do."""

RENAMED_VALUES: Mapping[str, Mapping[str, str]] = {
    "advantage.filtered_samples": {"zero": "mask"},
    "advantage.off_policy_baseline": {"together": "shared", "apart": "separate"},
    "advantage.zero_variance_groups": {"zero": "keep"},
    "objective.kl.ratio_level": {"decision": "token, or step of a denoising policy"},
    "objective.off_policy.ratio_level": {"decision": "null"},
    "objective.ratio_level": {"decision": "null"},
    "objective.terms.sources": {"drawn": "on_policy", "replayed": "replay", "given": "demonstration"},
    "prompts.on_error": {"stop": "raise"},
    "prompts.sources.on_error": {"stop": "raise"},
    "rewards.gate.otherwise": {"none": "skip"},
    "rollout.training_states": {"drawn": "sampled", "read": "renoised"},
}
"""Key -> earlier value -> its new name."""

RENAMED_FUNCTIONS: Mapping[str, str] = {
    "answer_while_needed": "label_smoothing",
    "branch_one_by_one": "branch_sequentially",
    "centred_regression": "centered_regression",
    "decision_mean": "token_mean",
    "divergence_to_come": "kl_to_go",
    "drawn_baseline": "on_policy_baseline",
    "normalised_sum": "normalized_sum",
    "in_contexts": "mixed_prompt_templates",
    "outside_view": "mask_outside_view",
    "read_count_as": "fixed_off_policy_advantage",
    "sample_mean": "sequence_mean",
    "sample_then_forget": "unlearn_between_halves",
    "scouts": "two_stage_scouts",
    "self_judged": "self_rewarded",
    "second_draft": "revise",
    "until_solved": "resample_until_correct",
    "with_fitted_hints": "adaptive_hints",
}
"""Earlier name of a registered function -> its new name."""

RENAMED_SETTINGS: Mapping[str, str] = {
    "as_own": "as_on_policy",
    "behind_prompt": "train_without_template",
    "by_success": "weight_by_success",
    "context": "prompt_template",
    "contexts": "prompt_templates",
    "final": "end",
    "floor": "end",
    "held": "rows_per_prompt",
    "in_parts": "per_prompt_template",
    "initial": "start",
    "normalise": "normalize",
    "per_context": "per_prompt_template",
    "standardised": "standardized",
}
"""Earlier number of a registered function -> its new name."""


def renamed_key(key: str) -> str | None:
    """The new name of a dotted key, which may be inside another section (``evaluation.prompts...``); None: none."""
    parts = [part for part in key.split(".") if not part.isdigit()]
    for start in range(len(parts)):
        for end in range(len(parts), start, -1):
            if start and end == start + 1:
                continue  # a key of the first level inside another section is another key
            if (new := _renamed(parts[start:end])) is not None:
                return ".".join([*parts[:start], new, *parts[end:]])
    return None


def _renamed(parts: Sequence[str]) -> str | None:
    """The new name of the parts of a key of ``RENAMED``."""
    if (new := RENAMED.get(".".join(parts))) is not None:
        return new
    for names, new in _RENAMED_PATTERNS:
        if len(names) == len(parts) and all(name in ("*", part) for name, part in zip(names, parts, strict=True)):
            user_names = (part for name, part in zip(names, parts, strict=True) if name == "*")
            return ".".join(next(user_names) if name == "*" else name for name in new.split("."))
    return None


def renamed_value(key: str, value: object) -> str | None:
    """The new name of a value of a dotted key; None: none."""
    parts = [part for part in key.split(".") if not part.isdigit()]
    tables = (RENAMED_VALUES.get(".".join(parts[number:]), {}) for number in range(len(parts)))
    return next((table[value] for table in tables if isinstance(value, str) and value in table), None)
