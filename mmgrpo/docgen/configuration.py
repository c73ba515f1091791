"""Every key of a configuration, read from the typed models."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mmgrpo.config import Named, RunConfig
from mmgrpo.config.registry import POLICIES, settings_type
from mmgrpo.data.prompt_templates import PROMPT_TEMPLATES
from mmgrpo.data.samplers import SAMPLERS as PROMPT_SAMPLERS
from mmgrpo.maths.advantages import SCALES
from mmgrpo.maths.aggregates import AGGREGATES
from mmgrpo.maths.answer_sources import ANSWER_SOURCES
from mmgrpo.maths.combinations import COMBINATIONS
from mmgrpo.maths.controllers import CONTROLLERS
from mmgrpo.maths.divergences import GAUSSIAN_DIVERGENCES, LOGPROB_DIVERGENCES
from mmgrpo.maths.estimators import ESTIMATORS
from mmgrpo.maths.filters import FILTERS
from mmgrpo.maths.gaussian import DENSITIES, REDUCTIONS
from mmgrpo.maths.modulations import MODULATIONS
from mmgrpo.maths.optimizers import OPTIMIZERS
from mmgrpo.maths.ratios import BOUNDS
from mmgrpo.maths.schedules import SCHEDULES
from mmgrpo.maths.selections import SELECTIONS
from mmgrpo.maths.steps import STEP_WEIGHTS
from mmgrpo.maths.strategies import STRATEGIES
from mmgrpo.maths.surrogates import SURROGATES
from mmgrpo.maths.terms import TERMS
from mmgrpo.maths.transitions import SAMPLERS
from mmgrpo.maths.trees import TREES
from mmgrpo.maths.windows import WINDOWS
from mmgrpo.reward import Reward

PREAMBLE = """# Configuration

A configuration is YAML. `include:` merges base files in order, each a path (relative to the file, or to the working
directory) or a shipped name such as `methods/flow-grpo`; the file itself overrides them, and `a.b=c` on the command
line overrides both. Mappings merge key by key, but a mapping with another `name` replaces the earlier one; a bare name
merges as a mapping of that name, so `scale: group` keeps the settings of an included `{name: group, eps: 1.0e-6}`. All
other values are replaced, and `a.b=null` clears a key. A run or a model is merged before the methods of the same
`include:`, and a list that drops functions of a method raises an error; rewards of a method are added to `rewards`
([methods](../how-to/methods.md)). An unknown key is an error that names the nearest one. `use_paper_hparams: true`, or
`use_paper_hparams=true`, applies the published scale of the included methods.

"Named" is a name with its settings, `{name: clipped, low: 0.2, high: 0.2}`, or the bare name if it takes none; the
names are listed [below](#names). `config.yaml` in the run folder has the values of a run."""

FUNCTIONS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "prompts.sampler": PROMPT_SAMPLERS,
    "rewards[].schedule": SCHEDULES,
    "schedules": {**SCHEDULES, **CONTROLLERS},
    "advantage.scale": SCALES,
    "advantage.combine": COMBINATIONS,
    "advantage.estimators": ESTIMATORS,
    "advantage.filters": FILTERS,
    "rollout.strategy": STRATEGIES,
    "rollout.prompt_templates": PROMPT_TEMPLATES,
    "rollout.window": WINDOWS,
    "rollout.tree": TREES,
    "objective.surrogate": SURROGATES,
    "objective.terms": TERMS,
    "objective.modulations": MODULATIONS,
    "objective.auxiliary": ANSWER_SOURCES,
    "objective.bound": BOUNDS,
    "objective.selections": SELECTIONS,
    "objective.aggregate": AGGREGATES,
    "objective.step_weight": STEP_WEIGHTS,
    "update.optimizer": OPTIMIZERS,
    "update.optimizer.schedule": SCHEDULES,
    "objective.kl.divergence": {**GAUSSIAN_DIVERGENCES, **LOGPROB_DIVERGENCES},
    "policy.sampler": SAMPLERS,
    "policy.density": DENSITIES,
    "policy.reduction": REDUCTIONS,
}
STEP_ARGUMENTS = {"seed", "step", "strength"}  # keyword parameters that the trainer passes
PLAIN_TYPES = {str: "text", type(None): "null", bool: "true or false", Reward: "reward"}
LIMITS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


@cache
def configuration_page() -> str:
    """The Markdown page: a table per section of ``RunConfig`` and per registered policy, then the names.

    Returns:
        The text of the page.
    """
    lines = [PREAMBLE, *_section(RunConfig, "", "The run", "top level", _places(RunConfig, ""))]
    for name in POLICIES:
        settings, title = settings_type(name), f"`policy: {{name: {name}}}`"
        lines += _section(settings, "policy.", title, f"policy {name}", _places(settings, "policy."))
    return "\n".join([*lines, *_names()]) + "\n"


def _places(model: type[BaseModel], prefix: str) -> dict[type[BaseModel], str]:
    """The key under which each section is listed: of a section that is used several times, the shortest path."""
    places: dict[type[BaseModel], str] = {}
    level = [(model, prefix)]
    while level:
        keys = [(head + name, field) for owner, head in level for name, field in owner.model_fields.items()]
        level = []
        for key, field in keys:
            part = _part_of(field.annotation)
            if part is not None and part not in places:
                places[part] = key
                level.append((part, _subsection(key, field.annotation)[0]))
    return places


