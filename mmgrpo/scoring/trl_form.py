"""Adapter for TRL's reward functions, called by keyword with lists of prompts, completions and columns."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from inspect import Parameter, isawaitable, iscoroutinefunction
from typing import Any, final

from mmgrpo.data.image_loading import LazyImages
from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.reward import Reward
from mmgrpo.samples import MEDIA, Turn
from mmgrpo.scoring.image_batch_form import ImageBatchReward, is_image_batch_form, parameters_of
from mmgrpo.scoring.logged_values import LoggedValues
from mmgrpo.scoring.result_parsing import to_list
from mmgrpo.tool_calls import without_calls
from mmgrpo.types import Prompt, Sample

logger = logging.getLogger(__name__)

_MARKS = ("completions", "completion_ids", "environments")
_STANDARD_KEYWORDS = ("prompts", *_MARKS, "image", "images", "videos", "audios")
_LOGGING = ("log_extra", "log_metric")
_STATE = "trainer_state"


def as_reward(function: Callable[..., Any]) -> Reward:
    """The function itself, or its adapter if it has flow_grpo's signature (``ImageBatchReward``) or TRL's.

    A function has TRL's signature if it has a parameter ``completions``, ``completion_ids`` or ``environments``, or
    takes only keywords.
    It is called with lists, one entry per sample, by keyword and only with its named parameters (all, if it takes
    ``**``): ``prompts``, ``completions``, ``completion_ids``, ``images`` (opened on access), ``videos`` and the columns
    of the prompts; if named, also ``image``, the first one. For a chat prompt ``prompts`` has its messages, with the
    images at their placeholders if the function names ``prompts``, and ``completions`` the text as one assistant
    message; for any other prompt both are texts. For image and video policies the completion is the image or video.
    Coroutines are awaited, those of several rewards concurrently on one event loop. ``environments`` has the object of
    each sample's conversation (of ``environment_factory``), as it is after the conversation; a function that requires
    it is not called for samples without one, which get None.
    The completion of a conversation is its messages: one of the assistant for each turn, and the environment's replies,
    as content blocks if they have images.

    A sample whose prompt lacks a required column (a parameter without a default) is excluded from the call and gets
    None; any other missing entry is None in its list.

    ``log_extra`` and ``log_metric`` log to the explanations of the samples that get a number (``LoggedValues``); the
    metric of ``log_metric`` is ``custom/NAME``.

    Source: TRL 1.16 ``GRPOTrainer``, custom reward functions. Deviation: there is no ``trainer_state``, which
    ``mmgrpo.trl.GRPOTrainer`` has.

    Raises ConfigError for a function that requires ``trainer_state``.
    """
    try:
        parameters = parameters_of(function)
    except (TypeError, ValueError):  # a builtin without a signature is no TRL function
        return function
    if is_image_batch_form(parameters):
        return ImageBatchReward(function)
    anything = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
    only_keywords = all(p.kind in (Parameter.VAR_KEYWORD, Parameter.KEYWORD_ONLY) for p in parameters.values())
    if not (set(_MARKS) & parameters.keys() or (anything and only_keywords)):
        return function
    return TrlReward(function)


@final
class TrlReward:
    """A reward function with TRL's signature, as a ``Reward``; see ``as_reward``.

    Attributes:
        is_async: whether it is a coroutine function, which waits while other rewards run.
        reads_environments: whether it names ``environments``.
        needs_columns: columns that it requires.
    """

    def __init__(self, function: Callable[..., Any], trainer_state: Callable[[], Any] | None = None) -> None:
        """Wraps a function.

        Args:
            function: the function with TRL's signature.
            trainer_state: returns the argument ``trainer_state``; None: there is none.

        Raises:
            ConfigError: it requires a ``trainer_state``, and there is none.
        """
        parameters = parameters_of(function)
        named = [p for p in parameters.values() if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)]
        required = [p.name for p in named if p.default is Parameter.empty and p.name not in _STANDARD_KEYWORDS]
        if trainer_state is None and _STATE in required:
            raise ConfigError(
                f"{_name(function)} requires {_STATE}, which only mmgrpo.trl.GRPOTrainer has; give it a default"
            )
        self._function = function
        self._trainer_state = trainer_state
        self._named = frozenset(p.name for p in named)
        self._anything = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
        self._required = tuple(name for name in required if name not in (*_LOGGING, _STATE))
        self.is_async = _is_async(function)
        self.reads_environments = "environments" in self._named
        self.needs_columns = self._required

    def __call__(self, samples: Sequence[Sample]) -> Sequence[float | None]:
        if self.reads_environments and any(sample.environment and _object_of(sample) is None for sample in samples):
            raise RewardError(
                f"{_name(self._function)} reads the objects of conversations, which stay in the process that sampled "
                "them: a reward that calls it needs the attribute reads_environments = True"
            )
        rows = [
            i
            for i, sample in enumerate(samples)
            if all(name in sample.prompt.columns for name in self._required)
            and not (self.reads_environments and _object_of(sample) is None)
        ]
        if not rows:
            have = sorted({name for sample in samples for name in sample.prompt.columns})
            logger.warning(
                "%s applies to no sample: it requires columns %s, the prompts have %s",
                _name(self._function), self._required, have,
            )  # fmt: skip
            return [None] * len(samples)
        logged = LoggedValues()
        returned = logged.explained(to_list(self._called([samples[i] for i in rows], logged), len(rows)))
        values: list[Any] = [None] * len(samples)
        for i, value in zip(rows, returned, strict=True):
            values[i] = value
        return values

    def _called(self, samples: Sequence[Sample], logged: LoggedValues) -> Any:
        try:
            returned = self._function(**self._arguments(samples, logged))
            return _awaited(returned) if isawaitable(returned) else returned
        except TypeError as error:
            if "string indices must be integers" in str(error) and any(not _is_chat(sample) for sample in samples):
                raise RewardError(
                    f"{_name(self._function)} reads completions as chat messages ({error}), but the prompts are plain "
                    f"texts, and so are the completions: give the prompts as messages, [{{role: user, content: ..}}]"
                ) from error
            raise

    def _arguments(self, samples: Sequence[Sample], logged: LoggedValues) -> dict[str, Any]:
        columns = {name for sample in samples for name in sample.prompt.columns}.difference(_STANDARD_KEYWORDS)
        arguments: dict[str, Any] = {
            name: [sample.prompt.columns.get(name) for sample in samples] for name in sorted(columns)
        }
        looks = "prompts" in self._named
        arguments |= {
            "prompts": _of_each_prompt(samples, lambda prompt: _prompt_argument(prompt, placed=looks)),
            "completions": [_completion(sample) for sample in samples],
            "completion_ids": [None if sample.tokens is None else list(sample.tokens) for sample in samples],
            "images": [LazyImages(sample.prompt.images) for sample in samples],
            "videos": [list(sample.prompt.videos) for sample in samples],
            "audios": [list(sample.prompt.audios) for sample in samples],
            "log_extra": logged.log_extra,
            "log_metric": logged.log_metric,
        }
        if (objects := [_object_of(sample) for sample in samples]) and objects[0] is not None:
            arguments["environments"] = objects
        if "image" in self._named:
            arguments["image"] = _of_each_prompt(samples, lambda prompt: next(iter(LazyImages(prompt.images)), None))
        if self._trainer_state is not None:
            arguments[_STATE] = self._trainer_state()
        return {name: value for name, value in arguments.items() if self._anything or name in self._named}


def _is_chat(sample: Sample) -> bool:
    return sample.prompt.messages is not None


def _of_each_prompt(samples: Sequence[Sample], function: Callable[[Prompt], Any]) -> list[Any]:
    """``function(prompt)`` of each sample; computed once for samples that share a prompt."""
    by_prompt: dict[int, Any] = {}
    for sample in samples:
        if id(sample.prompt) not in by_prompt:
            by_prompt[id(sample.prompt)] = function(sample.prompt)
    return [by_prompt[id(sample.prompt)] for sample in samples]


def _prompt_argument(prompt: Prompt, *, placed: bool) -> Any:
    """The text, or the messages; if ``placed``, with images at their placeholders and contents as lists of parts.

    Source: TRL 1.16 ``prepare_multimodal_messages``: without placeholders the images precede the text of the first user
        message.
    """
    if prompt.messages is None or not placed or not prompt.images:
        return prompt.text if prompt.messages is None else prompt.messages
    images = iter(LazyImages(prompt.images))
    has_placeholders = any(_is_image_placeholder(part) for message in prompt.messages for part in _parts(message))
    messages: list[dict[str, Any]] = []
    for message in prompt.messages:
        parts = [
            {**part, "image": next(images, None)} if _is_image_placeholder(part) else part for part in _parts(message)
        ]
        if message["role"] == "user" and not has_placeholders:
            parts = [*({"type": "image", "image": image} for image in images), *parts]
        messages.append({**message, "content": parts})
    return messages


def _parts(message: Mapping[str, Any]) -> Sequence[Any]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _is_image_placeholder(part: Mapping[str, Any]) -> bool:
    return part.get("type") == "image" and "image" not in part


def _object_of(sample: Sample) -> Any:
    return None if sample.environment is None else sample.environment.instance


def _conversation(sample: Sample) -> list[dict[str, Any]]:
    """The turns of a conversation as messages, those with calls with ``tool_calls`` in place of the calls' text."""
    messages: list[dict[str, Any]] = []
    contents = sample.turn_contents or [None] * len(sample.turn_texts)
    for text, reply, parsed in zip(sample.turn_texts, sample.turn_replies, contents, strict=True):
        results = () if reply is None else reply.results
        calls = [{"type": "function", "function": {"name": r.name, "arguments": dict(r.arguments)}} for r in results]
        content = text
        if results and all(result.name for result in results):
            content = without_calls(text)
            if content == text and parsed is not None:  # calls in the format of another template
                content = parsed
        messages.append({"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})})
        if reply is not None and results:
            messages += [
                {"role": "tool", "name": result.name, "content": _content(turn)}
                for result, turn in zip(results, reply.result_turns, strict=True)
            ]
        elif reply is not None and not reply.ends:
            messages.append({"role": reply.role, "content": _content(reply)})
    return messages


def _content(turn: Turn) -> Any:
    """The text, or content blocks with the media before it."""
    blocks = [{"type": kind, kind: medium} for kind, name in MEDIA.items() for medium in getattr(turn, name)]
    return [*blocks, {"type": "text", "text": turn.text}] if blocks else turn.text


def _completion(sample: Sample) -> Any:
    if sample.turn_replies and _is_chat(sample):
        return _conversation(sample)
    if sample.text is not None:
        return [{"role": "assistant", "content": sample.text}] if _is_chat(sample) else sample.text
    return next(
        (media for media in (sample.image, sample.video, sample.audio, sample.array) if media is not None), None
    )


def _awaited(coroutine: Any) -> Any:
    """Await a coroutine on the event loop that all rewards of the process share."""

    async def wait() -> Any:
        return await coroutine

    with _start_lock:
        loop = _event_loop(os.getpid())
    return asyncio.run_coroutine_threadsafe(wait(), loop).result()


_start_lock = threading.Lock()  # rewards on several threads start one event loop


@cache
def _event_loop(process: int) -> asyncio.AbstractEventLoop:
    """An event loop that runs on a thread of the process, since the caller may run inside another one (notebooks).

    It runs until the process ends, so that a client that a reward opens can serve its later calls.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=f"async rewards of {process}", daemon=True).start()
    return loop


def _is_async(function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


def _name(function: Any) -> str:
    return getattr(function, "__name__", repr(function))
