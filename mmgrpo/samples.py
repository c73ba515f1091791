"""What is asked of a policy and what it made of it, as everything but the policy sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from PIL import Image

from mmgrpo.errors import DataError
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

MAX_RATE = 768_000
"""The highest sampling rate of a sound, in Hz: four times what recorders offer."""


@dataclass(frozen=True, slots=True, eq=False)
class Audio:
    """A sound.

    Attributes:
        values: (channels, samples) float32 on the CPU, in [-1, 1], at least one of each.
        sampling_rate: samples of a channel in a second, Hz.

    Raises: DataError for values of another shape, type or range, and for a rate that is none.
    """

    values: Tensor
    sampling_rate: int

    def __post_init__(self) -> None:
        values, rate = self.values, self.sampling_rate
        if not isinstance(values, torch.Tensor) or values.dtype != torch.float32 or values.device.type != "cpu":
            raise DataError(f"Audio.values must be a float32 tensor on the CPU, got {_kind_of(values)}")
        if values.ndim != 2 or 0 in values.shape:
            raise DataError(f"Audio.values must be (channels, samples), of one at least, got {tuple(values.shape)}")
        if values.requires_grad or not bool((values.abs() <= 1).all()):
            raise DataError("Audio.values must be numbers from -1 to 1, without a gradient; clamp what lies beyond")
        if isinstance(rate, bool) or not isinstance(rate, int) or not 0 < rate <= MAX_RATE:
            raise DataError(f"Audio.sampling_rate must be an integer of 1 to {MAX_RATE} Hz, got {rate!r}")

    @property
    def duration_s(self) -> float:
        """How long it lasts, in seconds."""
        return self.values.shape[1] / self.sampling_rate


def _kind_of(value: object) -> str:
    return f"{value.dtype} on {value.device}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a policy is asked, with whatever columns the rewards may need.

    Attributes:
        text: the prompt as text.
        images: images the model is shown (an editing source, a question's picture).
        videos: videos the model is shown, each a sequence of frames or a path.
        audios: sounds the model hears, each an ``Audio``, a path, or what else ``mmgrpo.data.sounds`` opens.
        messages: the prompt as chat messages, where the model wants turns instead of one text.
        negative: the negative prompt of classifier-free guidance; None leaves the pipeline's default.
        columns: further columns of the data row, handed to every reward unchanged.
        source: label of the source it comes from, where there are several.
        prefix: the beginning of the answer, for policies that write: given, never drawn, never trained.
        chat_template_kwargs: what the row brings for the chat template: ``tools``, the schemas of functions, and others
            by the template's own names.
    """

    text: str
    images: Sequence[Any] = ()
    videos: Sequence[Any] = ()
    messages: Sequence[Mapping[str, Any]] | None = None
    negative: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    prefix: str | None = None
    audios: Sequence[Any] = ()
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise DataError(f"Prompt.text must be a string, got {type(self.text).__name__}")
        if not isinstance(self.columns, Mapping):
            raise DataError(f"Prompt.columns must be a mapping, got {type(self.columns).__name__}")


@dataclass(frozen=True, slots=True)
class Example:
    """One row of supervised data: a prompt and what the policy should make of it.

    Attributes:
        prompt: what is asked.
        text: the target text, for policies that write.
        image: the target image, for policies that draw.
        video: the target video as a list of frames.
        audio: the target sound.
        array: the target where it is none of these: what a robot does, an embedding.
        finished: whether the text ends there; what does not is taught without an end.
    """

    prompt: Prompt
    text: str | None = None
    image: Image.Image | None = None
    video: Sequence[Image.Image] | None = None
    finished: bool = True
    audio: Audio | None = None
    array: Tensor | None = None


TURNS = ("turn_starts", "turn_ends", "turn_texts", "turn_rewards", "turn_keys")
"""The fields of a sample that say what the turns of an exchange were, one entry a turn."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One generation, as a reward sees it.

    Attributes:
        prompt: what was asked.
        group: integer identity of the prompt within the step; members of one group share it.
        member: position within the group, 0 <= member < group size.
        text: generated text, if the policy writes, what it was given of the answer included.
        image: generated image, if the policy draws.
        video: generated video as a list of frames.
        frame_rate: of the video, in frames a second; None where not known.
        audio: generated sound; beside the video where a pipeline gives both.
        array: what was generated where it is none of these: an embedding, what a robot did, sound of unknown
            rate; float32, CPU.
        latent: the final state that a denoiser made it of, (1, ...) on the CPU, if the plan keeps it.
        tokens: generated token ids, if the policy speaks in tokens.
        finished: False where the generation was cut off by its length limit.
        logprob: mean log-probability of its decisions under the policy that drew it, in nats; None where not known.
        values: what was asked for of its decisions beside that, as means over them, by name (``Plan.sample_values``):
            ``certainty``, KL(uniform || policy), and ``entropy``, both in nats.
        num_forced: how many of its first tokens were given, not drawn.
        turn_starts: where each turn that it wrote in an exchange begins, in tokens; empty: there was none.
        turn_ends: where each ends.
        turn_texts: what it wrote in each.
        turn_rewards: what the environment gave for each; None where nothing.
        turn_keys: of the state that each was written in: the environment's own, or what it told; None where not known.
        context: name of the context that it was shown the prompt in; None: the prompt as it is.
        after: group and member of each sample of the step whose text its context shows; empty: none.
        environment_error: what went wrong in the environment of its exchange: no reward scores it; None: nothing did.
        failure: why it is no result of the policy (pixels that are not finite, an image that a safety checker
            replaced): no reward is called with it; None: it is one.
    """

    prompt: Prompt
    group: int
    member: int
    text: str | None = None
    image: Image.Image | None = None
    video: Sequence[Image.Image] | None = None
    frame_rate: float | None = None
    array: Tensor | None = None
    latent: Tensor | None = None
    tokens: Sequence[int] | None = None
    finished: bool = True
    logprob: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    num_forced: int = 0
    turn_starts: Sequence[int] = ()
    turn_ends: Sequence[int] = ()
    turn_texts: Sequence[str] = ()
    turn_rewards: Sequence[float | None] = ()
    turn_keys: Sequence[str | None] = ()
    context: str | None = None
    after: Sequence[tuple[int, int]] = ()
    environment_error: str | None = None
    audio: Audio | None = None
    failure: str | None = None

    @property
    def is_scored(self) -> bool:
        """Whether rewards are called with it: it is a result, and the environment of its exchange did not fail."""
        return self.failure is None and self.environment_error is None

    @property
    def identity(self) -> tuple[int, int]:
        """Its group and its member: what ``after`` names it by."""
        return self.group, self.member

    @property
    def turns(self) -> dict[str, Any]:
        """What it says of its turns, by field; empty where it was no exchange."""
        return {name: list(getattr(self, name)) for name in TURNS} if self.turn_ends else {}

    @property
    def certainty(self) -> float:
        """Nothing any more: raises AttributeError, which says where it is."""
        raise AttributeError('sample.certainty is sample.values["certainty"], there if Plan.sample_values names it')
