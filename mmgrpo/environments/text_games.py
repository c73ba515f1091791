"""Text games and bandits of textarena, for one player."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar, final

from mmgrpo.environment import Environment, Turn
from mmgrpo.environments.seeds import seed_of
from mmgrpo.errors import ConfigError
from mmgrpo.system.extras import required
from mmgrpo.system.lazy import numpy
from mmgrpo.tool_calls import bounded
from mmgrpo.types import Prompt

T = TypeVar("T")

PLAYER = 0

_lock = threading.Lock()  # games use the random numbers of the process, one game at a time


@final
class TextGameEnvironment(Environment):
    """A game of textarena for one player, such as ``GuessTheNumber-v0``, ``Mastermind-v0`` or ``Bandit-v0``.

    The integer in the column ``seed`` of a row determines the game, so the members of a group play the same one. A turn
    of the policy is the player's move, in the form that the rules require, and the reply has the messages of the game
    since then. The reward of the last turn is that of the game, those of earlier turns are 0. Games draw from the
    random numbers of Python and numpy; each game has a separate state of both, so its course does not depend on other
    games.

    Source: textarena (Guertler et al. 2025, arXiv:2504.11442).
    """

    def __init__(self, game: str, max_chars: int = 4000) -> None:
        """Makes the game.

        Args:
            game: its name in textarena.
            max_chars: maximum length of a reply.

        Raises:
            ConfigError: there is no such game, it needs other files, or it is for several players.
            MissingPackageError: ``textarena`` is not installed.
        """
        if max_chars < 1:
            raise ConfigError(f"max_chars must be at least 1, got {max_chars}")
        textarena = required("textarena", "the environment text_game")
        self._random_state: tuple[Any, Any] | None = None
        try:  # the raw game returns the messages of a turn, others the complete conversation
            self._game = textarena.make(f"{game.removesuffix('-raw')}-raw")
        except Exception as error:  # of the game's own
            raise ConfigError(f"the game {game!r} of textarena cannot be made: {error}") from error
        self._max_chars = max_chars

    def reset(self, prompt: Prompt) -> Turn:
        """The rules of the game.

        Raises: DataError if the row has no integer in the column ``seed``.
        """
        seed = seed_of(prompt, "the game")
        self._with_random_state(lambda: self._game.reset(num_players=1, seed=seed), seed)
        return Turn(text=self._messages())

    def step(self, text: str) -> Turn:
        """The messages of the game after a move; at its end the reward."""
        done, _ = self._with_random_state(lambda: self._game.step(action=text))
        if not done:
            return Turn(text=self._messages(), reward=0.0)
        rewards, _ = self._game.close()
        return Turn(reward=float((rewards or {}).get(PLAYER, 0.0)), done=True)

    def _messages(self) -> str:
        """The messages to the player since the last call, without the player's moves."""
        _, messages = self._game.get_observation()
        texts = [str(text) for sender, text, *_ in messages if sender != PLAYER]
        return bounded("\n".join(texts) or "(no message)", self._max_chars)

    def _with_random_state(self, call: Callable[[], T], seed: int | None = None) -> T:
        """The result of a call that draws from the game's state of the random numbers, which a seed initializes."""
        with _lock:
            state = random.getstate(), numpy.random.get_state()
            try:
                if seed is not None:
                    random.seed(seed)
                    numpy.random.seed(seed % 2**32)
                elif self._random_state is not None:
                    random.setstate(self._random_state[0])
                    numpy.random.set_state(self._random_state[1])
                result = call()
                self._random_state = random.getstate(), numpy.random.get_state()
                return result
            finally:
                random.setstate(state[0])
                numpy.random.set_state(state[1])
