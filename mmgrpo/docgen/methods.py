"""The index of published methods, read from their YAML files: ``python -m mmgrpo.docgen.methods > docs/methods.md``.

A package of others adds its own by an entry point of the group ``mmgrpo.methods`` whose ``module:attribute`` is the
path of a YAML file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from mmgrpo.config import AdvantageConfig, MethodConfig, Named, ObjectiveConfig, RolloutConfig, RunConfig, UpdateConfig
from mmgrpo.config.loading import find_config, read_layers, shipped, validated
from mmgrpo.errors import ConfigError
from mmgrpo.system.targets import import_attribute

PREAMBLE = """# Methods

Generated from the YAML files by `python -m mmgrpo.docgen.methods > docs/methods.md`.

A method is a partial configuration that names functions of `mmgrpo.maths` and their numbers. Lay it over a model, the
model first, and add prompts and rewards: a recipe is no more than that.

```yaml
include: [models/sd3.5-medium, methods/flow-grpo]
prompts: {source: prompts.txt}
rewards: [{name: jpeg_size}]
```
"""


TRL_OPTIONS = (
    ("`epsilon`, `epsilon_high`", "`objective.surrogate: {name: clipped, low: , high: }`; for cispo, high = cap - 1"),
    ("`delta`", "`objective.surrogate: {name: two_sided_clipped, low: , high: , delta: }`"),
    ("`importance_sampling_level`", "`objective.ratio_level`: token is decision, sequence is sequence"),
    ("`loss_type`", "the table above; `objective.aggregate` alone for the mean that it takes"),
    ("`scale_rewards`", "`advantage.scale`: group, batch, none"),
    ("`multi_objective_aggregation: normalize_then_sum`", "`advantage: {scale: gdpo, correction: 1}`"),
    ("`beta`", "`objective.kl_beta` with `objective.divergence: k3`"),
    ("`use_bias_correction_kl`", "`objective.kl_ratio_level`: the value of `objective.ratio_level` in TRL's sense"),
    ("`beta` of RLOO", "`advantage.kl_beta` with `advantage.divergence: k1`"),
    (
        "`top_entropy_quantile`",
        "`objective.selections: [{name: top_entropy, share: }]`, over the whole update; "
        "under `methods/gmpo`, `ratio_top_entropy`",
    ),
    ("`off_policy_mask_threshold`", "`objective.selections: [{name: near_policy, limit: }]`"),
    ("`mask_truncated_completions`", "`objective.truncated: zero`"),
    ("`entropy_coef`", "`objective.entropy_bonus`, averaged as `objective.aggregate` says"),
    ("`num_generations`", "`rollout.group_size`"),
    ("`num_iterations`, `steps_per_generation`", "`update.epochs`, `update.minibatches`"),
    ("`vllm_importance_sampling_*`", "not needed: the policy that is trained is the one that samples"),
)
"""What TRL's options are called here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """One method of the index.

    Attributes:
        include: what a configuration includes to use it.
        name: its name.
        title: its name as its authors write it.
        paper: arXiv number.
        composition: what it is made of, in one line.
        sources: dotted configuration key, its value, and where the value comes from.
        deviations: where it differs from what was published.
        trl: options of TRL with the same loss, in one line; empty if it has none.
    """

    include: str
    name: str
    title: str
    paper: str
    composition: str
    sources: tuple[tuple[str, str, str], ...]
    deviations: tuple[str, ...]
    trl: str


def method_index() -> list[MethodRow]:
    """The shipped methods by name, then those of other packages.

    Returns:
        One row a file.

    Raises:
        ConfigError: a file cannot be read, or has no ``method:`` section.
    """
    return [*_own(), *(_row(_path(point.value)) for point in entry_points(group="mmgrpo.methods"))]


def methods_page(rows: Iterable[MethodRow]) -> str:
    """The index as a page of Markdown: a table, then each value with its source."""
    rows = list(rows)
    table = ["| include | method | paper | what it is made of |", "| --- | --- | --- | --- |"]
    table += [f"| `{row.include}` | {row.title} | {_link(row.paper)} | {row.composition} |" for row in rows]
    return "\n".join([PREAMBLE, *table, *_from_trl(rows), *(line for row in rows for line in _section(row))]) + "\n"


def at(values: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key; a ConfigError if there is none."""
    found: Any = values
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise ConfigError(f"the configuration has no key {key!r}")
        found = found[part]
    return found


def _own() -> list[MethodRow]:
    return [_row(name) for name in shipped("methods")]


def _path(target: str) -> str:
    path = import_attribute(target)
    if not isinstance(path, (str, Path)):
        raise ConfigError(f"the method {target!r} must be the path of a YAML file, got {type(path).__name__}")
    return str(path)


