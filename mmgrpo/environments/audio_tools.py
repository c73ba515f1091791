"""A tool that listens to the audio of a prompt again: a part of it, at its original rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from mmgrpo.data.audio_loading import load_audio
from mmgrpo.environment import Environment, SupportsCalls, Turn
from mmgrpo.environments.media_tools import MediaTools
from mmgrpo.errors import ConfigError
from mmgrpo.samples import Audio
from mmgrpo.tool_calls import AssistantMessage
from mmgrpo.types import Prompt

MAX_PART_S = 60.0
"""The longest part of audio: that of a result of ``ToolEnvironment``."""


@final
class AudioTools:
    """The audio of one conversation, numbered from 1, and the function that returns parts of it."""

    def __init__(self, audios: Sequence[Any], max_calls: int, seconds: Sequence[float]) -> None:
        """The audio of a prompt.

        Args:
            audios: the audio, in the forms of ``load_audio``; opened when it is used.
            max_calls: maximum number of calls in the conversation.
            seconds: minimum and maximum duration of a part.
        """
        self._audios, self._calls_left = audios, max_calls
        self._shortest_s, self._longest_s = seconds
        self._opened: dict[int, Audio] = {}

    def cut_audio(self, start_time: float, end_time: float, target_audio: int = 1) -> list[dict[str, Any]]:
        """Plays a part of an audio again.

        Args:
            start_time: beginning of the part in seconds.
            end_time: its end in seconds, {shortest} to {longest} s later.
            target_audio: number of the audio, from 1.

        Returns:
            The part as audio.
        """
        if self._calls_left <= 0:
            raise ValueError("the maximum number of calls is reached; answer now")
        if isinstance(target_audio, bool) or not 1 <= target_audio <= len(self._audios):
            raise ValueError(f"target_audio must be from 1 to {len(self._audios)}, got {target_audio!r:.60}")
        if target_audio not in self._opened:
            self._opened[target_audio] = load_audio(self._audios[target_audio - 1])
        audio = self._opened[target_audio]
        end_s = min(end_time, audio.duration_s)
        if not (start_time >= 0 and self._shortest_s <= end_s - start_time <= self._longest_s):
            raise ValueError(
                f"a part must last {self._shortest_s:g} to {self._longest_s:g} s within 0 to {audio.duration_s:.1f} s, "
                f"got {start_time:g} to {end_time:g}"
            )
        self._calls_left -= 1
        first, last = (round(time_s * audio.sampling_rate) for time_s in (start_time, end_s))
        part = Audio(audio.values[:, first : max(last, first + 1)].contiguous(), audio.sampling_rate)
        return [
            {"type": "audio", "audio": part},
            {"type": "text", "text": f"Part from {start_time:.1f}s to {end_s:.1f}s."},
        ]


TOOLS: Mapping[str, Callable[..., list[dict[str, Any]]]] = {"cut_audio": AudioTools.cut_audio}


@final
class AudioToolsEnvironment(Environment, SupportsCalls):
    """Answers calls of ``cut_audio`` with a part of the prompt's audio; a turn without calls ends the conversation.

    Calls and errors have the format of ``ToolEnvironment``. The part is audio of the next turn, after that of the
    prompt.
    """

    gives_rewards = False

    def __init__(
        self,
        tools: Sequence[str] | Mapping[str, str] = ("cut_audio",),
        *,
        max_calls: int = 4,
        seconds: Sequence[float] = (0.1, 30.0),
        describe: bool = True,
        role: str = "tool",
    ) -> None:
        """Checks the settings.

        Args:
            tools: names of ``TOOLS``; as a mapping, the names by which the model calls them.
            max_calls: maximum number of calls in a conversation.
            seconds: minimum and maximum duration of a part.
            describe: whether ``reset`` appends the signatures to the prompt, as in ``ToolEnvironment``.
            role: role of the answers in the chat template; ``user`` for templates without tools.

        Raises:
            ConfigError: a setting is not allowed.
        """
        if max_calls < 1:
            raise ConfigError(f"max_calls must be at least 1, got {max_calls}")
        if len(seconds) != 2 or not 0 < seconds[0] <= seconds[1] <= MAX_PART_S:
            raise ConfigError(f"seconds must be [least, most] within 0 to {MAX_PART_S:g}, got {list(seconds)}")
        self._max_calls, self._seconds = max_calls, tuple(seconds)
        texts = {"shortest": f"{seconds[0]:g}", "longest": f"{seconds[1]:g}"}
        self._tools = MediaTools("audio", TOOLS, tools, self._state, texts=texts, describe=describe, role=role)

    def reset(self, prompt: Prompt) -> Turn:
        """The function, if ``describe`` is set. Raises DataError for a prompt without audio."""
        return self._tools.reset(prompt)

    def step(self, text: str) -> Turn:
        """The parts that a text calls for, as ``respond``."""
        return self.respond(AssistantMessage(text))

    def respond(self, message: AssistantMessage) -> Turn:
        """The parts of the calls, in order, each with its text."""
        return self._tools.respond(message)

    def interrupted(self, error: TimeoutError) -> Turn | None:
        """As ``ToolEnvironment.interrupted``."""
        return self._tools.interrupted(error)

    def _state(self, prompt: Prompt) -> AudioTools:
        return AudioTools(prompt.audios, self._max_calls, self._seconds)
