"""Environments of gymnasium with text observations, or observations that a text describes, and images."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from PIL import Image

from mmgrpo.environment import Environment, Turn
from mmgrpo.environments.seeds import seed_of
from mmgrpo.environments.unused_settings import require_unset
from mmgrpo.errors import ConfigError
from mmgrpo.system.extras import required
from mmgrpo.system.targets import import_python_target
from mmgrpo.tool_calls import bounded
from mmgrpo.types import Prompt


@final
class GymnasiumEnvironment(Environment):
    """An environment of gymnasium, such as ``FrozenLake-v1`` or ``Blackjack-v1``.

    The integer in the column ``seed`` of a row determines the episode. The observation is a text: the environment's
    own, its rendering (``render_mode: ansi``), or JSON; with ``render_mode: rgb_array`` its rendering is an image of
    the turn. In a space of numbered actions, the action is the last of their names in the policy's turn; in a space of
    texts it is the turn. A turn without an action is answered with the names, and takes no step. Every turn has the
    reward of its step.

    Source: gymnasium (Towers et al. 2024, arXiv:2407.17032).
    """

    def __init__(
        self,
        game: str,
        actions: Sequence[str] | None = None,
        read_action: Callable[[str], Any] | str | None = None,
        observation: Callable[[Any], str] | str | None = None,
        settings: Mapping[str, Any] | None = None,
        max_chars: int = 4000,
    ) -> None:
        """Makes the environment.

        Args:
            game: its id in gymnasium; ``module:id`` imports a module that registers it.
            actions: names of the numbered actions, in order; None: the numbers.
            read_action: the action of a turn, a function or ``python:module:function``, which raises ValueError for a
                turn without one; None: by name, or the turn.
            observation: the text of an observation, likewise; None: as above. Not with ``render_mode: ansi``.
            settings: arguments of ``gymnasium.make``, such as ``{render_mode: ansi, is_slippery: false}``; its
                ``render_mode`` is ansi or rgb_array, if it has one.
            max_chars: maximum length of an observation.

        Raises:
            ConfigError: there is no such environment, it has actions of another kind and no ``read_action``,
                ``actions`` does not name each of them, or a setting would have no effect.
            MissingPackageError: ``gymnasium`` is not installed.
        """
        if max_chars < 1:
            raise ConfigError(f"max_chars must be at least 1, got {max_chars}")
        render_mode = (settings or {}).get("render_mode")
        if render_mode not in (None, "ansi", "rgb_array"):
            raise ConfigError(f"settings.render_mode of gymnasium must be ansi or rgb_array, got {render_mode!r}")
        if render_mode == "ansi":
            require_unset("gymnasium", "remove it, or settings.render_mode: ansi", observation=observation)
        gymnasium = required("gymnasium", "the environment gymnasium")
        try:
            self._game = gymnasium.make(game, **(settings or {}))
        except Exception as error:  # of the game's own
            raise ConfigError(f"the environment {game!r} of gymnasium cannot be made: {error}") from error
        self._name, self._max_chars = game, max_chars
        self._names = _action_names(self._game.action_space, actions, gymnasium.spaces)
        self._read_action = _function(read_action) or self._action
        self._describe = _function(observation) or _text
        is_text = isinstance(self._game.action_space, gymnasium.spaces.Text)
        if read_action is None and not self._names and not is_text:
            raise ConfigError(
                f"{game} has actions of {self._game.action_space}: set read_action to python:module:function"
            )

    def reset(self, prompt: Prompt) -> Turn:
        """The first observation, and the names of the actions.

        Raises: DataError if the row has no integer in the column ``seed``.
        """
        observation, _ = self._game.reset(seed=seed_of(prompt, self._name))
        turn = self._turn(observation)
        text = "\n".join(filter(None, [turn.text, self._listed()]))
        return Turn(text=text, images=turn.images)

    def step(self, text: str) -> Turn:
        """The next observation with the reward of the action; at the end only the reward."""
        try:
            action = self._read_action(text)
        except ValueError as error:
            return Turn(text=str(error), reward=0.0)
        observation, reward, terminated, truncated, _ = self._game.step(action)
        if terminated or truncated:
            return Turn(reward=float(reward), done=True)
        turn = self._turn(observation)
        return Turn(text=turn.text, images=turn.images, reward=float(reward))

    def close(self) -> None:
        """Closes the environment."""
        self._game.close()

    def _turn(self, observation: Any) -> Turn:
        rendering: Any = self._game.render() if self._game.render_mode in ("ansi", "rgb_array") else None
        images = [Image.fromarray(rendering)] if self._game.render_mode == "rgb_array" else []
        text = rendering if isinstance(rendering, str) else self._describe(observation)
        return Turn(text=bounded(text.strip(), self._max_chars), images=images)

    def _listed(self) -> str:
        return f"Actions: {', '.join(self._names)}." if self._names else ""

    def _action(self, text: str) -> Any:
        """The action of a turn. Raises ValueError if it names none."""
        if not self._names:
            return text
        pattern = "|".join(re.escape(name) for name in sorted(self._names, key=len, reverse=True))
        matches = re.findall(rf"(?<!\w)(?:{pattern})(?!\w)", text.lower())
        if not matches:
            raise ValueError(f"No action was read. {self._listed()}")
        return self._names[matches[-1]]


def _action_names(space: Any, names: Sequence[str] | None, spaces: Any) -> dict[str, int]:
    """The numbers of a space's actions by their names, in lower case; empty for another kind of space."""
    if not isinstance(space, spaces.Discrete):
        if names is not None:
            raise ConfigError(f"actions names numbered actions, but the space is {space}: leave it out")
        return {}
    numbers = range(int(space.start), int(space.start + space.n))
    labels = [str(number) for number in numbers] if names is None else [name.lower() for name in names]
    if len(set(labels)) != len(numbers):
        raise ConfigError(f"actions must be {len(numbers)} different names, got {', '.join(labels)}")
    return dict(zip(labels, numbers, strict=True))


def _function(function: Callable[..., Any] | str | None) -> Callable[..., Any] | None:
    return import_python_target(function) if isinstance(function, str) else function


def _text(observation: Any) -> str:
    if isinstance(observation, str):
        return observation
    return json.dumps(
        observation, ensure_ascii=False, default=lambda value: value.tolist()
    )  # numbers and arrays of numpy
