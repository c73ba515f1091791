"""An OpenEnv server: ``python -m tests.environments.openenv_server PORT``; the policy guesses a number."""

from __future__ import annotations

import random
import sys
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class GuessAction(Action):
    guess: str


class GuessObservation(Observation):
    message: str
    num_guesses: int = 0


class GuessEnvironment(Environment[GuessAction, GuessObservation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> GuessObservation:
        self.number, self.guesses = random.Random(seed).randint(1, 8), 0
        return GuessObservation(message="Guess a number from 1 to 8.")

    def step(self, action: GuessAction, timeout_s: float | None = None, **kwargs: Any) -> GuessObservation:
        self.guesses += 1
        value = int(action.guess)  # an error for anything else
        hint = "higher" if value < self.number else "lower"
        done = value == self.number
        return GuessObservation(message=hint, num_guesses=self.guesses, reward=float(done) - 0.125, done=done)

    @property
    def state(self) -> State:
        return State(step_count=self.guesses)


if __name__ == "__main__":
    app = create_fastapi_app(GuessEnvironment, GuessAction, GuessObservation, max_concurrent_envs=8)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
