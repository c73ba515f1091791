"""MEML-GRPO, arXiv:2508.09670.

Members are sampled under different system prompts, and the right answers of the best prompt are evaluated under the
weakest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from mmgrpo.data.history import NOTHING, History, prompt_template
from mmgrpo.data.prompt_templates import PROMPT_TEMPLATES
from mmgrpo.errors import ConfigError
from mmgrpo.types import Prompt


def _check_systems(texts: Sequence[str]) -> None:
    if not texts:
        raise ConfigError("systems needs at least one text")


@PROMPT_TEMPLATES.register
@prompt_template(check=_check_systems)
def systems(prompt: Prompt, member: int, history: History = NOTHING, *, texts: Sequence[str]) -> Prompt:
    """A system text before the prompt, another for each member in turn: member m has text m modulo their number.

    Raises: ConfigError for no texts.
    """
    del history
    return _with_system_text(prompt, texts[member % len(texts)])


def _check_weakest_system(texts: Sequence[str]) -> None:
    if len(texts) < 2:
        raise ConfigError("weakest_system needs the system text of each part of a group, two at least")


@PROMPT_TEMPLATES.register
@prompt_template(check=_check_weakest_system)
def weakest_system(
    prompt: Prompt, member: int, history: History = NOTHING, *, texts: Sequence[str], right: float = 1.0
) -> Prompt | None:
    """The prompt of the part of the group that is right least often; only for views.

    It is the prompt of right answers of the part that is right most often; other answers have no view. A part are
    the members that were sampled in one of ``rollout.prompt_templates``; ``texts`` are the system texts of these, in
    the order of the members. Of equals the first is the most and the least often right one; where all are equally often
    right there is no view.

    Units: right in those of the reward.
    Raises: ConfigError for fewer than two texts, or another number of them than the group has parts.
    Source: MEML-GRPO, arXiv:2508.09670, the worst expert's prompt for the right answers of the best.
    """
    parts: dict[str | None, dict[int, bool]] = {}
    scored = zip(history.samples, history.rewards, strict=True)
    for sample, reward in sorted(scored, key=lambda scored_sample: scored_sample[0].member):
        parts.setdefault(sample.prompt_template, {})[sample.member] = reward is not None and reward >= right
    if not parts:
        return None
    if len(parts) != len(texts):
        raise ConfigError(
            f"weakest_system has {len(texts)} texts, but the group was sampled in {len(parts)} prompt templates: set "
            "the system text of each"
        )
    rates = [fmean(part.values()) for part in parts.values()]
    best = list(parts.values())[rates.index(max(rates))]
    if min(rates) == max(rates) or not best.get(member):
        return None
    return _with_system_text(prompt, texts[rates.index(min(rates))])


def _with_system_text(prompt: Prompt, text: str) -> Prompt:
    messages = prompt.messages or [{"role": "user", "content": prompt.text}]
    turns = [turn for turn in messages if turn.get("role") != "system"]
    return replace(prompt, messages=[{"role": "system", "content": text}, *turns])
