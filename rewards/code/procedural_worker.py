"""Scores answers to tasks of reasoning-gym; runs as a script in a sandbox, because some verifiers evaluate the answer.

It answers each line ``{"dataset", "size", "seed", "config", "index", "answer"}`` with ``{"score": number}``, or with
``{"score": null, "error": text}`` if the task cannot be made again.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any


def main() -> None:
    """Answer the lines of the standard input."""
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    for line in requests:
        print(json.dumps(answer(json.loads(line))), file=replies, flush=True)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The score of a request.

    Args:
        request: the task and the answer.

    Returns:
        The answer of the worker.
    """
    try:
        dataset = made(request["dataset"], request["size"], request["seed"], json.dumps(request["config"]))
        entry = dataset[request["index"]]
    except Exception as error:  # of the library
        return {"score": None, "error": f"{type(error).__name__}: {error}"[:200]}
    try:
        return {"score": float(dataset.score_answer(answer=request["answer"], entry=entry))}
    except Exception:  # of a verifier that cannot read the answer
        return {"score": 0.0}


@cache
def made(name: str, size: int, seed: int, config: str) -> Any:
    """A dataset, made once."""
    import reasoning_gym

    return reasoning_gym.create_dataset(name, size=size, seed=seed, **json.loads(config))


if __name__ == "__main__":
    main()
