"""The server process: connections with time limits and a bounded shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar, final

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from mmgrpo.config import RewardConfig, RunConfig

GRACE_S = 30
_SERVED = {"name", "label"}  # keys of a reward entry, besides its settings
_READ = {"about", "rewards", "runtime"}  # sections of a configuration


@final
class ImpatientProtocol(H11Protocol):
    """HTTP protocol that closes connections whose request line and headers do not arrive in time.

    uvicorn waits for them without limit, so a few hundred incomplete requests would exhaust the file descriptors.
    """

    header_timeout_s: ClassVar[float] = 20.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._patience is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._patience = self.loop.call_later(self.header_timeout_s, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def make_server(app: FastAPI, *, host: str = "127.0.0.1", port: int = 0, grace_s: int = GRACE_S) -> uvicorn.Server:
    """Create the server of an application.

    Args:
        app: as ``make_app`` returns it.
        host: address to listen on.
        port: port to listen on; 0 picks a free port.
        grace_s: seconds that running requests may take after the shutdown signal.

    Returns:
        The server; its ``run`` serves until the process receives a shutdown signal.
    """
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http=ImpatientProtocol,
            ws="none",
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=grace_s,
        )
    )


def serve(app: FastAPI, *, host: str, port: int, grace_s: int = GRACE_S) -> None:
    """Serve until a shutdown signal, then finish running requests for up to ``grace_s`` seconds."""
    make_server(app, host=host, port=port, grace_s=grace_s).run()


def ignored_settings(config: RunConfig) -> list[str]:
    """The configured settings that have no effect on a server, such as weights of rewards.

    Args:
        config: the served configuration.

    Returns:
        Their names, such as ``rewards.pick.weight``.
    """
    sections = sorted(config.model_fields_set - _READ)
    return [*sections, *(f"rewards.{name}" for reward in config.rewards for name in _uncounted(reward))]


def _uncounted(reward: RewardConfig) -> Sequence[str]:
    declared = set(type(reward).model_fields) - _SERVED
    return [f"{reward.logged_name}.{name}" for name in sorted(reward.model_fields_set & declared)]
