"""HTTP with a limit on the total time and the size of a response.

A socket's timeout applies to each wait separately, so a server that sends a byte from time to time never times out.
Here the connection, the request and the complete response (status, headers and body) may each take at most that time.
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
class _DeadlineStream(io.RawIOBase):
    """A socket's stream that raises TimeoutError after a deadline."""

    def __init__(self, stream: io.RawIOBase, connection: socket.socket) -> None:
        self._stream = stream
        self._connection = connection
        self._limit_s = connection.gettimeout()
        self._deadline = None if self._limit_s is None else time.monotonic() + self._limit_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int | None:
        if self._deadline is not None:
            remaining_s = self._deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError(f"the response took more than {self._limit_s:g} s")
            self._connection.settimeout(remaining_s)
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()


@final
class _BoundedResponse(http.client.HTTPResponse):
    """A response that may take in total at most the socket's timeout."""

    def __init__(
        self, sock: socket.socket, debuglevel: int = 0, method: str | None = None, url: str | None = None
    ) -> None:
        super().__init__(sock, debuglevel, method, url)
        self.fp = io.BufferedReader(_DeadlineStream(self.fp.detach(), sock))


@final
class BoundedConnection(http.client.HTTPConnection):
    """An HTTP connection with bounded responses."""

    response_class = _BoundedResponse


@final
class BoundedSecureConnection(http.client.HTTPSConnection):
    """An HTTPS connection with bounded responses."""

    response_class = _BoundedResponse


def read_body(response: http.client.HTTPResponse, limit: int) -> bytes | None:
    """Reads the body of a response; None if it has more than ``limit`` bytes; reads at most one more."""
    body = response.read(limit + 1)
    return body if len(body) <= limit else None


@final
class BoundedHTTPHandler(urllib.request.HTTPHandler):
    """urllib's handler of ``http`` with bounded responses."""

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(BoundedConnection, req)


@final
class BoundedHTTPSHandler(urllib.request.HTTPSHandler):
    """urllib's handler of ``https`` with bounded responses."""

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(BoundedSecureConnection, req)


def download(url: str, *, limit: int, timeout_s: float) -> bytes:
    """Downloads a URL; follows redirects.

    Args:
        url: starts with ``http://`` or ``https://``.
        limit: maximal number of bytes.
        timeout_s: maximal seconds for the connection, and for the complete response.

    Returns:
        The bytes.

    Raises:
        DataError: there is no response, an error, or more bytes than the limit.
    """
    try:
        with _opener.open(url, timeout=timeout_s) as response:
            body = read_body(response, limit)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DataError(f"{url[:200]} cannot be fetched ({type(error).__name__}: {error})") from error
    if body is None:
        raise DataError(f"{url[:200]} cannot be fetched: it has more than {limit} bytes")
    return body


_opener = urllib.request.build_opener(BoundedHTTPHandler, BoundedHTTPSHandler)
