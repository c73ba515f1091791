"""Prompts, supervised examples and generated samples, as every module except the policy sees them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from mmgrpo.errors import DataError
from mmgrpo.system.lazy import torch
from mmgrpo.tool_calls import ToolResult as ToolResult

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

MEDIA = {"image": "images", "video": "videos", "audio": "audios"}
"""The fields of a prompt and of a turn with media, by the kind of medium."""

TASK_TEMPLATE = "rollout.task"
"""The prompt template of samples after those of the task before, among those of ``rollout.prompt_templates``."""

MAX_RATE = 768_000
"""The highest allowed sampling rate of audio, in Hz: four times that of common recorders."""


@dataclass(frozen=True, slots=True, eq=False)
class Audio:
    """A waveform.

    Attributes:
        values: (channels, samples) float32 on the CPU, in [-1, 1], at least one channel and one sample.
        sampling_rate: samples per second and channel, Hz.

    Raises: DataError for values of another shape, dtype or range, and for an invalid rate.
    """

    values: Tensor
    sampling_rate: int

    def __post_init__(self) -> None:
        values, rate = self.values, self.sampling_rate
        if not isinstance(values, torch.Tensor) or values.dtype != torch.float32 or values.device.type != "cpu":
            raise DataError(f"Audio.values must be a float32 tensor on the CPU, got {_kind_of(values)}")
        if values.ndim != 2 or 0 in values.shape:
            raise DataError(
                f"Audio.values must be (channels, samples), at least one of each, got {tuple(values.shape)}"
            )
        if values.requires_grad or not bool((values.abs() <= 1).all()):
            raise DataError("Audio.values must be numbers from -1 to 1, without a gradient; clamp them")
        if isinstance(rate, bool) or not isinstance(rate, int) or not 0 < rate <= MAX_RATE:
            raise DataError(f"Audio.sampling_rate must be an integer of 1 to {MAX_RATE} Hz, got {rate!r}")

    @property
    def duration_s(self) -> float:
        """Duration in seconds."""
        return self.values.shape[1] / self.sampling_rate


@dataclass(frozen=True, slots=True, eq=False)
class Video(Sequence[Any]):
    """The frames of a video with their rate, in place of a list of frames.

    Attributes:
        frames: the frames, at least one, each in a form that ``mmgrpo.data.image_loading.load_image`` opens.
        frame_rate: frames per second.

    Raises: DataError for no frames, and for a rate that is no positive number.
    """

    frames: Sequence[Any]
    frame_rate: float

    def __post_init__(self) -> None:
        rate = self.frame_rate
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
            raise DataError(f"Video.frame_rate must be a positive number of frames per second, got {rate!r:.60}")
        if not isinstance(self.frames, Sequence) or isinstance(self.frames, str | bytes) or not len(self.frames):
            raise DataError(f"Video.frames must be a list of at least one frame, got {type(self.frames).__name__}")

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: Any) -> Any:
        return Video(self.frames[index], self.frame_rate) if isinstance(index, slice) else self.frames[index]

    @property
    def duration_s(self) -> float:
        """Duration in seconds."""
        return len(self.frames) / self.frame_rate


def _kind_of(value: object) -> str:
    return f"{value.dtype} on {value.device}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """Input of a policy, with the columns that rewards may need.

    Attributes:
        text: the prompt as text.
        images: input images (an image to edit, the image of a question).
        videos: input videos, each a sequence of frames, a ``Video``, a path or the bytes of a file.
        audios: input audio, each an ``Audio``, a path, or another form that ``mmgrpo.data.audio_loading`` opens.
        messages: the prompt as chat messages, for models that take turns instead of one text.
        negative: the negative prompt of classifier-free guidance; None leaves the pipeline's default.
        columns: further columns of the data row, passed to every reward unchanged.
        source: label of the data source, if there are several.
        prefix: the beginning of the answer, for policies that write text: forced, never sampled, never trained.
        chat_template_kwargs: arguments of the row for the chat template: ``tools``, the schemas of functions, and
            others by the template's own names.
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

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Its text and media as the parts of one chat message: all images, all videos, all audio, the text."""
        media = [{"type": kind} for kind, name in MEDIA.items() for _ in range(len(getattr(self, name)))]
        return [*media, {"type": "text", "text": self.text}]


@dataclass(frozen=True, slots=True)
class Example:
    """One row of supervised data: a prompt and its target.

    Attributes:
        prompt: the prompt.
        text: the target text, for policies that write text.
        image: the target image, for policies that generate images.
        video: the target video as a list of frames.
        audio: the target audio.
        array: the target in any other form: actions of a robot, an embedding.
        finished: whether the text ends there; if not, the end token is not trained.
    """

    prompt: Prompt
    text: str | None = None
    image: Image.Image | None = None
    video: Sequence[Image.Image] | None = None
    finished: bool = True
    audio: Audio | None = None
    array: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """An observation: a turn of the environment.

    Attributes:
        text: text of the turn; an empty text without media ends the conversation.
        images: images of the turn, in the forms of ``Prompt.images``.
        videos: its videos.
        audios: its audio.
        reward: reward of the policy's last turn; None: no reward.
        done: whether the conversation ends; the policy then does not see this turn.
        role: role of the turn in the model's chat template.
        key: identifies the state that the turn leads to, so that turns taken in one state can be compared; None: the
            text identifies it.
        tools: of the turn of ``reset``: functions that the policy may call, each ``{"type": "function", "function":
            SCHEMA}``; the chat template describes them, or without such a template a text after the prompt.
        results: of an answer to calls: the result of each; ``text`` and the media are those of all results.
    """

    text: str = ""
    images: Sequence[Any] = ()
    videos: Sequence[Any] = ()
    audios: Sequence[Any] = ()
    reward: float | None = None
    done: bool = False
    role: str = "user"
    key: str | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    results: Sequence[ToolResult] = ()

    @property
    def ends(self) -> bool:
        """Whether the conversation ends with this turn."""
        return self.done or not (self.text or self.num_media or self.tools or self.results)

    @property
    def result_turns(self) -> list[Turn]:
        """The text and the media of each result, a turn each."""
        media = {name: iter(getattr(self, name)) for name in MEDIA.values()}
        counts = [{name: getattr(result, f"num_{name}") for name in media} for result in self.results]
        parts: list[dict[str, Any]] = [
            {name: list(islice(media[name], number)) for name, number in count.items()} for count in counts
        ]
        return [Turn(text=r.text, role=self.role, **part) for r, part in zip(self.results, parts, strict=True)]

    @property
    def num_media(self) -> int:
        """Number of its images, videos and audio."""
        return sum(len(getattr(self, name)) for name in MEDIA.values())

    @property
    def state(self) -> str | None:
        """Identifier of the state; None (unknown) for a turn with media and without a key."""
        if self.key is not None or self.num_media:
            return self.key
        return self.text


def joined_media(sources: Sequence[Prompt | Turn]) -> dict[str, Any]:
    """The media of prompts and turns, in order, by the name of the field.

    Args:
        sources: the prompts and turns.

    Returns:
        A list of media for each kind; an empty one for a kind without any.
    """
    return {name: [medium for source in sources for medium in getattr(source, name)] for name in MEDIA.values()}


@dataclass(frozen=True, slots=True, eq=False)
class EnvironmentHandle:
    """The object of a conversation's environment, which stays in the process that sampled it.

    Attributes:
        instance: ``Environment.instance``; None in another process, and after pickling.
    """

    instance: Any = None

    def __reduce__(self) -> tuple[type[EnvironmentHandle], tuple[()]]:
        return EnvironmentHandle, ()


TURNS = ("turn_starts", "turn_ends", "turn_texts", "turn_rewards", "turn_keys")
"""The fields of a sample with a number or a text per turn of a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplerSteps:
    """The steps of a sampler without noise, from the initial noise to the sample.

    Attributes:
        state_T: (T, 1, ...) the state before each step, on the CPU.
        clean_T: (T, 1, ...) float32, the clean sample that the network predicted in it.
        level_T: noise level before each step.
        end_level: noise level after the last one.
    """

    state_T: Tensor
    clean_T: Tensor
    level_T: Sequence[float]
    end_level: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One generation, as a reward sees it.

    Attributes:
        prompt: its prompt.
        group: integer identity of the prompt within the step; members of one group share it.
        member: position within the group, 0 <= member < group size.
        text: generated text, if the policy writes text, including a forced beginning of the answer.
        image: generated image, if the policy generates images.
        video: generated video as a list of frames.
        frame_rate: frame rate of the video, in frames per second; None if unknown.
        audio: generated audio; in addition to the video if a pipeline generates both.
        array: a generation in any other form: an embedding, actions of a robot, audio of unknown rate; float32, CPU.
        latent: the final latent of a denoiser that the sample is decoded from, (1, ...) on the CPU, if the plan
            keeps it: the state after the last step, in the layout of the pipeline's scheduler (FLUX: packed tokens).
        latent_size: the arguments of the pipeline's call that set the size it decodes to: ``width``, ``height``,
            ``num_frames``, or the length of audio.
        sampler_steps: the steps to the latent, if the policy keeps them for states that are renoised and trained on.
        tokens: generated token ids, if the decisions are tokens.
        finished: False if the generation was cut off by its length limit, or is partial.
        is_partial: whether it is unfinished at this step and continues at the next one: no reward is called with it.
        logprob: mean log-probability of its decisions under the behavior policy, in nats; None if unknown.
        values: requested means over its decisions, by name (``Plan.sample_values``): ``certainty``, KL(uniform ||
            policy), and ``entropy``, both in nats.
        num_forced: number of leading tokens that were forced, not sampled.
        turn_starts: first token of each turn of a conversation that the policy wrote; empty: no conversation.
        turn_ends: one past the last token of each turn.
        turn_texts: text of each turn.
        turn_rewards: the environment's reward for each turn; None: no reward.
        turn_keys: key of the state before each turn: set by the environment, else its text; None if unknown.
        turn_replies: the environment's answer to each turn, with its text and media; None: the turn was cut off.
        turn_contents: text of each turn without its calls of tools, as the response template of the tokenizer reads it;
            None: it reads none. Empty for rows of another step.
        prompt_template: name of the prompt template that the sample was generated under; None: the unchanged prompt.
        after: group and member of each sample of the step that its prompt contains the text of; empty: none.
        environment_error: error of the environment of its conversation: no reward scores it; None: no error.
        environment: the environment of its conversation, for rewards that read its state; None: no conversation.
        failure: why the sample is not a result of the policy (pixels that are not finite, an image that a safety
            checker replaced): no reward is called with it; None: it is valid.
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
    turn_replies: Sequence[Turn | None] = ()
    turn_contents: Sequence[str | None] = ()
    prompt_template: str | None = None
    after: Sequence[tuple[int, int]] = ()
    environment_error: str | None = None
    environment: EnvironmentHandle | None = field(default=None, compare=False, repr=False)
    audio: Audio | None = None
    failure: str | None = None
    is_partial: bool = False
    latent_size: Mapping[str, float] = field(default_factory=dict)
    sampler_steps: SamplerSteps | None = field(default=None, compare=False, repr=False)

    @property
    def is_scored(self) -> bool:
        """Whether rewards are called with it: it is complete, and has neither a failure nor an environment error."""
        return self.failure is None and self.environment_error is None and not self.is_partial

    @property
    def is_truncated(self) -> bool:
        """Whether it was cut off by its length limit."""
        return not self.finished and not self.is_partial

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the policy wrote: of a conversation, those of its turns; 0 without tokens."""
        if self.turn_ends:
            return sum(self.turn_ends) - sum(self.turn_starts)
        return len(self.tokens or ())

    @property
    def follows(self) -> Sequence[tuple[int, int]]:
        """``after``, if the samples there are of the same task; empty if they are of the task before."""
        return () if self.prompt_template == TASK_TEMPLATE else self.after

    @property
    def identity(self) -> tuple[int, int]:
        """Its group and member, as in ``after``."""
        return self.group, self.member

    @property
    def tool_results(self) -> list[ToolResult]:
        """The results of the calls of its conversation, in order; those of a turn that was cut off are not known."""
        return [result for reply in self.turn_replies if reply is not None for result in reply.results]

    @property
    def turn_spans(self) -> list[tuple[int, int] | None]:
        """First character and one past the last of each turn in ``text``; None for turns that are not in it as they
        are, such as empty ones.
        """
        spans: list[tuple[int, int] | None] = []
        searched = 0
        for text in self.turn_texts:
            start = (self.text or "").find(text, searched) if text else -1
            spans.append(None if start < 0 else (start, start + len(text)))
            searched = searched if start < 0 else start + len(text)
        return spans

    @property
    def turns(self) -> dict[str, Any]:
        """Its fields ``TURNS`` by name; empty without a conversation."""
        return {name: list(getattr(self, name)) for name in TURNS} if self.turn_ends else {}

    @property
    def certainty(self) -> float:
        """Raises AttributeError with the new location of this value."""
        raise AttributeError(
            'sample.certainty was moved: use sample.values["certainty"], with "certainty" in Plan.sample_values'
        )
