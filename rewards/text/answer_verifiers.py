"""The answer rewards that other rewards can use as verifiers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from .answers import Classification, ExactMatch, YesNo
from .choices import MultipleChoice
from .mathematics import MathVerify
from .quantities import CountMatch, Number

Judge = Callable[[Sequence[Sample]], Sequence[float | Score | None]]

JUDGES: Mapping[str, Callable[..., Judge]] = {
    "math_verify": MathVerify,
    "exact_match": ExactMatch,
    "multiple_choice": MultipleChoice,
    "yes_no": YesNo,
    "classification": Classification,
    "number": Number,
    "count": CountMatch,
}


def judge_of(where: str, named: str | Mapping[str, Any] | Judge) -> Judge:
    """Build the verifier that a setting names.

    Args:
        where: the setting, for messages.
        named: a name of ``JUDGES``, a mapping with the name and its settings, or a callable.

    Returns:
        The verifier.

    Raises:
        ConfigError: unknown verifier or setting.
    """
    if callable(named):
        return named
    settings: dict[str, Any] = {"name": named} if isinstance(named, str) else dict(named)
    name = str(settings.pop("name", None))
    if name not in JUDGES:
        raise ConfigError(f"{where} must be one of {', '.join(JUDGES)} with its settings, got {named!r}")
    try:
        return JUDGES[name](**settings)
    except TypeError as error:
        raise ConfigError(f"{where} ({name}): {error}") from error
