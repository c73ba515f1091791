"""Examples of an auxiliary supervised loss that come from the groups of the update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mmgrpo.errors import ConfigError
from mmgrpo.maths.registry import Registry

ANSWER_SOURCES: Registry[Callable[..., AnswerSource]] = Registry(arguments=())
"""Sources by the name that an item of ``objective.auxiliary`` uses; other names are functions of examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSource:
    """A text or image of each group that the policy is supervised by.

    Attributes:
        column: of the reference answer in the group's row; None: the forced prefixes of the group's samples.
        per_prompt_template: whether an answer counts once for each prompt template of its group, not once for it.
        weight_by_success: function of the share of right samples, with its settings, that weighs an answer; None: 1.
        right: least reward of a right sample.
    """

    column: str | None = None
    per_prompt_template: bool = False
    weight_by_success: Mapping[str, Any] | str | None = None
    right: float = 1.0

    @property
    def whose_success(self) -> str:
        """The success rate that weighs an answer, in words."""
        return "of the part's success" if self.per_prompt_template else "of the group's success"


@ANSWER_SOURCES.register
def answers(
    *,
    column: str,
    per_prompt_template: bool = False,
    weight_by_success: Mapping[str, Any] | str | None = None,
    right: float | None = None,
) -> AnswerSource:
    """The answers in a column of the rows of the update's groups: texts, or images or frames where those are generated.

    ``per_prompt_template: true`` trains on an answer once for each prompt template that its group was sampled under:
    after the prompt of that template, weighted by the success of those samples. ``weight_by_success: {name: below,
    rate: 0.25}`` weighs an answer by the share of on-policy samples with a reward of at least ``right``, by default 1.

    Raises: ConfigError for ``right`` without ``weight_by_success``.
    """
    if right is not None and weight_by_success is None:
        raise ConfigError(
            "objective.auxiliary: right of answers is for weight_by_success, which is not set: leave it out or set both"
        )
    return AnswerSource(
        column=column,
        per_prompt_template=per_prompt_template,
        weight_by_success=weight_by_success,
        right=1.0 if right is None else right,
    )
