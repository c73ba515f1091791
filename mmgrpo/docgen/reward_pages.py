"""A page per reward from its docstring, and their index."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from mmgrpo.config import RewardConfig
from mmgrpo.config.registry import REWARDS, names, resolve
from mmgrpo.docgen.configuration import type_name, value_text
from mmgrpo.docgen.signatures import docstring_at
from mmgrpo.errors import MmgrpoError

KINDS: Mapping[str, tuple[str, ...]] = {
    "Answers": (
        *(
            "rewards.text.answers",
            "rewards.text.choices",
            "rewards.text.quantities",
            "rewards.text.chart_answers",
            "rewards.text.value_match",
        ),
        *("rewards.text.mathematics", "rewards.text.captions", "rewards.text.number_lists", "rewards.text.sequences"),
        *("rewards.text.coverage", "rewards.text.forecasts", "rewards.text.tables", "rewards.text.tool_calls"),
        *("rewards.text.records", "rewards.text.text_similarity", "rewards.text.transcripts", "rewards.text.countdown"),
    ),
    "Code execution": ("rewards.code",),
    "Grounding: boxes, points, masks, actions, time": ("rewards.grounding",),
    "Format, length and turns": (
        *("rewards.text.structure", "rewards.text.tagged", "rewards.text.lengths", "rewards.text.environment_return"),
        *("rewards.text.turn_format", "rewards.text.executed_calls", "rewards.text.citations"),
    ),
    "Judges of texts": (
        "rewards.judges.text_judge",
        "rewards.judges.scalar",
        "rewards.judges.solvers",
        "rewards.judges.tool_choice",
        "rewards.judges.submitted_evidence",
        "rewards.judges.call_judge",
    ),
    "Images: preferences and judges": (
        *("rewards.images.clip_scores", "rewards.images.image_reward", "rewards.judges.vlm_judge"),
        "rewards.judges.endpoints",
    ),
    "Images: content": ("rewards.images.ocr", "rewards.images.compositional", "rewards.images.similarity"),
    "Images: pixels": ("rewards.images.pixels", "rewards.images.textures"),
    "Video": ("rewards.video",),
    "Audio": ("rewards.audio",),
    "Groups, and rewards of rewards": ("rewards.groups",),
    "Servers": ("rewards.judges.remote_reward",),
    "Examples of the quickstarts": ("examples.digits", "examples.shapes", "examples.edits", "examples.moving_digits"),
}
"""Kind of rewards -> modules or packages of ``mmgrpo``."""

PREAMBLE = """# Rewards

