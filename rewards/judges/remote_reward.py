"""Client of a reward server, for rewards in a separate environment or on another machine."""

from __future__ import annotations

import http.client
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal, final
from urllib.parse import SplitResult, urlsplit

from pydantic import ValidationError

from mmgrpo.errors import ConfigError, DataError, RewardError
from mmgrpo.serving.wire import Form, ScoreResponse, WireScope, check_values, pack_samples, token_of
from mmgrpo.system.bounded_http import BoundedConnection, BoundedSecureConnection, read_body
from mmgrpo.types import Sample, Scope, Score

logger = logging.getLogger(__name__)

WhenDown = Literal["stop", "fail"]
MAX_ANSWER_BYTES = 2**25
"""Maximum size of a response; a value takes 20 bytes, an explanation rarely more than a few thousand."""

_PASSING = {408, 429}  # retried status codes, besides 500 and above


@final
class RemoteReward:
    """Reward: scores from a server started by ``mmgrpo serve-rewards``.

    Samples are sent losslessly with their prompts, columns, texts, tokens and images, and values are returned
    losslessly: None stays None, and a failure on the server is a failure here. A request has complete groups, at most
    ``batch_size`` samples unless one group has more. If the server does not respond, is busy or has an error (status
    500 or above), the request is retried ``retries`` times, after ``backoff`` seconds, twice that, and so on. After
    that ``when_down: stop`` raises an error, and ``when_down: fail`` counts the samples of the request as failed, so
    ``runtime.max_reward_failure_frac`` decides whether the run continues. A request that the server rejects raises an
    error immediately. Every request uses a new connection.

    Example: ``{name: remote, url: "http://127.0.0.1:8000"}``.
    Settings: ``url``, such as ``http://127.0.0.1:8000``; ``reward``, its label on the server, required if it serves
    several; ``timeout`` in seconds for connecting, for sending a request and for its response, each, above the server's
    ``--timeout-s`` so that the server reports the slow reward; ``token_variable``, the environment variable with the
    bearer token; ``columns`` to send (default: all); ``form``, ``tensors`` (safetensors, large and fast) or ``png``
    (small and slow).
    Range: that of the served reward.
    Source: designed for mmgrpo.
    Traps: with ``http`` the token is sent unencrypted. No proxy is used. Columns must be JSON values, and tuples arrive
    as lists. A response of more than 32 MiB raises an error.
    """

    concurrent = True

    def __init__(
        self,
        url: str,
        reward: str | None = None,
        timeout: float = 120.0,
        retries: int = 3,
        backoff: float = 0.5,
        token_variable: str | None = None,
        batch_size: int = 64,
        columns: Sequence[str] | None = None,
        form: Form = "tensors",
        when_down: WhenDown = "stop",
    ) -> None:
        self._url, address = url.rstrip("/"), _address(url)
        if not timeout > 0 or retries < 0 or backoff < 0 or batch_size < 1:
            raise ConfigError(
                f"Remote needs timeout > 0, retries >= 0, backoff >= 0 and batch_size >= 1, "
                f"got {timeout}, {retries}, {backoff} and {batch_size}"
            )
        if form not in ("tensors", "png") or when_down not in ("stop", "fail"):
            raise ConfigError(f"Remote.form must be tensors or png and when_down stop or fail, got {form}, {when_down}")
        if isinstance(columns, str):
            raise ConfigError(f"Remote.columns must be a list of names, got {columns!r}")
        token = token_of(token_variable)
        self._https = address.scheme == "https"
        self._host, self._port, self._path = address.hostname or "", address.port, address.path.rstrip("/")
        self._reward = reward
        self._timeout = timeout
        self._retries = retries
        self._backoff = backoff
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._batch_size = batch_size
        self._columns = columns
        self._form: Form = form
        self._when_down = when_down

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        values: list[float | Score | None] = [None] * len(samples)
        for rows in batches(samples, self._batch_size):
            for row, value in zip(rows, self._request_scores([samples[row] for row in rows]), strict=True):
                values[row] = value
        return values

    def _request_scores(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        try:
            body, content_type = pack_samples(samples, reward=self._reward, form=self._form, columns=self._columns)
        except DataError as error:
            raise RewardError(f"samples cannot be sent to {self._url}: {error}") from error
        try:
            answer = self._answer(body, content_type)
        except OSError as error:
            raised = f"the reward server {self._url} did not answer in {self._retries + 1} attempts: {_cause(error)}"
            if self._when_down == "stop":
                raise RewardError(f"{raised}. Restart it, or let its samples fail with when_down: fail") from error
            logger.warning("%s; %d samples count as failed", raised, len(samples))
            return [math.nan] * len(samples)
        return self._values(answer, len(samples))

    def _answer(self, body: bytes, content_type: str) -> bytes:
        """Post the request with retries. Raises OSError after the last attempt."""
        for attempt in range(self._retries + 1):
            try:
                return self._post(body, content_type)
            except OSError as error:
                if attempt == self._retries:
                    raise
                logger.info("reward server %s, attempt %d: %s", self._url, attempt + 1, _cause(error))
                time.sleep(self._backoff * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _post(self, body: bytes, content_type: str) -> bytes:
        connect = BoundedSecureConnection if self._https else BoundedConnection
        connection = connect(self._host, self._port, timeout=self._timeout)
        try:
            headers = {"Content-Type": content_type, **self._headers}
            with suppress(BrokenPipeError, ConnectionResetError):  # the server may respond early
                connection.request("POST", f"{self._path}/score", body, headers)
            response = connection.getresponse()
            status, answer = response.status, read_body(response, MAX_ANSWER_BYTES)
        except http.client.HTTPException as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if answer is None:
            raise RewardError(
                f"the reward server {self._url} answered with more than {MAX_ANSWER_BYTES} bytes; if it is one, lower "
                "batch_size, or let its reward explain less"
            )
        if status == http.client.OK:
            return answer
        if status in _PASSING or status >= 500:
            raise ConnectionError(f"status {status}: {_detail(answer)}")
        raise RewardError(f"the reward server {self._url} rejected the request ({status}): {_detail(answer)}")

    def _values(self, answer: bytes, num: int) -> list[float | Score | None]:
        try:
            check_values(answer)
            response = ScoreResponse.model_validate_json(answer)
        except DataError as error:
            raise RewardError(f"the answer of the reward server {self._url} cannot be read: {error}") from error
        except ValidationError as error:
            raise RewardError(f"{self._url} is no reward server: {error.error_count()} errors in its answer") from error
        explanations, scopes = response.explanations or [None] * num, response.scopes or [None] * num
        if {len(response.values), len(explanations), len(scopes)} != {num} or not set(response.failed) <= set(
            range(num)
        ):
            raise RewardError(f"the reward server {self._url} gave {len(response.values)} values for {num} samples")
        if response.error is not None:
            logger.warning("the reward at %s failed on %d samples: %s", self._url, num, response.error[:1000])
        values = [math.nan if i in set(response.failed) else value for i, value in enumerate(response.values)]
        try:
            return [_scored(*fields) for fields in zip(values, explanations, scopes, strict=True)]
        except DataError as error:
            raise RewardError(f"the answer of the reward server {self._url} cannot be read: {error}") from error


def _address(url: str) -> SplitResult:
    """Parse the URL of a server. Raises ConfigError for anything but scheme, host, port and path."""
    with suppress(ValueError):  # a port that is not a number
        address = urlsplit(url)
        plain_address = address._replace(netloc=address.netloc.rpartition("@")[2], query="", fragment="")
        if address == plain_address and address.scheme in ("http", "https") and address.hostname and address.port != 0:
            return address
    raise ConfigError(f"Remote.url must be such as http://127.0.0.1:8000, got {url!r}")


def batches(samples: Sequence[Sample], size: int) -> Iterator[list[int]]:
    """Row indices in batches of complete groups, of at most ``size`` samples unless one group has more."""
    groups: dict[int, list[int]] = {}
    for row, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(row)
    batch: list[int] = []
    for rows in groups.values():
        if batch and len(batch) + len(rows) > size:
            yield batch
            batch = []
        batch = batch + rows
    if batch:
        yield batch


def _scored(
    value: float | None, explanation: Mapping[str, object] | None, scopes: Sequence[WireScope] | None
) -> float | Score | None:
    if value is None or (explanation is None and scopes is None):
        return value
    parts = None if scopes is None else [Scope(s.start, s.end, math.nan if s.failed else s.value) for s in scopes]
    return Score(value, explanation or {}, parts)


def _detail(body: bytes) -> str:
    """The error message of a response: the field ``error`` of its JSON, or the beginning of the body."""
    try:
        return str(json.loads(body)["error"])[:1000]
    except (ValueError, KeyError, TypeError, RecursionError):
        return repr(body[:200])


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
