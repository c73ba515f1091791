"""The index of published methods, read from their YAML files: ``python -m mmgrpo.docgen.methods > docs/methods.md``.

A package of others adds its own by an entry point NAME of the group ``mmgrpo.methods`` whose ``module:attribute`` is
the path of a YAML file: configurations include it as ``methods/NAME``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mmgrpo.config import POLICIES, MethodConfig, MethodKind
from mmgrpo.config.loading import find_config, packaged, read_layers, shipped, validated
from mmgrpo.config.registry import suggestion
from mmgrpo.config.sections import at, has
from mmgrpo.docgen.composition import composition, formulas
from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.explain.method_settings import shown_value

PREAMBLE = """# Methods

Generated from the YAML files by `python -m mmgrpo.docgen.methods > docs/methods.md`.

A method is a partial configuration that names functions of `mmgrpo.maths` and their numbers. Include it after a model,
and add prompts and rewards: a recipe is no more than that. `mmgrpo methods --for "entropy collapse"` searches the
methods by the problem that they solve.

```yaml
include: [models/sd3.5-medium, methods/flow-grpo]
prompts: {source: prompts.txt}
rewards: [{name: jpeg_size}]
```

The file of a method sets its mechanism and leaves the scale to the run: no batch size, no learning rate, no number of
steps. The values of the published run are under `paper_hparams:` in the same file. `mmgrpo explain` lists the
differences of a run from them. `use_paper_hparams: true` in the file that includes the method, or
`use_paper_hparams=true` on the command line, merges them together with the method: they override the model; the file
itself and overrides override them.
`mmgrpo methods NAME` shows the section of a method on this page.

`rewards:` are the rewards of your run. Methods add rewards under `method.rewards` and do not replace yours. `added`
rewards count in addition to yours. `substitutes` count instead of your verifiers: they are computed from them
(`of: verifiers`), or without them, and then your verifiers are reported at weight 0. `fallback` rewards are those of
the paper, for a run without rewards. A verifier is a reward with a weight above 0, except rewards of format and length
(`format`, `overlong`, ...); `verifier: true` or `false` at a reward overrides that. A reward of the run with the name
and label of a method's reward overrides its settings one by one,
`rewards: [{name: exact_match}, {name: rarity, marks: [<A>, <B>]}]`; one with its label and `from_method: NAME` replaces
it, and keeps its settings where it has none. A live function with its label replaces it too, unless it is the only
verifier of the run. `mmgrpo explain` lists the rewards of the run and their sources.

`method.needs` lists the requirements of a method (a verifier, rows with images, an environment whose turns carry a
reward, ...); a run that lacks one raises an error before it starts. A run or a model is merged before the methods of
the same `include:`, in either order. A list of your file, such as `advantage.estimators`, that drops functions of a
method raises an error.

## Writing one

Include a file of your own by its path, and one of a package as `methods/NAME`, the name of its entry point in the group
`mmgrpo.methods`.

```yaml
method:
  name: my-method
  title: My method
  use_when: Use it when ...           # one sentence; mmgrpo methods --for searches it
  paper: "2601.00001"                 # arXiv number; omit it if the method is not published
  kind: surrogates                    # a heading below
  applies_to: both                    # tokens, denoising, masked or both
  published_on: Qwen2.5-7B, all weights
  needs: [verifier]                   # requirements of the run, if any
  rewards:                            # rewards of the method, if any
    fallback: [{name: exact_match}]
    added: [{name: rarity, of: verifiers, marks: [<COT>, <CODE>]}]
  sources:                            # the source of every key, here and in paper_hparams
    method.rewards: eq. 2
    objective.surrogate: eq. 3
    rollout.group_size: app. B
    update.lr: app. B
  deviations: [A difference from the paper, and its reason.]
  evidence: [A check.]                # a number, the authors' code, a run that trained
objective:
  surrogate: {name: clipped, low: 0.2, high: 0.3}
paper_hparams:
  rollout: {group_size: 16}
  update: {lr: 1.0e-6}
```

