"""The check that environments which run programs make before a run."""

from __future__ import annotations

import threading
from functools import cache

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.system.sandbox import Program, run

_lock = threading.Lock()


def require_sandbox(name: str) -> None:
    """Checks, once per process, that this machine can run the sandbox.

    Args:
        name: name of the environment, for the message.

    Raises:
        ConfigError: it cannot; the message has the reason.
    """
    with _lock:
        _run_sandbox(name)


@cache
def _run_sandbox(name: str) -> None:
    try:
        run(Program(command=("/bin/true",)))
    except RewardError as error:
        raise ConfigError(f"the environment {name}: {error}") from error
