"""Serialization of samples between reward client and server: JSON with PNG, or safetensors; nothing is unpickled.

A request is one JSON document, ``ScoreRequest``. Images are PNG in base64 and audio is float32 in base64, or both name
tensors; then the body is a safetensors file whose metadata hold the document under ``request``.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from mmgrpo.data.audio_loading import load_audio
from mmgrpo.data.image_loading import load_image
from mmgrpo.environment import Turn
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.samples import TURNS, ToolResult
from mmgrpo.serving.wire_media import (
    DTYPES,
    Array,
    MediaReader,
    WireAudio,
    WireClip,
    WireImage,
    WireValues,
    WireVideo,
    packed_audio,
    packed_clip,
    packed_image,
    packed_values,
    packed_video,
)
from mmgrpo.serving.wire_media import MIN_PIXELS as MIN_PIXELS
from mmgrpo.types import Prompt, Sample

JSON = "application/json"
SAFETENSORS = "application/x-safetensors"
MAX_PIXELS = 2**27
"""Maximum total pixels of the images of one request."""
MAX_VALUES = 2**21
"""Maximum number of commas and opening brackets in the JSON of a request or response, which bounds its memory."""
MAX_SAMPLES = 2**16

Form = Literal["tensors", "png"]
_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _finite(value: JsonValue) -> JsonValue:
    """The value, if JSON can represent it: pydantic allows NaN and infinity in a ``JsonValue``."""
    json.dumps(value, allow_nan=False)
    return value


Finite = Annotated[JsonValue, AfterValidator(_finite)]


class WirePrompt(BaseModel):
    """A ``Prompt``."""

    model_config = _STRICT

    text: str
    columns: dict[str, Finite] = Field(default_factory=dict)
    negative: str | None = None
    prefix: str | None = None
    messages: list[dict[str, Finite]] | None = None
    images: list[WireImage] = Field(default_factory=list)
    videos: list[WireVideo | WireClip] = Field(default_factory=list)
    audios: list[WireAudio] = Field(default_factory=list)


class WireToolResult(BaseModel):
    """A ``ToolResult``."""

    model_config = _STRICT

    name: str
    text: str
    num_images: int = 0
    num_videos: int = 0
    num_audios: int = 0
    failed: bool = False
    seconds: float = 0.0
    arguments: dict[str, Finite] = Field(default_factory=dict)


class WireTurn(BaseModel):
    """A ``Turn`` of an environment."""

    model_config = _STRICT

    text: str = ""
    role: str = "user"
    images: list[WireImage] = Field(default_factory=list)
    videos: list[WireVideo | WireClip] = Field(default_factory=list)
    audios: list[WireAudio] = Field(default_factory=list)
    reward: float | None = None
    done: bool = False
    key: str | None = None
    results: list[WireToolResult] = Field(default_factory=list)


class WireSample(BaseModel):
    """A ``Sample``; ``prompt`` is its index in the list of prompts."""

    model_config = _STRICT

    prompt: int = Field(ge=0)
    group: int = 0
    member: int = 0
    text: str | None = None
    image: WireImage | None = None
    video: WireVideo | None = None
    audio: WireAudio | None = None
    frame_rate: float | None = None
    array: WireValues | None = None
    tokens: list[int] | None = None
    finished: bool = True
    logprob: float | None = None
    values: dict[str, float] = Field(default_factory=dict)
    num_forced: int = 0
    turn_starts: list[int] = Field(default_factory=list)
    turn_ends: list[int] = Field(default_factory=list)
    turn_texts: list[str] = Field(default_factory=list)
    turn_rewards: list[float | None] = Field(default_factory=list)
    turn_keys: list[str | None] = Field(default_factory=list)
    turn_replies: list[WireTurn | None] = Field(default_factory=list)


class ScoreRequest(BaseModel):
    """The samples to score and the name of the reward; None selects the only served reward."""

    model_config = _STRICT

    reward: str | None = None
    prompts: list[WirePrompt] = Field(max_length=MAX_SAMPLES)
    samples: list[WireSample] = Field(max_length=MAX_SAMPLES)


class WireScope(BaseModel):
    """A ``Scope``; ``failed`` marks a number that is not finite."""

    model_config = _STRICT

    start: int = Field(ge=0)
    end: int
    value: float | None = None
    failed: bool = False


class ScoreResponse(BaseModel):
    """The scores of a request.

    Attributes:
        values: one per sample, in order; None where the reward does not apply or failed.
        failed: indices of the samples that it failed on.
        explanations: one per sample or None, if the reward explains any sample.
        scopes: scopes of each sample or None, if the reward returns any.
        error: the exception that it raised, if any.
    """

    model_config = _STRICT

    values: list[float | None]
    failed: list[int] = Field(default_factory=list)
    explanations: list[dict[str, Finite] | None] | None = None
    scopes: list[list[WireScope] | None] | None = None
    error: str | None = None


def token_of(variable: str | None) -> str | None:
    """Read the bearer token from an environment variable; None without a variable.

    Raises ConfigError if the variable is empty, or the token is not valid in a header.
    """
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token:
        raise ConfigError(f"the environment variable {variable} for the bearer token is not set")
    if not (token.isascii() and token.isprintable()):
        raise ConfigError(f"the bearer token in {variable} must be printable ASCII, as HTTP headers require")
    return token


def pack_samples(
    samples: Sequence[Sample],
    *,
    reward: str | None = None,
    form: Form = "tensors",
    columns: Sequence[str] | None = None,
) -> tuple[bytes, str]:
    """Serialize samples as the body of a request; returns its content type too. Lone surrogates become question marks.

    Args:
        samples: the samples to score.
        reward: name of the served reward.
        form: encoding of images; images that no array represents exactly, such as palette images, are always PNG.
        columns: columns of the prompts to send; None: all.

    Returns:
        The body and ``JSON`` or ``SAFETENSORS``.

    Raises:
        DataError: a value that neither JSON nor PNG can represent.
    """
    tensors: dict[str, Array] | None = {} if form == "tensors" else None
    prompts = list({id(sample.prompt): sample.prompt for sample in samples}.values())
    prompt_index = {id(prompt): number for number, prompt in enumerate(prompts)}
    document = {
        "reward": reward,
        "prompts": [_packed_prompt(prompt, columns, tensors) for prompt in prompts],
        "samples": [_packed_sample(sample, prompt_index[id(sample.prompt)], tensors) for sample in samples],
    }
    try:
        text = json.dumps(document, allow_nan=False, ensure_ascii=False).encode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"a prompt or sample has a value that JSON cannot represent ({error}); list the columns to send in columns"
        ) from error
    if not tensors:
        return text, JSON
    return save(tensors, metadata={"request": text.decode()}), SAFETENSORS


def unpack_request(body: bytes, content_type: str, *, max_pixels: int = MAX_PIXELS) -> tuple[str | None, list[Sample]]:
    """Deserialize a request.

    Args:
        body: as ``pack_samples`` returns it.
        content_type: likewise.
        max_pixels: maximum total pixels of the images; each counts as at least ``MIN_PIXELS``.

    Returns:
        The name of the reward or None, and the samples; samples of one prompt share the object.

    Raises:
        DataError: the request is invalid.
    """
    tensors: Mapping[str, Array] = {}
    if content_type == SAFETENSORS:
        body, tensors = _opened_safetensors(body)
    elif content_type != JSON:
        raise DataError(f"the content type must be {JSON} or {SAFETENSORS}, not {content_type[:80]!r}")
    else:
        check_values(body)
    try:
        request = ScoreRequest.model_validate_json(body)
    except (ValidationError, RecursionError) as error:
        raise DataError(f"no request to score: {_first_problem(error)}") from None
    reader = _Reader(MediaReader(tensors, max_pixels))
    prompts = [reader.prompt(prompt) for prompt in request.prompts]
    wrong = [sample.prompt for sample in request.samples if sample.prompt >= len(prompts)]
    if wrong:
        raise DataError(f"a sample refers to prompt {wrong[0]}, but there are {len(prompts)}")
    return request.reward, [reader.sample(sample, prompts[sample.prompt]) for sample in request.samples]


def _packed_prompt(prompt: Prompt, columns: Sequence[str] | None, tensors: dict[str, Array] | None) -> dict[str, Any]:
    sent_columns = prompt.columns if columns is None else {n: prompt.columns[n] for n in columns if n in prompt.columns}
    return {
        "text": prompt.text,
        "columns": dict(sent_columns),
        "negative": prompt.negative,
        "prefix": prompt.prefix,
        "messages": None if prompt.messages is None else [dict(message) for message in prompt.messages],
        "images": [packed_image(load_image(image), tensors) for image in prompt.images],
        "videos": [packed_clip(video, tensors) for video in prompt.videos],
        "audios": [packed_audio(load_audio(sound), tensors) for sound in prompt.audios],
    }


def _packed_sample(sample: Sample, prompt: int, tensors: dict[str, Array] | None) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "group": sample.group,
        "member": sample.member,
        "text": sample.text,
        "image": None if sample.image is None else packed_image(sample.image, tensors),
        "video": None if sample.video is None else packed_video(sample.video, tensors),
        "audio": None if sample.audio is None else packed_audio(sample.audio, tensors),
        "frame_rate": sample.frame_rate,
        "array": None if sample.array is None else packed_values(sample.array, tensors),
        "tokens": None if sample.tokens is None else [int(token) for token in sample.tokens],
        "finished": sample.finished,
        "logprob": sample.logprob,
        "values": dict(sample.values),
        "num_forced": sample.num_forced,
        **sample.turns,
        "turn_replies": [None if reply is None else _packed_turn(reply, tensors) for reply in sample.turn_replies],
    }


def _packed_turn(turn: Turn, tensors: dict[str, Array] | None) -> dict[str, Any]:
    return {
        "text": turn.text,
        "role": turn.role,
        "images": [packed_image(load_image(image), tensors) for image in turn.images],
        "videos": [packed_clip(video, tensors) for video in turn.videos],
        "audios": [packed_audio(load_audio(audio), tensors) for audio in turn.audios],
        "reward": turn.reward,
        "done": turn.done,
        "key": turn.key,
        "results": [asdict(result) for result in turn.results],
    }


def _opened_safetensors(body: bytes) -> tuple[bytes, Mapping[str, Array]]:
    """Read the document and the tensors of a safetensors file."""
    try:
        (length,) = struct.unpack_from("<Q", body)
        header = body[8 : 8 + length]
        check_values(header)
        tensors = load(body)
        document = json.loads(header)["__metadata__"]["request"].encode()
    except DataError:
        raise
    except (SafetensorError, KeyError, TypeError, AttributeError, ValueError, struct.error, RecursionError) as error:
        raise DataError(f"no safetensors file with metadata 'request': {type(error).__name__}: {error}") from None
    wrong = [name for name, tensor in tensors.items() if tensor.dtype not in DTYPES]
    if wrong:
        raise DataError(
            f"tensors must be uint8, or float32 for audio and arrays; {wrong[0][:80]!r} is {tensors[wrong[0]].dtype}"
        )
    return document, tensors


def check_values(document: bytes) -> None:
    """Raise DataError for JSON with so many elements that its objects would exhaust the memory."""
    if sum(document.count(mark) for mark in (b",", b"[", b"{")) > MAX_VALUES:
        raise DataError(f"the JSON has more than {MAX_VALUES} parts; send smaller batches")


class _Reader(NamedTuple):
    """Builds samples from a request."""

    media: MediaReader

    def prompt(self, prompt: WirePrompt) -> Prompt:
        return Prompt(
            prompt.text,
            images=tuple(self.media.image(image) for image in prompt.images),
            videos=tuple(self.media.clip(video) for video in prompt.videos),
            audios=tuple(self.media.audio(sound) for sound in prompt.audios),
            messages=prompt.messages,
            negative=prompt.negative,
            columns=prompt.columns,
            prefix=prompt.prefix,
        )

    def turn(self, turn: WireTurn) -> Turn:
        return Turn(
            text=turn.text,
            role=turn.role,
            images=[self.media.image(image) for image in turn.images],
            videos=[self.media.clip(video) for video in turn.videos],
            audios=[self.media.audio(audio) for audio in turn.audios],
            reward=turn.reward,
            done=turn.done,
            key=turn.key,
            results=[ToolResult(**result.model_dump()) for result in turn.results],
        )

    def sample(self, sample: WireSample, prompt: Prompt) -> Sample:
        return Sample(
            prompt,
            group=sample.group,
            member=sample.member,
            text=sample.text,
            image=None if sample.image is None else self.media.image(sample.image),
            video=None if sample.video is None else self.media.video(sample.video),
            audio=None if sample.audio is None else self.media.audio(sample.audio),
            frame_rate=sample.frame_rate,
            array=None if sample.array is None else self.media.values(sample.array),
            tokens=sample.tokens,
            finished=sample.finished,
            logprob=sample.logprob,
            values=sample.values,
            num_forced=sample.num_forced,
            **{name: getattr(sample, name) for name in TURNS},
            turn_replies=[None if turn is None else self.turn(turn) for turn in sample.turn_replies],
        )


def _first_problem(error: ValidationError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(map(str, problem['loc'])) or 'document'}: {problem['msg']}"[:500]
