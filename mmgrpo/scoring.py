"""Asks every reward about every sample, and keeps apart what does not apply, what failed and what is zero."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from inspect import Parameter, isawaitable, signature
from typing import Any, final

import torch

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.media import Gallery
from mmgrpo.reward import Reward
from mmgrpo.types import Prompt, Sample, Scores

logger = logging.getLogger(__name__)

_GIVEN = ("prompts", "completions", "completion_ids", "image", "images", "videos")
_LOGGING = ("log_extra", "log_metric")
_ABSENT = ("trainer_state", "environments")
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
    """The function itself, or its adapter if it is in TRL's form.

    It is, if it has a parameter called ``completions`` or ``completion_ids``, or takes only keywords. It is then called
    with lists, one entry per sample, by keyword and only with what it names (everything, if it takes ``**``):
    ``prompts``, ``completions``, ``completion_ids``, ``images`` (opened where they are looked at), ``videos`` and the
    prompts' columns; if it names it, also ``image``, the first. For a chat prompt ``prompts`` has its messages, with
    the images in their places if the function names ``prompts``, and ``completions`` the text as one assistant message;
    for any other prompt both are texts. Policies that draw have their image or video as the completion. A coroutine is
    run to its end.

    A sample whose prompt lacks a column that the function requires (a parameter without a default) is left out of the
    call and gets None; any other missing entry is None in its list.

    Source: TRL 1.16 ``GRPOTrainer``, custom reward functions. Deviation: what ``log_extra`` and ``log_metric``
    record is dropped, and there is no ``trainer_state``.

    Raises ConfigError for a function that requires ``trainer_state`` or ``environments``.
    """
    try:
        parameters = signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature is no TRL function
        return function
    anything = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
    only_keywords = all(p.kind in (Parameter.VAR_KEYWORD, Parameter.KEYWORD_ONLY) for p in parameters.values())
    if not ({"completions", "completion_ids"} & parameters.keys() or (anything and only_keywords)):
        return function
    named = [p for p in parameters.values() if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)]
    required = [p.name for p in named if p.default is Parameter.empty and p.name not in _GIVEN]
    absent = [name for name in required if name in _ABSENT]
    if absent:
        raise ConfigError(
            f"{_name(function)} requires {', '.join(absent)}, which only TRL's trainer has; give it a default"
        )
    return TrlReward(
        function,
        named=frozenset(p.name for p in named),
        anything=anything,
        required=tuple(name for name in required if name not in _LOGGING),
        dropped=tuple(name for name in required if name in _LOGGING),
    )


@final
class TrlReward:
    """A reward function in TRL's form, as a ``Reward``; made by ``as_reward``."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        named: frozenset[str],
        anything: bool,
        required: Sequence[str],
        dropped: Sequence[str],
    ) -> None:
        """Wraps a function.

        Args:
            function: the function in TRL's form.
            named: keywords it names.
            anything: whether it takes any other as well.
            required: columns without which it does not apply to a sample.
            dropped: loggers that it requires; what it gives them is dropped.
        """
        self._function = function
        self._named = named
        self._anything = anything
        self._required = required
        self._dropped = dropped

    def __call__(self, samples: Sequence[Sample]) -> Sequence[float | None]:
        rows = [i for i, s in enumerate(samples) if all(name in s.prompt.columns for name in self._required)]
        if not rows:
            have = sorted({name for sample in samples for name in sample.prompt.columns})
            logger.warning(
                "%s applies to no sample: it requires columns %s, the prompts have %s",
                _name(self._function), self._required, have,
            )  # fmt: skip
            return [None] * len(samples)
        given = _as_list(self._called([samples[i] for i in rows]), len(rows))
        values: list[Any] = [None] * len(samples)
        for i, value in zip(rows, given, strict=True):
            values[i] = value
        return values

    def _called(self, samples: Sequence[Sample]) -> Any:
        try:
            returned = self._function(**self._arguments(samples), **dict.fromkeys(self._dropped, _drop))
            return _awaited(returned) if isawaitable(returned) else returned
        except TypeError as error:
            if "string indices must be integers" in str(error) and any(not _is_chat(sample) for sample in samples):
                raise RewardError(
                    f"{_name(self._function)} reads completions as chat messages ({error}), but the prompts are plain "
                    f"texts, and so are the completions: give the prompts as messages, [{{role: user, content: ..}}]"
                ) from error
            raise

    def _arguments(self, samples: Sequence[Sample]) -> dict[str, list[Any]]:
        columns = {name for sample in samples for name in sample.prompt.columns}.difference(_GIVEN)
        arguments = {name: [sample.prompt.columns.get(name) for sample in samples] for name in sorted(columns)}
        looks = "prompts" in self._named
        arguments |= {
            "prompts": _of_each_prompt(samples, lambda prompt: _asked(prompt, placed=looks)),
            "completions": [_completion(sample) for sample in samples],
            "completion_ids": [None if sample.tokens is None else list(sample.tokens) for sample in samples],
            "images": [Gallery(sample.prompt.images) for sample in samples],
            "videos": [list(sample.prompt.videos) for sample in samples],
        }
        if "image" in self._named:
            arguments["image"] = _of_each_prompt(samples, lambda prompt: next(iter(Gallery(prompt.images)), None))
        return {name: list_ for name, list_ in arguments.items() if self._anything or name in self._named}


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


