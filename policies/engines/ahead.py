"""Completions that an engine generates before the rollout that they belong to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, final

import torch

from mmgrpo.errors import EngineError

from .engine import CompletionSource, Engine, EngineCompletion, EngineRequest


@final
class RolloutSource(CompletionSource):
    """The completions of a rollout: those that were sampled ahead, or else those of the engine's current weights.

    Attributes:
        is_ahead: whether the completions were sampled ahead; False before the first request.
    """

    def __init__(self, engine: Engine, ahead: Mapping[str, Any], *, sync: Callable[[], None]) -> None:
        """Sends nothing yet.

        Args:
            engine: the engine.
            ahead: completions as ``plain_completions`` returns them, by ``request_key``.
            sync: sends the current weights; called before the first request that the engine answers.
        """
        self._engine, self._ahead, self._sync = engine, ahead, sync
        self._num_requests = 0
        self.is_ahead = False

    def submit(self, request: EngineRequest) -> Future[Sequence[EngineCompletion]]:
        """Looks the request up. Raises EngineError if only some of a rollout's requests were sampled ahead."""
        completions, is_first = self._ahead.get(request_key(request)), not self._num_requests
        self._num_requests += 1
        if is_first:
            self.is_ahead = completions is not None
            if not self.is_ahead:
                self._sync()
        if self.is_ahead != (completions is not None):
            raise EngineError(
                "rollout.engine.steps_ahead: some requests of this rollout were sent one step ahead, and others were "
                "not: prompts and strategy must not depend on the update in between. Set steps_ahead: 0 and resume"
            )
        if completions is None:
            return self._engine.submit(request)
        future: Future[Sequence[EngineCompletion]] = Future()
        future.set_result([_completion(plain) for plain in completions])
        return future

    def require_alive(self) -> None:
        """Asks the engine."""
        self._engine.require_alive()


def request_key(request: EngineRequest) -> str:
    """A short text that requests for other completions do not have."""
    sampling = request.token_ids, request.num, request.seed, request.max_tokens, request.sampling
    digest = hashlib.sha256(repr(sampling).encode())
    for image in request.images:
        digest.update(repr((image.mode, image.size)).encode() + image.tobytes())
    return digest.hexdigest()


def plain_completions(completions: Sequence[EngineCompletion]) -> list[dict[str, Any]]:
    """Completions in types that ``torch.load(weights_only=True)`` reads, exactly."""
    return [
        {
            "token_ids": torch.tensor(completion.token_ids),
            "logprobs": torch.tensor(completion.logprobs, dtype=torch.float64),
            "finished": completion.finished,
        }
        for completion in completions
    ]


def _completion(plain: Mapping[str, Any]) -> EngineCompletion:
    return EngineCompletion(
        token_ids=tuple(plain["token_ids"].tolist()),
        logprobs=tuple(plain["logprobs"].tolist()),
        finished=plain["finished"],
    )
