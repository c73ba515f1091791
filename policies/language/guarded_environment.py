"""Environments whose errors end a conversation, not the run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import final

import torch

from mmgrpo.data.turn_media import opened_media
from mmgrpo.environment import Environment, SupportsCalls, SupportsFinalReward, Turn
from mmgrpo.errors import ConfigError, PolicyError
from mmgrpo.samples import EnvironmentHandle
from mmgrpo.system.process_settings import restored_settings
from mmgrpo.tool_calls import AssistantMessage, ToolResult, bounded
from mmgrpo.types import Prompt

logger = logging.getLogger(__name__)

MAX_CHARACTERS = 65_536
"""Maximum length of a turn; the rest of a longer text is cut off, with a note at its end."""

MAX_REWARD = torch.finfo(torch.float32).max
"""The largest absolute value of a turn's reward."""

_names_with_traceback: set[str] = set()  # names of environments; one traceback each per process is enough


@final
class GuardedEnvironment:
    """One conversation with an environment that may fail.

    Any exception in ``reset`` or ``step``, or a result that is no ``Turn``, ends this conversation: the sample is
    not scored (``Sample.environment_error``) and counted in ``environment/failed_frac``. A text in place of a turn
    is accepted. Characters that are not Unicode are replaced, texts are cut at ``MAX_CHARACTERS``, and media
    are opened (``opened_media``). Process
    settings that the environment changes are restored, as for rewards, and its changes to the row's columns reach
    no reward. A ``ConfigError`` or ``PolicyError`` is an error of the run and is raised.

    Attributes:
        error: the error in one line; None if there was none.
    """

    def __init__(self, make: Callable[[], Environment] | None = None) -> None:
        """Makes the environment.

        Args:
            make: returns a new environment; None: ``make`` makes it later.
        """
        self.error: str | None = None
        self._name = "the environment"
        self._environment: Environment | None = None
        self._is_closed = False
        self._lock = threading.Lock()  # of the environment and whether it is closed
        self._reported: set[str] = set()
        if make is not None:
            self.make(make)

    def make(self, make: Callable[[], Environment]) -> None:
        """Makes the environment.

        Args:
            make: returns a new environment.
        """
        self._guarded("__init__", lambda: self._construct(make))

    def close(self) -> None:
        """Closes the environment, whether it failed or not, now or as soon as it is made.

        An error of ``close`` is logged, and counts for nothing.
        """
        with self._lock:
            self._is_closed, environment = True, self._environment
        if environment is not None:
            self._close(environment)

    def _close(self, environment: Environment) -> None:
        try:
            with restored_settings(f"environment '{self._name}'", self._reported):
                environment.close()
        except BaseException as error:
            _raise_interrupt(error)
            logger.warning("%s.close raised %s: %s", self._name, type(error).__name__, error)

    def reset(self, prompt: Prompt) -> Turn:
        """The opening turn; empty if the environment failed.

        Args:
            prompt: the prompt of the sample.

        Returns:
            The turn.
        """
        copied = replace(prompt, columns=dict(prompt.columns))  # the rewards read the columns too
        opening = self._guarded("reset", lambda: self._opening(copied))
        return Turn() if opening is None else opening

    def fail(self, method: str, error: Exception) -> None:
        """Ends the conversation, because the policy cannot take a turn.

        Args:
            method: ``reset`` or ``step``, which returned the turn.
            error: the reason.
        """
        self._record(method, error)

    def step(self, message: AssistantMessage | str) -> Turn:
        """The answer to a turn of the policy; a final turn if the environment failed.

        Args:
            message: the turn.

        Returns:
            The answer.
        """
        if self.error is not None or self._environment is None:
            return Turn(done=True)
        environment = self._environment
        written = AssistantMessage(message) if isinstance(message, str) else message
        answer = environment.respond if isinstance(environment, SupportsCalls) else None
        reply = self._guarded("step", lambda: _reply(answer(written) if answer else environment.step(written.text)))
        return Turn(done=True) if reply is None else reply

    def interrupt(self, limit_s: float) -> Turn | None:
        """The answer in place of one that took longer than a number of seconds; None if the environment has none."""
        environment = self._environment
        if not isinstance(environment, SupportsCalls) or self.error is not None:
            return None
        try:
            reply = environment.interrupted(TimeoutError(f"it took longer than {limit_s:g} s"))
            return None if reply is None else self._checked(reply)
        except BaseException as error:
            _raise_interrupt(error)
            logger.warning("%s.interrupted raised %s: %s", self._name, type(error).__name__, error)
            return None

    @property
    def has_final_reward(self) -> bool:
        """Whether the environment may reward a conversation that it did not end."""
        return isinstance(self._environment, SupportsFinalReward)

    def final_reward(self) -> Turn | None:
        """A turn with the reward of a conversation that the environment did not end; None if it failed."""
        environment = self._environment
        if not isinstance(environment, SupportsFinalReward):
            return None
        return self._guarded("final_reward", lambda: Turn(reward=environment.final_reward()))

    @property
    def handle(self) -> EnvironmentHandle:
        """The environment's object, for rewards."""
        environment = self._environment
        return EnvironmentHandle(environment.instance if isinstance(environment, SupportsFinalReward) else environment)

    def _construct(self, make: Callable[[], Environment]) -> Turn:
        environment: object = make()
        if not isinstance(environment, Environment):
            raise TypeError(f"{type(environment).__name__} is no mmgrpo.environment.Environment")
        self._name = type(environment).__name__
        with self._lock:
            self._environment = environment
            is_late = self._is_closed
        if is_late:  # its constructor took longer than the rollout
            self._close(environment)
        return Turn()

    def _opening(self, prompt: Prompt) -> object:
        opening = self._environment.reset(prompt) if self._environment else None
        if isinstance(opening, Turn) and opening.done:
            raise ValueError("it ended the conversation before the policy wrote a turn")
        return opening

    def _guarded(self, method: str, call: Callable[[], object]) -> Turn | None:
        if self.error is not None:
            return None
        try:
            with restored_settings(f"environment '{self._name}'", self._reported):
                return self._checked(call())
        except (ConfigError, PolicyError):
            raise
        except BaseException as error:  # foreign code: any exception ends one conversation
            _raise_interrupt(error)
            self._record(method, error)
            return None

    def _record(self, method: str, error: BaseException) -> None:
        try:
            reason = str(error)
        except Exception:  # of an error that cannot be written
            reason = "its text cannot be made"
        if self.error is not None:
            return  # of a call that was given up
        text = f"{self._name}.{method} raised {type(error).__name__}: {reason}"[:500]
        self.error = text.encode("utf-8", "replace").decode("utf-8")
        first = self._name not in _names_with_traceback
        _names_with_traceback.add(self._name)
        logger.warning("%s; its sample is not scored", self.error, exc_info=error if first else None)

    def _checked(self, returned: object) -> Turn:
        turn = Turn(text=returned) if isinstance(returned, str) else returned
        if not isinstance(turn, Turn):
            raise TypeError(f"it returned {type(returned).__name__} and must return mmgrpo.environment.Turn")
        if not isinstance(turn.text, str) or not isinstance(turn.role, str):
            raise TypeError(f"Turn.text and Turn.role must be str, got {type(turn.text).__name__}, {turn.role!r:.40}")
        reward = None if turn.reward is None else float(turn.reward)
        if reward is not None and not abs(reward) <= MAX_REWARD:
            raise ValueError(f"Turn.reward must be finite (in float32) or None, got {reward}")
        if not all(isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping) for tool in turn.tools):
            raise TypeError('Turn.tools must be functions, each {"type": "function", "function": SCHEMA}')
        media = opened_media(turn)
        for name, opened in media.items():
            counts = [getattr(result, f"num_{name}") for result in turn.results]
            if counts and (min(counts) < 0 or sum(counts) != len(opened)):
                raise ValueError(f"Turn.results must have as many {name} as Turn.{name}")
        return Turn(
            text=_bounded(turn.text),
            **media,
            reward=reward,
            done=bool(turn.done),
            role=turn.role,
            key=None if turn.key is None else str(turn.key),
            tools=tuple(turn.tools),
            results=tuple(_bounded_result(result) for result in turn.results),
        )


def _raise_interrupt(error: BaseException) -> None:
    """Raises the interrupt of a user, which reaches the main thread alone; environments run on others."""
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error


def _reply(returned: object) -> object:
    if isinstance(returned, Turn) and returned.tools:
        raise ValueError("Turn.tools belongs to the turn of reset: a later turn cannot describe functions")
    return returned


def _bounded_result(result: ToolResult) -> ToolResult:
    return replace(result, name=str(result.name), text=_bounded(result.text))


def _bounded(text: str) -> str:
    return bounded(text, MAX_CHARACTERS).encode("utf-8", "replace").decode("utf-8")
