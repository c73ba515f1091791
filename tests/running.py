"""A server in a separate thread for the duration of a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from typing import TypeVar

AnyServer = TypeVar("AnyServer", bound=HTTPServer)


@contextmanager
def running(server: AnyServer) -> Iterator[AnyServer]:
    """Within it the server answers."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