def _is_chat(sample: Sample) -> bool:
    return sample.prompt.messages is not None


def _of_each_prompt(samples: Sequence[Sample], function: Callable[[Prompt], Any]) -> list[Any]:
    """What a function makes of each sample's prompt; made once for the samples that share it."""
    made: dict[int, Any] = {}
    for sample in samples:
        if id(sample.prompt) not in made:
            made[id(sample.prompt)] = function(sample.prompt)
    return [made[id(sample.prompt)] for sample in samples]


def _asked(prompt: Prompt, *, placed: bool) -> Any:
    """The text, or the messages; if ``placed``, with the images in them, and contents that are lists of parts.

    Source: TRL 1.16 ``prepare_multimodal_messages``: without places the images stand before the first user's text.
    """
    if prompt.messages is None or not placed or not prompt.images:
        return prompt.text if prompt.messages is None else prompt.messages
    images = iter(Gallery(prompt.images))
    have_places = any(_is_place(part) for message in prompt.messages for part in _parts(message))
    messages: list[dict[str, Any]] = []
    for message in prompt.messages:
        parts = [{**part, "image": next(images, None)} if _is_place(part) else part for part in _parts(message)]
        if message["role"] == "user" and not have_places:
            parts = [*({"type": "image", "image": image} for image in images), *parts]
        messages.append({**message, "content": parts})
    return messages


def _parts(message: Mapping[str, Any]) -> Sequence[Any]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _is_place(part: Mapping[str, Any]) -> bool:
    return part.get("type") == "image" and "image" not in part


def _completion(sample: Sample) -> Any:
    if sample.text is not None:
        return [{"role": "assistant", "content": sample.text}] if _is_chat(sample) else sample.text
    return sample.image if sample.image is not None else sample.video


def _awaited(coroutine: Any) -> Any:
    """What a coroutine returns, on a thread of its own: the caller may be within an event loop, as notebooks are."""

    async def wait() -> Any:
        return await coroutine

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, wait()).result()


def _drop(*recorded: Any, **more: Any) -> None:
    """Stands in for TRL's loggers."""


def _name(function: Any) -> str:
    return getattr(function, "__name__", repr(function))


def _log_failure(name: str, B: int, error: Exception) -> None:
    first = name not in _traceback_shown
    _traceback_shown.add(name)
    kind = type(error).__name__
    logger.warning(
        "reward '%s' raised %s: %s; its %d samples are masked", name, kind, error, B, exc_info=error if first else None
    )
