"""Requests of JSON to a server that may be slow, busy or gone.

It uses only the HTTP client of the standard library; redirects are not followed, so an API key is sent to no other
host.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.message import Message
from typing import IO, Any
from urllib.parse import urlsplit

from mmgrpo.errors import ConfigError
from mmgrpo.system.bounded_http import BoundedHTTPHandler, BoundedHTTPSHandler, read_body

PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Status codes that are retried."""

MAX_REPLY_BYTES = 2**22
MAX_WAIT_S = 60.0


class NoReplyError(Exception):
    """The server gave no usable reply; the message has the reason.

    Attributes:
        status: the HTTP status that the server answered with; None: it did not answer, or not as expected.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        """An error.

        Args:
            message: the reason.
            status: the HTTP status.
        """
        super().__init__(message)
        self.status = status


def require_server(url: str, setting: str) -> None:
    """Raises ConfigError if a URL is no address of a server.

    Args:
        url: the URL.
        setting: the setting, for the message.

    Raises:
        ConfigError: it has another scheme than http and https, or no host.
    """
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ConfigError(f"{setting} must be such as http://127.0.0.1:8000/v1, got {url!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Limits of a request, and how it is retried.

    Attributes:
        timeout_s: time limit in seconds for connecting, for sending and for the complete reply, each, per attempt.
        retries: number of retries after a transient failure.
        backoff_s: seconds before the first retry, doubled each time; at least the server's Retry-After.
        max_bytes: maximum size of a reply.
    """

    timeout_s: float = 60.0
    retries: int = 3
    backoff_s: float = 1.0
    max_bytes: int = MAX_REPLY_BYTES


def post_json(url: str, request: Any, limits: RequestLimits, *, key_variable: str | None = None) -> bytes:
    """Posts a JSON value; a transient failure is retried.

    Args:
        url: the address.
        request: the value.
        limits: limits of the request.
        key_variable: environment variable with the API key, which is sent as a bearer token; None sends none.

    Returns:
        The body of the reply.

    Raises:
        NoReplyError: there is no reply after the last attempt.
    """
    return _reply(url, json.dumps(request).encode(), limits, key_variable)


def get_json(url: str, limits: RequestLimits, *, key_variable: str | None = None) -> bytes:
    """Gets a JSON value; a transient failure is retried.

    Args:
        url: the address.
        limits: limits of the request.
        key_variable: as in ``post_json``.

    Returns:
        The body of the reply.

    Raises:
        NoReplyError: there is no reply after the last attempt.
    """
    return _reply(url, None, limits, key_variable)


def _reply(url: str, body: bytes | None, limits: RequestLimits, key_variable: str | None) -> bytes:
    """The reply to a POST of the body, or to a GET without one."""
    headers = {"Content-Type": "application/json"}
    if key_variable is not None:
        key = os.environ.get(key_variable, "").strip()
        if not key:
            raise NoReplyError(f"after 1 attempts: the environment variable {key_variable} holds no API key")
        headers["Authorization"] = f"Bearer {key}"
    for attempt in range(limits.retries + 1):
        status = None
        try:
            return _attempt(urllib.request.Request(url, body, headers), limits)
        except urllib.error.HTTPError as error:
            with error:
                detail = _beginning(error)
            status, waits, passing = error.code, _retry_after_s(error.headers), error.code in PASSING
            cause = f"HTTP {status}: {detail}"
        except (OSError, http.client.HTTPException) as error:
            cause, waits, passing = f"{type(error).__name__}: {error}", 0.0, True
        if not passing or attempt == limits.retries:
            raise NoReplyError(f"after {attempt + 1} attempts: {cause}", status=status)
        time.sleep(min(max(limits.backoff_s * 2**attempt, waits), MAX_WAIT_S))
    raise AssertionError("the last attempt returns or raises")


def _attempt(request: urllib.request.Request, limits: RequestLimits) -> bytes:
    with _opener.open(request, timeout=limits.timeout_s) as response:
        body = read_body(response, limits.max_bytes)
    if body is None:
        raise NoReplyError(f"the reply is longer than {limits.max_bytes} bytes")
    return body


def _beginning(error: urllib.error.HTTPError) -> str:
    try:
        return error.read(500).decode(errors="replace")
    except (OSError, http.client.HTTPException) as broken:
        return f"{type(broken).__name__}: {broken}"


def _retry_after_s(headers: Message) -> float:
    """Seconds of the Retry-After header; 0 if it is missing or a date."""
    value = str(headers.get("Retry-After") or "")
    return float(value) if value.isdecimal() and len(value) < 6 else 0.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """Return None, so that a redirect raises an error."""


_opener = urllib.request.build_opener(_NoRedirect, BoundedHTTPHandler, BoundedHTTPSHandler)