def _section(
    model: type[BaseModel], prefix: str, title: str, intro: str, places: Mapping[type[BaseModel], str]
) -> Iterator[str]:
    """A heading, the description and the table of a section, then its subsections that are listed here."""
    yield from ("", f"## {title}", "", _intro(model) or intro, "")
    yield from ('<div class="keys" markdown>', "", "| key | type | default | |", "| --- | --- | --- | --- |")
    inner: list[tuple[type[BaseModel], str, str]] = []
    for name, field in model.model_fields.items():
        key, part = prefix + name, _part_of(field.annotation)
        if part is None or places[part] == key:
            kind = _type(field)
        else:
            kind = f"as [`{places[part]}`](#{_anchor(places[part])})"
        if part is not None and places[part] == key:
            inner.append((part, *_subsection(key, field.annotation)))
        yield f"| `{key}` | {kind} | {_default(field)} | {field.description or ''} |"
    yield from ("", "</div>")
    for part, below, heading in inner:
        yield from _section(part, below, heading, heading, places)


def _subsection(key: str, annotation: Any) -> tuple[str, str]:
    """Prefix and heading of the section at a key: ``key[]`` for list entries, ``key.NAME`` for mappings of names."""
    if typing.get_origin(annotation) is dict:
        return f"{key}.NAME.", f"`{key}.NAME`"
    return (f"{key}[].", f"`{key}`") if _is_list(annotation) else (f"{key}.", f"`{key}`")


def _part_of(annotation: Any) -> type[BaseModel] | None:
    """The model of a field that has keys, if any; a bare ``Named`` has none."""
    models = [kind for kind in _leaves(annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return next((kind for kind in models if kind is not Named), None)


def _leaves(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) is typing.Literal:
        return []
    arguments = typing.get_args(annotation)
    return [leaf for argument in arguments for leaf in _leaves(argument)] if arguments else [annotation]


def _is_list(annotation: Any) -> bool:
    kinds = (annotation, *typing.get_args(annotation))
    return any(typing.get_origin(_without_tag(kind)) is tuple for kind in kinds)


def _without_tag(annotation: Any) -> Any:
    """The type of an annotated one."""
    is_annotated = typing.get_origin(annotation) is typing.Annotated
    return typing.get_args(annotation)[0] if is_annotated else annotation


def _type(field: FieldInfo) -> str:
    limits = [
        f"{sign} {getattr(limit, name):g}"
        for limit in field.metadata
        for name, sign in LIMITS.items()
        if hasattr(limit, name)
    ]
    return ", ".join([type_name(field.annotation), *limits])


def type_name(annotation: Any) -> str:
    """The name of a type for readers of YAML, in Markdown."""
    annotation = _without_tag(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(type_name(kind) for kind in arguments)
    if origin is tuple and Ellipsis not in arguments:
        return f"[{', '.join(map(type_name, arguments))}]"
    if origin in (tuple, Sequence):
        return f"list of {type_name(arguments[0])}"
    if (origin or annotation) in (dict, Mapping):
        return "mapping"
    if origin is Callable:
        return "function"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "named" if annotation is Named else "section"
    return PLAIN_TYPES.get(annotation, annotation.__name__)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel) and type(value) is not Named:
        settings = value.model_dump(mode="json", exclude_defaults=True)
        return value_text(settings) if settings else "its defaults"
    if isinstance(value, Named):
        value = value.model_dump()
    return value_text(value)


def value_text(value: Any) -> str:
    """A value as YAML on one line, in backticks."""
    plain = list(value) if isinstance(value, tuple) else value
    style = '"' if isinstance(plain, str) and "\n" in plain else None
    text = yaml.safe_dump(
        plain, default_flow_style=True, default_style=style, sort_keys=False, width=200, allow_unicode=True
    )
    return "`" + text.removesuffix("...\n").strip() + "`"


def _intro(model: type[BaseModel]) -> str:
    """The model's docstring, a line per paragraph."""
    paragraphs = (inspect.getdoc(model) or "").replace("``", "`").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _anchor(key: str) -> str:
    """The anchor of a key's heading: the key without dots."""
    return key.replace(".", "")


def _names() -> Iterator[str]:
    yield from ("", "## Names", "")
    yield "`mmgrpo policies`, `mmgrpo rewards` and `mmgrpo methods` list the others; formulas are in `mmgrpo explain`."
    for key, functions in FUNCTIONS.items():
        yield from ("", f"### `{key}`", "", "| name | numbers | |", "| --- | --- | --- |")
        yield from (
            f"| `{name}` | {_numbers(function)} | {_summary(function)} |" for name, function in functions.items()
        )


def _numbers(function: Callable[..., Any]) -> str:
    parameters = inspect.signature(function).parameters.values()
    numbers = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in STEP_ARGUMENTS]
    texts = (p.name if p.default is p.empty else f"{p.name} ({_plain(p.default)})" for p in numbers)
    return ", ".join(texts)


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return " ".join(value.split())
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:g}" if is_number else value_text(value).strip("`")


def _summary(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").splitlines()[0].replace("``", "`").replace("|", r"\|")
