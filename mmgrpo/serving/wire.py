"""Samples as bytes between a reward's client and its server: JSON with PNG, or safetensors; nothing is unpickled.

A request is one JSON document, ``ScoreRequest``. Its pictures are PNG in base64, its sounds float32 in base64, or they
name tensors; then the body is a safetensors file whose metadata hold the document under ``request``.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from mmgrpo.data.media import opened
from mmgrpo.data.sounds import heard
from mmgrpo.data.videos import frames_of_video
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.samples import TURNS
from mmgrpo.serving.wire_media import (
    DTYPES,
    Array,
    MediaReader,
    Picture,
    Video,
    WireAudio,
    WireValues,
    packed_picture,
    packed_sound,
    packed_values,
    packed_video,
)
from mmgrpo.serving.wire_media import MIN_PIXELS as MIN_PIXELS
from mmgrpo.types import Prompt, Sample

JSON = "application/json"
SAFETENSORS = "application/x-safetensors"
MAX_PIXELS = 2**27
"""Pixels that the pictures of one request may have, all together."""
MAX_VALUES = 2**21
"""Commas and opening brackets in the JSON of one request or answer, which bound the memory that it unpacks to."""
MAX_SAMPLES = 2**16

Form = Literal["tensors", "png"]
_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _finite(value: JsonValue) -> JsonValue:
    """The value, if JSON can hold it: pydantic lets NaN and infinity pass in a ``JsonValue``."""
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
    images: list[Picture] = Field(default_factory=list)
    videos: list[Video] = Field(default_factory=list)
    audios: list[WireAudio] = Field(default_factory=list)


class WireSample(BaseModel):
    """A ``Sample``; ``prompt`` is its place in the list of prompts."""

    model_config = _STRICT

    prompt: int = Field(ge=0)
    group: int = 0
    member: int = 0
    text: str | None = None
    image: Picture | None = None
    video: Video | None = None
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


class ScoreRequest(BaseModel):
    """What is to be judged, and by which of the served rewards; None is the only one there is."""

    model_config = _STRICT

    reward: str | None = None
    prompts: list[WirePrompt] = Field(max_length=MAX_SAMPLES)
    samples: list[WireSample] = Field(max_length=MAX_SAMPLES)


class WireScope(BaseModel):
    """A ``Scope``; ``failed`` stands for a number that is not finite."""

    model_config = _STRICT

    start: int = Field(ge=0)
    end: int
    value: float | None = None
    failed: bool = False


class ScoreResponse(BaseModel):
    """What the reward said.

    Attributes:
        values: one per sample, in order; None where the reward does not apply or failed.
        failed: the places of those that it failed on.
        explanations: one per sample or None, if the reward explains any.
        scopes: the parts of each sample or None, if the reward says anything of any.
        error: what it raised, if it did.
    """

    model_config = _STRICT

    values: list[float | None]
    failed: list[int] = Field(default_factory=list)
    explanations: list[dict[str, Finite] | None] | None = None
    scopes: list[list[WireScope] | None] | None = None
    error: str | None = None


def token_of(variable: str | None) -> str | None:
    """The bearer token that an environment variable holds; None without a variable.

    Raises ConfigError if there is none in it, or one that no header can carry.
    """
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token:
        raise ConfigError(f"the environment variable {variable} for the bearer token is not set")
    if not (token.isascii() and token.isprintable()):
        raise ConfigError(f"the bearer token in {variable} must be printable ASCII, all that an HTTP header carries")
    return token


def packed(
    samples: Sequence[Sample],
    *,
    reward: str | None = None,
    form: Form = "tensors",
    columns: Sequence[str] | None = None,
) -> tuple[bytes, str]:
    """Samples as the body of a request, and its content type; half a surrogate pair travels as a question mark.

    Args:
        samples: what is to be judged.
        reward: which of the server's rewards is asked.
        form: how pictures travel; those that no array holds exactly, with a palette say, travel as PNG in any case.
        columns: which of the prompts' columns travel; None is all.

    Returns:
        The body and ``JSON`` or ``SAFETENSORS``.

    Raises:
        DataError: something that neither JSON nor PNG can carry.
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
            f"a prompt or sample holds what JSON cannot carry ({error}); name the columns that travel in columns"
        ) from error
    if not tensors:
        return text, JSON
    return save(tensors, metadata={"request": text.decode()}), SAFETENSORS


