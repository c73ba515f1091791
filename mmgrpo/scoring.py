"""Asks every reward about every sample, and keeps apart what does not apply, what failed and what is zero."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, final

import torch

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Scores

logger = logging.getLogger(__name__)

_MEDIA = ("prompts", "completions", "completion_ids", "images", "videos")
_traceback_shown: set[str] = set()  # reward names; one traceback per reward and process is enough


@dataclass(frozen=True, slots=True)
class NamedReward:
    """A reward, what it is called in the metrics, and its weight in the total.

    Attributes:
        name: the NAME of ``reward/NAME/mean``.
        function: a ``Reward``, or a function in TRL's form, which is adapted here.
        weight: factor in the weighted sum; negative punishes, 0 only reports.
    """

    name: str
    function: Callable[..., Sequence[float | None]]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a reward needs a name that is not empty")
        if not math.isfinite(self.weight):
            raise ConfigError(f"weight of reward '{self.name}' must be a finite number, got {self.weight}")
        object.__setattr__(self, "function", as_reward(self.function))


def score(samples: Sequence[Sample], rewards: Sequence[NamedReward], *, max_failure_frac: float = 0.25) -> Scores:
    """Calls every reward once, on all samples.

    None means that the reward does not apply to the sample. NaN and infinity (in float32) count as failures of that
    sample; a reward that raises fails on every sample of the call. What failed is masked and counted, never a zero.

    A reward that can fail on single samples should return NaN for those.

    Raises: ConfigError for no rewards or two of one name; RewardError at once for a reward that returns the wrong
    number of values or something other than numbers, or raises RewardError itself, and when a reward fails on more
    than ``max_failure_frac`` of the samples.
    """
    names = tuple(reward.name for reward in rewards)
    if not rewards or len(set(names)) != len(names):
        raise ConfigError(f"rewards must be one or more, each with its own name, got {list(names)}")
    columns = [_score_one(samples, reward, max_failure_frac) for reward in rewards]
    value_BR = torch.stack([column.value_B for column in columns], dim=1)
    return Scores(
        names=names,
        weight_R=torch.tensor([reward.weight for reward in rewards], dtype=torch.float32),
        value_BR=value_BR,
        valid_BR=torch.stack([column.valid_B for column in columns], dim=1),
        failures={name: column.num_failed for name, column in zip(names, columns, strict=True)},
    )


def as_reward(function: Callable[..., Any]) -> Reward:
    """The function itself, or its adapter if it is in TRL's form: if it has a parameter called ``completions``.

    A TRL function is called with lists, one entry per sample, by keyword and only with what it names (everything, if
    it takes ``**``): ``prompts`` (text, or the chat messages), ``completions`` (the generated text, image or video; for
    a chat prompt the text as one assistant message), ``completion_ids``, ``images``, ``videos``, and the prompts'
    columns. A sample whose prompt lacks a column that the function requires (a parameter without a default) is left
    out of the call and gets None; any other missing entry is None in its list.

    Source: TRL 1.16 ``GRPOTrainer``, custom reward functions. Deviation: its trainer-state and logging arguments are
    not passed.
    """
    try:
        parameters = signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature is no TRL function
        return function
    if "completions" not in parameters:
        return function
    named = [p for p in parameters.values() if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)]
    return TrlReward(
        function,
        accepted=None if any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values()) else {p.name for p in named},
        required=tuple(p.name for p in named if p.default is Parameter.empty and p.name not in _MEDIA),
    )


@final
class TrlReward:
    """A reward function in TRL's form, as a ``Reward``; made by ``as_reward``."""

    def __init__(self, function: Callable[..., Any], *, accepted: set[str] | None, required: Sequence[str]) -> None:
        """Wraps a function.

        Args:
            function: the function in TRL's form.
            accepted: keywords it takes; None means any.
            required: columns without which it does not apply to a sample.
        """
        self._function = function
        self._accepted = accepted
        self._required = required

    def __call__(self, samples: Sequence[Sample]) -> Sequence[float | None]:
        rows = [i for i, s in enumerate(samples) if all(name in s.prompt.columns for name in self._required)]
        if not rows:
            have = sorted({name for sample in samples for name in sample.prompt.columns})
            name = getattr(self._function, "__name__", repr(self._function))
            logger.warning(
                "%s applies to no sample: it requires columns %s, the prompts have %s", name, self._required, have
            )
            return [None] * len(samples)
        returned = self._function(**self._arguments([samples[i] for i in rows]))
        given = _as_list(returned, len(rows))
        values: list[Any] = [None] * len(samples)
        for i, value in zip(rows, given, strict=True):
            values[i] = value
        return values

    def _arguments(self, samples: Sequence[Sample]) -> dict[str, list[Any]]:
        columns = {name for sample in samples for name in sample.prompt.columns}.difference(_MEDIA)
        arguments = {name: [sample.prompt.columns.get(name) for sample in samples] for name in sorted(columns)}
        arguments |= {
            "prompts": [s.prompt.text if s.prompt.messages is None else s.prompt.messages for s in samples],
            "completions": [_completion(sample) for sample in samples],
            "completion_ids": [sample.tokens for sample in samples],
            "images": [list(sample.prompt.images) for sample in samples],
            "videos": [list(sample.prompt.videos) for sample in samples],
        }
        return {name: list_ for name, list_ in arguments.items() if self._accepted is None or name in self._accepted}


