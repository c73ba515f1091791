"""Rubrics: weighted criteria of a response, with vetoes and sufficient criteria."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmgrpo.types import Score

from ..parsing.explanations import excerpt, parts
from ..parsing.extraction import finite

MET = 0.5
"""Minimum value for a criterion with a veto to be met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """A property that a response should have, or, with a weight below 0, should not have.

    Attributes:
        criterion: description of the criterion.
        weight: its contribution to the score if met.
        veto: the score is 0 unless it is met.
        enough: the score is 1 if all such are met.
    """

    criterion: str
    weight: float = 1.0
    veto: bool = False
    enough: bool = False


def rubric_of(value: Any) -> list[Criterion] | None:
    """Parse a rubric from a list of ``{criterion, weight, veto, enough}`` or of texts; None for anything else, or
    without a weight above 0.
    """
    items: list[Any] = (
        [{"criterion": item} if isinstance(item, str) else item for item in value] if isinstance(value, list) else []
    )
    if not items or not all(_is_criterion(item) for item in items):
        return None
    rubric = [
        Criterion(
            criterion=item["criterion"],
            weight=float(item.get("weight", 1)),
            veto=item.get("veto", False),
            enough=item.get("enough", False),
        )
        for item in items
    ]
    return rubric if any(item.weight > 0 for item in rubric) else None


def rubric_score(rubric: Sequence[Criterion], scores: Sequence[float]) -> Score:
    """The weighted fraction of a rubric that a response meets, from 0 to 1.

    R = clip(sum_i w_i v_i / sum_{w_i > 0} w_i, 0, 1), or 0 if a criterion with a veto has v_i below 0.5, else 1 if all
    criteria with ``enough`` have at least 0.5. A criterion with v_i NaN is excluded from both sums and not met; if it
    has a veto, or no criterion with a positive weight remains, there is no score.

    Args:
        rubric: the criteria.
        scores: degree to which each is met, from 0 to 1.

    Returns:
        The score, NaN if undefined, with the values of the criteria as ``parts``.
    """
    scored = [(criterion, score) for criterion, score in zip(rubric, scores, strict=True) if math.isfinite(score)]
    explanation = parts(
        {
            f"{i}. {excerpt(criterion.criterion)}": v
            for i, (criterion, v) in enumerate(zip(rubric, scores, strict=True), 1)
        }
    )
    total = sum(criterion.weight for criterion, _ in scored if criterion.weight > 0)
    is_undecided = any(criterion.veto and not math.isfinite(v) for criterion, v in zip(rubric, scores, strict=True))
    if is_undecided or total == 0:
        return Score(math.nan, explanation)
    vetoed = [criterion.criterion for criterion, score in scored if criterion.veto and score < MET]
    if vetoed:
        return Score(0.0, explanation | {"reason": f"vetoed: {excerpt(vetoed[0])}"})
    enough = [score for criterion, score in zip(rubric, scores, strict=True) if criterion.enough]
    if enough and all(score >= MET for score in enough):
        return Score(1.0, explanation | {"reason": "all sufficient criteria are met"})
    return Score(min(max(sum(criterion.weight * score for criterion, score in scored) / total, 0.0), 1.0), explanation)


def _is_criterion(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and set(value) <= {"criterion", "weight", "veto", "enough"}
        and isinstance(value.get("criterion"), str)
        and finite(value.get("weight", 1)) is not None
        and all(isinstance(value.get(name, False), bool) for name in ("veto", "enough"))
    )
