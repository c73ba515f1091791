"""The HTTP endpoints: POST /score, GET /health and GET /metrics."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from mmgrpo.errors import ConfigError, DataError
from mmgrpo.scoring import NamedReward
from mmgrpo.serving.batching import Batcher, TooBusyError
from mmgrpo.serving.server_metrics import CONTENT_TYPE, Metrics
from mmgrpo.serving.wire import JSON, unpack_request

logger = logging.getLogger(__name__)

CLOSE_S = 1.0  # for a reward to finish its call at shutdown, after the grace period of requests


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of a reward server.

    Attributes:
        max_batch: maximum number of samples per call of a reward, unless a single request has more.
        window_s: how long a request waits to be batched with others.
        max_waiting: maximum number of queued samples per reward; further requests get 503.
        max_body: maximum bytes of a request; larger requests get 413.
        max_pixels: maximum number of pixels of the images of a request; more get 400. None: half of ``max_body``, more
            than RGB tensors of that size hold.
        body_timeout_s: time limit for receiving a body; later bodies get 408.
        score_timeout_s: time limit for scoring a request; then it gets 504.
    """

    max_batch: int = 64
    window_s: float = 0.005
    max_waiting: int = 4096
    max_body: int = 2**28
    max_pixels: int | None = None
    body_timeout_s: float = 60.0
    score_timeout_s: float = 110.0

    def __post_init__(self) -> None:
        numbers = (self.max_batch, self.max_waiting, self.max_body, self.pixels)
        if min(numbers) < 1 or self.window_s < 0 or min(self.body_timeout_s, self.score_timeout_s) <= 0:
            raise ConfigError(f"the limits of a reward server must be positive, got {self}")

    @property
    def pixels(self) -> int:
        """The limit on pixels, configured or derived."""
        return self.max_body // 2 if self.max_pixels is None else self.max_pixels


class _RequestError(Exception):
    """A request that gets an error response."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def make_app(
    rewards: Sequence[NamedReward], *, limits: ServerLimits | None = None, token: str | None = None
) -> FastAPI:
    """The application that serves rewards; their weights have no effect.

    Args:
        rewards: the served rewards.
        limits: limits of the server.
        token: bearer token required by all endpoints except /health; None: no token.

    Returns:
        The application.

    Raises:
        ConfigError: no rewards, two of one name, or an empty token.
    """
    names = [reward.name for reward in rewards]
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"serve one or more rewards with unique labels, got {names}")
    if token is not None and not token.strip():
        raise ConfigError("the bearer token is empty; set its environment variable or leave it out")
    allowed, metrics = limits or ServerLimits(), Metrics()
    batchers = {
        reward.name: Batcher(
            reward.name,
            reward.function,
            metrics,
            max_batch=allowed.max_batch,
            window_s=allowed.window_s,
            max_waiting=allowed.max_waiting,
        )
        for reward in rewards
    }

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        for name, batcher in batchers.items():
            if not await run_in_threadpool(batcher.close, CLOSE_S):
                logger.warning("reward '%s' is still scoring; no client waits for it, so it is stopped", name)

    app = FastAPI(title="mmgrpo rewards", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)

    @app.get("/health")
    async def health() -> dict[str, object]:
        return {"status": "ok", "rewards": names}

    @app.get("/metrics")
    async def show_metrics(request: Request) -> Response:
        if not _may(request, token):
            return _error_response(_RequestError(401, "a bearer token is needed"))
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    @app.post("/score")
    async def score(request: Request) -> Response:
        try:
            if not _may(request, token):
                await _body(request, allowed, max_stored=0)
                raise _RequestError(401, "a bearer token is needed, or this one is wrong")
            answer = await _scored(request, batchers, allowed, metrics)
        except _RequestError as error:
            answer = _error_response(error)
        metrics.requests.labels(str(answer.status_code)).inc()
        return answer

    return app


async def _scored(
    request: Request, batchers: Mapping[str, Batcher], limits: ServerLimits, metrics: Metrics
) -> Response:
    body = await _body(request, limits)
    start = time.monotonic()
    content_type = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    try:
        name, samples = await run_in_threadpool(unpack_request, body, content_type, max_pixels=limits.pixels)
    except DataError as error:
        raise _RequestError(400, str(error)) from None
    if name is None and len(batchers) == 1:
        name = next(iter(batchers))
    if name is None or name not in batchers:
        raise _RequestError(404, f"there is no reward {name!r:.80}; available are {', '.join(batchers)}")
    try:
        waiting = batchers[name].submit(samples)
        answer = await asyncio.wait_for(asyncio.wrap_future(waiting), limits.score_timeout_s)
    except TooBusyError as error:
        raise _RequestError(503, str(error)) from None
    except TimeoutError:
        raise _RequestError(504, f"reward '{name}' took more than {limits.score_timeout_s:g} s") from None
    metrics.request_seconds.labels(name).observe(time.monotonic() - start)
    return Response(answer.model_dump_json(), media_type=JSON)


async def _body(request: Request, limits: ServerLimits, *, max_stored: int | None = None) -> bytes:
    """The first ``max_stored`` bytes of the body, within the time limit; the complete body by default.

    Larger bodies are read and discarded up to twice the limit, because a client that is still sending reads no
    response.
    """
    max_stored = limits.max_body if max_stored is None else max_stored
    chunks, size = [], 0
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= max_stored:
                    chunks.append(chunk)
                else:
                    chunks.clear()
                if size > 2 * limits.max_body:
                    break
    except ClientDisconnect:
        raise _RequestError(400, "the client went away before its body had arrived") from None
    except TimeoutError:
        raise _RequestError(408, f"the body did not arrive within {limits.body_timeout_s:g} s") from None
    if size > limits.max_body:
        raise _RequestError(413, f"the body is larger than {limits.max_body} bytes; send fewer samples at once")
    return b"".join(chunks)


def _may(request: Request, token: str | None) -> bool:
    header = request.headers.get("authorization", "")
    return token is None or hmac.compare_digest(header.encode(), f"Bearer {token}".encode())


def _error_response(error: _RequestError) -> Response:
    headers = {"connection": "close"} if error.status in (408, 413) else {}
    return JSONResponse({"error": error.detail}, error.status, headers)
