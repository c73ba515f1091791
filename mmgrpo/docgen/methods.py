"""The published methods, read from their YAML files: their index, and a page per kind.

A package of others adds its own by an entry point NAME of the group ``mmgrpo.methods`` whose ``module:attribute`` is
the path of a YAML file: configurations include it as ``methods/NAME``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from mmgrpo.config import POLICIES, AboutConfig, MethodConfig, MethodKind
from mmgrpo.config.loading import find_config, packaged, read_layers, shipped, validated
from mmgrpo.config.methods import PROVENANCES, USES
from mmgrpo.config.needs import row_columns
from mmgrpo.config.registry import suggestion
from mmgrpo.config.sections import at, has
from mmgrpo.docgen.composition import composition, formulas
from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.explain.method_settings import formatted_value

PREAMBLE = """# Methods

`mmgrpo methods --for length` prints the methods for a problem, `mmgrpo methods entropy collapse` those whose texts
match, and `mmgrpo methods NAME` one of them. Include a method by `include: methods/NAME`;
[Methods](../../how-to/methods.md) shows how to use one and how to write one, [coming from
TRL](../../coming-from/trl.md#losses) its losses.

## Start with

- **Text**: [grpo](advantages.md#grpo), or [dapo](surrogates.md#dapo) for long answers; [gspo](ratios.md#gspo) for
  mixtures of experts; [raft](advantages.md#raft) if rewards are right or wrong and you want the simplest.
- **Vision-language**: [grpo](advantages.md#grpo); [papo](views.md#papo) if answers ignore the image;
  [gigpo](environments.md#gigpo) for agents over several turns.
- **Image**: [flow-grpo](sampling.md#flow-grpo), or [flow-grpo-fast](sampling.md#flow-grpo-fast) with fewer trained
  steps; [diffusion-nft](sampling.md#diffusion-nft) for any solver, without likelihoods.
- **Video**: [dance-grpo](sampling.md#dance-grpo), or [mix-grpo](sampling.md#mix-grpo) with fewer trained steps.

Then by need. Each method is listed under the first of its needs, with its difference from GRPO; (D) marks methods of
denoising policies, (T) those of tokens, (M) those of masked models.
"""

MARKS = {"tokens": " (T)", "denoising": " (D)", "masked": " (M)", "both": ""}
"""``applies_to`` -> its mark on the index page."""

KINDS: Mapping[MethodKind, str] = {
    "advantages": "Advantages: the advantage of a sample within its group",
    "credit": "Credit: the advantage of each decision",
    "surrogates": "Surrogates: the loss of a decision, and its average",
    "ratios": "Ratios: importance ratios of tokens, steps and sequences",
    "group_losses": "Group losses: losses of complete groups",
    "selection": "Selection: which samples and decisions are trained, and their weights",
    "sampling": "Sampling: how samples are generated, and where they branch",
    "strategies": "Strategies: rounds of requests within a step",
    "memory": "Memory: statistics of prompts, and replay of samples",
    "views": "Views: other weights, and other prompts",
    "off_policy": "Off-policy: demonstrations and replayed samples",
    "updates": "Updates: gradients and weights after the loss",
    "environments": "Environments: several turns, with tools",
}
"""Kinds of methods by the part that they change, with their headings."""

OTHERS = "Others"


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """A method of the index.

    Attributes:
        include: the name that a configuration includes.
        method: the block ``about.method`` of its file.
        composition: its parts, in one line.
        formulas: formulas of its advantage, its loss and its ratio.
        sources: (dotted configuration key, value, source of the value).
        published: the same for the scale of the published run.
        columns: columns of the rows that its functions read.
    """

    include: str
    method: MethodConfig
    composition: str
    formulas: tuple[str, ...]
    sources: tuple[tuple[str, str, str], ...]
    published: tuple[tuple[str, str, str], ...]
    columns: tuple[str, ...]

    @property
    def heading(self) -> str:
        """The heading of its kind."""
        return OTHERS if self.method.kind is None else KINDS[self.method.kind]

    @property
    def page(self) -> str:
        """File name of the page of its kind."""
        return f"{self.method.kind or OTHERS.lower()}.md"


def method_index() -> list[MethodRow]:
    """The shipped methods by name, then those of other packages.

    Returns:
        One row a file.

    Raises:
        ConfigError: a file cannot be read, or has no block ``about.method``.
    """
    return [*_shipped_rows(), *map(_row, packaged())]


def by_kind(rows: Iterable[MethodRow]) -> dict[str, list[MethodRow]]:
    """Heading of a kind -> its methods; those without a kind are last."""
    members_by_heading: dict[str, list[MethodRow]] = {heading: [] for heading in (*KINDS.values(), OTHERS)}
    for row in rows:
        members_by_heading[row.heading].append(row)
    return {heading: members for heading, members in members_by_heading.items() if members}


def method_pages(rows: Iterable[MethodRow]) -> dict[str, str]:
    """The methods as Markdown pages: the index, and a page per kind with the source of each value.

    Args:
        rows: the methods; those of a kind are one page.

    Returns:
        File name -> Markdown.
    """
    rows = list(rows)
    kinds = {members[0].page: (heading, members) for heading, members in by_kind(rows).items()}
    pages = {page: _kind_page(heading, members) for page, (heading, members) in kinds.items()}
    return {"index.md": _index(rows), **pages}


def _index(rows: Iterable[MethodRow]) -> str:
    """The index page; the site resolves the names in brackets to the sections of the methods, on the pages of kinds."""
    members: dict[str, list[MethodRow]] = {use: [] for use in USES}
    for row in rows:
        members[row.method.use_for[0] if row.method.use_for else "baseline"].append(row)
    lines = [PREAMBLE.rstrip()]
    for use, description in USES.items():
        if members[use]:
            lines += ["", f"## {use}", "", f"{description[0].upper()}{description[1:]}.", ""]
            lines += [
                f"- [{row.method.name}][]{MARKS[row.method.applies_to]}: "
                f"{_escaped((row.method.against or row.method.title).rstrip('.'))}"
                for row in members[use]
            ]
    return "\n".join(lines) + "\n"


def _kind_page(heading: str, rows: Iterable[MethodRow]) -> str:
    return "\n".join([f"# {heading}", *(line for row in rows for line in _section(row, with_anchor=True))]) + "\n"


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


@cache
def _shipped_rows() -> tuple[MethodRow, ...]:
    return tuple(_row(name) for name in shipped("methods"))


def _row(include: str) -> MethodRow:
    values = read_layers(find_config(include))
    config = validated(values | {"policy": None})  # a policy without its model is not valid
    method = config.about.method
    if method is None:
        raise ConfigError(f"{include} has no block about.method with name and title")
    _require_config_keys(method, values)
    return MethodRow(
        include=include,
        method=method,
        composition="; ".join(composition(values.get("policy") or {}, config)),
        formulas=tuple(formulas(config)),
        sources=tuple(_sources(values, method)),
        published=tuple(_sources(method.paper_hparams, method)),
        columns=tuple(dict.fromkeys(column for _, column in row_columns(config))),
    )


def _require_config_keys(method: MethodConfig, values: Mapping[str, Any]) -> None:
    """Raises ConfigError for a source of a key that is not set."""
    for key in method.sources:
        if not has(method.paper_hparams, key):
            at(values, key)


def _sources(values: Mapping[str, Any], method: MethodConfig) -> Iterator[tuple[str, str, str]]:
    for key, source in method.sources.items():
        if has(values, key):
            yield key, formatted_value(at(values, key)), source


def _section(row: MethodRow, *, with_anchor: bool = False) -> Iterator[str]:
    method = row.method
    yield from ("", f"## {method.title}" + (f" {{#{method.name}}}" if with_anchor else ""), "")
    yield f"`{row.include}`, {_link(method.paper)}, {POLICIES[method.applies_to]}: {_escaped(row.composition)}."
    if method.use_when:
        yield from ("", _escaped(method.use_when))
    facts = [*facts_of(method), *needs_of(row)]
    if facts:
        yield from ("", *(f"- {_escaped(fact)}" for fact in facts))
    yield from ("", "```text", *row.formulas, "```", "")
    yield from _values(row.sources)
    if row.published:
        where = f", {method.published_on}" if method.published_on else ""
        yield from ("", f"The published run{where}; in force with `use_paper_hparams: true`:", "")
        yield from _values(row.published)
    for heading, items in (("Deviations", method.deviations), ("Evidence", method.evidence)):
        if items:
            yield from ("", f"{heading}:", "", *(f"- {_escaped(item)}" for item in items))


def facts_of(about: MethodConfig | AboutConfig) -> Iterator[str]:
    """The difference of a method or a run from GRPO, its uses, its completeness and its provenance, a line each."""
    if about.against:
        yield f"Against GRPO: {about.against}"
    if about.use_for:
        yield f"For: {', '.join(about.use_for)}"
    if about.holds:
        yield f"Holds: {about.holds}"
    if about.provenance:
        yield f"Provenance: {PROVENANCES[about.provenance]}"


def needs_of(row: MethodRow) -> Iterator[str]:
    """The needs of a method in a line, if it has any: those that it states, and columns of the rows."""
    parts = [need.replace("_", " ") for need in row.method.needs]
    parts += [f"rows with `{column}`" for column in row.columns]
    if parts:
        yield f"Needs: {', '.join(parts)}"


def _values(rows: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    yield from ("| key | value | source |", "| --- | --- | --- |")
    yield from (f"| `{key}` | {_cell(value)} | {_cell(source)} |" for key, value, source in rows)


def _cell(text: str) -> str:
    return _escaped(text).replace("|", r"\|")


def _escaped(text: str) -> str:
    """A text whose tags, such as <think>, are not HTML."""
    return text.replace("<", "&lt;")


def _link(paper: str | None) -> str:
    return f"[arXiv:{paper}](https://arxiv.org/abs/{paper})" if paper else "not published"
