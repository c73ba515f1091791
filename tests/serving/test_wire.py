"""Samples as bytes: they arrive unchanged, and other bytes are an error."""

from __future__ import annotations

import base64
import json
import random
import struct
from dataclasses import replace
from io import BytesIO
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save

from mmgrpo.environment import Turn
from mmgrpo.errors import DataError
from mmgrpo.samples import Video
from mmgrpo.serving.wire import JSON, MIN_PIXELS, SAFETENSORS, Form, pack_samples, unpack_request
from mmgrpo.tool_calls import ToolResult
from mmgrpo.types import Prompt, Sample

FORMS = get_args(Form)
TURNS: dict[str, Any] = {
    "turn_starts": [0, 2],
    "turn_ends": [1, 3],
    "turn_texts": ["a", "b"],
    "turn_rewards": [None, 0.5],
    "turn_keys": ["cell 3", None],
}


def noise(mode: str, size: tuple[int, int] = (5, 3), seed: int = 0) -> Image.Image:
    """An image with every kind of value; the modes with a palette or of one bit by conversion."""
    pixels = np.random.RandomState(seed).randint(0, 256, size=(size[1], size[0], 4)).astype(np.uint8)
    return (Image.fromarray(pixels[..., :3].copy()) if mode == "P" else Image.fromarray(pixels)).convert(mode)


def same(first: Image.Image, second: Image.Image) -> bool:
    return first.mode == second.mode and first.size == second.size and first.tobytes() == second.tobytes()


@pytest.mark.parametrize("form", FORMS)
def test_everything_arrives(form: Form):
    columns = {"answer": 7, "box": [0.1, 1e-300], "nested": {"\u00e9": [None, True, "\u4e2d\x00"]}}
    prompt = Prompt(
        "which ?",
        images=(noise("RGB", seed=1),),
        videos=((noise("RGB", seed=2), noise("RGB", seed=3)), Video([noise("RGB", seed=5)], 12.5)),
        messages=[{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "which ?"}]}],
        negative="blur",
        columns=columns,
        prefix="it is",
    )
    samples = [
        Sample(
            prompt,
            3,
            0,
            text="a\n\u2028b",
            tokens=(5, 0, 123456),
            finished=False,
            logprob=-0.1,
            values={"certainty": 1 / 3},
            num_forced=2,
            **TURNS,
        ),
        Sample(prompt, 3, 1, image=noise("RGB")),
        Sample(Prompt("other"), 4, 0, video=[noise("L", seed=i) for i in range(3)], frame_rate=12.5),
        Sample(Prompt("other"), 5, 0, array=torch.linspace(0, 1, 30).reshape(2, 3, 5)),
    ]
    results = [ToolResult("zoom", "look", num_images=1, seconds=0.25, arguments={"box": [0, 1]})]
    replies = [
        Turn(
            text="look",
            images=[noise("RGB", seed=4)],
            videos=[Video([noise("RGB", seed=6), noise("RGB", seed=7)], 4.0)],
            reward=0.5,
            role="tool",
            key="k",
            results=results,
        ),
        None,
    ]
    samples[0] = replace(samples[0], turn_replies=replies)
    name, unpacked = unpack_request(*pack_samples(samples, reward="r", form=form))
    assert name == "r"
    assert [(s.group, s.member, s.text, s.finished) for s in unpacked] == [
        (3, 0, "a\n\u2028b", False), (3, 1, None, True), (4, 0, None, True), (5, 0, None, True),
    ]  # fmt: skip
    assert (unpacked[0].tokens, unpacked[0].logprob, unpacked[0].values, unpacked[0].num_forced) == (
        [5, 0, 123456],
        -0.1,
        {"certainty": 1 / 3},
        2,
    )
    assert [(s.frame_rate, s.array is None) for s in unpacked] == [
        (None, True),
        (None, True),
        (12.5, True),
        (None, False),
    ]
    assert torch.equal(unpacked[3].array, samples[3].array)  # pyrefly: ignore[bad-argument-type]
    assert {name: getattr(unpacked[0], name) for name in TURNS} == TURNS
    reply, missing = unpacked[0].turn_replies
    assert reply is not None
    assert missing is None
    assert (reply.text, reply.role, reply.reward, reply.key, reply.done) == ("look", "tool", 0.5, "k", False)
    assert reply.results == results
    assert reply.results[0].seconds == 0.25
    assert same(reply.images[0], noise("RGB", seed=4))
    (clip,) = reply.videos
    assert isinstance(clip, Video)
    assert clip.frame_rate == 4.0
    assert [same(a, b) for a, b in zip(clip, (noise("RGB", seed=6), noise("RGB", seed=7)), strict=True)] == [True, True]
    assert unpacked[0].prompt is unpacked[1].prompt
    read = unpacked[0].prompt
    assert (read.text, read.negative, read.columns, read.prefix) == ("which ?", "blur", columns, "it is")
    assert read.messages == prompt.messages
    assert same(read.images[0], prompt.images[0])
    assert [same(a, b) for a, b in zip(read.videos[0], prompt.videos[0], strict=True)] == [True, True]
    assert not isinstance(read.videos[0], Video)
    assert isinstance(read.videos[1], Video)
    assert read.videos[1].frame_rate == 12.5
    assert same(read.videos[1][0], noise("RGB", seed=5))
    assert unpacked[1].image is not None
    assert samples[1].image is not None
    assert same(unpacked[1].image, samples[1].image)
    assert [same(a, b) for a, b in zip(unpacked[2].video or (), samples[2].video or (), strict=True)] == [True] * 3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA"])
