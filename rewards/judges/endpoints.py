"""A judge behind any OpenAI-compatible endpoint: pictures and a question go out, a score is read from the reply.

Only the standard library speaks HTTP here; redirects are not followed, so the key goes to no other host.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import Message
from io import BytesIO
from typing import IO, Any, Literal, final
from urllib.parse import urlsplit

from PIL import Image

from mmgrpo.errors import ConfigError
from mmgrpo.rewards.judges.questions import HOW_WELL, Question, Scale, filled, shown
from mmgrpo.rewards.models.checkpoints import positive
from mmgrpo.rewards.parsing.extraction import one_of
from mmgrpo.system.bounded import Ends, EndsSecurely, body_of
from mmgrpo.types import Sample, Score

logger = logging.getLogger(__name__)

PictureFormat = Literal["png", "jpeg"]

PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Statuses that another attempt may change."""

MAX_REPLY_BYTES = 2**22
MAX_WAIT_S = 60.0


class NoReplyError(Exception):
    """The endpoint gave no usable reply; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where and how to ask.

    Attributes:
        url: of the API, to which ``/chat/completions`` is added.
        model: the name the endpoint knows its model by.
        key_variable: environment variable with the API key, read at every request; None sends none.
        timeout: seconds that connecting, sending and the whole of the reply may take, each, in one attempt.
        retries: further attempts after a passing failure.
        backoff: seconds before the second attempt; doubled each time, and as long as the server asks for.
        extra: further fields of the request.
    """

    url: str
    model: str
    key_variable: str | None
    timeout: float
    retries: int
    backoff: float
    extra: Mapping[str, Any]

    def reply(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of the first choice. Raises NoReplyError after the last attempt."""
        body = json.dumps({"model": self.model, "messages": list(messages), **self.extra}).encode()
        for attempt in range(self.retries + 1):
            try:
                return self._attempt(body)
            except urllib.error.HTTPError as error:
                with error:
                    said = _beginning(error)
                cause, waits, passing = f"HTTP {error.code}: {said}", _asked_wait(error.headers), error.code in PASSING
            except (OSError, http.client.HTTPException) as error:
                cause, waits, passing = f"{type(error).__name__}: {error}", 0.0, True
            if not passing or attempt == self.retries:
                raise NoReplyError(f"after {attempt + 1} attempts: {cause}")
            time.sleep(min(max(self.backoff * 2**attempt, waits), MAX_WAIT_S))
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self, body: bytes) -> str:
        headers = {"Content-Type": "application/json"}
        if self.key_variable is not None:
            key = os.environ.get(self.key_variable, "").strip()
            if not key:
                raise NoReplyError(f"the environment variable {self.key_variable} holds no API key")
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(f"{self.url.rstrip('/')}/chat/completions", body, headers, method="POST")
        with _opener.open(request, timeout=self.timeout) as response:
            said = body_of(response, MAX_REPLY_BYTES)
        if said is None:
            raise NoReplyError(f"the reply is longer than {MAX_REPLY_BYTES} bytes")
        return _first_choice(said)


@final
class ApiJudge:
    """Reward: the score that a model behind an OpenAI-compatible endpoint writes: ``vlm_judge`` in mode ``parse``.

    vLLM, SGLang, llama.cpp and hosted models are asked alike: ``POST URL/chat/completions`` with the pictures as data
    URLs before the question, at temperature 0. ``concurrency`` requests are under way at once. A request that times
    out, loses its connection or gets a passing status (408, 409, 425, 429, 5xx) is tried ``retries`` times more, after
    ``backoff`` seconds, twice that, and so on, or as long as the server asks for. What gives no reply after that, or a
    reply without a score on the scale, is a failure (NaN) of that sample, counted; the first cause is logged.

    Example: ``{name: api_judge, url: "http://127.0.0.1:8000/v1", model: Qwen/Qwen2.5-VL-7B-Instruct}``.
    Settings: ``url`` such as ``http://127.0.0.1:8000/v1``; ``key_variable``, the environment variable that holds the
    API key, never the key itself; ``extra``, further fields of the request; ``picture`` png or jpeg (quality 95);
    ``question``, ``low``, ``high``, ``key``, ``frames``, ``source`` as in ``vlm_judge``.
    Range: 0 to 1; a score s is (s - low) / (high - low).
    Source: judges by prompt as UnifiedReward, arXiv:2503.05236, is served; own client.
    Traps: pictures and prompts leave the machine; a hosted model may change under its name, and with it the reward;
    servers differ at temperature 0 from batch to batch.
    """

    concurrent = True

    def __init__(
        self,
        url: str,
        model: str,
        question: str = HOW_WELL,
        low: int = 1,
        high: int = 5,
        key: str = "score",
        frames: int = 4,
        source: bool = False,
        system: str | None = None,
        key_variable: str | None = None,
        timeout: float = 60.0,
        retries: int = 3,
        backoff: float = 1.0,
        concurrency: int = 8,
        max_new_tokens: int = 256,
        picture: PictureFormat = "png",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(f"ApiJudge.url must be such as http://127.0.0.1:8000/v1, got {url!r}")
        if not timeout > 0 or retries < 0 or backoff < 0:
            raise ConfigError(
                f"ApiJudge needs timeout > 0, retries >= 0 and backoff >= 0, got {timeout}, {retries} and {backoff}"
            )
        self._scale = Scale(low=low, high=high, key=key)
        self._question = question
        self._frames = positive("ApiJudge.frames", frames)
        self._shows_source = source
        self._system = system
        self._concurrency = positive("ApiJudge.concurrency", concurrency)
        self._picture: PictureFormat = one_of("ApiJudge.picture", picture, PictureFormat)
        limits = {"temperature": 0, "max_tokens": positive("ApiJudge.max_new_tokens", max_new_tokens)}
        self._endpoint = Endpoint(
            url=url,
            model=model,
            key_variable=key_variable,
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            extra=limits | dict(extra or {}),
        )

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        texts = [filled(self._question, sample, self._scale) for sample in samples]
        pictures = [shown(sample, self._frames, self._shows_source) for sample in samples]
        rows = [i for i, text in enumerate(texts) if text is not None and pictures[i]]
        with ThreadPoolExecutor(max_workers=self._concurrency) as pool:
            asked = [Question(pictures[i], texts[i] or "") for i in rows]
            replies = list(pool.map(self._reply, asked))
        causes = [reply for reply in replies if isinstance(reply, NoReplyError)]
        if causes:
            where = self._endpoint.url
            logger.warning(
                "%s gave no reply for %d of %d samples; the first: %s", where, len(causes), len(rows), causes[0]
            )
        values: list[float | Score | None] = [None] * len(samples)
        for i, reply in zip(rows, replies, strict=True):
            values[i] = self._scale.judged(None if isinstance(reply, NoReplyError) else reply)
        return values

    def _reply(self, question: Question) -> str | NoReplyError:
        pictures = [
            {"type": "image_url", "image_url": {"url": data_url(picture, self._picture)}}
            for picture in question.pictures
        ]
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": [*pictures, {"type": "text", "text": question.text}]}
        ]
        if self._system is not None:
            messages.insert(0, {"role": "system", "content": self._system})
        try:
            return self._endpoint.reply(messages)
        except NoReplyError as error:
            return error


def data_url(picture: Image.Image, form: PictureFormat) -> str:
    """A picture as a ``data:`` URL: PNG, exactly, or JPEG of quality 95."""
    buffer = BytesIO()
    picture.convert("RGB").save(buffer, format=form.upper(), **({"quality": 95} if form == "jpeg" else {}))
    return f"data:image/{form};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _beginning(error: urllib.error.HTTPError) -> str:
    try:
        return error.read(500).decode(errors="replace")
    except (OSError, http.client.HTTPException) as broken:
        return f"{type(broken).__name__}: {broken}"


def _first_choice(said: bytes) -> str:
    try:
        content = json.loads(said)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise NoReplyError(f"not a chat completion ({type(error).__name__}): {said[:200]!r}") from error
    if not isinstance(content, str):
        raise NoReplyError(f"the completion's content is no text: {content!r:.200}")
    return content


def _asked_wait(headers: Message) -> float:
    """Seconds that the server asks to wait for; 0 where it names none, or a date."""
    asked = str(headers.get("Retry-After") or "")
    return float(asked) if asked.isdecimal() and len(asked) < 6 else 0.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """None, so that the redirect is an error."""


_opener = urllib.request.build_opener(_NoRedirect, Ends, EndsSecurely)