`mmgrpo rewards` prints this list, `mmgrpo rewards NAME` a page of it. [Rewards](../../how-to/rewards.md) shows how a
run combines them, and how to write one."""

OTHER_PACKAGES = "Other packages"

SHARED = tuple(key for key in RewardConfig.model_fields if key != "name")
"""Configuration keys of every reward."""

_LABELS = ("Settings", "Example", "Judges", "Needs", "Range", "Units", "Source", "Traps", "Raises")
_LABEL = re.compile(rf"({'|'.join(_LABELS)}): ")
_SECOND_LABEL = re.compile(rf" {{3}}(?=(?:{'|'.join(_LABELS)}): )")


def by_kind() -> dict[str, list[str]]:
    """Kind -> names of its rewards in the order of the registry; those of other packages are last."""
    members_by_kind: dict[str, list[str]] = {kind: [] for kind in (*KINDS, OTHER_PACKAGES)}
    for name, target in names("rewards").items():
        members_by_kind[kind_of(target)].append(name)
    return {kind: members for kind, members in members_by_kind.items() if members}


def kind_of(target: str) -> str:
    """The kind of a reward at "module:attribute"."""
    return next(
        (kind for kind, modules in KINDS.items() if any(is_in(target, module) for module in modules)), OTHER_PACKAGES
    )


def is_in(target: str, module: str) -> bool:
    """Whether "module:attribute" is in a module or package of ``mmgrpo``."""
    return target.startswith((f"mmgrpo.{module}:", f"mmgrpo.{module}."))


def summary_of(name: str) -> str:
    """The first paragraph of a reward's docstring, in Markdown, read from its source.

    A reward without a readable source is imported; if that fails, the error in Markdown.
    """
    docstring = docstring_at(names("rewards")[name])
    try:
        return _marked(_split(inspect.getdoc(resolve("rewards", name)) if docstring is None else docstring)[0])
    except MmgrpoError as error:
        return f"({_escaped(str(error))})"


def page_of(name: str) -> str:
    """The page of a reward in Markdown: summary, example, settings and the rest of its docstring.

    Args:
        name: a registered name, or ``python:module:attribute``.

    Returns:
        The page.

    Raises:
        UnknownNameError: no such name; the nearest are listed.
        MissingPackageError: its module needs a package that is not installed.
    """
    reward = resolve("rewards", name)
    summary, body = _split(inspect.getdoc(reward))
    passages = list(_passages(body))
    texts, labeled = [text for label, text in passages if not label], dict(passages)
    example = labeled.pop("Example", f"{{name: {name}}}").strip("` .")
    where = ["evaluation:", "  rewards:"] if summary.startswith("Evaluation") else ["rewards:"]
    lines = [f"# {name}", "", _marked(summary), "", "```yaml", *where, f"{'  ' * len(where)}- {example}", "```", ""]
    for text in texts:
        lines += [_marked(text), ""]
    lines += ["## Settings", "", *_settings(reward, labeled.pop("Settings", ""))]
    lines += [f"* **{label}**: {_marked(text)}" for label, text in labeled.items() if label]
    return "\n".join(lines).rstrip() + "\n"


def rewards_index() -> str:
    """The index of the project's rewards in Markdown: a table per kind, whose rows link to the pages."""
    lines = [PREAMBLE]
    for kind, members in by_kind().items():
        rows = [
            f"| [`{name}`]({name}.md) | {summary_of(name).replace('|', chr(92) + '|')} |"
            for name in members
            if name in REWARDS
        ]
        lines += ["", f"## {kind}", "", "| name | score |", "| --- | --- |", *rows] if rows else []
    return "\n".join(lines) + "\n"


def reward_pages() -> dict[str, str]:
    """File name -> Markdown: the index, and the page of every reward of the project."""
    return {"index.md": rewards_index(), **{f"{name}.md": page_of(name) for name in REWARDS}}


def _split(docstring: str | None) -> tuple[str, str]:
    """The first paragraph of a docstring without "Reward:", on one line, and the rest."""
    summary, _, body = (docstring or "").partition("\n\n")
    return " ".join(summary.split()).removeprefix("Reward: "), body


def _passages(body: str) -> Iterator[tuple[str, str]]:
    """(label or "", text) of each paragraph, and of each labeled passage within one."""
    for paragraph in _SECOND_LABEL.sub("\n", body.strip()).split("\n\n"):
        entries: list[str] = []
        for line in paragraph.splitlines():
            if _LABEL.match(line) or not entries:
                entries.append(line.strip())
            else:
                entries[-1] += f" {line.strip()}"
        for entry in entries:
            label = _LABEL.match(entry)
            yield (label[1], entry[label.end() :]) if label else ("", entry)


def _settings(reward: Any, text: str) -> Iterator[str]:
    parameters = inspect.signature(reward).parameters.values()
    hints = typing.get_type_hints(reward.__init__ if isinstance(reward, type) else reward)
    if text:
        yield from (_marked(text), "")
    if parameters:
        yield from ("| setting | type | default |", "| --- | --- | --- |")
    else:
        yield "None."
    for parameter in parameters:
        default = "required" if parameter.default is parameter.empty else value_text(parameter.default)
        kind = type_name(hints[parameter.name]) if parameter.name in hints else ""
        yield f"| `{parameter.name}` | {kind} | {default} |"
    yield from ("", f"Those of every reward: {', '.join(f'`{key}`' for key in SHARED)}.", "")


def _escaped(text: str) -> str:
    """A text with escaped Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>()#+.!|~-])", r"\\\1", text)


def _marked(text: str) -> str:
    """Single for double backticks, and escaped stars outside of them."""
    pieces = re.split(r"``(.*?)``", text)
    return "".join(f"`{piece}`" if i % 2 else piece.replace("*", r"\*") for i, piece in enumerate(pieces))
