"""HTTP whose answers come to an end: each within one time limit as a whole, and up to a size.

A socket's own timeout is for every wait by itself, so that a server which sends a byte now and then is never given up.
Here the connection, the request and the whole answer (its status, headers and body) may each take as long as that
timeout, and no more.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.request
from typing import final

from mmgrpo.errors import DataError


@final
class _Within(io.RawIOBase):
    """What a socket receives until a deadline."""

    def __init__(self, stream: io.RawIOBase, connection: socket.socket) -> None:
        self._stream = stream
        self._connection = connection
        self._limit_s = connection.gettimeout()
        self._deadline = None if self._limit_s is None else time.monotonic() + self._limit_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self._deadline is not None:
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"the answer took more than {self._limit_s:g} s")
            self._connection.settimeout(left_s)
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()


@final
class _Answer(http.client.HTTPResponse):
    """An answer that as a whole may take as long as the socket's timeout, from when it is waited for."""

    def __init__(
        self, sock: socket.socket, debuglevel: int = 0, method: str | None = None, url: str | None = None
    ) -> None:
        super().__init__(sock, debuglevel, method, url)
        self.fp = io.BufferedReader(_Within(self.fp.detach(), sock))


@final
class Connection(http.client.HTTPConnection):
    """A connection whose answers come to an end."""

    response_class = _Answer


@final
class SecureConnection(http.client.HTTPSConnection):
    """The same over TLS."""

    response_class = _Answer


def body_of(answer: http.client.HTTPResponse, limit: int) -> bytes | None:
    """The body of an answer; None if it is longer than ``limit`` bytes, of which no more are read."""
    said = answer.read(limit + 1)
    return said if len(said) <= limit else None


@final
class Ends(urllib.request.HTTPHandler):
    """urllib's ``http`` with answers that come to an end."""

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(Connection, req)


@final
class EndsSecurely(urllib.request.HTTPSHandler):
    """Its ``https``."""

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(SecureConnection, req)


def fetched(url: str, *, limit: int, timeout_s: float) -> bytes:
    """What a server has at an address; redirects are followed.

    Args:
        url: begins with ``http://`` or ``https://``.
        limit: bytes it may have.
        timeout_s: seconds that it may take to connect, and to answer as a whole.

    Returns:
        The bytes.

    Raises:
        DataError: there is no answer, an error, or more bytes than that.
    """
    try:
        with _opener.open(url, timeout=timeout_s) as answer:
            said = body_of(answer, limit)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DataError(f"{url[:200]} cannot be fetched ({type(error).__name__}: {error})") from error
    if said is None:
        raise DataError(f"{url[:200]} cannot be fetched: it has more than {limit} bytes")
    return said


_opener = urllib.request.build_opener(Ends, EndsSecurely)
