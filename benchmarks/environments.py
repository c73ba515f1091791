"""Conversations with slow environments: seconds of a rollout with calls side by side, and one after another.

python -m benchmarks.environments [--rows 32] [--turns 4] [--call-s 0.2]
"""

from __future__ import annotations

import argparse
import json
import time
from typing import final

from mmgrpo.environment import Environment, Turn
from mmgrpo.types import Plan, Prompt
from tests.policies.tiny_language import policy_of


@final
class Waiting(Environment):
    """Answers after ``call_s`` seconds, ``turns`` times."""

    call_s: float = 0.2
    turns: int = 4

    def __init__(self) -> None:
        self._num_steps = 0

    def reset(self, prompt: Prompt) -> Turn:
        return Turn()

    def step(self, text: str) -> Turn:
        time.sleep(self.call_s)
        self._num_steps += 1
        return Turn(text="two red", done=self._num_steps == self.turns)


def main() -> None:
    """Prints seconds, calls and the ratio to the slowest row, alternating one and all workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--call-s", type=float, default=0.2)
    arguments = parser.parse_args()
    Waiting.call_s, Waiting.turns = arguments.call_s, arguments.turns
    bare = policy_of("llama")
    words = {*range(60, 70), *bare._end_ids.tolist()}
    suppress = tuple(t for t in range(bare.model.config.get_text_config().vocab_size) if t not in words)
    settings = {"max_new_tokens": 400, "suppress": suppress, "temperature": 8.0}
    policy = policy_of("llama", batch=arguments.rows, **settings)
    for workers in (arguments.rows, 1, arguments.rows, 1):
        plan = Plan(environment=Waiting, environment_workers=workers, max_turns=arguments.turns)
        start_s = time.monotonic()
        rollout = policy.rollout([Prompt("what number is this")], group_size=arguments.rows, seed=0, plan=plan)
        duration_s = time.monotonic() - start_s
        calls = [sum(reply is not None for reply in sample.turn_replies) for sample in rollout.samples]
        slowest_s = max(calls) * arguments.call_s
        result = {"workers": workers, "seconds": round(duration_s, 2), "calls": sum(calls), "of_slowest_row": slowest_s}
        print(json.dumps(result | {"ratio": round(duration_s / slowest_s, 2)}))


if __name__ == "__main__":
    main()
