"""The contract of an inference engine: completions of token ids, by weights that the trainer sends.

An engine knows tokens only; prompts, conversations and log-probabilities of the policy are the trainer's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL.Image import Image

from mmgrpo.policy import EngineContext

if TYPE_CHECKING:  # settings of an engine are read without torch
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWeights:
    """Weights of a model, in two forms.

    Attributes:
        save: writes the model with them, and its processor, into an existing folder, as ``save_pretrained`` does.
        tensors: the tensors of these files by their names, on the model's device.
    """

    save: Callable[[Path], None]
    tensors: Callable[[], Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """The model that an engine serves.

    Attributes:
        num_tokens: number of its logits.
        dtype: of its weights, such as float32.
        head_size: size of its attention heads; None: unknown.
        device: where its weights are.
        weights: its weights; adapters are merged.
        adapters: its LoRA adapters; None: it has none.
    """

    num_tokens: int
    dtype: str
    head_size: int | None
    device: torch.device
    weights: EngineWeights
    adapters: EngineAdapters | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAdapters:
    """LoRA adapters of a model that an engine serves.

    Attributes:
        rank: their rank.
        save: writes them into an existing folder, in peft's format.
        base: weights of the model without them.
    """

    rank: int
    save: Callable[[Path], None]
    base: EngineWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVersions:
    """The versions of the weights of a model.

    Attributes:
        frozen: of the frozen weights, which are all but the adapters if it has some.
        trained: of the trained weights.
    """

    frozen: str
    trained: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSampling:
    """The sampling distribution of completions.

    Attributes:
        temperature: divisor of the logits; 0 takes the likeliest token.
        top_k: keeps the k likeliest tokens.
        top_p: keeps the smallest set of likeliest tokens with this total probability.
        min_p: keeps tokens with at least this share of the likeliest token's probability.
        suppressed: token ids that are never sampled.
        end_ids: token ids that end a completion, which includes them.
    """

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    suppressed: tuple[int, ...]
    end_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """Completions of one sequence of tokens.

    Attributes:
        token_ids: the prompt, and the beginning of the answer if there is one.
        num: number of completions.
        seed: completion n has the random numbers of the seed ``seed + n``.
        max_tokens: maximum number of tokens of a completion.
        sampling: the sampling distribution.
        images: images of the prompt, in order.
        image_tokens: placeholder tokens of images; a run of equal ones is an image.
    """

    token_ids: tuple[int, ...]
    num: int
    seed: int
    max_tokens: int
    sampling: EngineSampling
    images: tuple[Image, ...] = ()
    image_tokens: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCompletion:
    """One completion.

    Attributes:
        token_ids: its tokens, including the end token.
        logprobs: log-probability of each under the engine's sampling distribution.
        finished: whether it ends with an end token.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finished: bool


class CompletionSource(ABC):
    """Answers requests with completions."""

    @abstractmethod
    def submit(self, request: EngineRequest) -> Future[Sequence[EngineCompletion]]:
        """Begins to generate completions; the future raises EngineError if the server fails."""

    @abstractmethod
    def require_alive(self) -> None:
        """Raises EngineError if the server does not answer, which it does within seconds also while it generates."""


class Engine(CompletionSource, ABC):
    """An inference server with a copy of the trained model."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where the server is, for messages."""

    @property
    @abstractmethod
    def max_mismatch(self) -> float | None:
        """Maximum mean difference between log-probabilities of the engine and of the trainer, in nats; None: the
        policy's default."""

    @property
    @abstractmethod
    def steps_ahead(self) -> int:
        """Steps by which samples are generated before the step that trains on them: 0, or 1."""

    @abstractmethod
    def serving(self, model: EngineModel, context: EngineContext) -> AbstractContextManager[None]:
        """A context with a server that generates tokens of a model; a server that it starts ends with it.

        Args:
            model: the model; its weights are not sent by this.
            context: the run around the engine.

        Returns:
            The context. It raises ConfigError if the server does not answer, lacks a feature that training needs, or
            serves another model, and EngineError if it does not start.
        """

    @abstractmethod
    def sleep(self) -> None:
        """Frees memory of the device until ``load_weights``, if the engine is set to; no request is in progress."""

    @abstractmethod
    def load_weights(self, versions: WeightVersions, *, sends: bool) -> None:
        """Replaces the server's weights by those of the model, if it has other ones; cached states are dropped.

        Args:
            versions: of the weights that requests are answered with from now on.
            sends: whether this process replaces them; otherwise it waits until another process of the run has.

        Raises:
            EngineError: the server cannot load them, or does not have them in time.
        """