def _row(include: str) -> MethodRow:
    values = read_layers(find_config(include))
    config = validated(values | {"policy": None})  # a policy without its model is not valid by itself
    method = config.method
    if method is None:
        raise ConfigError(f"{include} has no method: section with name, title and paper")
    return MethodRow(
        include=include,
        name=method.name,
        title=method.title,
        paper=method.paper,
        composition="; ".join(_composition(values.get("policy") or {}, config)),
        sources=tuple(_sources(values, method)),
        deviations=method.deviations,
        trl=", ".join(f"{key}={value!r}" for key, value in method.trl.items()),
    )


def _sources(values: Mapping[str, Any], method: MethodConfig) -> Iterator[tuple[str, str, str]]:
    for key, source in method.sources.items():
        yield key, _shown(at(values, key)), source


def _composition(policy: Mapping[str, Any], config: RunConfig) -> Iterator[str]:
    yield from _sampling(policy)
    yield from _rollout(config.rollout)
    yield _advantage(config.advantage)
    yield from _objective(config.objective)
    yield _updates(config.update)


def _sampling(policy: Mapping[str, Any]) -> Iterator[str]:
    if "sampler" in policy:
        steps = policy.get("call", {}).get("num_inference_steps")
        strength = f" {policy['strength']:g}" if "strength" in policy else ""
        yield f"{policy['sampler']}{strength}" + (f" in {steps} steps" if steps else "")
    if policy.get("density", "gaussian") != "gaussian":
        yield f"density {policy['density']}"


def _rollout(rollout: RolloutConfig) -> Iterator[str]:
    if rollout.window is not None:
        yield f"window {_function(rollout.window)}"
    if rollout.share_noise:
        yield "shared noise"
    yield f"{rollout.prompts_per_step} groups of {rollout.group_size}"


def _advantage(advantage: AdvantageConfig) -> str:
    line = f"advantage {advantage.scale}" + (f" within {advantage.clamp:g}" if advantage.clamp else "")
    if advantage.kl_beta:
        line += f" of the reward less {advantage.kl_beta:g} {advantage.divergence} KL"
    return line if advantage.equal_groups == "zero" else f"{line}, equal groups dropped"


def _objective(objective: ObjectiveConfig) -> Iterator[str]:
    level = "" if objective.ratio_level == "decision" else f" by {objective.ratio_level}"
    normalised = " of the normalised ratio" if objective.normalise_ratio else ""
    bounded = "" if objective.bound is None else f" of {_function(objective.bound)} log-ratios"
    yield f"{_function(objective.surrogate)}{normalised}{bounded}{level}"
    yield from (_function(selection) for selection in objective.selections)
    if objective.step_weight is not None:
        yield f"weight {objective.step_weight}"
    if objective.kl_beta:
        times = "" if objective.kl_ratio_level is None else f" times the {objective.kl_ratio_level} ratio"
        yield f"{objective.kl_beta:g} {objective.divergence} KL{times}"
    if objective.entropy_bonus:
        yield f"entropy bonus {objective.entropy_bonus:g}"
    if objective.aggregate.name != "sample_mean":
        yield _function(objective.aggregate)
    if objective.truncated != "keep":
        yield f"truncated samples: {objective.truncated}"


def _updates(update: UpdateConfig) -> str:
    count = update.epochs * update.minibatches
    return f"{count} update{'s' if count > 1 else ''} a rollout"


def _function(named: Named) -> str:
    return _shown({"name": named.name, **named.numbers})


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        numbers = ", ".join(f"{key} {_shown(inner)}" for key, inner in value.items() if key != "name")
        return f"{value['name']} ({numbers})" if "name" in value and numbers else value.get("name", numbers)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _from_trl(rows: Iterable[MethodRow]) -> Iterator[str]:
    yield from ("", "## From TRL", "", "Losses of TRL 1.16.0 by the file that has them; a test compares the two.", "")
    yield from ("| TRL | include |", "| --- | --- |")
    yield from (f"| `{row.trl}` | `{row.include}` |" for row in rows if row.trl)
    yield from ("", "Single options:", "", "| TRL | here |", "| --- | --- |")
    yield from (f"| {theirs} | {ours} |" for theirs, ours in TRL_OPTIONS)


def _section(row: MethodRow) -> Iterator[str]:
    yield from ("", f"## {row.title}", "", f"`{row.include}`, {_link(row.paper)}.", "")
    yield from ("| key | value | source |", "| --- | --- | --- |")
    yield from (f"| `{key}` | {value} | {source} |" for key, value, source in row.sources)
    if row.deviations:
        yield from ("", "Deviations:", "", *(f"- {deviation}" for deviation in row.deviations))


def _link(paper: str) -> str:
    return f"[arXiv:{paper}](https://arxiv.org/abs/{paper})"


if __name__ == "__main__":
    sys.stdout.write(methods_page(_own()))
