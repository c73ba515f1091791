"""What a run is about to do, in words and numbers that a person reads before it; no model is loaded.

Every formula is the line of the docstring of the function that computes it, so that it is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import ValidationError

from mmgrpo.algorithm import Algorithm, require_advantages
from mmgrpo.config import AdvantageConfig, AlarmKind, ForeignConfig, Named, ObjectiveConfig, RewardConfig, RunConfig
from mmgrpo.config.needs import require_needs
from mmgrpo.config.numbers import named_in
from mmgrpo.config.registry import is_scheduled, names, policy_class, settings_type
from mmgrpo.config.validating import explain_validation
from mmgrpo.errors import ConfigError
from mmgrpo.explain.auxiliary_losses import auxiliary_rows
from mmgrpo.explain.costs import cases_of, cost_rows, drawn_in_all, num_steps_of, planner_rows
from mmgrpo.explain.formulas import formula_of, with_defaults
from mmgrpo.explain.formulas import numbers_text as _numbers
from mmgrpo.explain.formulas import summary as _summary
from mmgrpo.explain.idle import idle_mechanisms
from mmgrpo.explain.lines import WIDTH, told
from mmgrpo.explain.method_settings import method_rows, recipe_rows, reward_rows
from mmgrpo.explain.run_course import course_rows, moving_reference_rows, prompt_rows, task_rows
from mmgrpo.explain.simulated_rounds import SimulatedRounds
from mmgrpo.explain.view_passes import view_rows
from mmgrpo.maths import objectives
from mmgrpo.maths.advantages import SCALES, clamp_advantage
from mmgrpo.maths.aggregates import AGGREGATES
from mmgrpo.maths.combinations import COMBINATIONS
from mmgrpo.maths.divergences import GAUSSIAN_DIVERGENCES, LOGPROB_DIVERGENCES
from mmgrpo.maths.estimators import ESTIMATORS
from mmgrpo.maths.filters import FILTERS
from mmgrpo.maths.gaussian import DENSITIES, REDUCTIONS
from mmgrpo.maths.losses import TERMS
from mmgrpo.maths.modulations import MODULATIONS
from mmgrpo.maths.objectives import Objective
from mmgrpo.maths.ratios import BOUNDS, RATIO_LEVELS, normalised_log_ratio
from mmgrpo.maths.schedules import WEIGHT_SCHEDULES
from mmgrpo.maths.selections import SELECTIONS
from mmgrpo.maths.steps import STEP_WEIGHTS
from mmgrpo.maths.surrogates import SURROGATES
from mmgrpo.maths.terms import DECISION
from mmgrpo.maths.transitions import SAMPLERS
from mmgrpo.maths.trees import TREES
from mmgrpo.maths.windows import WINDOWS
from mmgrpo.values import REFERENCE

TRUNCATED = {
    "zero": "samples cut off by their length limit: decisions left out, counted as zeros in means over samples",
    "drop": "samples cut off by their length limit: left out, counted nowhere",
}


def explanation(config: RunConfig, width: int = WIDTH) -> str:
    """The resolved formula with its numbers, the geometry of the batch, the passes that run and what a sample costs.

    Args:
        config: the run.
        width: of a line, in characters.

    Returns:
        Lines of labels and texts.

    Raises:
        ConfigError: if objective, advantages, planner, window or the policy's settings cannot be used as written.
    """
    algorithm = Algorithm.of(config)
    require_advantages(algorithm)
    require_needs(config)
    settings, cases = _schedule_settings(config), cases_of(algorithm)
    parts = [
        _what(algorithm),
        _policy(config, settings),
        _formula(config),
        [*_geometry(config, cases), *course_rows(algorithm)],
        _passes(algorithm, settings),
        cost_rows(algorithm, settings, cases),
    ]
    return "\n\n".join(told(rows, width) for rows in parts) + "\n"


def _what(algorithm: Algorithm) -> Iterator[tuple[str, str]]:
    config = algorithm.config
    yield "run", f"{config.name}, seed {config.seed}"
    if config.note:
        yield "note", " ".join(config.note.split())
    yield from task_rows(config.task)
    if config.prompts is not None:
        held_out = f"; evaluation: {config.evaluation.prompts.source}" if config.evaluation else ""
        yield from prompt_rows(config.prompts, held_out)
    yield from recipe_rows(config)
    yield from method_rows(config)
    for number, sentence in enumerate(idle_mechanisms(algorithm)):
        yield "" if number else "warning", sentence


def _policy(config: RunConfig, settings: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    if config.policy is None:
        yield "policy", "a live object; its settings are its own"
    else:
        yield "policy", _policy_line(config.policy, settings)
        yield from _described(config.policy)
    if settings is not None and "sampler" in settings:
        yield "sampler", _sampler_line(settings)
        yield "density", f"{settings['density']}: {_summary(DENSITIES[settings['density']])}"
        yield "reduction", f"{settings['reduction']}: {_summary(REDUCTIONS[settings['reduction']])}"
    window = config.rollout.window
    if window is not None:
        function = named_in("rollout.window", WINDOWS, window.name)
        yield "window", f"{window.name}{_numbers(window.numbers)}: {_summary(function)}"
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
    if config.rollout.same_initial_noise:
        yield "noise", "shared by the group, which computes its common steps once"
    tree = config.rollout.tree
    if tree is not None:
        line = f"{tree.name}{_numbers(tree.numbers)}: {_summary(named_in('rollout.tree', TREES, tree.name))}"
        yield "tree", f"{line}; the group's members are its leaves, and each state is computed once"


def _policy_line(policy: Named, settings: Mapping[str, Any] | None) -> str:
    known = settings or policy.numbers
    line = f"{policy.name} {known.get('model') or ''}".rstrip()
    if settings is None or "lora" not in settings:
        return line
    lora = settings["lora"]
    trained = "every weight" if lora is None else f"LoRA, rank {lora['rank']}, alpha {lora['alpha']:g}"
    return f"{line}; trains {trained}"


def _sampler_line(settings: Mapping[str, Any]) -> str:
    name, strength = settings["sampler"], settings["strength"]
    if name is None:
        line = "chosen by the scheduler: flow_sde on flow levels, native for consistency models, else ddim"
        return f"{line}; strength = {strength:g}"
    if name not in SAMPLERS:
        return f"{name}: the noise that the scheduler draws by itself"
    line = f"{name}, strength = {strength:g}: {_summary(SAMPLERS[name])}"
    if name == "cps":
        line += "; does not keep the marginals: samples spread less than the data"
    return line if strength > 0 else f"{line}; at strength 0 no step is random, and nothing is trained on"


def _formula(config: RunConfig) -> Iterator[tuple[str, str]]:
    objective = config.objective
    yield "loss", formula_of(objectives.__doc__ or "")
    yield "reward", _reward_line(config)
    yield from reward_rows(config)
    for reward in config.rewards:
        yield from (("", f"{reward.known_as} {term}") for term in _terms(reward))
    yield "advantage A", _advantage_line(config.advantage)
    yield "log-ratio", _ratio_line(objective)
    yield from _given("decisions", config.advantage.estimators, ESTIMATORS)
    yield from _given("samples", config.advantage.filters, FILTERS)
    surrogate, aggregate = objective.surrogate, objective.aggregate
    yield from _given("surrogate l", () if surrogate is None else (surrogate,), SURROGATES)
    yield from _foreign_row(objective.foreign)
    yield from _given("weight v", (aggregate,), AGGREGATES)
    if objective.step_weight is None:
        yield "weight w", "v: no step weight"
    else:
        weight = objective.step_weight
        line = _summary(named_in("objective.step_weight", STEP_WEIGHTS, weight.name))
        yield "weight w", f"v times {weight.name}{_numbers(weight.numbers)}: {line}"
    yield from _given("selection", objective.selections, SELECTIONS)
    yield from _given("modulation", objective.modulations, MODULATIONS)
    for (label, line), term in zip(_given("term", objective.terms, TERMS), objective.terms, strict=True):
        line = line if term.weight == 1 else f"{term.weight:g} times {line}"
        yield label, line if term.origins is None else f"{line}; of rows that are {' or '.join(term.origins)} alone"
    if objective.truncated != "keep":
        yield "truncated", TRUNCATED[objective.truncated]
    yield "KL", _kl_line(objective)
    if objective.entropy_bonus:
        yield "entropy H", f"entropy_bonus = {objective.entropy_bonus:g}"


def _given(
    label: str, chosen: Sequence[Named], functions: Mapping[str, Callable[..., Any]]
) -> Iterator[tuple[str, str]]:
    """A line for each of several named functions: its formula and its numbers."""
    for named in chosen:
        yield label, f"{named.name}: {formula_of(named_in(label, functions, named.name))}{_numbers(named.numbers)}"


def _reward_line(config: RunConfig) -> str:
    terms = [f"{reward.weight:g} {reward.known_as}" for reward in config.rewards] or ["live functions"]
    advantage = config.advantage
    combine = advantage.combine
    line = " + ".join(terms)
    if combine.name != "sum":
        function = named_in("advantage.combine", COMBINATIONS, combine.name)
        numbers = _numbers(with_defaults(function, combine.numbers))
        line = f"{combine.name}: {formula_of(function)}{numbers}, of {', '.join(terms)}"
    if advantage.divergence is None:
        return line
    divergence = _divergence_line(advantage.divergence)
    return f"{line} - {advantage.kl_beta:g} kl, the sum over the sample's decisions of {divergence}"


def _terms(reward: RewardConfig) -> Iterator[str]:
    """How a reward counts, where there is more to it than its weight."""
    counts = [] if reward.clip is None else [f"clipped to [{reward.clip[0]:g}, {reward.clip[1]:g}]"]
    if reward.gate is not None:
        otherwise = {"zero": "else 0", "skip": "else does not apply"}[reward.gate.otherwise]
        counts.append(f"counts where {reward.gate.reward} >= {reward.gate.at_least:g}, {otherwise}")
    if counts:
        yield ", ".join(counts)
    if reward.schedule is not None:
        function = named_in("rewards.schedule", WEIGHT_SCHEDULES, reward.schedule.name)
        numbers = _numbers(with_defaults(function, reward.schedule.numbers))
        yield f"weight times {reward.schedule.name}: {formula_of(function)}{numbers}"
    if reward.timeout_s is not None:
        yield f"has failed where a call takes more than {reward.timeout_s:g} s"


def _advantage_line(config: AdvantageConfig) -> str:
    scaling, function = config.scaling, named_in("advantage.scale", SCALES, config.scale.name)
    line = f"{scaling.name}: {formula_of(function)}{_numbers(with_defaults(function, scaling.numbers))}"
    if config.clamp is not None:
        line += f". {_summary(clamp_advantage)}, limit = {config.clamp:g}"
    if config.foreign == "apart":
        line += ". Rows that are read are compared among themselves"
    return line if config.zero_variance_groups == "keep" else f"{line}. Groups without an advantage count nowhere"


def _ratio_line(objective: ObjectiveConfig) -> str:
    level = RATIO_LEVELS[objective.ratio_level]
    line = f"{objective.ratio_level}: log r = logprob - old_logprob"
    if objective.normalise_ratio:
        line += f", normalised to {formula_of(normalised_log_ratio)}"
    if objective.bound is not None:
        formula = formula_of(named_in("objective.bound", BOUNDS, objective.bound.name))
        line += f", held by {objective.bound.name}: {formula}{_numbers(objective.bound.numbers)}"
    return line if objective.ratio_level == "decision" else f"{line}; then {formula_of(level)}"


def _kl_line(objective: ObjectiveConfig) -> str:
    if not objective.kl_beta or objective.divergence is None:
        return "none: kl_beta is 0"
    level = objective.kl_ratio_level
    times = "" if level is None else f", times the ratio at the level {level}, with gradient"
    return f"kl_beta = {objective.kl_beta:g}{times}, {_divergence_line(objective.divergence)}"


def _foreign_row(foreign: ForeignConfig | None) -> Iterator[tuple[str, str]]:
    """The surrogate of rows that are read, where it is one of its own."""
    if foreign is not None:
        ((label, line),) = _given("read rows l", (foreign.surrogate,), SURROGATES)
        yield label, f"{line}; r of the {foreign.ratio_level}, times {foreign.weight:g}"


def _divergence_line(name: str) -> str:
    known = {**GAUSSIAN_DIVERGENCES, **LOGPROB_DIVERGENCES}
    return f"{name}: {_summary(known[name])}" if name in known else name


def _geometry(config: RunConfig, cases: Sequence[SimulatedRounds]) -> Iterator[tuple[str, str]]:
    P, G, update = config.rollout.prompts_per_step, config.rollout.group_size, config.update
    num_updates = update.epochs * update.minibatches
    sizes = sorted({P // update.minibatches * G, -(-P // update.minibatches) * G})
    of = "" if cases else f", of {' or '.join(f'{size:,}' for size in sizes)} samples"
    yield "rollout", f"{P} prompts x {G} members = {P * G:,} samples a step"
    yield from planner_rows(config, cases)
    yield (
        "updates",
        f"{_many(update.epochs, 'epoch')} x {_many(update.minibatches, 'minibatch', 'es')} = "
        f"{_many(num_updates, 'update')} a rollout{of}",
    )
    steps = config.steps
    in_all = (_many(steps, "step"), f"{drawn_in_all(config, cases)} samples", _many(steps * num_updates, "update"))
    yield "in all", ", ".join(in_all)
    limit = "not clipped" if update.max_grad_norm is None else f"clipped at {update.max_grad_norm:g}"
    yield "optimizer", f"AdamW, lr = {update.lr:g}, {update.schedule} schedule, gradient norm {limit}"
    if update.ema:
        due = _many(update.ema.every, "update") + (f", {update.ema.times} times" if update.ema.times > 1 else "")
        yield "average", f"decay = min((1 + n) / (10 + n), {update.ema.decay:g}), every {due}; evaluations use it"
    if config.warmup:
        updates = _many(config.warmup.steps, "supervised update")
        yield "warm-up", f"{updates} of {_many(config.warmup.batch_size, 'example')} before the first step"
    yield from auxiliary_rows(config)
    if config.critic:
        alone, until = config.critic.warmup_steps, config.critic.freeze_after
        when = [f"alone for {_many(alone, 'step')}"] * bool(alone) + [f"still after {until}"] * bool(until)
        under = "another copy of the policy" if config.critic.policy is None else f"policy {config.critic.policy.name}"
        yield (
            "critic",
            f"a value of states over {under}, lr = {config.critic.lr:g}; a pass after the rollout, one in each update"
            + "".join(f"; {one}" for one in when),
        )


def _passes(algorithm: Algorithm, settings: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    config = algorithm.config
    yield "old policy", "no pass: the log-probabilities stored at the rollout serve every update"
    yield "values", _values_line(algorithm)
    yield "reference", _reference_line(algorithm)
    yield from moving_reference_rows(algorithm)
    yield from view_rows(algorithm)
    if algorithm.objective.skips:
        yield "skipped", "decisions without an advantage or a weight take no forward in the update"
    yield "evaluation", _evaluation_line(config, settings)
    watchdog = config.watchdog
    if watchdog is not None:
        kinds = [kind for kind in get_args(AlarmKind) if getattr(watchdog, kind) is not None]
        yield "watchdog", f"alarms for {', '.join(kinds)}; stops at {', '.join(watchdog.stop) or 'none'}"


def _reference_line(algorithm: Algorithm) -> str:
    config = algorithm.config
    if config.objective.kl_beta > 0:
        return "a pass beside each of the policy's: kl_beta > 0"
    if reading := [
        term.name for term in algorithm.objective.terms if any(value.view == REFERENCE for value in term.values)
    ]:
        return f"a pass beside each of the policy's, for {', '.join(reading)}"
    if config.advantage.kl_beta > 0:
        return "a pass after the rollout, beside one of the policy's: advantage.kl_beta > 0"
    return "no pass: kl_beta is 0"


def _values_line(algorithm: Algorithm) -> str:
    objective, config = algorithm.objective, algorithm.config
    num_updates = config.update.epochs * config.update.minibatches
    if not objective.needs_values:
        return "no pass: each decision is differentiated by itself"
    reason = _why_values_first(objective)
    if not objective.rollout_knows_values:
        return f"a pass before every update: {reason}, and the rollout does not know its KL or entropy"
    if num_updates == 1:
        return f"no pass: {reason}, and the rollout's own values serve the only update"
    return f"a pass before every update of a rollout but the first, which takes the rollout's own: {reason}"


def _why_values_first(objective: Objective) -> str:
    if objective.separable:
        looking = [name for name in ("selections", "modulations") if getattr(objective, name)]
        return f"{' and '.join(looking)} look at values first"
    if coupled := [term.name for term in objective.further if term.couples != DECISION]:
        return f"{', '.join(coupled)} couples decisions"
    if objective.through:
        return f"gradients go through the view {', '.join(sorted(objective.through))}"
    level = objective.kl_ratio_level if objective.ratio_level == "decision" else objective.ratio_level
    return f"the {level} ratio couples decisions"


def _evaluation_line(config: RunConfig, settings: Mapping[str, Any] | None) -> str:
    evaluation = config.evaluation
    if evaluation is None:
        return "none"
    judges = ", ".join(judge.label or judge.name for judge in evaluation.rewards or config.rewards)
    num_steps = num_steps_of(settings, "call", "evaluation_call")
    forwards = "" if num_steps is None else f" of {_many(num_steps, 'forward')} each"
    return (
        f"before the first step, every {_many(evaluation.every, 'step')} and after the last: "
        f"{_many(evaluation.samples_per_prompt, 'sample')} a prompt{forwards}, "
        f"{'at random' if evaluation.sampled else 'without noise'}, "
        f"judged by {judges or 'the training rewards'}"
    )


def _described(policy: Named) -> Iterator[tuple[str, str]]:
    """What the adapter's settings say of themselves, if they do: ``described()`` gives labels and texts."""
    settings = _settings(policy)
    if callable(getattr(settings, "described", None)):
        yield from settings.described()


def _schedule_settings(config: RunConfig) -> Mapping[str, Any] | None:
    """The settings, defaults included, of a policy whose samples take a known number of decisions; else None."""
    if config.policy is None or not is_scheduled(config.policy.name):
        return None
    return _settings(config.policy).model_dump()


def _settings(policy: Named) -> Any:
    """The settings of a policy, defaults included; None for an adapter that declares no type of them."""
    if policy.name not in names("settings"):  # one of the user's own, which is imported to be asked
        policy_class(policy.name)
    kind = settings_type(policy.name)
    if kind is None:
        return None
    try:
        return kind(**policy.numbers)
    except ValidationError as error:
        raise ConfigError(f"policy ({policy.name}): {explain_validation(error, kind)}") from None


def _many(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{plural}"