def unpacked(body: bytes, content_type: str, *, max_pixels: int = MAX_PIXELS) -> tuple[str | None, list[Sample]]:
    """The reward that is asked and the samples of a request.

    Args:
        body: as ``packed`` makes it.
        content_type: likewise.
        max_pixels: how many pixels the pictures may have, all together; each counts for at least ``MIN_PIXELS``.

    Returns:
        The reward's name or None, and the samples; those of one prompt share it.

    Raises:
        DataError: it is no such request.
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
        raise DataError(f"a sample names prompt {wrong[0]}, but there are {len(prompts)}")
    return request.reward, [reader.sample(sample, prompts[sample.prompt]) for sample in request.samples]


def _packed_prompt(prompt: Prompt, columns: Sequence[str] | None, tensors: dict[str, Array] | None) -> dict[str, Any]:
    sent_columns = prompt.columns if columns is None else {n: prompt.columns[n] for n in columns if n in prompt.columns}
    return {
        "text": prompt.text,
        "columns": dict(sent_columns),
        "negative": prompt.negative,
        "prefix": prompt.prefix,
        "messages": None if prompt.messages is None else [dict(message) for message in prompt.messages],
        "images": [packed_picture(opened(image), tensors) for image in prompt.images],
        "videos": [packed_video(frames_of_video(video), tensors) for video in prompt.videos],
        "audios": [packed_sound(heard(sound), tensors) for sound in prompt.audios],
    }


def _packed_sample(sample: Sample, prompt: int, tensors: dict[str, Array] | None) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "group": sample.group,
        "member": sample.member,
        "text": sample.text,
        "image": None if sample.image is None else packed_picture(sample.image, tensors),
        "video": None if sample.video is None else packed_video(sample.video, tensors),
        "audio": None if sample.audio is None else packed_sound(sample.audio, tensors),
        "frame_rate": sample.frame_rate,
        "array": None if sample.array is None else packed_values(sample.array, tensors),
        "tokens": None if sample.tokens is None else [int(token) for token in sample.tokens],
        "finished": sample.finished,
        "logprob": sample.logprob,
        "values": dict(sample.values),
        "num_forced": sample.num_forced,
        **sample.turns,
    }


def _opened_safetensors(body: bytes) -> tuple[bytes, Mapping[str, Array]]:
    """The document and the tensors of a safetensors file."""
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
            f"tensors must be uint8, or float32 of sounds and arrays; {wrong[0][:80]!r} is {tensors[wrong[0]].dtype}"
        )
    return document, tensors


def check_values(document: bytes) -> None:
    """Refuses JSON (DataError) of so many parts that its objects would fill the memory, whatever its strings weigh."""
    if sum(document.count(mark) for mark in (b",", b"[", b"{")) > MAX_VALUES:
        raise DataError(f"the JSON has more than {MAX_VALUES} parts; send smaller batches")


class _Reader(NamedTuple):
    """Makes samples of what a request says."""

    media: MediaReader

    def prompt(self, prompt: WirePrompt) -> Prompt:
        return Prompt(
            prompt.text,
            images=tuple(self.media.picture(image) for image in prompt.images),
            videos=tuple(self.media.video(video) for video in prompt.videos),
            audios=tuple(self.media.sound(sound) for sound in prompt.audios),
            messages=prompt.messages,
            negative=prompt.negative,
            columns=prompt.columns,
            prefix=prompt.prefix,
        )

    def sample(self, sample: WireSample, prompt: Prompt) -> Sample:
        return Sample(
            prompt,
            group=sample.group,
            member=sample.member,
            text=sample.text,
            image=None if sample.image is None else self.media.picture(sample.image),
            video=None if sample.video is None else self.media.video(sample.video),
            audio=None if sample.audio is None else self.media.sound(sample.audio),
            frame_rate=sample.frame_rate,
            array=None if sample.array is None else self.media.values(sample.array),
            tokens=sample.tokens,
            finished=sample.finished,
            logprob=sample.logprob,
            values=sample.values,
            num_forced=sample.num_forced,
            **{name: getattr(sample, name) for name in TURNS},
        )


def _first_problem(error: ValidationError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(map(str, problem['loc'])) or 'document'}: {problem['msg']}"[:500]
