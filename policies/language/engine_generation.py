"""Generation of rows by an inference engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, final

import torch
from PIL.Image import Image

from mmgrpo.data.image_loading import load_image
from mmgrpo.data.media_options import options_of
from mmgrpo.environment import Turn
from mmgrpo.errors import ConfigError, DataError, PolicyError
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.types import Prompt
from mmgrpo.values import ENTROPY

from ..completion import Completion
from ..engines.ahead import plain_completions, request_key
from ..engines.engine import CompletionSource, EngineCompletion, EngineRequest, EngineSampling
from .row_generation import GenerationParams, RowGenerator, RowRequest, shared_starts

ALIVE_EVERY_S = 30.0
"""Seconds without any completion after which the engine is asked whether it is alive."""


def engine_sampling(params: GenerationParams) -> EngineSampling:
    """The sampling distribution of a rollout for an engine.

    Raises ConfigError for a distribution or statistics that the engine does not have.
    """
    sampling = params.sampling
    if sampling.temperature_schedule is not None:
        raise ConfigError("rollout.engine has one temperature per completion: remove policy.temperature_schedule")
    if sampling.min_p is not None and (sampling.top_k is not None or sampling.top_p is not None):
        raise ConfigError(
            "rollout.engine applies min_p before top_k and top_p, and the trainer after them: set policy.min_p alone"
        )
    if unsupported := [name for name in params.numbers if name != ENTROPY.name]:
        raise ConfigError(
            f"rollout.engine returns no {', '.join(unsupported)} of its tokens: remove the setting that reads it, or "
            "rollout.engine"
        )
    return EngineSampling(
        temperature=0.0 if params.greedy else sampling.temperature,
        top_k=None if params.greedy else sampling.top_k,
        top_p=None if params.greedy else sampling.top_p,
        min_p=None if params.greedy else sampling.min_p,
        suppressed=tuple(sampling.suppressed.tolist()),
        end_ids=tuple(params.end_ids.tolist()),
    )


def require_untruncated(params: GenerationParams) -> None:
    """Raises ConfigError for a distribution without the tokens that other weights may sample."""
    if params.sampling.truncates:
        raise ConfigError(
            "rollout.engine.steps_ahead samples with other weights than the current ones, which exclude other tokens "
            "under top_k, top_p or min_p, so that no importance weight corrects for them: remove these, or steps_ahead"
        )


CompletionFuture = Future[Sequence[EngineCompletion]]


def engine_requests(
    requests: Sequence[RowRequest], params: GenerationParams
) -> list[tuple[EngineRequest, list[RowRequest]]]:
    """A request for all rows with the same beginning, and these rows.

    The random numbers of the rows depend on the seed of the first of them.
    """
    starts, owners = shared_starts(requests)
    sampling, parts = engine_sampling(params), []
    for number, start in enumerate(starts):
        rows = [request for request, owner in zip(requests, owners, strict=True) if owner == number]
        initial = [] if start.initial is None else start.initial.token_T.tolist()
        request = EngineRequest(
            token_ids=(*start.prompt.ids_P.tolist(), *initial),
            num=len(rows),
            seed=derive_seed(rows[0].seed, len(initial)) // 2,  # the server adds the number of the completion
            max_tokens=rows[0].limit(params),
            sampling=sampling,
            images=_images(start.prompt.prompt),
            image_tokens=frozenset(params.media_ids),
        )
        parts.append((request, rows))
    return parts


def completed(source: CompletionSource, pending: Collection[CompletionFuture]) -> set[CompletionFuture]:
    """Waits until some completions are there; if none comes for a while, asks whether the engine is alive."""
    done = wait(pending, timeout=ALIVE_EVERY_S, return_when=FIRST_COMPLETED).done
    if not done:
        source.require_alive()
    return done


def send_ahead(
    source: CompletionSource, requests: Sequence[RowRequest], params: GenerationParams
) -> Callable[[], dict[str, Any]]:
    """Sends the requests of rows; returns a function that waits for their completions, for a ``RolloutSource``."""
    require_untruncated(params)
    futures = {request_key(request): source.submit(request) for request, _ in engine_requests(requests, params)}

    def collect() -> dict[str, Any]:
        pending = set(futures.values())
        try:
            while pending:
                pending -= completed(source, pending)
        except BaseException:
            for future in pending:
                future.cancel()
            raise
        return {key: plain_completions(future.result()) for key, future in futures.items()}

    return collect


@final
class EngineGenerator(RowGenerator):
    """Rows that an engine generates: one request for all rows with the same beginning."""

    def __init__(self, source: CompletionSource, params: GenerationParams) -> None:
        """Begins without rows.

        Args:
            source: the engine, or what has completions of it.
            params: sampling parameters.
        """
        self._source, self._params = source, params
        self._pending: dict[CompletionFuture, list[RowRequest]] = {}

    @property
    def is_pending(self) -> bool:
        """Whether completions are awaited."""
        return bool(self._pending)

    def submit(self, requests: Sequence[RowRequest]) -> list[list[int]]:
        """Sends the rows."""
        for request, rows in engine_requests(requests, self._params):
            self._pending[self._source.submit(request)] = rows
        return [[request.row] for request in requests]

    def advance(self) -> dict[int, Completion]:
        """Waits for completions."""
        try:
            finished: dict[int, Completion] = {}
            for future in completed(self._source, self._pending):
                for request, completion in zip(self._pending.pop(future), future.result(), strict=True):
                    finished[request.row] = request.start.followed_by(self._completion(completion))
            return finished
        except BaseException:
            for future in self._pending:
                future.cancel()
            raise

    def _completion(self, completion: EngineCompletion) -> Completion:
        """A completion of the engine; its support and its statistics are the trainer's to compute."""
        token_T = torch.tensor(completion.token_ids, dtype=torch.long)
        return Completion(
            token_T=token_T,
            logprob_T=torch.tensor(completion.logprobs),
            is_decision_T=torch.ones(len(token_T), dtype=torch.bool),
            sampling=self._params.sampling,
            finished=completion.finished,
            numbers={name: torch.zeros(len(token_T)) for name in self._params.numbers},
        )


def require_engine_media(source: Prompt | Turn) -> None:
    """Raises PolicyError for a prompt or a turn of an environment with videos or audio."""
    if source.videos or source.audios:
        kind = "turn" if isinstance(source, Turn) else "prompt"
        raise PolicyError(
            f"the {kind} {source.text!r:.60} has videos or audio, which rollout.engine does not support: remove "
            "rollout.engine"
        )


def _images(prompt: Prompt) -> tuple[Image, ...]:
    """The images of a prompt. Raises PolicyError for other media, and DataError for media options."""
    require_engine_media(prompt)
    if any(options_of(prompt, "image")):
        raise DataError(
            f"an image of the prompt {prompt.text!r:.60} has media options, which rollout.engine does not support: "
            "remove them, or rollout.engine"
        )
    return tuple(load_image(image) for image in prompt.images)
