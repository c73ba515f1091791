"""A judge at an OpenAI-compatible endpoint: sends images and a question, receives a reply or its first token."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeVar, final

from mmgrpo.data.image_loading import PictureFormat, data_url
from mmgrpo.errors import ConfigError
from mmgrpo.system.json_requests import NoReplyError, RequestLimits, post_json, require_server
from mmgrpo.types import Sample, Score

from ..models.checkpoints import require_positive
from ..parsing.extraction import require_choice
from .judge_protocol import JudgeMode, JudgeScoring, ReplyChoice, ReplyParams, score_pairs
from .questions import Question, Scale, WhichScore, default_image_question, fill_template, judge_images

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Settings of an endpoint.

    Attributes:
        url: base URL of the API, to which ``/chat/completions`` is appended.
        model: name of the model at the endpoint.
        system: system prompt; None for none.
        key_variable: environment variable with the API key, read at every request; None sends none.
        timeout: time limit in seconds for connecting, for sending and for the complete reply, each, per attempt.
        retries: number of retries after a transient failure.
        backoff: seconds before the first retry, doubled each time; at least the server's Retry-After.
        concurrency: maximum number of parallel requests.
        image: image encoding: png (lossless) or jpeg.
        extra: additional fields of the request.
    """

    url: str
    model: str
    system: str | None = None
    key_variable: str | None = None
    timeout: float = 60.0
    retries: int = 3
    backoff: float = 1.0
    concurrency: int = 8
    picture: PictureFormat = "png"
    extra: Mapping[str, Any] = field(default_factory=dict)
    is_remote: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_server(self.url, "the url of a judge")
        if not self.timeout > 0 or self.retries < 0 or self.backoff < 0:
            raise ConfigError(
                "a judge's endpoint needs timeout > 0, retries >= 0 and backoff >= 0, "
                f"got {self.timeout}, {self.retries} and {self.backoff}"
            )
        require_positive("the judge's concurrency", self.concurrency)
        require_choice("the judge's image", self.picture, PictureFormat)

    def replies(self, questions: Sequence[Question], reply_params: ReplyParams) -> list[list[str]]:
        """Replies to each question, one request per reply; failed requests are omitted."""
        limits = {"temperature": reply_params.temperature or 0, "max_tokens": reply_params.max_new_tokens}
        seeds = [{"seed": draw} if reply_params.draws > 1 else {} for draw in range(reply_params.draws)]
        contents = self._ask_all([(question, limits | seed) for question in questions for seed in seeds], _content)
        by_question = [contents[i * len(seeds) : (i + 1) * len(seeds)] for i in range(len(questions))]
        return [[reply for reply in replies if reply is not None] for replies in by_question]

    def choice_probs(self, questions: Sequence[Question], choices: Sequence[ReplyChoice]) -> list[list[float] | None]:
        """Per question, the probability that the reply begins with each choice, among the 20 most likely tokens."""
        fields = {"temperature": 0, "max_tokens": 1, "logprobs": True, "top_logprobs": 20}
        tops = self._ask_all([(question, fields) for question in questions], _first_tokens)
        return [None if top is None else [_mass(top, choice) for choice in choices] for top in tops]

    def _ask_all(
        self, requests: Sequence[tuple[Question, Mapping[str, Any]]], read: Callable[[bytes], T]
    ) -> list[T | None]:
        """The parsed replies; None for failed requests, which are logged once with the first cause."""
        with ThreadPoolExecutor(max_workers=self.concurrency) as pool:
            outcomes = list(pool.map(lambda outcome: self._ask(outcome[0], outcome[1], read), requests))
        causes = [outcome for outcome in outcomes if isinstance(outcome, NoReplyError)]
        if causes:
            logger.warning(
                "%s gave no reply for %d of %d questions; the first: %s",
                self.url,
                len(causes),
                len(requests),
                causes[0],
            )
        return [None if isinstance(outcome, NoReplyError) else outcome for outcome in outcomes]

    def _ask(self, question: Question, fields: Mapping[str, Any], read: Callable[[bytes], T]) -> T | NoReplyError:
        images = [
            {"type": "image_url", "image_url": {"url": data_url(image, self.picture)}} for image in question.images
        ]
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": [*images, {"type": "text", "text": question.text}]}
        ]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        try:
            return read(self._post({"model": self.model, "messages": messages, **fields, **self.extra}))
        except NoReplyError as error:
            return error

    def _post(self, request: Mapping[str, Any]) -> bytes:
        limits = RequestLimits(timeout_s=self.timeout, retries=self.retries, backoff_s=self.backoff)
        return post_json(f"{self.url.rstrip('/')}/chat/completions", request, limits, key_variable=self.key_variable)


