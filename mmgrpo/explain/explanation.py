"""The plan of a run in words and numbers; loads no model.

Every formula is taken from the docstring of the function that computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mmgrpo.algorithm import Algorithm, engine_of, strategy_of
from mmgrpo.config import AdvantageConfig, Named, ObjectiveConfig, OffPolicyConfig, RewardConfig, RunConfig
from mmgrpo.config.binding import named_in
from mmgrpo.config.needs import require_needs
from mmgrpo.config.objective import PER_DECISION
from mmgrpo.config.registry import is_scheduled
from mmgrpo.config.update import average_name
from mmgrpo.config.validating import policy_settings
from mmgrpo.explain.advantage_inputs import require_advantages
from mmgrpo.explain.auxiliary_losses import auxiliary_rows
from mmgrpo.explain.costs import cost_rows, num_steps_of, simulated_cases, strategy_rows, total_samples
from mmgrpo.explain.formulas import formula_of, with_defaults
from mmgrpo.explain.formulas import numbers_text as _numbers
from mmgrpo.explain.formulas import summary as _summary
from mmgrpo.explain.idle import idle_mechanisms
from mmgrpo.explain.lines import WIDTH, labeled_lines
from mmgrpo.explain.method_settings import formatted_value, method_rows, recipe_rows, reward_rows
from mmgrpo.explain.simulated_rounds import SimulatedRounds
from mmgrpo.explain.step_rows import moving_reference_rows, prompt_rows, schedule_rows, task_rows
from mmgrpo.explain.view_passes import view_rows
from mmgrpo.maths import objectives
from mmgrpo.maths.advantages import SCALES, clamp_advantage
from mmgrpo.maths.aggregates import AGGREGATES
from mmgrpo.maths.combinations import COMBINATIONS
from mmgrpo.maths.divergences import GAUSSIAN_DIVERGENCES, LOGPROB_DIVERGENCES
from mmgrpo.maths.estimators import ESTIMATORS
from mmgrpo.maths.filters import FILTERS
from mmgrpo.maths.gaussian import DENSITIES, REDUCTIONS
from mmgrpo.maths.modulations import MODULATIONS
from mmgrpo.maths.objectives import Objective
from mmgrpo.maths.ratios import BOUNDS, RATIO_LEVELS, normalized_log_ratio
from mmgrpo.maths.schedules import SCHEDULES
from mmgrpo.maths.selections import SELECTIONS
from mmgrpo.maths.steps import STEP_WEIGHTS
from mmgrpo.maths.strategies import unchanged_prompts
from mmgrpo.maths.surrogates import SURROGATES
from mmgrpo.maths.terms import DECISION, TERMS
from mmgrpo.maths.transitions import SAMPLERS
from mmgrpo.maths.trees import TREES
from mmgrpo.maths.windows import WINDOWS
from mmgrpo.memory import Memory
from mmgrpo.values import REFERENCE

TRUNCATED = {
    "zero": "samples cut off by their length limit: decisions left out, counted as zeros in means over samples",
    "drop": "samples cut off by their length limit: left out of every mean",
}


def explanation(config: RunConfig, width: int = WIDTH) -> str:
    """The resolved formula with its settings, the geometry of the batch, the passes and the cost of a sample.

    Values that change over the run are those of the first step.

    Args:
        config: the configuration of the run.
        width: maximum line length, in characters.

    Returns:
        Lines of labels and texts.

    Raises:
        ConfigError: the objective, advantages, strategy, window or settings of the policy are not valid.
    """
    algorithm = Algorithm.of(config)
    require_advantages(algorithm)
    require_needs(config)
    first_step = algorithm.at(0, Memory())
    config = first_step.config
    settings, cases = _schedule_settings(config), simulated_cases(first_step)
    parts = [
        _run_rows(algorithm),
        _policy_rows(config, settings),
        _formula_rows(config),
        [*_geometry_rows(first_step, cases), *schedule_rows(algorithm)],
        _pass_rows(first_step, settings),
        cost_rows(first_step, settings, cases),
    ]
    return "\n\n".join(labeled_lines(rows, width) for rows in parts) + "\n"


def _run_rows(algorithm: Algorithm) -> Iterator[tuple[str, str]]:
    config = algorithm.config
    yield "run", f"{config.about.name}, seed {config.seed}"
    if config.about.note:
        yield "note", " ".join(config.about.note.split())
    yield from task_rows(config.rollout.task)
    yield from prompt_rows(config)
    yield from recipe_rows(config)
    yield from method_rows(config)
    for number, sentence in enumerate(idle_mechanisms(algorithm)):
        yield "" if number else "warning", sentence


def _policy_rows(config: RunConfig, settings: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    if config.policy is None:
        yield "policy", "a live object with its own settings"
    else:
        yield "policy", _policy_line(config.policy, settings)
        yield from _settings_rows(config.policy)
    if settings is not None and "sampler" in settings:
        yield "sampler", _sampler_line(settings)
        yield "density", f"{settings['density']}: {_summary(DENSITIES[settings['density']])}"
        yield "reduction", f"{settings['reduction']}: {_summary(REDUCTIONS[settings['reduction']])}"
    yield from _environment_row(config)
    yield from _engine_row(config)
    window = config.rollout.window
    if window is not None:
        function = named_in("rollout.window", WINDOWS, window.name)
        yield "window", f"{window.name}{_numbers(window.settings)}: {_summary(function)}"
    elif settings is not None:
        but = " but the last" if "call" in settings else ""
        yield "window", f"none: every step{but} is stochastic and trained on"
    if settings is not None and settings.get("fast_remainder") is not None:
        frac, order = settings["fast_remainder"]["frac"], settings["fast_remainder"]["order"]
        yield (
            "",
            f"after it {frac:g} times as many points as there would be, in steps of order {order}: "
            "policy.fast_remainder",
        )
    if settings is not None and settings.get("cache") is not None:
        name = settings["cache"].get("name")
        yield (
            "",
            f"other steps use the cache {name}, so that forwards are at most those below: policy.cache",
        )
    if settings is not None and settings.get("step_quantization") is not None:
        name = settings["step_quantization"].get("name")
        yield (
            "",
            f"other steps run with weights of {name}, which rollouts hold besides the real ones and the memory below "
            "leaves out: policy.step_quantization",
        )
    if config.rollout.same_initial_noise:
        yield "noise", "shared by the group, which computes its common steps once"
    tree = config.rollout.tree
    if tree is not None:
        line = f"{tree.name}{_numbers(tree.settings)}: {_summary(named_in('rollout.tree', TREES, tree.name))}"
        yield "tree", f"{line}; the group's members are its leaves, and each state is computed once"


def _environment_row(config: RunConfig) -> Iterator[tuple[str, str]]:
    """The turns and tokens of a conversation at most; none without an environment."""
    rollout = config.rollout
    if rollout.environment is None:
        return
    line = f"{rollout.environment.name}{_numbers(rollout.environment.settings)}: at most {rollout.max_turns} turns"
    settings = None if config.policy is None else policy_settings(config.policy)
    max_tokens = getattr(settings, "max_new_tokens", None)
    if max_tokens is not None:
        num_samples = rollout.prompts_per_step * rollout.group_size
        line += (
            f" and {max_tokens:,} tokens a sample, those of the environment's answers and their media included; at "
            f"most {num_samples * max_tokens:,} tokens a step, plus the prompts"
        )
    limit_s = rollout.environment_timeout_s
    limit = "no time limit" if limit_s is None else f"{limit_s:g} s a call"
    yield "environment", f"{line}; {rollout.environment_workers} calls at a time, {limit}"


def _engine_row(config: RunConfig) -> Iterator[tuple[str, str]]:
    """The server that generates the samples; none without ``rollout.engine``."""
    engine = config.rollout.engine
    if engine is not None:
        server = engine_of(config.rollout)
        weights = "before the last update, during it" if server.steps_ahead else "of each step"
        line = f"{engine.name}, {server.address}, generates the samples, with the weights {weights}"
        yield "engine", f"{line}; the trainer scores them, so both sides of the ratio are its own"


def _policy_line(policy: Named, settings: Mapping[str, Any] | None) -> str:
    values = settings or policy.settings
    parts = [f"{policy.name} {values.get('model') or ''}".rstrip()]
    if settings is not None and "lora" in settings:
        lora = settings["lora"]
        trained = "every weight" if lora is None else f"LoRA, rank {lora['rank']}, alpha {lora['alpha']:g}"
        parts.append(f"trains {trained}")
    return "; ".join([*parts, *_quantization(values)])


def _quantization(settings: Mapping[str, Any]) -> Iterator[str]:
    """The width of quantized frozen weights, or the settings of the quantization if it has no width in bits."""
    values = settings.get("quantization_config")
    if values is None:
        return
    blocks = [values, values.get("quant_kwargs") or {}, *(values.get("quant_mapping") or {}).values()]
    bits = [number for number in (4, 8) if any(block.get(f"load_in_{number}bit") for block in blocks)]
    widths = " and ".join(f"{number} bit" for number in bits)
    yield f"frozen weights in {widths}" if bits else f"quantizes frozen weights: {formatted_value(values)}"
    if 4 in bits:
        dtypes = (block.get("bnb_4bit_compute_dtype") for block in blocks if block.get("load_in_4bit"))
        names = dict.fromkeys(str(dtype or settings.get("dtype", "policy.dtype")) for dtype in dtypes)
        yield f"their layers compute in {' and '.join(names)}"


def _sampler_line(settings: Mapping[str, Any]) -> str:
    name, strength = settings["sampler"], settings["strength"]
    if name is None:
        line = "chosen by the scheduler: flow_sde on flow levels, native for consistency models, else ddim"
        return f"{line}; strength = {strength:g}"
    if name not in SAMPLERS:
        return f"{name}: the noise of the scheduler's step"
    line = f"{name}, strength = {strength:g}: {_summary(SAMPLERS[name])}"
    if name == "cps":
        line += "; does not keep the marginals: samples spread less than the data"
    return line if strength > 0 else f"{line}; at strength 0 no step is random, and nothing is trained on"


def _formula_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    objective = config.objective
    yield "loss", formula_of(objectives.__doc__ or "")
    yield "reward", _reward_line(config)
    yield from reward_rows(config)
    for reward in config.rewards:
        yield from (("", f"{reward.logged_name} {term}") for term in _terms(reward))
    yield "advantage A", _advantage_line(config.advantage)
    yield "log-ratio", _ratio_line(objective)
    yield from _function_rows("decisions", config.advantage.estimators, ESTIMATORS)
    yield from _function_rows("samples", config.advantage.filters, FILTERS)
    surrogate, aggregate = objective.surrogate, objective.aggregate
    yield from _function_rows("surrogate l", () if surrogate is None else (surrogate,), SURROGATES)
    yield from _off_policy_row(objective.off_policy)
    for label, line in _function_rows("weight v", (aggregate,), AGGREGATES):
        yield label, line.replace(": w = ", ": v = ", 1)
    if objective.step_weight is None:
        yield "weight w", "w = v: no step weight"
    else:
        weight = objective.step_weight
        line = _summary(named_in("objective.step_weight", STEP_WEIGHTS, weight.name))
        yield "weight w", f"w = v times {weight.name}{_numbers(weight.settings)}: {line}"
    yield from _function_rows("selection", objective.selections, SELECTIONS)
    yield from _function_rows("modulation", objective.modulations, MODULATIONS)
    for (label, line), term in zip(_function_rows("term", objective.terms, TERMS), objective.terms, strict=True):
        line = line if term.weight == 1 else f"{term.weight:g} times {line}"
        yield label, line if term.sources is None else f"{line}; only rows of source {' or '.join(term.sources)}"
    if objective.truncated != "keep":
        yield "truncated", TRUNCATED[objective.truncated]
    yield "KL", _kl_line(objective)
    if objective.entropy_bonus:
        yield "entropy H", f"entropy_bonus = {objective.entropy_bonus:g}"


def _function_rows(
    label: str, chosen: Sequence[Named], functions: Mapping[str, Callable[..., Any]]
) -> Iterator[tuple[str, str]]:
    """A row per named function: its formula and its settings."""
    for named in chosen:
        yield label, f"{named.name}: {formula_of(named_in(label, functions, named.name))}{_numbers(named.settings)}"


def _reward_line(config: RunConfig) -> str:
    terms = [f"{reward.weight:g} {reward.logged_name}" for reward in config.rewards] or ["live functions"]
    advantage = config.advantage
    combine = advantage.combine
    line = " + ".join(terms)
    if combine.name != "sum":
        function = named_in("advantage.combine", COMBINATIONS, combine.name)
        numbers = _numbers(with_defaults(function, combine.settings))
        line = f"{combine.name}: {formula_of(function)}{numbers}, of {', '.join(terms)}"
    if advantage.kl.divergence is None:
        return line
    divergence = _divergence_line(advantage.kl.divergence)
    return f"{line} - {advantage.kl.beta:g} kl, the sum over the sample's decisions of {divergence}"


def _terms(reward: RewardConfig) -> Iterator[str]:
    """Further properties of a reward: clipping, gate, schedule and time limit."""
    counts = [] if reward.clip is None else [f"clipped to [{reward.clip[0]:g}, {reward.clip[1]:g}]"]
    if reward.gate is not None:
        otherwise = {"zero": "else 0", "skip": "else does not apply"}[reward.gate.otherwise]
        counts.append(f"counts where {reward.gate.reward} >= {reward.gate.at_least:g}, {otherwise}")
    if counts:
        yield ", ".join(counts)
    if reward.schedule is not None:
        function = named_in("rewards.schedule", SCHEDULES, reward.schedule.name)
        numbers = _numbers(with_defaults(function, reward.schedule.settings))
        yield f"weight times {reward.schedule.name}: {formula_of(function)}{numbers}"
    if reward.timeout_s is not None:
        yield f"has failed where a call takes more than {reward.timeout_s:g} s"


def _advantage_line(config: AdvantageConfig) -> str:
    function = named_in("advantage.scale", SCALES, config.scale.name)
    line = f"{config.scale.name}: {formula_of(function)}{_numbers(with_defaults(function, config.scale.settings))}"
    if config.clamp is not None:
        line += f". {_summary(clamp_advantage)}, limit = {config.clamp:g}"
    if config.off_policy_baseline == "separate":
        line += ". Rows that are read are compared among themselves"
    return (
        line
        if config.zero_variance_groups == "keep"
        else f"{line}. Groups without an advantage are left out of every mean"
    )


def _ratio_line(objective: ObjectiveConfig) -> str:
    level = objective.ratio_level
    line = f"{level or 'decision'}: log r = logprob - old_logprob"
    if objective.normalize_ratio:
        line += f", normalized to {formula_of(normalized_log_ratio)}"
    if objective.bound is not None:
        formula = formula_of(named_in("objective.bound", BOUNDS, objective.bound.name))
        line += f", bounded by {objective.bound.name}: {formula}{_numbers(objective.bound.settings)}"
    return line if level is None or level in PER_DECISION else f"{line}; then {formula_of(RATIO_LEVELS[level])}"


def _kl_line(objective: ObjectiveConfig) -> str:
    if not objective.kl.beta or objective.kl.divergence is None:
        return "none: objective.kl.beta is 0"
    level = objective.kl.ratio_level
    times = "" if level is None else f", times the ratio at the level {level}, with gradient"
    return f"kl_beta = {objective.kl.beta:g}{times}, {_divergence_line(objective.kl.divergence)}"


def _off_policy_row(config: OffPolicyConfig | None) -> Iterator[tuple[str, str]]:
    """The surrogate of off-policy rows, if they have a separate one."""
    if config is not None:
        ((label, line),) = _function_rows("off-policy l", (config.surrogate,), SURROGATES)
        yield label, f"{line}; r of the {config.ratio_level or 'decision'}, times {config.weight:g}"


def _divergence_line(name: str) -> str:
    divergences = {**GAUSSIAN_DIVERGENCES, **LOGPROB_DIVERGENCES}
    return f"{name}: {_summary(divergences[name])}" if name in divergences else name


def _geometry_rows(algorithm: Algorithm, cases: Sequence[SimulatedRounds]) -> Iterator[tuple[str, str]]:
    config = algorithm.config
    P, G, update = config.rollout.prompts_per_step, config.rollout.group_size, config.update
    num_updates = update.epochs * update.minibatches
    sizes = sorted({P // update.minibatches * G, -(-P // update.minibatches) * G})
    sizes_text = "" if cases else f", of {' or '.join(f'{size:,}' for size in sizes)} samples"
    masks_text = "; epoch n trains the segments of number n alone" if update.cycle_masks else ""
    if cases and not any(case.num_sampled for case in cases):
        yield "rollout", f"{P} prompts a step"
    else:
        yield "rollout", f"{P} prompts x {G} members = {P * G:,} samples a step"
    yield from strategy_rows(config, cases)
    yield (
        "updates",
        f"{_plural(update.epochs, 'epoch')} x {_plural(update.minibatches, 'minibatch', 'es')} = "
        f"{_plural(num_updates, 'update')} a rollout{sizes_text}{masks_text}",
    )
    steps = config.steps
    samples, updates = f"{total_samples(algorithm, cases)} samples", _plural(steps * num_updates, "update")
    yield "in all", f"{_plural(steps, 'step')}, {samples}, {updates}"
    optimizer = update.optimizer
    limit = "not clipped" if optimizer.max_grad_norm is None else f"clipped at {optimizer.max_grad_norm:g}"
    schedule = f"{optimizer.schedule.name} schedule{_numbers(optimizer.schedule.settings)}"
    name = f"{optimizer.name}{_numbers(optimizer.settings)}"
    yield "optimizer", f"{name}, lr = {optimizer.lr:g}, {schedule}, gradient norm {limit}"
    if update.ema:
        due = _plural(update.ema.every, "update") + (f", {update.ema.times} times" if update.ema.times > 1 else "")
        yield "average", f"decay = min((1 + n) / (10 + n), {update.ema.decay:g}), every {due}; evaluations use it"
    for name, section in update.weight_sets.items():
        terms = ", ".join(term.name for term in section.terms)
        states = f", on {section.reading['states']}" if "states" in section.reading else ""
        follows = f"; {average_name(name)} follows" if section.average else ""
        lr = section.optimizer.over(optimizer).lr
        yield f"weights {name}", f"{terms}{states}; {_plural(section.updates, 'update')} before, lr = {lr:g}{follows}"
    if config.update.warmup:
        updates = _plural(config.update.warmup.steps, "supervised update")
        yield "warm-up", f"{updates} of {_plural(config.update.warmup.batch_size, 'example')} before the first step"
    yield from auxiliary_rows(config)
    if critic := config.advantage.critic:
        warmup_steps, freeze_after = critic.warmup_steps, critic.freeze_after
        when = [f"alone for {_plural(warmup_steps, 'step')}"] * bool(warmup_steps) + [
            f"still after {freeze_after}"
        ] * bool(freeze_after)
        under = "another copy of the policy" if critic.policy is None else f"policy {critic.policy.name}"
        yield (
            "critic",
            f"a value of states over {under}, lr = {critic.optimizer.lr:g}; a pass after the rollout, one in "
            f"each update{''.join(f'; {text}' for text in when)}",
        )


def _pass_rows(algorithm: Algorithm, settings: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    config = algorithm.config
    yield "old policy", "no pass: the log-probabilities stored at the rollout serve every update"
    yield "coupled values", _values_line(algorithm)
    yield "reference", _reference_line(algorithm)
    yield from moving_reference_rows(algorithm)
    yield from view_rows(algorithm)
    if algorithm.objective.skips:
        yield "skipped", "decisions without an advantage or a weight take no forward in the update"
    yield "evaluation", _evaluation_line(config, settings)
    watchdog = config.watchdog
    if watchdog is not None:
        stop = ", ".join(watchdog.stop) or "never"
        yield "watchdog", f"alerts for {', '.join(watchdog.kinds)}; an alert stops the run: {stop}"


def _reference_line(algorithm: Algorithm) -> str:
    config = algorithm.config
    if config.objective.kl.beta > 0:
        return "a pass with each pass of the policy: objective.kl.beta > 0"
    if reading := [
        term.name for term in algorithm.objective.terms if any(value.view == REFERENCE for value in term.values)
    ]:
        return f"a pass with each pass of the policy, for {', '.join(reading)}"
    if config.advantage.kl.beta > 0:
        return "a pass after the rollout with one of the policy: advantage.kl.beta > 0"
    if REFERENCE in algorithm.strategy.weights:
        return f"no pass: {config.rollout.strategy.name} samples with it"
    return "no pass: objective.kl.beta is 0"


def _values_line(algorithm: Algorithm) -> str:
    objective, config = algorithm.objective, algorithm.config
    num_updates = config.update.epochs * config.update.minibatches
    if not objective.needs_values:
        return "no extra pass: the loss is a sum over decisions, and each depends on that decision alone"
    reason = _values_reason(objective)
    if not objective.rollout_knows_values:
        return f"a pass before every update: {reason}, and the rollout does not know its KL or entropy"
    if num_updates == 1:
        return f"no pass: {reason}, and the rollout's own values serve the only update"
    return f"a pass before every update of a rollout but the first, which takes the rollout's own: {reason}"


def _values_reason(objective: Objective) -> str:
    if objective.separable:
        looking = [name for name in ("selections", "modulations") if getattr(objective, name)]
        return f"{' and '.join(looking)} read all values first"
    if coupled := [term.name for term in objective.further if term.couples != DECISION]:
        return f"{', '.join(coupled)} couples decisions"
    if objective.through:
        return f"gradients go through the view {', '.join(sorted(objective.through))}"
    level = objective.kl_ratio_level if objective.ratio_level == "token" else objective.ratio_level
    return f"the {level} ratio couples decisions"


def _evaluation_line(config: RunConfig, settings: Mapping[str, Any] | None) -> str:
    evaluation = config.held_out
    if evaluation is None:
        return "none"
    rewards = ", ".join(judge.label or judge.name for judge in evaluation.rewards or config.rewards)
    num_steps = num_steps_of(settings, "call", "evaluation_call")
    forwards = "" if num_steps is None else f" of {_plural(num_steps, 'forward')} each"
    return (
        f"before the first step, every {_plural(evaluation.every, 'step')} and after the last: "
        f"{_plural(evaluation.samples_per_prompt, 'sample')} a prompt{forwards}, "
        f"{'at random' if evaluation.sampled else 'without noise'}, "
        f"scored by {rewards or 'the training rewards'}" + "".join(f"; {note}" for note in evaluation_notes(config))
    )


def evaluation_notes(config: RunConfig) -> tuple[str, ...]:
    """How the samples of an evaluation differ from those of the training.

    Args:
        config: the run.

    Returns:
        Sentences; none if the prompts are those of the training.
    """
    name = config.rollout.strategy.name
    if strategy_of(config.rollout).evaluation is not unchanged_prompts:
        return (f"samples are those of rollout.strategy {name} with one answer in each round, and rewards score all",)
    if not (names := ", ".join(config.rollout.prompt_templates)):
        return ()
    return (
        "a sample is one answer to the unchanged prompt: "
        f"rollout.strategy {name} and its prompt templates ({names}) apply in training alone",
    )


def _settings_rows(policy: Named) -> Iterator[tuple[str, str]]:
    """The rows of the adapter's settings, if they have a method ``described()`` that returns labels and texts."""
    settings = policy_settings(policy)
    if callable(getattr(settings, "described", None)):
        yield from settings.described()


def _schedule_settings(config: RunConfig) -> Mapping[str, Any] | None:
    """The settings with defaults of a policy with a fixed number of decisions per sample; None for others."""
    if config.policy is None or not is_scheduled(config.policy.name):
        return None
    return policy_settings(config.policy).model_dump()


def _plural(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{plural}"