@dataclass(frozen=True, slots=True)
class _Column:
    value_B: torch.Tensor
    valid_B: torch.Tensor
    num_failed: int


def _score_one(samples: Sequence[Sample], reward: NamedReward, max_failure_frac: float) -> _Column:
    B = len(samples)
    try:
        returned = reward.function(samples)
    except RewardError as error:
        raise RewardError(f"reward '{reward.name}': {error}") from error
    except Exception as error:  # a reward is foreign code: whatever it raises is a counted failure
        _log_failure(reward.name, B, error)
        if max_failure_frac < 1:
            reason = f"it raised {type(error).__name__}: {error}"
            raise RewardError(_too_many(reward.name, B, B, max_failure_frac, reason)) from error
        return _Column(torch.zeros(B), torch.zeros(B, dtype=torch.bool), B)
    column = _read(reward.name, returned, B)
    if column.num_failed > max_failure_frac * B:
        raise RewardError(_too_many(reward.name, column.num_failed, B, max_failure_frac, "it gave NaN or infinity"))
    return column


def _too_many(name: str, num_failed: int, B: int, max_failure_frac: float, reason: str) -> str:
    return (
        f"reward '{name}' failed on {num_failed} of {B} samples ({num_failed / B:.0%}), where at most "
        f"{max_failure_frac:.0%} may fail: {reason}. Mend the reward, let it return None for samples that it does not "
        f"apply to, or raise max_failure_frac if such failures are expected."
    )


def _read(name: str, returned: Any, B: int) -> _Column:
    """The returned values as float32; what is None or not finite is masked, and the latter counted."""
    try:
        values = _as_list(returned, B)
        numbers = [math.nan if value is None else _as_number(value) for value in values]
    except RewardError as error:
        raise RewardError(f"reward '{name}': {error}") from error
    applies_B = torch.tensor([value is not None for value in values], dtype=torch.bool)
    value_B = torch.tensor(numbers, dtype=torch.float32)
    valid_B = value_B.isfinite() & applies_B
    num_failed = int((applies_B & ~valid_B).sum())
    if num_failed:
        logger.warning("reward '%s' gave NaN or infinity for %d of %d samples; they are masked", name, num_failed, B)
    return _Column(torch.where(valid_B, value_B, 0.0), valid_B, num_failed)


def _as_list(returned: Any, expected: int) -> list[Any]:
    if returned is None or isinstance(returned, str | bytes | dict):
        raise RewardError(f"expected a sequence of {expected} numbers or None, got {_describe(returned)}")
    try:
        values = list(returned)
    except TypeError as error:
        raise RewardError(f"expected a sequence of {expected} numbers or None, got {_describe(returned)}") from error
    if len(values) != expected:
        raise RewardError(f"expected {expected} values, one per sample in order, got {len(values)}")
    return values


def _as_number(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise RewardError(f"every value must be a number or None, got {_describe(value)}")
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise RewardError(f"every value must be a number or None, got {_describe(value)}") from error


def _describe(value: Any) -> str:
    return "None; is a return missing?" if value is None else f"{value!r:.60} of type {type(value).__name__}"


def _completion(sample: Sample) -> Any:
    if sample.text is not None:
        chat = sample.prompt.messages is not None
        return [{"role": "assistant", "content": sample.text}] if chat else sample.text
    return sample.image if sample.image is not None else sample.video


def _log_failure(name: str, B: int, error: Exception) -> None:
    first = name not in _traceback_shown
    _traceback_shown.add(name)
    kind = type(error).__name__
    logger.warning(
        "reward '%s' raised %s: %s; its %d samples are masked", name, kind, error, B, exc_info=error if first else None
    )