@final
class ApiJudge:
    """Reward: score from a model at an OpenAI-compatible endpoint, parsed from its reply or from answer
    probabilities.

    It works with vLLM, SGLang, llama.cpp and hosted models: ``POST URL/chat/completions`` with the images as data URLs
    before the question, at temperature 0. Up to ``concurrency`` requests run in parallel. A request that times out,
    loses its connection or gets a transient status (408, 409, 425, 429, 5xx) is retried ``retries`` times, after
    ``backoff`` seconds, twice that, and so on, or the server's Retry-After. A sample without a reply after that, or
    with a reply without a score on the scale, fails (NaN) and is counted; the first cause is logged.

    Example: ``{name: api_judge, url: "http://127.0.0.1:8000/v1", model: Qwen/Qwen2.5-VL-7B-Instruct}``.
    Settings: ``url`` such as ``http://127.0.0.1:8000/v1``; ``key_variable``, name of the environment variable with the
    API key; ``extra``, further fields of the request; ``picture`` png or jpeg (quality 95); ``mode``, ``question``,
    ``low``, ``high``, ``key``, ``frames``, ``source``, ``draws``, ``temperature`` and ``which`` as in ``vlm_judge``;
    ``yes`` and ``expected`` request the log-probabilities of the 20 most likely first tokens.
    Range: 0 to 1; a score s is (s - low) / (high - low).
    Source: prompted judges as in UnifiedReward, arXiv:2503.05236; client designed for mmgrpo.
    Traps: images and prompts are sent to the endpoint; a hosted model may change without notice, and with it the
    reward; even at temperature 0 servers give different results for different batches.
    """

    concurrent = True

    def __init__(
        self,
        url: str,
        model: str,
        question: str | None = None,
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
        mode: JudgeMode = "parse",
        draws: int = 1,
        temperature: float = 0.0,
        which: WhichScore = "first",
    ) -> None:
        self._judge_scoring = JudgeScoring(
            mode=mode,
            scale=Scale(low=low, high=high, key=key, which=which),
            reply_params=ReplyParams(max_new_tokens=max_new_tokens, draws=draws, temperature=temperature),
        )
        self._question = question or default_image_question(mode)
        self._frames = require_positive("ApiJudge.frames", frames)
        self._shows_source = source
        self._endpoint = Endpoint(
            url=url,
            model=model,
            system=system,
            key_variable=key_variable,
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            concurrency=concurrency,
            picture=picture,
            extra=extra or {},
        )

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        texts = [fill_template(self._question, sample, self._judge_scoring.scale) for sample in samples]
        images = [judge_images(sample, self._frames, self._shows_source) for sample in samples]
        return score_pairs(images, texts, partial(self._judge_scoring.scores, self._endpoint))


def _content(body: bytes) -> str:
    """The text of the first choice."""
    content = _choice_field(body, "message", "content")
    if not isinstance(content, str):
        raise NoReplyError(f"the completion's content is no text: {content!r:.200}")
    return content


def _first_tokens(body: bytes) -> list[tuple[str, float]]:
    """The most likely first tokens of the first choice, with their log-probabilities."""
    tokens = _choice_field(body, "logprobs", "content", 0, "top_logprobs")
    try:
        return [(str(token["token"]), float(token["logprob"])) for token in tokens]
    except (ValueError, LookupError, TypeError) as error:
        raise NoReplyError(f"no log-probabilities of tokens: {tokens!r:.200}") from error


def _choice_field(body: bytes, *keys: str | int) -> Any:
    """The value at a path of keys in the first choice of a chat completion."""
    try:
        value = json.loads(body)["choices"][0]
        for key in keys:
            value = value[key]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise NoReplyError(f"no {keys[0]} in a chat completion ({type(error).__name__}): {body[:200]!r}") from error
    return value


def _mass(top: Sequence[tuple[str, float]], choice: ReplyChoice) -> float:
    """The total probability of the tokens that spell a choice, with or without surrounding spaces."""
    return sum(math.exp(min(logprob, 0.0)) for token, logprob in top if token.strip() in choice.forms)