def test_images_of_every_mode_arrive_exactly(mode: str, form: Form):
    image = noise(mode)
    _, (unpacked,) = unpack_request(*pack_samples([Sample(Prompt("x"), 0, 0, image=image)], form=form))
    assert unpacked.image is not None
    assert same(unpacked.image, image)
    assert unpacked.image.getpalette() == image.getpalette()


@pytest.mark.parametrize("form", FORMS)
def test_frames_of_different_sizes_arrive(form: Form):
    video = [noise("RGB", (4, 4)), noise("RGB", (2, 3)), noise("P")]
    _, (unpacked,) = unpack_request(*pack_samples([Sample(Prompt("x"), 0, 0, video=video)], form=form))
    assert [same(a, b) for a, b in zip(unpacked.video or (), video, strict=True)] == [True] * 3


def test_a_transparent_color_arrives():
    image = noise("RGB")
    image.info["transparency"] = (1, 2, 3)
    _, (unpacked,) = unpack_request(*pack_samples([Sample(Prompt("x"), 0, 0, image=image)]))
    assert unpacked.image is not None
    assert unpacked.image.info["transparency"] == (1, 2, 3)


def test_content_types_and_columns():
    sample = Sample(Prompt("x", columns={"a": 1, "b": object()}), 0, 0, text="t")
    body, content_type = pack_samples([sample], columns=["a", "c"])
    assert content_type == JSON
    assert json.loads(body)["prompts"][0]["columns"] == {"a": 1}
    assert pack_samples([Sample(Prompt("x"), 0, 0, image=noise("RGB"))])[1] == SAFETENSORS
    assert pack_samples([Sample(Prompt("x"), 0, 0, image=noise("RGB"))], form="png")[1] == JSON
    with pytest.raises(DataError, match="list the columns to send"):
        pack_samples([sample])
    with pytest.raises(DataError, match=r"film.mp4 cannot be opened as a video"):
        pack_samples([Sample(Prompt("x", videos=("film.mp4",)), 0, 0, text="t")])
    with pytest.raises(DataError, match="mode CMYK cannot be saved as PNG"):
        pack_samples([Sample(Prompt("x"), 0, 0, image=noise("RGB").convert("CMYK"))])


