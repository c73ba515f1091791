"""Generation of rows by an inference engine."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import final

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
from ..engines.engine import Engine, EngineCompletion, EngineRequest, EngineSampling
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


@final
class EngineGenerator(RowGenerator):
    """Rows that an engine generates: one request for all rows with the same beginning."""

    def __init__(self, engine: Engine, params: GenerationParams) -> None:
        """Begins without rows.

        Args:
            engine: the engine, with the current weights.
            params: sampling parameters.
        """
        self._engine, self._params, self._sampling = engine, params, engine_sampling(params)
        self._pending: dict[Future[Sequence[EngineCompletion]], list[RowRequest]] = {}

    @property
    def is_pending(self) -> bool:
        """Whether completions are awaited."""
        return bool(self._pending)

    def submit(self, requests: Sequence[RowRequest]) -> list[list[int]]:
        """Sends the rows; their random numbers depend on the seed of the first row with the same beginning."""
        starts, owners = shared_starts(requests)
        for number, start in enumerate(starts):
            rows = [request for request, owner in zip(requests, owners, strict=True) if owner == number]
            initial = [] if start.initial is None else start.initial.token_T.tolist()
            request = EngineRequest(
                token_ids=(*start.prompt.ids_P.tolist(), *initial),
                num=len(rows),
                seed=derive_seed(rows[0].seed, len(initial)) // 2,  # the server adds the number of the completion
                max_tokens=rows[0].limit(self._params),
                sampling=self._sampling,
                images=_images(start.prompt.prompt),
                image_tokens=frozenset(self._params.media_ids),
            )
            self._pending[self._engine.submit(request)] = rows
        return [[request.row] for request in requests]

    def advance(self) -> dict[int, Completion]:
        """Waits for completions; if none comes for a while, asks whether the engine is alive."""
        try:
            done = wait(self._pending, timeout=ALIVE_EVERY_S, return_when=FIRST_COMPLETED).done
            if not done:
                self._engine.require_alive()
            finished: dict[int, Completion] = {}
            for future in done:
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