Above `paper_hparams:` belong the settings that the paper compares with its baseline at equal cost: functions, bounds,
the divergence and its weight, sampler, window, shared noise. Settings that depend on the model, the data or the number
of GPUs belong under `paper_hparams:`.
`tests/configs` checks every shipped file: each key has a source, and the file merges with every model and trains.
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
    (
        "`entropy_coef`",
        "`objective.entropy_bonus`. Its mean is that of `objective.aggregate`, over all kept tokens; TRL's is over the "
        "tokens of a micro-batch whatever `loss_type` says, and under `top_entropy_quantile` over the selected ones. "
        "They agree with `aggregate: token_mean` and no selection",
    ),
    ("`num_generations`", "`rollout.group_size`"),
    ("`num_iterations`, `steps_per_generation`", "`update.epochs`, `update.minibatches`"),
    ("`vllm_importance_sampling_*`", "not needed: the policy that is trained is the one that samples"),
)
"""What TRL's options are called here."""


KINDS: Mapping[MethodKind, str] = {
    "advantages": "Advantages: the advantage of a sample within its group",
    "credit": "Credit: the advantage of each decision",
    "surrogates": "Surrogates: the loss of a decision, and its average",
    "ratios": "Ratios: importance ratios of tokens, steps and sequences",
    "group_losses": "Group losses: losses of a whole group",
    "selection": "Selection: which samples and decisions are trained, and their weights",
    "sampling": "Sampling: how samples are generated, and where they branch",
    "strategies": "Strategies: rounds of requests within a step",
    "memory": "Memory: statistics of prompts, and replay of samples",
    "views": "Views: other weights, and other prompts",
    "off_policy": "Off-policy: demonstrations and replayed samples",
    "updates": "Updates: gradients and weights after the loss",
    "environments": "Environments: several turns, with tools",
}
"""Kinds of methods by what they change, with their headings."""

OTHERS = "Others"


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """A method of the index.

    Attributes:
        include: the name that a configuration includes.
        method: the ``method:`` section of its file.
        composition: its parts, in one line.
        formulas: formulas of its advantage, its loss and its ratio.
        sources: (dotted configuration key, value, source of the value).
        published: the same for the scale of the published run.
    """

    include: str
    method: MethodConfig
    composition: str
    formulas: tuple[str, ...]
    sources: tuple[tuple[str, str, str], ...]
    published: tuple[tuple[str, str, str], ...]

    @property
    def heading(self) -> str:
        """The heading of its kind."""
        return OTHERS if self.method.kind is None else KINDS[self.method.kind]

    @property
    def search_text(self) -> str:
        """The texts that a search reads: name, title, kind and ``use_when``."""
        return " ".join([self.method.name, self.method.title, self.heading, self.method.use_when or ""])


def method_index() -> list[MethodRow]:
    """The shipped methods by name, then those of other packages.

    Returns:
        One row a file.

    Raises:
        ConfigError: a file cannot be read, or has no ``method:`` section.
    """
    return [*_shipped_rows(), *map(_row, packaged())]


def search_methods(rows: Iterable[MethodRow], query: str) -> list[MethodRow]:
    """The methods whose texts have the most words of a query, in the order of the rows.

    A word of the query matches words that start with it, plurals aside: "collapse" matches "collapses".

    Args:
        rows: the methods to search.
        query: words, such as "entropy collapse".

    Returns:
        The methods with the largest number of matching words; none if no word matches.
    """
    stems = [word.rstrip("s") if len(word) > 3 else word for word in re.findall(r"\w+", query.lower())]
    scored = [(_num_matches(row.search_text, stems), row) for row in rows]
    best = max((score for score, _ in scored), default=0)
    return [row for score, row in scored if score == best > 0]


def _num_matches(text: str, stems: Iterable[str]) -> int:
    words = re.findall(r"\w+", text.lower())
    return sum(any(word.startswith(stem) for word in words) for stem in stems)


def by_kind(rows: Iterable[MethodRow]) -> dict[str, list[MethodRow]]:
    """Heading of a kind -> its methods; those without a kind are last."""
    members_by_heading: dict[str, list[MethodRow]] = {heading: [] for heading in (*KINDS.values(), OTHERS)}
    for row in rows:
        members_by_heading[row.heading].append(row)
    return {heading: members for heading, members in members_by_heading.items() if members}