def test_half_a_surrogate_pair_travels_as_a_question_mark():
    _, (unpacked,) = unpack_request(*pack_samples([Sample(Prompt("x"), 0, 0, text="a\ud800b")]))
    assert unpacked.text == "a?b"


def document(**changes: Any) -> bytes:
    return json.dumps({"prompts": [{"text": "x"}], "samples": [{"prompt": 0, "text": "t"}]} | changes).encode()


def png(image: Image.Image) -> str:
    file = BytesIO()
    image.save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()


def jpeg(image: Image.Image) -> str:
    file = BytesIO()
    image.save(file, format="JPEG")
    return base64.b64encode(file.getvalue()).decode()


def test_the_plainest_request():
    name, (sample,) = unpack_request(document(), JSON)
    assert name is None
    assert (sample.prompt.text, sample.text, sample.group) == ("x", "t", 0)


HOSTILE = {
    "empty": (b"", "Invalid JSON"),
    "no object": (b"[]", "document"),
    "not JSON": (b"\x80\x04\x95\x10.", "Invalid JSON"),
    "nested": (b"[" * 1_000_000, "Invalid JSON"),
    "nested column": (document(prompts=[{"text": "x", "columns": {"a": 0}}]).replace(b"0}}", b"[" * 99_999), "Inv"),
    "long number": (b'{"prompts": [{"text": "x"}], "samples": [{"prompt": 1' + b"0" * 100_000 + b"}]}", "number"),
    "not UTF-8": (b'{"prompts": [{"text": "\xe9"}], "samples": []}', "Invalid JSON"),
    "half a surrogate pair": (b'{"prompts": [{"text": "\\ud800"}], "samples": []}', "Invalid JSON"),
    "NaN in a column": (document(prompts=[{"text": "x", "columns": {"a": [float("nan")]}}]), "columns.a: .*not JSON"),
    "infinity": (document(prompts=[{"text": "x", "columns": {"a": 7}}]).replace(b"7", b"1e999"), "columns.a: .*JSON"),
    "too many parts": (b'{"prompts": [], "samples": [' + b"[]," * 2**20 + b"1]}", "more than 2097152 parts"),
    "too many samples": (document(samples=[{"prompt": 0}] * (2**16 + 1)), "samples: .*at most 65536"),
    "NaN": (b'{"prompts": [], "samples": [{"prompt": 0, "logprob": NaN}]}', "logprob"),
    "unknown key": (document(pickle="gASV"), "pickle"),
    "no such prompt": (document(samples=[{"prompt": 1}]), "refers to prompt 1, but there are 1"),
    "negative prompt": (document(samples=[{"prompt": -1}]), "prompt"),
    "wrong type": (document(samples=[{"prompt": 0, "tokens": "abc"}]), "tokens"),
    "no base64": (document(samples=[{"prompt": 0, "image": "%%%"}]), "not a PNG"),
    "no image": (document(samples=[{"prompt": 0, "image": "AAAA"}]), "not a PNG"),
    "a JPEG": (document(samples=[{"prompt": 0, "image": jpeg(Image.new("L", (2, 2)))}]), "not a PNG"),
    "a bomb": (document(samples=[{"prompt": 0, "image": png(Image.new("1", (4000, 3000)))}] * 9), "pixel limit"),
    "cut off": (document(samples=[{"prompt": 0, "image": png(noise("RGB", (99, 99)))[:4000]}]), "not a PNG"),
    "no tensor": (document(samples=[{"prompt": 0, "image": {"tensor": "a"}}]), "no tensor 'a'"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_invalid_requests_are_rejected(name: str):
    body, reason = HOSTILE[name]
    with pytest.raises(DataError, match=reason):
        unpack_request(body, JSON, max_pixels=10**8)


def safetensors_of(array: Any, **changes: Any) -> bytes:
    text = document(samples=[{"prompt": 0, "image": {"tensor": "a"}} | changes]).decode()
    return save({"a": array}, metadata={"request": text})


NAMED = {"prompt": 0, "image": {"tensor": "a"}}
BYTES = np.zeros((2, 3), np.uint8)
HOSTILE_TENSORS = {
    "empty": (b"", "no safetensors"),
    "a lie about the length": (struct.pack("<Q", 2**62) + b"{}", "no safetensors"),
    "not JSON": (struct.pack("<Q", 4) + b"\x80\x04\x95.", "no safetensors"),
    "no metadata": (save({"a": BYTES}), "no safetensors file with metadata"),
    "cut off": (safetensors_of(BYTES)[:-1], "no safetensors"),
    "floats": (safetensors_of(BYTES.astype(np.float32)), "must be uint8; 'a' is float32"),
    "one axis": (safetensors_of(np.zeros(4, np.uint8)), r"got \(4,\)"),
    "five channels": (safetensors_of(np.zeros((2, 2, 5), np.uint8)), r"got \(2, 2, 5\)"),
    "no pixels": (safetensors_of(np.zeros((0, 2), np.uint8)), r"got \(0, 2\)"),
    "a bomb of frames": (safetensors_of(np.zeros((2**16, 1, 1), np.uint8), image=None, video={"tensor": "a"}), "limit"),
    "too many parts": (save({"a": BYTES}, metadata={"request": "[" * 2**21}), "more than 2097152 parts"),
    "a picture for a video": (safetensors_of(BYTES, image=None, video={"tensor": "a"}), "a video must be"),
}


@pytest.mark.parametrize("name", HOSTILE_TENSORS)
def test_invalid_tensors_are_rejected(name: str):
    body, reason = HOSTILE_TENSORS[name]
    with pytest.raises(DataError, match=reason):
        unpack_request(body, SAFETENSORS)


def test_a_tensor_counts_as_often_as_it_is_named():
    """A small body may name one image many times."""
    three, four = (
        save({"a": np.zeros((100, 100), np.uint8)}, metadata={"request": document(samples=[NAMED] * num).decode()})
        for num in (3, 4)
    )
    assert len(unpack_request(three, SAFETENSORS, max_pixels=30_000)[1]) == 3
    with pytest.raises(DataError, match="exceed the pixel limit of the server"):
        unpack_request(four, SAFETENSORS, max_pixels=39_999)


def test_a_tiny_image_counts_for_more():
    body = document(samples=[{"prompt": 0, "image": png(Image.new("L", (2, 2)))}] * 3)
    assert len(unpack_request(body, JSON, max_pixels=3 * MIN_PIXELS)[1]) == 3
    with pytest.raises(DataError, match="exceed the pixel limit of the server"):
        unpack_request(body, JSON, max_pixels=3 * MIN_PIXELS - 1)


def test_pickles_are_not_even_looked_at():
    for content_type in ("application/octet-stream", "application/python-pickle", "text/html" * 99):
        with pytest.raises(DataError, match="the content type must be"):
            unpack_request(b"\x80\x04", content_type)


def test_fuzz():
    """Bytes changed at random are refused or read, and raise nothing else."""
    packed, content_type = pack_samples(
        [Sample(Prompt("x"), 0, i, text="t", image=noise("RGB", seed=i)) for i in range(2)]
    )
    text, _ = pack_samples([Sample(Prompt("x", columns={"a": [1]}), 0, 0, text="t", image=noise("P"))], form="png")
    draw, refused = random.Random(0), 0
    for body, kind in [(packed, content_type), (text, JSON)] * 300:
        changed = bytearray(body)
        for _ in range(draw.randint(1, 8)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        try:
            unpack_request(bytes(changed[: draw.choice([None, len(changed) // 2])]), kind)
        except DataError:
            refused += 1
    assert refused > 300