def methods_page(rows: Iterable[MethodRow]) -> str:
    """The index as a Markdown page: a table per kind, then each value with its source."""
    rows = list(rows)
    lines = [PREAMBLE, "## The methods there are"]
    for heading, members in by_kind(rows).items():
        lines += [
            "",
            f"### {heading}",
            "",
            "| include | method | paper | what it is made of |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| `{row.include}` | {row.method.title} | {_link(row.method.paper)} | {row.composition} |"
            for row in members
        ]
    return "\n".join([*lines, *_from_trl(rows), *(line for row in rows for line in _section(row))]) + "\n"


def method_section(name: str) -> str:
    """The section of a method.

    Args:
        name: name of the method in any case, or the name that a configuration includes.

    Returns:
        Markdown.

    Raises:
        UnknownNameError: there is none; the nearest are named.
    """
    rows = method_index()
    match = next((row for row in rows if name.lower() in (row.method.name.lower(), row.include.lower())), None)
    if match is None:
        raise UnknownNameError(f"no method {name!r}{suggestion(name, [row.method.name for row in rows])}")
    return "\n".join(_section(match)).strip() + "\n"


def _shipped_rows() -> list[MethodRow]:
    return [_row(name) for name in shipped("methods")]


def _row(include: str) -> MethodRow:
    values = read_layers(find_config(include))
    config = validated(values | {"policy": None})  # a policy without its model is not valid by itself
    method = config.method
    if method is None:
        raise ConfigError(f"{include} has no method: section with name and title")
    _require_config_keys(method, values)
    return MethodRow(
        include=include,
        method=method,
        composition="; ".join(composition(values.get("policy") or {}, config)),
        formulas=tuple(formulas(config)),
        sources=tuple(_sources({key: value for key, value in values.items() if key != "paper_hparams"}, method)),
        published=tuple(_sources(config.paper_hparams, method)),
    )


def _require_config_keys(method: MethodConfig, values: Mapping[str, Any]) -> None:
    """Raises ConfigError for a source of a key that is not set."""
    published = values.get("paper_hparams") or {}
    for key in method.sources:
        if not has(published, key):
            at(values, key)


def _sources(values: Mapping[str, Any], method: MethodConfig) -> Iterator[tuple[str, str, str]]:
    for key, source in method.sources.items():
        if has(values, key):
            yield key, shown_value(at(values, key)), source


def _from_trl(rows: Iterable[MethodRow]) -> Iterator[str]:
    yield from ("", "## From TRL", "", "Losses of TRL 1.16.0 by the file that has them; a test compares the two.", "")
    yield from ("| TRL | include |", "| --- | --- |")
    for row in rows:
        if row.method.trl:
            options = ", ".join(f"{key}={value!r}" for key, value in row.method.trl.items())
            yield f"| `{options}` | `{row.include}` |"
    yield from ("", "Single options:", "", "| TRL | here |", "| --- | --- |")
    yield from (f"| {theirs} | {ours} |" for theirs, ours in TRL_OPTIONS)


def _section(row: MethodRow) -> Iterator[str]:
    method = row.method
    yield from ("", f"## {method.title}", "")
    yield f"`{row.include}`, {_link(method.paper)}, {POLICIES[method.applies_to]}."
    if method.use_when:
        yield from ("", method.use_when)
    yield from ("", "```text", *row.formulas, "```", "")
    yield from _values(row.sources)
    if row.published:
        where = f", {method.published_on}" if method.published_on else ""
        yield from ("", f"The published run{where}; in force with `use_paper_hparams: true`:", "")
        yield from _values(row.published)
    for heading, items in (("Deviations", method.deviations), ("Evidence", method.evidence)):
        if items:
            yield from ("", f"{heading}:", "", *(f"- {item}" for item in items))


def _values(rows: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    yield from ("| key | value | source |", "| --- | --- | --- |")
    yield from (f"| `{key}` | {value} | {source} |" for key, value, source in rows)


def _link(paper: str | None) -> str:
    return f"[arXiv:{paper}](https://arxiv.org/abs/{paper})" if paper else "not published"


if __name__ == "__main__":
    sys.stdout.write(methods_page(_shipped_rows()))
